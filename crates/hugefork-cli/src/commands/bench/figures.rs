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

use crate::output::aligned;

/// Parameters that say how a subject did the work. All other parameters say what the work was.
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
    let mut text = format!("{case}: {} (medians of {rounds})\n{}", case.in_words(&results[0].params), aligned(rows));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 0.00123, 0.0123, 0.123, 1.234, 12.34, 123.4, 1234.0].map(figure);
        assert_eq!(shown, ["0", "0.00123", "0.0123", "0.123", "1.23", "12.3", "123", "1234"]);
    }
}
