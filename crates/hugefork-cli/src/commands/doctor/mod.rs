//! `hugefork doctor`: this machine's support for hugefork, and the commands that improve it.
//!
//! ```text
//! machine  files below /proc and /sys, and features that were tried
//! checks   a row for each check: its name, why it matters, and the function that looks
//! finding  the result of a check
//! render   the text of all findings; or they are printed as JSON
//! fix      --fix changes settings, then the checks look again
//! ```

mod checks;
mod finding;
mod fix;
mod machine;
mod render;

use std::process::ExitCode;

use hugefork_bench::Host;
use serde::Serialize;

use self::checks::CHECKS;
use self::finding::{Finding, Status};
use self::fix::Fix;
use self::machine::Machine;
use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::output::print;
use crate::settings::{LOCK, Lock};

/// The layout of the JSON. Since 3 the checks are one list, and so are the fixes.
const SCHEMA: u32 = 3;

/// The JSON output.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    version: &'static str,
    /// The worst status of all checks.
    status: Status,
    checks: &'a [Finding],
    /// The result of `--fix`; null without it.
    fixes: Option<&'a [Fix]>,
    /// Null for a copy of another machine's files.
    host: Option<Host>,
}

/// Runs the checks and, if requested, the fixes, and prints the result.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let look = || {
        let machine = Machine::new(args.root.as_deref(), args.hugepages);
        CHECKS.iter().map(|check| check.look(&machine)).collect::<Vec<_>>()
    };
    let machine = Machine::files(args.root.as_deref());
    if !machine.at("/proc").is_dir() {
        return Err(Failure::usage(format!("--root {}: there is no proc in it", machine.at("/").display())));
    }
    checks::affordable(&machine, args.hugepages.unwrap_or(0))?;
    let mut findings = look();
    // A bench with --tune restores settings, so nothing may be changed while it runs. Without root nothing is changed.
    let is_root = rustix::process::geteuid().is_root();
    let is_for_real = args.fix && args.root.is_none() && is_root;
    let lock = is_for_real.then(|| Lock::take(LOCK.as_ref(), "--fix")).transpose()?;
    let fixes: Option<Vec<Fix>> = args.fix.then(|| findings.iter().filter_map(fix::apply).collect());
    drop(lock);
    if fixes.is_some() {
        findings = look();
    }
    let worst = findings.iter().map(|finding| finding.status).max().unwrap_or(Status::Skip);
    let fixes = fixes.as_deref();
    print(&if args.json {
        let (version, host) = (env!("CARGO_PKG_VERSION"), args.root.is_none().then(Host::read));
        let diagnosis = Diagnosis { schema: SCHEMA, version, status: worst, checks: &findings, fixes, host };
        serde_json::to_string_pretty(&diagnosis)? + "\n"
    } else {
        fixes.map_or(String::new(), render::fixes) + &render::findings(&findings, args.verbose)
    })?;
    let refused = fixes.into_iter().flatten().filter(|fix| fix.undo.is_none()).count();
    if refused > 0 {
        let advice = if is_root { "see above" } else { "see above, and run it as root" };
        return Err(Failure(1, format!("--fix: {refused} setting(s) could not be set; {advice}")));
    }
    Ok(match worst {
        Status::Warn if args.strict => ExitCode::from(3),
        Status::Fail if args.strict => ExitCode::from(4),
        _ => ExitCode::SUCCESS,
    })
}
