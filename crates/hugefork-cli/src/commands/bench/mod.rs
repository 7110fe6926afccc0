//! `hugefork bench`: plans, tunes, measures and prints.

mod answer;
mod progress;
mod signals;
mod table;
mod works;

use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use hugefork_bench::plan::writes::AskedWrites;
use hugefork_bench::result::Absent;
use hugefork_bench::runner::{self, Kept};
use hugefork_bench::{BenchError, Host, Options, Plan, Report, Scope, Settings, cases};

use self::progress::{Ending, Teller, Telling};
use self::signals::Signals;
use self::table::Detail;
use crate::args::bench::BenchArgs;
use crate::failure::Failure;
use crate::output::sink::{Sink, is_same};
use crate::output::stdout::print;
use crate::settings::tune::Tuning;

/// Runs the bench that was asked for.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let mut host = Host::read();
    let mut plan = Plan::new(&options(args), &host)?;
    let is_json = |csv: &&PathBuf| args.json.as_ref().is_some_and(|json| is_same(json, csv));
    if let Some(path) = args.csv.as_ref().filter(is_json) {
        return Err(Failure::Usage(format!("--csv {}: is where --json goes; name another file", path.display())));
    }
    let open = |option, path: &Option<PathBuf>| path.as_deref().map(|path| Sink::open(option, path)).transpose();
    let (json, csv) = (open("--json", &args.json)?, open("--csv", &args.csv)?);
    if [&json, &csv].into_iter().all(|sink| sink.as_ref().is_some_and(Sink::is_stdout)) {
        return Err(Failure::Usage("--csv: standard output is where --json goes; name a file".to_owned()));
    }
    // Who names cases wants to know more of them.
    let detail = if args.details || !args.cases.is_empty() { Detail::Full } else { Detail::Brief };
    let teller = Teller::new(json, csv, args.quiet, detail);
    // Before anything is tuned. A signal that comes meanwhile is acted on as soon as there is something to keep.
    let signals = Signals::install()?;
    let tuning = if args.tune { Some(Tuning::apply(&plan)?) } else { None };
    if tuning.is_some() {
        // Subjects run on the machine as it is now, so that is what is recorded.
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
    // Whoever has the lock has the last word: a signal from here on finds a bench that is over.
    let mut teller = telling.lock();
    let report = kept.lock().unwrap_or_else(PoisonError::into_inner).report();
    // First the results are kept; then comes everything that can still go wrong.
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
        let lacked_time = report.not_run.iter().any(Absent::lacked_time);
        let mend = if lacked_time { ", and give it more time" } else { " for what would mend that" };
        return Err(anyhow!("nothing was measured; see `not run` above{mend}").into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps what there is and ends the process. The sample under way is lost; the guardian puts settings back.
fn stop(kept: &Mutex<Kept>, telling: &Telling, status: i32) {
    // Never given back, so that the thread that measures stands still at its next word.
    let mut teller = telling.lock();
    let mut report = kept.lock().unwrap_or_else(PoisonError::into_inner).report();
    report.interrupted = true;
    if let Err(failed) = teller.tell(&report, Ending::Stopped) {
        Failure::from(failed).report();
    }
    process::exit(status)
}

/// Prints what the program of a case has found.
pub(crate) fn print_program(line: Result<String, BenchError>) -> Result<ExitCode, Failure> {
    print(&format!("{}\n", line.map_err(|error| anyhow!(error))?))?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &BenchArgs) -> Options {
    let is_quick = args.cases.is_empty();
    Options {
        cases: if is_quick { cases::ALL.to_vec() } else { args.cases.clone() },
        scope: if is_quick { Scope::Quick } else { Scope::Full },
        sizes: args.size.iter().flatten().map(|size| size.0).collect(),
        tasks: args.tasks,
        block_sizes: args.block_size.clone(),
        backings: args.backing.clone(),
        writes: AskedWrites {
            densities: args.densities.clone(),
            patterns: args.patterns.clone(),
            epochs: args.epochs.clone(),
            held: args.held.clone(),
        },
        runs: args.runs,
        time_budget: args.time_budget,
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
