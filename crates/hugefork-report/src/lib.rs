//! Reads results of `hugefork bench` ([`load`]), compares two of them ([`compare()`]), and shows
//! any number as one offline page ([`report`]) or as Markdown ([`measurements`], [`highlights`])
//! with one picture ([`pause_picture`]).
//!
//! ```text
//! load, record       a file, as types that stay readable
//! cases              the tables: each case, picture and highlight is a row
//! work, figures      which entries belong together; numbers and words
//! compare            two files
//! draw, table, page  pictures and tables, and the page around them; templates/
//! markdown           the same for this repository's documents
//! ```

mod cases;
mod compare;
mod draw;
mod figures;
mod load;
mod markdown;
mod page;
mod record;
mod table;
mod work;

pub use compare::{Comparison, Row, Verdict, compare};
pub use figures::{figure, with_unit};
pub use load::{LoadError, SCHEMA, load, parse};
pub use markdown::{Generated, Scheme, highlights, measurements, pause_picture};
pub use page::report;
pub use record::{Absent, Better, Entry, Host, HugetlbPool, Params, Record, Thp, absent};

/// The code in the README is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
