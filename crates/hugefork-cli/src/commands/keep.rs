//! `hugefork keep`: keeps programs in huge pages from outside, until Ctrl-C or until all have
//! ended.
//!
//! On a terminal the table is redrawn each second. Elsewhere it is printed once, at the end.

use std::cmp::Reverse;
use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugefork_keep::{Keeper, ProcessReport, Report, Targets, TargetsError, Trouble};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::KeepArgs;
use crate::failure::Failure;
use crate::output::{aligned, print, size};

/// Time between two outputs.
const EACH: Duration = Duration::from_secs(1);

const HEAD: [&str; 8] = ["process", "memory", "huge", "forks", "next fork", "collapsed", "left", "longest"];

/// Keeps the requested processes.
pub(crate) fn run(args: &KeepArgs) -> Result<(), Failure> {
    let mut keeper = Keeper::new(targets(args).map_err(Failure::usage)?)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let is_live = args.json || stdout().is_terminal();
    let (mut next, mut last, mut lines) = (Instant::now() + EACH, keeper.report(), 0);
    loop {
        let time = keeper.step();
        let is_over = time.is_none() || stop.load(Ordering::Relaxed);
        if !is_over {
            keeper.wait(time.unwrap_or_default().min(next.saturating_duration_since(Instant::now())));
            if Instant::now() < next {
                continue;
            }
        }
        next += EACH;
        // The last report stays if all processes have ended.
        let now = keeper.report();
        last = if now.processes.is_empty() { last } else { now };
        if args.json {
            print(&(serde_json::to_string(&last)? + "\n"))?;
        } else if !args.quiet && (is_live || is_over) {
            let text = table(&last);
            if stdout().is_terminal() {
                // Moves up to the start of the previous table, clears from there, and cuts lines instead of wrapping.
                let up = if lines == 0 { String::new() } else { format!("\x1b[{lines}F\x1b[J") };
                print(&format!("{up}\x1b[?7l{text}\x1b[?7h"))?;
            } else {
                print(&text)?;
            }
            lines = text.lines().count();
        }
        if is_over {
            return Ok(());
        }
    }
}

fn targets(args: &KeepArgs) -> Result<Targets, TargetsError> {
    let mut targets = Targets::new();
    args.pids.iter().try_for_each(|pid| targets.add_process(*pid))?;
    args.names.iter().for_each(|name| targets.add_name(name.clone()));
    args.units.iter().try_for_each(|unit| targets.add_unit(unit))?;
    args.groups.iter().try_for_each(|group| targets.add_group(group))?;
    Ok(targets)
}

/// The processes that have forked, and below them the reasons for missing huge pages.
fn table(report: &Report) -> String {
    let mut processes: Vec<&ProcessReport> = report.processes.iter().collect();
    processes.sort_by_key(|process| (process.forks == 0, Reverse(process.resident_bytes)));
    let (shown, others): (Vec<_>, Vec<_>) =
        processes.into_iter().partition(|process| process.trouble != Some(Trouble::NeverForked));
    let mut text = String::new();
    if !shown.is_empty() {
        let rows = shown.iter().map(|process| row(process));
        text += &aligned([HEAD.map(str::to_owned).to_vec()].into_iter().chain(rows));
    }
    for (process, trouble) in shown.iter().filter_map(|process| Some((process, process.trouble?))) {
        text += &format!("{} {}: {trouble}\n", process.name, process.pid);
    }
    if !others.is_empty() {
        let memory = others.iter().map(|process| process.resident_bytes).sum();
        text += &format!("{} not forked yet ({}): unchanged\n", others.len(), size(memory));
    }
    if text.is_empty() { "no matching process yet\n".to_owned() } else { text }
}

fn row(process: &ProcessReport) -> Vec<String> {
    let anonymous = (process.huge_bytes + process.base_bytes).max(1);
    let average = process.collapse_usec.checked_div(process.blocks_collapsed + process.blocks_refused).unwrap_or(0);
    vec![
        format!("{} {}", process.name, process.pid),
        size(process.resident_bytes),
        format!("{} %", process.huge_bytes * 100 / anonymous),
        process.forks.to_string(),
        format!("{:.1} ms", process.fork_usec() as f64 / 1e3),
        format!("{} x {average} us", process.blocks_collapsed),
        process.blocks_pending.to_string(),
        format!("{:.1} ms", process.longest_collapse_usec as f64 / 1e3),
    ]
}
