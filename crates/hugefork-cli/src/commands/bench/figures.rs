//! All figures of a report: for each work a table, with a line for each subject and a column for each metric.
//!
//! ```text
//! snapshot: 256MiB, 10 held, 50000 writes/s (medians of 5 rounds)
//!                call         p50  …
//!                  ms          us  …
//! hugefork      0.312 ±4%    1.31  …
//! ```

use std::fmt::Write;

use hugefork_bench::metric::{Better, Metric};
use hugefork_bench::result::CaseResult;
use hugefork_bench::{Case, Report, cases};
use hugefork_report::figure;

use crate::output::terminal::width;

/// Parameters that say how a subject did the work. The others tell works apart.
const HOW: [&str; 5] = ["backing", "kernel", "order", "near", "window"];

/// The tables of all works of `report`.
pub(super) fn figures(report: &Report) -> String {
    cases::ALL.iter().map(|case| of_case(*case, report)).collect()
}

fn of_case(case: &dyn Case, report: &Report) -> String {
    let work = |result: &CaseResult| {
        let mut params = result.params.clone();
        params.retain(|name, _| !HOW.contains(&name.as_str()));
        params
    };
    let mut works: Vec<(_, Vec<&CaseResult>)> = Vec::new();
    for result in report.results.iter().filter(|result| result.case == case.name()) {
        match works.iter_mut().find(|(known, _)| *known == work(result)) {
            Some((_, results)) => results.push(result),
            None => works.push((work(result), vec![result])),
        }
    }
    works.iter().map(|(_, results)| table(case, results)).collect()
}

/// The table of one work. `results` are not empty.
fn table(case: &dyn Case, results: &[&CaseResult]) -> String {
    let (mut metrics, mut subjects) = (Vec::new(), Vec::<&str>::new());
    for result in results {
        if !metrics.contains(&(&result.metric, &result.unit)) {
            metrics.push((&result.metric, &result.unit));
        }
        if !subjects.contains(&result.subject.as_str()) {
            subjects.push(&result.subject);
        }
    }
    let find = |subject: &str, metric: &str| {
        results.iter().copied().find(|result| result.subject == subject && result.metric == metric)
    };
    let lead = case.facts().metrics.iter().find(|lead| metrics.iter().any(|(name, _)| *name == lead.name()));
    let rank = |subject: &str| {
        let (lead, result) = lead.and_then(|lead| Some((lead, find(subject, lead.name())?)))?;
        Some(if lead.better() == Better::Higher { -result.median } else { result.median })
    };
    subjects.sort_by(|one, other| rank(one).partial_cmp(&rank(other)).unwrap_or(std::cmp::Ordering::Equal));
    let head = ["".to_owned()].into_iter().chain(metrics.iter().map(|(metric, _)| (*metric).clone()));
    let units = ["".to_owned()].into_iter().chain(metrics.iter().map(|(_, unit)| (*unit).clone()));
    let mut rows: Vec<Vec<String>> = vec![head.collect(), units.collect()];
    for subject in subjects {
        let cell = |(metric, _): &(&String, &String)| {
            find(subject, metric).map_or_else(|| "-".to_owned(), |result| shown(result, lead))
        };
        rows.push([subject.to_owned()].into_iter().chain(metrics.iter().map(cell)).collect());
    }
    let rounds = results.iter().map(|result| result.samples.len()).max().unwrap_or(0);
    let mut text = format!("{case}: {} (medians of {rounds})\n{}", case.in_words(&results[0].params), aligned(&rows));
    let ours = results.iter().find(|result| result.subject == "hugefork");
    let how = HOW.iter().filter_map(|name| Some(format!("{name} {}", ours?.params.get(*name)?)));
    let how: Vec<String> = how.collect();
    if !how.is_empty() {
        let _ = writeln!(text, "hugefork: {}", how.join(", "));
    }
    text + "\n"
}

/// The median, and for the leading metric also half of the range of all samples.
fn shown(result: &CaseResult, lead: Option<&Metric>) -> String {
    let summary = result.summary();
    let median = figure(summary.median);
    if lead.is_none_or(|lead| lead.name() != result.metric) || result.samples.len() < 2 || summary.median == 0.0 {
        return median;
    }
    format!("{median} ±{:.0}%", (summary.max - summary.min) / 2.0 / summary.median * 100.0)
}

/// Rows of cells. The first cell of a row is set to the left, the others to the right.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max();
    let widths: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, widest)) in row.iter().zip(&widths).enumerate() {
            let room = " ".repeat(widest - width(cell));
            line += &if column == 0 { format!("{cell}{room}") } else { format!("  {room}{cell}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 0.00123, 0.0123, 0.123, 1.234, 12.34, 123.4, 1234.0].map(figure);
        assert_eq!(shown, ["0", "0.00123", "0.0123", "0.123", "1.23", "12.3", "123", "1234"]);
    }

    #[test]
    fn cells_are_aligned_whatever_their_colour() {
        let rows = [vec!["a".to_owned(), "1.5".to_owned()], vec!["bcd".to_owned(), "\x1b[31m10\x1b[0m".to_owned()]];
        assert_eq!(aligned(&rows), "a    1.5\nbcd   \x1b[31m10\x1b[0m\n");
    }
}
