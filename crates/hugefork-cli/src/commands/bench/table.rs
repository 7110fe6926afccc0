//! A report for people. On a screen it is the answer, what did not run, what to keep in mind, and the answer in one
//! line. With [`Detail::Full`], the figures that the answer comes from stand between.
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

use super::answer::{answer, backing, sum, times, work};

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What fits on a screen.
    Brief,
    /// Every figure.
    Full,
}

/// Of so many notes a brief report tells, and of how many more there are.
const NOTES: usize = 3;

/// Renders `report` for a terminal of so many `columns`.
pub(crate) fn render(report: &Report, detail: Detail, columns: usize) -> String {
    let mut text = head(report);
    let comparisons = compare(report);
    let answer = if comparisons.is_empty() { String::new() } else { answer(&comparisons, columns) };
    text += &answer;
    if detail == Detail::Full && !comparisons.is_empty() {
        text += &ratios(&comparisons);
    }
    for case in cases::ALL {
        // Where there is nothing to compare, the figures are the answer.
        let is_told = comparisons.iter().any(|comparison| comparison.case == *case);
        if detail == Detail::Full || !is_told {
            text += &details(*case, report);
        }
    }
    text += &match detail {
        // Why nothing ran is all that there is to tell.
        Detail::Brief if !report.results.is_empty() => left_out(report),
        _ => absences("not run: ", &report.not_run),
    };
    text += &absences("FAILED: ", &report.failed);
    text += &notes(report, detail);
    if report.interrupted {
        text.push_str(match report.results.is_empty() {
            true => "note: stopped before anything was counted; there are no figures\n",
            false => "note: stopped before the end; figures hold the rounds that were counted\n",
        });
    }
    if detail == Detail::Full && !answer.is_empty() {
        // Again, since the figures have pushed it off the screen.
        text += &format!("\n{answer}");
    }
    text + &sum(&comparisons)
}

/// Who did not run, in a line.
fn left_out(report: &Report) -> String {
    let names = |of: fn(&Absent) -> &str| report.not_run.iter().map(of).collect::<BTreeSet<_>>();
    let (subjects, cases) = (names(|absent| &absent.subject), names(|absent| &absent.case));
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    match report.not_run.is_empty() {
        true => String::new(),
        false => format!("not run in {}: {} (--details says why)\n", list(cases), list(subjects)),
    }
}

fn notes(report: &Report, detail: Detail) -> String {
    let told = if detail == Detail::Full { report.warnings.len() } else { NOTES };
    let mut text: String = report.warnings.iter().take(told).map(|warning| format!("note: {warning}\n")).collect();
    let more = report.warnings.len().saturating_sub(told);
    if more > 0 {
        let _ = writeln!(text, "note: there are {more} more notes (--details)");
    }
    if let Some(why) = report.counters.as_ref().filter(|_| detail == Detail::Full) {
        let _ = writeln!(text, "note: cycles, instructions and cache misses: {why}");
    }
    text
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
