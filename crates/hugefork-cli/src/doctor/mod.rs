//! `hugefork doctor`: what this machine offers hugefork, and the command that mends what it does not.
//!
//! ```text
//! root (/proc, /sys) ─┐
//!                     ├─▶ huge_pages limits cpu kernel container ─▶ checks ─▶ render, or JSON
//! survey (tried) ─────┘           ▲                                   │
//!                                 └───────── look again ◀── --fix ────┘
//! ```
//! A check is one function that reads what it needs below a [`Root`] and returns a line. What cannot be read but has to be tried
//! ([`machine::survey`]) is tried on the running machine only, not for a copy of another's files.

mod check;
mod container;
mod cpu;
mod fix;
mod huge_pages;
mod kernel;
mod limits;
mod render;
mod root;

use std::env;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use hugefork::machine::{self, Survey};
use hugefork_bench::Host;
use serde::Serialize;

use self::check::{Check, Status};
use self::fix::Fixes;
use self::root::Root;
use crate::bench::print;
use crate::calibration::{self, Tried};
use crate::failure::Failure;
use crate::guardian::Lock;
use crate::terminal;
use crate::tune::LOCK;

const HELP: &str = "\
Lines: pass, as good as it gets; warn, hugefork works, though not at its best; fail, it does not
work; skip, does not matter here or could not be looked at. Names stay as they are; schema 2.

--fix sets, where they are lower or off: shmem_enabled to advise (`deny` is left alone),
vm.max_map_count, and with --hugepages the pool of 2 MiB pages. Settings last until the next boot.
What it cannot set it prints as a command.

Examples:
  hugefork doctor                             what is here
  sudo hugefork doctor --fix --hugepages 512  mend it, with 1 GiB of hugetlb pages; prints the undo
  hugefork doctor --json --strict             for provisioning scripts
  hugefork doctor --root ./copy               judge a copy of another machine's /proc and /sys

Exit status: 0 looked; 1 it could not, or --fix could not set everything; 2 called wrongly;
with --strict, by the worst line: 0 pass or skip, 3 warn, 4 fail.";

/// Options of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// As root: set what can be set and undone, print how to undo it, then look again
    #[arg(long)]
    fix: bool,

    /// Ask for a hugetlb pool of at least N pages of 2 MiB; --fix grows it
    #[arg(long, value_name = "N")]
    hugepages: Option<u64>,

    /// Tell by the exit status how bad the worst line is
    #[arg(long)]
    strict: bool,

    /// Say why it matters of every line, and what was measured to choose the kernels
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,

    /// Read, and with --fix write, the proc and sys below DIR; what has to be tried is skipped
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// The layout of the JSON. 2: `group` and `why` of a check; `mend` is an object; names are identifiers.
const SCHEMA: u32 = 2;

/// What is found of what has to be tried, where nothing is tried.
const NOT_TRIED: &str = "not tried: --root";

/// Findings that belong together.
#[derive(Debug, Serialize)]
struct Group {
    name: &'static str,
    checks: Vec<Check>,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    version: &'static str,
    /// The worst of the checks.
    status: Status,
    groups: &'a [Group],
    /// What `--fix` did; null without it.
    fixes: Option<&'a Fixes>,
    /// What was tried to choose the kernels.
    calibration: &'a [Tried],
    /// Null where it is another.
    host: Option<Host>,
}

/// Looks, mends if that is asked for, prints.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let root = Root(args.root.clone().unwrap_or_else(|| PathBuf::from("/")));
    if !root.at("/proc").is_dir() {
        return Err(Failure::Usage(format!("--root {}: there is no proc in it", root.0.display())));
    }
    if let Some(pages) = args.hugepages {
        huge_pages::check_affordable(&root, pages)?;
    }
    let look = || {
        let survey = args.root.is_none().then(machine::survey);
        (look(&root, survey.as_ref(), args.hugepages), survey.as_ref().map(calibration::of).unwrap_or_default())
    };
    let (mut groups, mut calibration) = look();
    // What a bench has lent itself is not to be changed beneath it, nor put back by it. Without root nothing is changed.
    let is_for_real = args.fix && args.root.is_none() && rustix::process::geteuid().is_root();
    let lock = is_for_real.then(|| Lock::take(Path::new(LOCK), "--fix")).transpose()?;
    let fixes = args.fix.then(|| fix::apply(groups.iter().flat_map(|group| &group.checks)));
    drop(lock);
    if fixes.is_some() {
        (groups, calibration) = look();
    }
    let worst = groups.iter().flat_map(|group| &group.checks).map(|check| check.status).max().unwrap_or(Status::Skip);
    print(&if args.json {
        let diagnosis = Diagnosis {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            status: worst,
            groups: &groups,
            fixes: fixes.as_ref(),
            calibration: &calibration,
            host: args.root.is_none().then(Host::read),
        };
        serde_json::to_string_pretty(&diagnosis).context("writing JSON")? + "\n"
    } else {
        let style = render::Style { all_reasons: args.verbose, colours: colours(), columns: terminal::columns() };
        let mut text = fixes.as_ref().map(render::fixes).unwrap_or_default();
        text += &render::groups(&groups, style);
        if args.verbose && !calibration.is_empty() {
            text += &format!("{}\n", calibration::render(&calibration).trim_start());
        }
        let is_ours = args.root.is_some() || rustix::process::geteuid().is_root();
        let fixer = if is_ours { render::Fixer::Anybody } else { render::Fixer::Root };
        text + &terminal::fitted(render::summary(&groups, fixer))
    })?;
    let refused = fixes.map_or(0, |fixes| fixes.refused.len());
    if refused > 0 {
        return Err(anyhow!("--fix: {refused} setting(s) could not be set; see above, and run it as root").into());
    }
    Ok(match worst {
        Status::Warn if args.strict => ExitCode::from(3),
        Status::Fail if args.strict => ExitCode::from(4),
        _ => ExitCode::SUCCESS,
    })
}

fn look(root: &Root, survey: Option<&Survey>, hugepages: Option<u64>) -> Vec<Group> {
    let group = |name, checks| Group { name, checks };
    vec![
        group("huge pages", huge_pages::look(root, survey, hugepages)),
        group("limits", limits::look(root)),
        group("CPU", cpu::look(root, survey)),
        group("kernel", kernel::look(root, survey.map(|survey| &survey.pressure))),
        group("container", container::look(root)),
    ]
}

/// On a terminal, unless it is a dumb one or `NO_COLOR` asks for none.
fn colours() -> bool {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    io::stdout().is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}
