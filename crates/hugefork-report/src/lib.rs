//! Reads results of `hugefork bench` back ([`load`]), compares two of them ([`compare()`]), and draws any number as one
//! offline page ([`report`]), as pictures alone ([`pictures`]), or as Markdown ([`measurements`], [`summary`],
//! [`highlights`]) with one picture ([`pause_picture`]).
//!
//! ```text
//! load, record                           a file, in types that stay readable
//! verdicts, verdicts_table, bootstrap    two files: ratios, intervals, verdicts
//! machines, works, headline              which figures belong beside each other
//! known, cases                           what is said of cases, metrics and subjects
//! charts, curves, policies               which charts a case gets
//! drawn, chart/                          one chart, and how it is drawn
//! facts, notes, figures                  what is said of machines, files and numbers
//! page, tables, strip, templates/        the page around it
//! gallery, png                           charts as files
//! measurements, readme                   the same as Markdown, for a repository, and its one picture
//! ```

mod bootstrap;
mod cases;
mod chart;
mod charts;
mod curves;
mod drawn;
mod facts;
mod figures;
mod gallery;
mod headline;
mod known;
mod load;
mod machines;
mod measurements;
mod notes;
mod page;
mod png;
mod policies;
mod readme;
mod record;
mod strip;
mod tables;
mod verdicts;
mod verdicts_table;
mod works;

pub use bootstrap::Interval;
pub use chart::style::Scheme;
pub use figures::{figure, with_unit};
pub use gallery::{Picture, pictures};
pub use load::{LoadError, SCHEMA, load, parse};
pub use measurements::{measurements, summary};
pub use notes::absent;
pub use page::report;
pub use png::PictureError;
pub use readme::{highlights, pause_picture};
pub use record::{Absent, Better, Cache, Curve, Entry, Host, HugetlbPool, Params, Record, Thp};
pub use verdicts::{Comparison, Lone, Row, Side, Verdict, compare};

/// The code in the README is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
