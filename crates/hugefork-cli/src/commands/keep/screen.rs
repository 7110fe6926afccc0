//! The table of the kept processes.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use hugefork_keep::{ProcessReport, Report, Trouble};

use crate::output::stdout::print;
use crate::output::terminal::fitted;

/// A table that replaces the previous one on the terminal.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Number of lines of the previous table.
    lines: usize,
}

impl Screen {
    pub(super) fn draw(&mut self, report: &Report) -> anyhow::Result<()> {
        let text = fitted(table(report));
        // Moves up to the start of the previous table, and clears from there.
        let up = if self.lines == 0 { String::new() } else { format!("\x1b[{}F\x1b[J", self.lines) };
        self.lines = text.lines().count();
        print(&(up + &text))
    }
}

/// The processes that have forked, and below them the reasons for missing huge pages.
pub(super) fn table(report: &Report) -> String {
    let mut processes: Vec<&ProcessReport> = report.processes.iter().collect();
    processes.sort_by_key(|process| (process.forks == 0, std::cmp::Reverse(process.resident_bytes)));
    let (shown, others): (Vec<_>, Vec<_>) =
        processes.into_iter().partition(|process| process.trouble != Some(Trouble::NeverForked));
    let mut text = String::new();
    if !shown.is_empty() {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header([
            "process",
            "memory",
            "huge",
            "forks",
            "next fork",
            "collapsed",
            "left",
            "longest",
        ]);
        for process in &shown {
            table.add_row(row(process));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text += &table.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>();
    }
    for process in &shown {
        if let Some(trouble) = process.trouble {
            text += &format!("{} {}: {trouble}\n", process.name, process.pid);
        }
    }
    if !others.is_empty() {
        let memory = others.iter().map(|process| process.resident_bytes).sum();
        let what = if others.len() == 1 { "process that has" } else { "processes that have" };
        text += &format!("{} {what} not forked ({}): unchanged\n", others.len(), size(memory));
    }
    if text.is_empty() {
        text += "no matching process yet\n";
    }
    text
}

fn row(process: &ProcessReport) -> [String; 8] {
    let anonymous = (process.huge_bytes + process.base_bytes).max(1);
    let average = process.collapse_usec.checked_div(process.blocks_collapsed + process.blocks_refused).unwrap_or(0);
    [
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

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        mib @ 0..10_240 => format!("{mib} MiB"),
        mib => format!("{:.1} GiB", mib as f64 / 1024.0),
    }
}
