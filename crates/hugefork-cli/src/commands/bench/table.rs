//! A report for people: the answer, what did not run, and what to keep in mind, on one screen. With [`Detail::Full`]
//! the figures that the answer comes from stand before it, and then the works.
//!
//! Tables of figures are Markdown, so that they can be pasted where they are quoted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use hugefork::BlockSize;
use hugefork_bench::cases::clear_copy::VICTIM_SLOWDOWN;
use hugefork_bench::metric::Metric;
use hugefork_bench::ratios::{Beside, Comparison, Rank, compare};
use hugefork_bench::result::{Absent, CaseResult, Params};
use hugefork_bench::{Case, Report, cases};
use hugefork_report::{absent, figure, with_unit};

use super::answer::{answer, sum};
use super::works::{backing, times, work, works};

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What fits on a screen.
    Brief,
    /// Every figure.
    Full,
}

/// What a report is shown on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) columns: usize,
    pub(crate) colours: bool,
}

impl Look {
    /// `text` in a colour of the terminal's, if it shows colours.
    pub(super) fn painted(self, text: &str, colour: u8) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Of so many notes a brief report tells.
const NOTES: usize = 1;

/// Renders `report`.
pub(crate) fn render(report: &Report, detail: Detail, look: Look) -> String {
    let mut text = head(report);
    let comparisons = compare(report);
    // Where there is nothing to compare, the figures are the answer, or why there are none.
    let detail = if comparisons.is_empty() { Detail::Full } else { detail };
    let notes = match detail {
        Detail::Brief => {
            text += &answer(&comparisons, look);
            text += &left_out(report, &comparisons);
            NOTES
        }
        Detail::Full => {
            if !comparisons.is_empty() {
                text += &ratios(&comparisons);
            }
            text.extend(cases::ALL.iter().map(|case| details(*case, report)));
            text += &absences("not run: ", &report.not_run);
            report.warnings.len()
        }
    };
    text += &absences("FAILED: ", &report.failed);
    text.extend(report.warnings.iter().take(notes).map(|warning| format!("note: {warning}\n")));
    if let Some(why) = report.counters.as_ref().filter(|_| detail == Detail::Full) {
        let _ = writeln!(text, "note: cycles, instructions and cache misses: {why}");
    }
    if report.interrupted {
        text.push_str(match report.results.is_empty() {
            true => "note: stopped before anything was counted; there are no figures\n",
            false => "note: stopped before the end; figures hold the rounds that were counted\n",
        });
    }
    if detail == Detail::Full && !comparisons.is_empty() {
        // Last, since the figures would push it off the screen.
        text += &format!("\n{}{}", works(&comparisons, look.columns), answer(&comparisons, look));
    }
    text += &sum(&comparisons);
    if detail == Detail::Brief {
        let more = match report.warnings.len().saturating_sub(notes) {
            0 => String::new(),
            more => format!(" and {more} more notes"),
        };
        let _ = writeln!(text, "all figures{more}: --details, or a case: `hugefork bench snapshot`");
    }
    text
}

/// Which cases have no ratio, and who did not run, in a line for each reason.
fn left_out(report: &Report, comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    let is_compared = |case: &str| comparisons.iter().any(|known| known.case.name() == case && known.best().is_some());
    for case in cases::ALL.iter().map(|case| case.name()).filter(|case| !is_compared(case)) {
        let absent = report.not_run.iter().find(|absent| absent.case == case);
        if absent.is_some() || report.results.iter().any(|result| result.case == case) {
            let why = absent.map_or("hugefork or all others have no figures", |absent| short(&absent.why));
            let _ = writeln!(text, "{case}: no ratio: {why}");
        }
    }
    // Reasons that differ only in their numbers are one. The one with the greatest number stands for all.
    let shape = |why: &str| why.replace(|sign: char| sign.is_ascii_digit(), "");
    let alike = |absent: &Absent| {
        let same =
            report.not_run.iter().map(|other| short(&other.why)).filter(|why| shape(why) == shape(short(&absent.why)));
        same.max_by_key(|why| (why.len(), *why)).unwrap_or_default()
    };
    for line in absent("not run: ", report.not_run.iter().map(|absent| ["", &absent.subject, alike(absent)])) {
        let _ = writeln!(text, "{}", line.trim_start());
    }
    text
}

/// A reason without what would mend it.
fn short(why: &str) -> &str {
    why.split_once("; ").map_or(why, |(short, _)| short)
}

fn head(report: &Report) -> String {
    let host = &report.host;
    let cache = host.caches.iter().rfind(|cache| cache.kind != "Instruction");
    let mut line = format!("hugefork {} on {}, {} CPUs", report.version, host.cpu, host.cpus);
    if let Some(cache) = cache {
        let _ = write!(line, ", L{} {}", cache.level, cache.size);
    }
    let _ = write!(line, ", {}", host.kernel);
    if let Some(hypervisor) = &host.hypervisor {
        let _ = write!(line, " on {hypervisor}");
    }
    let _ = write!(line, ", shmem huge pages {}", host.thp.shmem_enabled);
    line + "\n\n"
}

fn ratios(comparisons: &[Comparison]) -> String {
    let mut table =
        markdown(["case", "work", "hugefork", "best other", "ratio", "all ratios (more than 1: hugefork is better)"]);
    for column in [2, 3, 4] {
        align_right(&mut table, column);
    }
    let mut notes = BTreeSet::new();
    for comparison in comparisons {
        let ours = &comparison.ours;
        let (best, ratio) = comparison.best().map_or_else(
            || ("-".to_owned(), "-".to_owned()),
            |best| (format!("{} {} {}", best.subject, figure(best.median), ours.unit), times(best.ratio)),
        );
        table.add_row([
            comparison.case.name().to_owned(),
            work(comparison, backing(comparison)),
            format!("{} {}", figure(ours.median), ours.unit),
            best,
            ratio,
            comparison.others.iter().map(beside).collect::<Vec<_>>().join(", "),
        ]);
        for other in &comparison.others {
            if let Rank::Aside(why) = other.rank {
                notes.insert(format!("(*) {}: {why}", other.subject));
            }
        }
    }
    let mut text = format!("{table}\n");
    for note in notes {
        let _ = writeln!(text, "{note}");
    }
    text + "\n"
}

fn beside(other: &Beside) -> String {
    let star = if other.rank == Rank::Rival { "" } else { "*" };
    format!("{} {}{star}", times(other.ratio), other.subject)
}

/// User and system time have a column if one of them is as many seconds or more.
const TICKS: f64 = 0.010;

/// Parameters that tell works of one case apart. Their figures do not belong in one table.
const WORKS: [&str; 6] = ["size", "use", "victim", "density", "pattern", "epoch"];

/// The figures of one case, in a table for each work.
fn details(case: &dyn Case, report: &Report) -> String {
    let work = |result: &CaseResult| WORKS.map(|name| result.params.get(name).map(ToString::to_string));
    let mut works: Vec<(_, Vec<&CaseResult>)> = Vec::new();
    for result in report.results.iter().filter(|result| result.case == case.name()) {
        match works.iter_mut().find(|(known, _)| *known == work(result)) {
            Some((_, results)) => results.push(result),
            None => works.push((work(result), vec![result])),
        }
    }
    works.iter().map(|(_, results)| figures(case, results)).collect()
}

/// The figures of one work, with a row for each subject and a column for each metric.
fn figures(case: &dyn Case, results: &[&CaseResult]) -> String {
    let Some(first) = results.first() else {
        return String::new();
    };
    // Parameters that all results share stand in the heading.
    let common: Params = first
        .params
        .iter()
        .filter(|(name, value)| results.iter().all(|result| result.params.get(*name) == Some(value)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    let mut rows: BTreeMap<(String, &Params), Vec<&CaseResult>> = BTreeMap::new();
    for result in results {
        if !metrics.contains(&(&result.metric, &result.unit)) {
            metrics.push((&result.metric, &result.unit));
        }
        rows.entry((result.subject.clone(), &result.params)).or_default().push(result);
    }
    let mut rows: Vec<((String, &Params), Vec<&CaseResult>)> = rows.into_iter().collect();
    // They are counted in the scheduler's ticks: below a few ticks they say nothing, and only fill the line.
    let says_something = |metric: &str| results.iter().any(|result| result.metric == metric && result.median >= TICKS);
    metrics.retain(|(_, unit)| *unit != "s" || says_something("user") || says_something("sys"));
    let measured = |metric: &Metric| metrics.iter().any(|(name, _)| *name == metric.name());
    let lead = [case.lead_metric(), VICTIM_SLOWDOWN].into_iter().find(measured);
    let rank = |row: &[&CaseResult]| {
        let Some(lead) = lead else { return 0.0 };
        let median = row.iter().find(|r| r.metric == lead.name()).map_or(f64::INFINITY, |r| r.median);
        // Best first, whichever way is better.
        hugefork_bench::ratios::ratio(lead, median, 1.0)
    };
    // By block first where blocks are the work, so that subjects with the same work stand together.
    let block = |params: &Params| {
        let block = params.get("block_size").filter(|_| case.facts().works_differ_by_block)?;
        block.to_string().parse::<BlockSize>().ok()
    };
    rows.sort_by(|((_, with), a), ((_, other), b)| {
        block(with).cmp(&block(other)).then_with(|| rank(b).total_cmp(&rank(a)))
    });

    let mut header = vec!["subject".to_owned(), "with".to_owned()];
    header.extend(metrics.iter().map(|(metric, unit)| with_unit(metric, unit)));
    let mut table = markdown(header);
    for column in 2..2 + metrics.len() {
        align_right(&mut table, column);
    }
    for ((subject, params), row) in &rows {
        // The name of a kernel already says these.
        let named = |name: &str| subject.contains('/') && ["kernel", "order", "near", "window"].contains(&name);
        let own = params.iter().filter(|(name, _)| !common.contains_key(*name) && !named(name));
        let mut cells = vec![subject.clone(), words(own)];
        cells.extend(metrics.iter().map(|(metric, _)| {
            row.iter().find(|result| result.metric == *metric).map_or_else(|| "-".to_owned(), |result| spread(result))
        }));
        table.add_row(cells);
    }
    let runs = results.iter().map(|result| result.samples.len()).max().unwrap_or(0);
    let told = if runs > 1 { format!("median (min … max) of {runs}") } else { "1 run".to_owned() };
    format!("{case}  {}  {told}\n\n{table}\n\n", words(common.iter()))
}

fn words<'a>(params: impl Iterator<Item = (&'a String, &'a hugefork_bench::result::Param)>) -> String {
    params.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn spread(result: &CaseResult) -> String {
    let summary = result.summary();
    if result.samples.len() <= 1 {
        return figure(summary.median);
    }
    format!("{} ({} … {})", figure(summary.median), figure(summary.min), figure(summary.max))
}

/// Which subjects gave no figures, with an empty line after them.
fn absences(what: &str, list: &[Absent]) -> String {
    let lines = absent(what, list.iter().map(|Absent { case, subject, why }| [case.as_str(), subject, why]));
    if lines.is_empty() { String::new() } else { lines.join("\n") + "\n\n" }
}

fn markdown<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header.into_iter().map(Into::into).collect::<Vec<String>>());
    table
}

fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
