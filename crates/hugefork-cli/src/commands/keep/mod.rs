//! `hugefork keep`: keeps programs in huge pages from outside, until Ctrl-C or until all have
//! ended.
//!
//! On a terminal the table is redrawn each second. Elsewhere it is printed once, at the end.

mod screen;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use hugefork_keep::{KeepError, Keeper, Report, Targets, TargetsError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::screen::Screen;
use crate::args::keep::KeepArgs;
use crate::failure::Failure;
use crate::output::stdout::print;

/// Time between two outputs.
const EACH: Duration = Duration::from_secs(1);

/// Keeps the requested processes.
pub(crate) fn run(args: &KeepArgs) -> Result<ExitCode, Failure> {
    let targets = targets(args).map_err(|error| Failure::usage(&error.into()))?;
    let mut keeper = Keeper::new(targets).map_err(|error: KeepError| Failure::Failed(error.into()))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("watching for signals")?;
    }
    let is_live = !args.json && !args.quiet && stdout().is_terminal();
    let mut screen = Screen::default();
    let mut next = Instant::now() + EACH;
    let mut last = keeper.report();
    let mut is_over = false;
    while !is_over && !stop.load(Ordering::Relaxed) {
        match keeper.step() {
            Some(time) => keeper.wait(time.min(next.saturating_duration_since(Instant::now()))),
            None => is_over = true,
        }
        if is_over || Instant::now() < next {
            continue;
        }
        last = newest(&keeper, last);
        next += EACH;
        if args.json {
            print(&(serde_json::to_string(&last).context("writing JSON")? + "\n"))?;
        } else if is_live {
            screen.draw(&last)?;
        }
    }
    last = newest(&keeper, last);
    if args.json {
        print(&(serde_json::to_string(&last).context("writing JSON")? + "\n"))?;
    } else if is_live {
        screen.draw(&last)?;
    } else if !args.quiet {
        print(&screen::table(&last))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The present report, or the last one if all processes have ended.
fn newest(keeper: &Keeper, last: Report) -> Report {
    let now = keeper.report();
    if now.processes.is_empty() { last } else { now }
}

fn targets(args: &KeepArgs) -> Result<Targets, TargetsError> {
    let mut targets = Targets::new();
    args.pids.iter().try_for_each(|pid| targets.add_process(*pid))?;
    args.names.iter().for_each(|name| targets.add_name(name.clone()));
    args.units.iter().try_for_each(|unit| targets.add_unit(unit))?;
    args.groups.iter().try_for_each(|group| targets.add_group(group))?;
    Ok(targets)
}
