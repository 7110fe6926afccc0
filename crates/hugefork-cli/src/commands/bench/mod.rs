//! `hugefork bench`: plans, tunes, measures and prints.

mod answer;
mod figures;
mod progress;

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use hugefork_bench::{Host, Options, Plan, Report, Scope, Settings, cases, runner};

use self::progress::Watcher;
use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::{Sink, columns, print};
use crate::settings::tune::Tuning;

/// Runs the bench that was asked for.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let mut host = Host::read();
    let mut plan = Plan::new(&options(args), &host).map_err(|error| Failure::usage(error.0))?;
    let json = args.json.as_deref().map(|path| Sink::open("--json", path)).transpose()?;
    // Before anything is tuned: a signal that comes meanwhile ends the bench after the first sample.
    let mut watcher = Watcher::new(json, args.quiet)?;
    let tuning = if args.tune { Some(Tuning::apply(&plan)?) } else { None };
    if tuning.is_some() {
        // The settings have changed, and the record must describe the machine on which the subjects run.
        host = Host::read();
    }
    plan.settle(&host, if tuning.is_some() { Settings::Lent } else { Settings::Fixed });
    let mut report = Report::new(command_line(), host.clone());
    if let Some(shortfall) = tuning.as_ref().and_then(|tuning| tuning.shortfall.clone()) {
        report.warn(shortfall);
    }
    let measured = runner::run(&plan, &host, &mut report, &mut watcher);
    report.interrupted = watcher.signal().is_some();
    // The results are kept before anything else can go wrong.
    let kept = watcher.end(&report);
    // A run of named cases has figures that people want to see.
    let is_short = args.cases.is_empty();
    if watcher.json.as_ref().is_some_and(Sink::is_stdout) {
        // A failed write is ignored: perhaps nobody reads standard error.
        let _ = stderr().write_all(answer::render(&report, is_short, columns(&stderr())).as_bytes());
    } else {
        print(&answer::render(&report, is_short, columns(&stdout())))?;
    }
    let restored = tuning.map_or(Ok(()), Tuning::restore);
    measured?;
    kept?;
    restored?;
    let lack = "see `not run` above for what would mend that";
    match watcher.signal() {
        Some(signal) => Ok(ExitCode::from(128 + signal)),
        None if !plan.runs_anything() => Err(Failure(1, format!("no subject could run on this machine; {lack}"))),
        None if !report.failed.is_empty() => {
            Err(Failure(1, format!("{} subject(s) failed; see above", report.failed.len())))
        }
        None if report.results.is_empty() => Err(Failure(1, format!("nothing was measured; {lack}"))),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn options(args: &BenchArgs) -> Options {
    let all = || if args.full { cases::ALL.to_vec() } else { cases::quick() };
    Options {
        cases: if args.cases.is_empty() { all() } else { args.cases.clone() },
        scope: if args.full { Scope::Full } else { Scope::Quick },
        sizes: args.size.iter().flatten().map(|size| size.0).collect(),
        tasks: args.tasks,
        block_sizes: args.block_size.clone(),
        runs: args.runs,
        subjects: args.subjects.clone(),
        command: std::env::current_exe().ok(),
    }
}

/// The command as it can be typed again, without the path that it was called by.
fn command_line() -> String {
    let quoted = |arg: String| if arg.contains(char::is_whitespace) { format!("'{arg}'") } else { arg };
    let args = std::env::args_os().skip(1).map(|arg| quoted(arg.to_string_lossy().into_owned()));
    ["hugefork".to_owned()].into_iter().chain(args).collect::<Vec<_>>().join(" ")
}
