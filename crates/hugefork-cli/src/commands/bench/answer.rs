//! The answer of a bench, which fits one screen of 80 columns: the losses first, a line for each case, and the losses
//! again last, where the reader's eyes are.
//!
//! ```text
//! worse than the best rival in 9 of 61 figures: reset 0.21x, first-touch 0.32x
//!
//!               worst   best  worse in  worst figure
//! reset         0.21x  1.91x    6 of 8  cpu, known-pages
//! ```
//! A figure is one metric of one work, and each figure has its own best rival.

use std::fmt::Write;

use hugefork_bench::ratios::{Comparison, compare};
use hugefork_bench::result::Absent;
use hugefork_bench::{Report, cases};
use hugefork_report::figure;

use super::figures::{aligned, figures};
use crate::output::terminal::wrap;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The answer, which fits a screen.
    Answer,
    /// Every figure, and then the answer.
    Figures,
}

/// The number of notes in a short answer.
const NOTES: usize = 2;

const RED: u8 = 31;
const GREEN: u8 = 32;

/// The output that a report is shown on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) columns: usize,
    pub(crate) colours: bool,
}

impl Look {
    /// A ratio, in a colour if it is a loss or a gain.
    fn ratio(self, comparison: &Comparison) -> String {
        let text = format!("{}x", figure(comparison.ratio));
        let colour = match comparison.ratio {
            _ if comparison.is_loss() => RED,
            ratio if ratio > 1.0 => GREEN,
            _ => return text,
        };
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text }
    }
}

/// One case: its figures, the one with the least ratio first. There is at least one.
struct Line<'a>(Vec<&'a Comparison>);

impl Line<'_> {
    fn worst(&self) -> &Comparison {
        self.0[0]
    }

    fn losses(&self) -> usize {
        self.0.iter().filter(|comparison| comparison.is_loss()).count()
    }
}

/// Renders `report`.
pub(crate) fn render(report: &Report, detail: Detail, look: Look) -> String {
    let comparisons = compare(report);
    let mut text = head(report, look);
    // Without a comparison, the figures are the answer, or the reasons why there are none.
    let detail = if comparisons.is_empty() { Detail::Figures } else { detail };
    if detail == Detail::Figures {
        text += &figures(report);
    }
    let lines = lines(&comparisons);
    if !lines.is_empty() {
        text += &losses_first(&lines, look);
        text += &table(&lines, look);
    }
    text += &absences("not run: ", &report.not_run, look);
    text += &absences("FAILED: ", &report.failed, look);
    let notes = if detail == Detail::Answer { NOTES } else { report.warnings.len() };
    for warning in report.warnings.iter().take(notes) {
        text += &wrap("note: ", "  ", warning, look.columns);
    }
    if report.interrupted {
        text.push_str(match report.results.is_empty() {
            true => "note: stopped before anything was counted; there are no figures\n",
            false => "note: stopped before the end; figures hold the rounds that were counted\n",
        });
    }
    if !lines.is_empty() {
        text += &losses_last(&lines, look);
    }
    if detail == Detail::Answer {
        text += "all figures of a case: `hugefork bench CASE`\n";
    }
    text
}

fn head(report: &Report, look: Look) -> String {
    let host = &report.host;
    let on = host.hypervisor.as_ref().map_or(String::new(), |hypervisor| format!(" on {hypervisor}"));
    let line = format!(
        "hugefork {} on {}, {} CPUs, {}{on}, shmem huge pages {}",
        report.version, host.cpu, host.cpus, host.kernel, host.thp.shmem_enabled
    );
    wrap("", "  ", &line, look.columns) + "\n"
}

/// A line for each case that has a comparison, the worst case first.
fn lines(comparisons: &[Comparison]) -> Vec<Line<'_>> {
    let of_case = |name: &str| {
        let mut figures: Vec<&Comparison> = comparisons.iter().filter(|one| one.case.name() == name).collect();
        figures.sort_by(|one, other| one.ratio.total_cmp(&other.ratio));
        (!figures.is_empty()).then_some(Line(figures))
    };
    let mut lines: Vec<Line<'_>> = cases::ALL.iter().filter_map(|case| of_case(case.name())).collect();
    lines.sort_by(|one, other| one.worst().ratio.total_cmp(&other.worst().ratio));
    lines
}

/// The number of losses, and the worst of each case.
fn losses_first(lines: &[Line<'_>], look: Look) -> String {
    let all: usize = lines.iter().map(|line| line.0.len()).sum();
    let losses: usize = lines.iter().map(Line::losses).sum();
    let worst = lines.iter().filter(|line| line.losses() > 0).map(|line| {
        let worst = line.worst();
        format!("{} {}", worst.case.name(), look.ratio(worst))
    });
    let worst: Vec<String> = worst.collect();
    let first = format!("worse than the best rival in {losses} of {all} figures");
    let first = if worst.is_empty() { first } else { format!("{first}: {}", worst.join(", ")) };
    wrap("", "  ", &first, look.columns) + "\n"
}

fn table(lines: &[Line<'_>], look: Look) -> String {
    let head = ["", "worst", "best", "worse in"].map(str::to_owned).to_vec();
    let row = |line: &Line<'_>| {
        let (worst, best) = (line.worst(), line.0[line.0.len() - 1]);
        let name = worst.case.name().to_owned();
        vec![name, look.ratio(worst), look.ratio(best), format!("{} of {}", line.losses(), line.0.len())]
    };
    let rows: Vec<Vec<String>> = [head].into_iter().chain(lines.iter().map(row)).collect();
    let figure = |line: &Line<'_>| format!("{}, {}", line.worst().metric.name(), line.worst().rival);
    let last = ["worst figure, best rival".to_owned()].into_iter().chain(lines.iter().map(figure));
    aligned(&rows).lines().zip(last).map(|(line, last)| format!("{line}  {last}\n")).collect::<String>()
        + "more than 1x: hugefork is better; from 0.95x on it counts as equal\n\n"
}

/// The worst figure of each case that has a loss, with both values and the work; the worst of all comes last.
fn losses_last(lines: &[Line<'_>], look: Look) -> String {
    let mut text = String::new();
    for line in lines.iter().rev().filter(|line| line.losses() > 0) {
        let Comparison { case, metric, ours, rival, theirs, .. } = line.worst();
        let (mine, theirs) = (figure(ours.median), figure(*theirs));
        let line = format!(
            "{case} {}: {} {mine} {}, {rival} {theirs}; {}",
            look.ratio(line.worst()),
            metric.name(),
            metric.unit(),
            case.in_words(&ours.params)
        );
        text += &wrap("  ", "    ", &line, look.columns);
    }
    if text.is_empty() { "no losses\n".to_owned() } else { format!("\nlosses, the worst of each case:\n{text}") }
}

/// The subjects without figures, in a line for each reason. Reasons that differ only in their numbers are one, and the
/// one with the longest text stands for all.
fn absences(what: &str, list: &[Absent], look: Look) -> String {
    let shape = |why: &str| why.replace(|sign: char| sign.is_ascii_digit(), "");
    let mut reasons: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for Absent { subject, why, .. } in list {
        match reasons.iter_mut().find(|(known, ..)| *known == shape(why)) {
            Some((_, longest, subjects)) => {
                *longest = if (why.len(), why.as_str()) > (longest.len(), longest) { why } else { longest };
                subjects.push(subject);
            }
            None => reasons.push((shape(why), why, vec![subject])),
        }
    }
    let mut text = String::new();
    for (_, why, mut subjects) in reasons {
        subjects.sort_unstable();
        subjects.dedup();
        let _ = write!(text, "{}", wrap(what, "  ", &format!("{}: {why}", subjects.join(", ")), look.columns));
    }
    text
}

#[cfg(test)]
mod tests {
    use hugefork_bench::result::{CaseResult, Param};
    use hugefork_bench::{Case, Host, Scope};

    use super::*;

    const LOOK: Look = Look { columns: 80, colours: false };

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
            let text = render(&report, Detail::Answer, LOOK);
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
        let text = render(&report, Detail::Answer, LOOK);
        let line = text.lines().find(|line| line.starts_with("snapshot")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["snapshot", "0.250x", "3.00x", "1", "of", "5", "call,", "fork-4k"], "{text}");
        assert!(text.contains("snapshot 0.250x: call 1.00 ms, fork-4k 0.250; 256MiB"), "{text}");
    }

    #[test]
    fn named_cases_have_every_figure_every_note_and_the_answer_last() {
        let mut report = report(&[cases::named("reset").unwrap()], 0.5);
        report.warnings = (0..5).map(|nth| format!("note {nth}")).collect();
        let text = render(&report, Detail::Figures, LOOK);
        for subject in cases::named("reset").unwrap().subjects(Scope::Quick) {
            assert!(text.contains(&format!("\n{subject} ")), "{subject} in {text}");
        }
        assert!(text.contains("±0%") && text.contains("note: note 4"), "{text}");
        assert!(text.trim_end().lines().last().unwrap().contains("0.500x"), "{text}");
    }

    #[test]
    fn reasons_that_differ_in_numbers_are_one_line() {
        let list =
            [absent("memcpy", "10 held: needs 9 MiB"), absent("memcpy", "100 held: needs 99 MiB"), absent("a", "no")];
        let text = absences("not run: ", &list, LOOK);
        assert_eq!(text, "not run: memcpy: 100 held: needs 99 MiB\nnot run: a: no\n");
        assert_eq!(absences("not run: ", &[], LOOK), "");
    }

    #[test]
    fn without_figures_the_reasons_are_the_answer() {
        let mut report = Report::new("hugefork bench".to_owned(), Host::default());
        report.interrupted = true;
        report.failed.push(absent("hugefork", "wrong contents"));
        let text = render(&report, Detail::Answer, LOOK);
        assert!(text.contains("FAILED: hugefork: wrong contents") && text.contains("before anything was counted"));
        assert!(!text.contains("worst"), "{text}");
    }
}
