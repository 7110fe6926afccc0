//! `hugefork bench`: plans, tunes, measures and prints.

mod answer;
mod figures;
mod progress;
mod signals;

use std::process::{self, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use hugefork_bench::runner::{self, Kept};
use hugefork_bench::{BenchError, Host, Options, Plan, Report, Scope, Settings, cases};

use self::answer::Detail;
use self::progress::{Ending, Teller, Telling};
use self::signals::Signals;
use crate::args::bench::BenchArgs;
use crate::failure::Failure;
use crate::output::sink::Sink;
use crate::output::stdout::print;
use crate::settings::tune::Tuning;

/// Runs the bench that was asked for.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let mut host = Host::read();
    let mut plan = Plan::new(&options(args), &host)?;
    let json = args.json.as_deref().map(|path| Sink::open("--json", path)).transpose()?;
    // A run of named cases has figures that people want to see.
    let detail = if args.cases.is_empty() { Detail::Answer } else { Detail::Figures };
    let teller = Teller::new(json, args.quiet, detail);
    // Before anything is tuned. A signal that comes meanwhile is acted on as soon as there is something to keep.
    let signals = Signals::install()?;
    let tuning = if args.tune { Some(Tuning::apply(&plan)?) } else { None };
    if tuning.is_some() {
        // The record describes the machine as it is now, for the subjects run on that.
        host = Host::read();
    }
    plan.settle(&host, if tuning.is_some() { Settings::Lent } else { Settings::Fixed });
    let mut report = Report::new(command_line(), host.clone());
    if let Some(shortfall) = tuning.as_ref().and_then(|tuning| tuning.shortfall.clone()) {
        report.warn(shortfall);
    }
    let (kept, mut telling) = (Arc::new(Kept::new(report)), Telling::new(teller));
    let (kept_so_far, told_so_far) = (Arc::clone(&kept), telling.clone());
    signals.at_the_first(move |status| stop(&kept_so_far, &told_so_far, status))?;
    let measured = runner::run(&plan, &host, &kept, &mut telling);
    // The holder of the lock prints the results: a signal from here on finds a bench that is over.
    let mut teller = telling.lock();
    let report = kept.lock().unwrap_or_else(PoisonError::into_inner).report();
    // The results are kept before anything else can go wrong.
    let told = teller.tell(&report, Ending::Done);
    let restored = tuning.map_or(Ok(()), Tuning::restore);
    measured.map_err(|error| anyhow!(error))?;
    told?;
    restored?;
    if !plan.runs_anything() {
        return Err(
            anyhow!("no subject could run on this machine; see `not run` above for what would mend that").into()
        );
    }
    if !report.failed.is_empty() {
        return Err(anyhow!("{} subject(s) failed; see above", report.failed.len()).into());
    }
    if report.results.is_empty() {
        return Err(anyhow!("nothing was measured; see `not run` above for what would mend that").into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps the results so far and ends the process. The sample under way is lost; the guardian puts settings back.
fn stop(kept: &Mutex<Kept>, telling: &Telling, status: i32) {
    // Held until exit: blocks the measuring thread at its next report.
    let mut teller = telling.lock();
    let mut report = kept.lock().unwrap_or_else(PoisonError::into_inner).report();
    report.interrupted = true;
    if let Err(failed) = teller.tell(&report, Ending::Stopped) {
        Failure::from(failed).report();
    }
    process::exit(status)
}

/// Prints the figures of the program of a case.
pub(crate) fn print_program(line: Result<String, BenchError>) -> Result<ExitCode, Failure> {
    print(&format!("{}\n", line.map_err(|error| anyhow!(error))?))?;
    Ok(ExitCode::SUCCESS)
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
