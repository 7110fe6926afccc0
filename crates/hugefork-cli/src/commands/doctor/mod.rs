//! `hugefork doctor`: this machine's support for hugefork, and the commands that improve it.
//!
//! ```text
//! root (/proc, /sys) ─┐
//!                     ├─▶ huge_pages limits cpu kernel container ─▶ checks ─▶ render, or JSON
//! survey (tried) ─────┘           ▲                                   │
//!                                 └───────── look again ◀── --fix ────┘
//! ```
//! A check is one function that reads files below a [`Root`] and returns a line. Features without a
//! file are tried ([`machine::survey`]), on the running machine only, not for a copy of another
//! machine's files.

mod calibration;
mod check;
mod container;
mod cpu;
mod fix;
mod huge_pages;
mod kernel;
mod limits;
mod render;
mod root;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hugefork::machine::{self, Survey};
use hugefork_bench::Host;
use serde::Serialize;

use self::calibration::Tried;
use self::check::{Group, Status};
use self::fix::Fixes;
use self::root::Root;
use crate::args::doctor::DoctorArgs;
use crate::failure::Failure;
use crate::output::{stdout::print, terminal};
use crate::settings::lock::Lock;

/// The layout of the JSON. Since 2 a check has `group` and `why`, `mend` is an object, and names are identifiers.
const SCHEMA: u32 = 2;

/// The JSON output.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    version: &'static str,
    /// The worst status of all checks.
    status: Status,
    groups: &'a [Group],
    /// The result of `--fix`; null without it.
    fixes: Option<&'a Fixes>,
    /// The kernels that were tried.
    calibration: &'a [Tried],
    /// Null for a copy of another machine's files.
    host: Option<Host>,
}

/// Runs the checks and, if requested, the fixes, and prints the result.
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
    // A bench with --tune restores settings, so nothing may be changed while it runs. Without root nothing is changed.
    let is_for_real = args.fix && args.root.is_none() && rustix::process::geteuid().is_root();
    let lock = is_for_real.then(|| Lock::take(Lock::path(), "--fix")).transpose()?;
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
    } else if let Some(fixes) = fixes.as_ref().filter(|fixes| fixes.changed_nothing()) {
        // The rest is as `doctor` printed before, and would scroll the important lines away.
        render::fixes(fixes)
    } else {
        let colours = terminal::colours(&io::stdout());
        let style = render::Style { all_reasons: args.verbose, colours, columns: terminal::columns() };
        let mut text = fixes.as_ref().map(|fixes| render::fixes(fixes) + "\n").unwrap_or_default();
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
        let advice = if rustix::process::geteuid().is_root() { "see above" } else { "see above, and run it as root" };
        return Err(anyhow!("--fix: {refused} setting(s) could not be set; {advice}").into());
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
        group("kernel", kernel::look(root, survey)),
        group("container", container::look(root)),
    ]
}
