//! The answer of a bench, which fits one screen of 80 columns: a line for each case, and the losses last, where the
//! reader's eyes are.
//!
//! ```text
//! worse than the best rival in 9 of 61 figures
//!
//!               worst   best  worse in  worst figure
//! reset         0.21x  1.91x    6 of 8  cpu, known-pages
//! ```
//! A figure is one metric of one work, and each figure has its own best rival.

use std::collections::{BTreeMap, BTreeSet};

use hugefork_bench::ratios::{Comparison, compare};
use hugefork_bench::result::Absent;
use hugefork_bench::{Report, cases};
use hugefork_report::figure;

use super::figures::figures;
use crate::output::{aligned, wrap};

/// The number of notes in a short answer.
const NOTES: usize = 2;

/// Renders `report`: the answer, and before it every figure unless it `is_short`.
pub(super) fn render(report: &Report, is_short: bool, columns: usize) -> String {
    let comparisons = compare(report);
    let host = &report.host;
    let on = host.hypervisor.as_ref().map_or(String::new(), |hypervisor| format!(" on {hypervisor}"));
    let head = format!(
        "hugefork {} on {}, {} CPUs, {}{on}, shmem huge pages {}",
        report.version, host.cpu, host.cpus, host.kernel, host.thp.shmem_enabled
    );
    let mut text = wrap("", "  ", &head, columns) + "\n";
    // Without a comparison, the figures are the answer, or the reasons why there are none.
    let is_short = is_short && !comparisons.is_empty();
    if !is_short {
        text += &figures(report);
    }
    let lines = lines(&comparisons);
    if !lines.is_empty() {
        let losses: usize = lines.iter().map(|line| losses(line)).sum();
        text += &format!("worse than the best rival in {losses} of {} figures\n\n", comparisons.len());
        text += &table(&lines);
    }
    text += &absences("not run: ", &report.not_run, columns);
    text += &absences("FAILED: ", &report.failed, columns);
    for warning in report.warnings.iter().take(if is_short { NOTES } else { report.warnings.len() }) {
        text += &wrap("note: ", "  ", warning, columns);
    }
    if report.interrupted {
        text.push_str(match report.results.is_empty() {
            true => "note: stopped before anything was counted; there are no figures\n",
            false => "note: stopped before the end; figures hold the rounds that were counted\n",
        });
    }
    if !lines.is_empty() {
        text += &losses_last(&lines, columns);
    }
    if is_short {
        text += "all figures of a case: `hugefork bench CASE`\n";
    }
    text
}

/// The figures of each case that has a comparison, the one with the least ratio first; the worst case first.
fn lines(comparisons: &[Comparison]) -> Vec<Vec<&Comparison>> {
    let of_case = |name: &str| comparisons.iter().filter(|one| one.case.name() == name).collect::<Vec<_>>();
    let mut lines: Vec<Vec<&Comparison>> = cases::ALL.iter().map(|case| of_case(case.name())).collect();
    lines.retain(|line| !line.is_empty());
    lines.iter_mut().for_each(|line| line.sort_by(|one, other| one.ratio.total_cmp(&other.ratio)));
    lines.sort_by(|one, other| one[0].ratio.total_cmp(&other[0].ratio));
    lines
}

fn losses(line: &[&Comparison]) -> usize {
    line.iter().filter(|comparison| comparison.is_loss()).count()
}

fn ratio(comparison: &Comparison) -> String {
    format!("{}x", figure(comparison.ratio))
}

fn table(lines: &[Vec<&Comparison>]) -> String {
    let head = ["", "worst", "best", "worse in"].map(str::to_owned).to_vec();
    let row = |line: &Vec<&Comparison>| {
        let best = line[line.len() - 1];
        vec![line[0].case.to_string(), ratio(line[0]), ratio(best), format!("{} of {}", losses(line), line.len())]
    };
    let rows = aligned([head].into_iter().chain(lines.iter().map(row)));
    let figure = |line: &Vec<&Comparison>| format!("{}, {}", line[0].metric.name(), line[0].rival);
    let last = ["worst figure, best rival".to_owned()].into_iter().chain(lines.iter().map(figure));
    rows.lines().zip(last).map(|(line, last)| format!("{line}  {last}\n")).collect::<String>()
        + "more than 1x: hugefork is better; from 0.95x on it counts as equal\n\n"
}

/// The worst figure of each case that has a loss, with both values and the work; the worst of all comes last.
fn losses_last(lines: &[Vec<&Comparison>], columns: usize) -> String {
    let mut text = String::new();
    for worst in lines.iter().rev().map(|line| line[0]).filter(|worst| worst.is_loss()) {
        let Comparison { case, metric, ours, rival, theirs, .. } = worst;
        let (ratio, mine, theirs) = (ratio(worst), figure(ours.median), figure(*theirs));
        let (name, unit, work) = (metric.name(), metric.unit(), case.in_words(&ours.params));
        let line = format!("{case} {ratio}: {name} {mine} {unit}, {rival} {theirs}; {work}");
        text += &wrap("  ", "    ", &line, columns);
    }
    if text.is_empty() { "no losses\n".to_owned() } else { format!("\nlosses, the worst of each case:\n{text}") }
}

/// The subjects without figures, in a line for each reason.
fn absences(what: &str, list: &[Absent], columns: usize) -> String {
    let mut reasons: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Absent { subject, why, .. } in list {
        reasons.entry(why).or_default().insert(subject);
    }
    let names = |subjects: BTreeSet<&str>| subjects.into_iter().collect::<Vec<_>>().join(", ");
    let line = |(why, subjects)| wrap(what, "  ", &format!("{}: {why}", names(subjects)), columns);
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use hugefork_bench::result::{CaseResult, Param};
    use hugefork_bench::{Case, Host, Scope};

    use super::*;

    /// Results of every metric of every case: hugefork has 1.0, `theirs` is the value of all rivals.
    fn report(cases: &[&'static dyn Case], theirs: f64) -> Report {
        let mut report = Report::new("hugefork bench".to_owned(), Host::read());
        for case in cases {
            for (metric, subject) in case
                .facts()
                .metrics
                .iter()
                .flat_map(|metric| case.subjects(Scope::Quick).into_iter().map(move |subject| (metric, subject)))
            {
                let median = if subject.is_ours() { 1.0 } else { theirs };
                report.results.push(CaseResult {
                    case: case.name().to_owned(),
                    subject: subject.to_string(),
                    params: [("size".to_owned(), Param::size(256 << 20))].into(),
                    metric: metric.name().to_owned(),
                    unit: metric.unit().to_owned(),
                    samples: vec![median; 5],
                    median,
                });
            }
        }
        report
    }

    fn absent(subject: &str, why: &str) -> Absent {
        Absent { case: "snapshot".to_owned(), subject: subject.to_owned(), why: why.to_owned() }
    }

    /// However many losses there are: the screen of most terminals has 24 lines or more.
    #[test]
    fn an_answer_fits_one_screen_and_has_losses_first_and_last() {
        for theirs in [0.5, 1.0, 2.0] {
            let mut report = report(&cases::quick(), theirs);
            report.warnings = vec!["one".to_owned(), "two".to_owned(), "three".to_owned()];
            report.not_run.push(absent("fork-hugetlb", "needs 12 free hugetlb pages of 2MiB"));
            let text = render(&report, true, 80);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.lines().count() <= 40, "{text}");
            for case in cases::quick() {
                assert!(text.lines().any(|line| line.starts_with(case.name())), "{case} in {text}");
            }
            let (first, last) = (text.find("worse than the best rival in").unwrap(), text.find("losses").unwrap());
            assert!(first < text.find("worst figure").unwrap() && last > first, "{text}");
            assert!(text.contains("note: two") && !text.contains("note: three"), "{text}");
            // A rate is worse where times are better.
            let loses = |figure: &str| text.contains(&format!(" 0.500x: {figure} 1.00"));
            assert_eq!([loses("call"), loses("throughput")], [theirs == 0.5, theirs == 2.0], "{text}");
        }
    }

    #[test]
    fn the_worst_and_the_best_ratio_of_a_case_stand_in_its_line() {
        let case = cases::named("snapshot").unwrap();
        let mut report = report(&[case], 3.0);
        let values: Vec<f64> = vec![0.25, 8.0, 4.0, 1.0, 2.0];
        for (metric, value) in case.facts().metrics.iter().zip(values) {
            for result in report.results.iter_mut().filter(|r| r.metric == metric.name() && r.subject == "fork-4k") {
                result.median = value;
            }
        }
        let text = render(&report, true, 80);
        let line = text.lines().find(|line| line.starts_with("snapshot")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["snapshot", "0.250x", "3.00x", "1", "of", "5", "call,", "fork-4k"], "{text}");
        assert!(text.contains("snapshot 0.250x: call 1.00 ms, fork-4k 0.250; 256MiB"), "{text}");
    }

    #[test]
    fn named_cases_have_every_figure_every_note_and_the_answer_last() {
        let mut report = report(&[cases::named("reset").unwrap()], 0.5);
        report.warnings = (0..5).map(|nth| format!("note {nth}")).collect();
        let text = render(&report, false, 80);
        for subject in cases::named("reset").unwrap().subjects(Scope::Quick) {
            assert!(text.contains(&format!("\n{subject} ")), "{subject} in {text}");
        }
        assert!(text.contains("±0%") && text.contains("note: note 4"), "{text}");
        assert!(text.trim_end().lines().last().unwrap().contains("0.500x"), "{text}");
    }

    #[test]
    fn subjects_with_the_same_reason_are_one_line() {
        let list = [absent("memcpy", "needs 9 MiB"), absent("a", "no"), absent("fork-4k", "needs 9 MiB")];
        assert_eq!(absences("not run: ", &list, 80), "not run: fork-4k, memcpy: needs 9 MiB\nnot run: a: no\n");
    }

    #[test]
    fn without_figures_the_reasons_are_the_answer() {
        let mut report = Report::new("hugefork bench".to_owned(), Host::default());
        report.interrupted = true;
        report.failed.push(absent("hugefork", "wrong contents"));
        let text = render(&report, true, 80);
        assert!(text.contains("FAILED: hugefork: wrong contents") && text.contains("before anything was counted"));
        assert!(!text.contains("worst"), "{text}");
    }
}
