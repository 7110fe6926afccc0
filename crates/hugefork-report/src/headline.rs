//! hugefork beside the kernel's best, case by case.

use std::collections::{BTreeMap, BTreeSet};

use crate::bootstrap::{Interval, interval, seed};
use crate::cases::{aside, is_ours, is_rival, labels, lead_metric, metric_name, work};
use crate::figures::{common, phrases};
use crate::machines::Machine;
use crate::record::{Better, Entry};
use crate::works::{principal, works};

/// hugefork in one case, with one work.
pub(crate) struct Headline<'a> {
    pub(crate) case: &'a str,
    /// The metric that is compared.
    pub(crate) metric: String,
    /// What was done.
    pub(crate) work: String,
    pub(crate) ours: &'a Entry,
    pub(crate) ours_label: String,
    /// The strongest rival first, and last those that stand aside.
    pub(crate) others: Vec<Beside<'a>>,
}

/// What a program would have without hugefork.
pub(crate) struct Beside<'a> {
    pub(crate) entry: &'a Entry,
    /// Whether it does not do the same service: see [`aside`].
    pub(crate) aside: bool,
    /// How many times better hugefork is.
    pub(crate) ratio: f64,
    /// Where the ratio lies, with 95 % confidence.
    pub(crate) interval: Option<Interval>,
}

impl<'a> Headline<'a> {
    /// The strongest rival.
    pub(crate) fn best(&self) -> Option<&Beside<'a>> {
        self.others.first().filter(|other| !other.aside)
    }
}

/// What the ratio of two figures says of hugefork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Gain,
    Loss,
    /// Nobody can say that there is a difference.
    Unsure,
}

impl Standing {
    /// The CSS class of what is drawn or written in its colour.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Standing::Gain => "gain",
            Standing::Loss => "loss",
            Standing::Unsure => "unsure",
        }
    }
}

impl Beside<'_> {
    pub(crate) fn standing(&self) -> Standing {
        match self.interval.filter(|interval| !interval.holds_one()) {
            None => Standing::Unsure,
            Some(_) if self.ratio < 1.0 => Standing::Loss,
            Some(_) => Standing::Gain,
        }
    }
}

/// Whether hugefork's entry is surely behind the strongest rival that did the same work.
pub(crate) fn loses(ours: &Entry, entries: &[&Entry]) -> bool {
    others(ours, entries).first().is_some_and(|best| !best.aside && best.standing() == Standing::Loss)
}

/// Every line of the table.
pub(crate) fn headlines<'a>(machine: &Machine<'a>) -> Vec<Headline<'a>> {
    let mut lines = Vec::new();
    for case in machine.cases() {
        let of_case: Vec<&Entry> = machine.entries.iter().copied().filter(|entry| entry.case == case).collect();
        let Some(metric) = lead_metric(case, &of_case) else {
            continue;
        };
        let entries: Vec<&Entry> = of_case.into_iter().filter(|entry| entry.metric == metric).collect();
        let ours = |list: &[&Entry]| list.iter().any(|entry| is_ours(&entry.subject));
        let mut worth: Vec<_> = works(&entries).into_iter().filter(|(_, list)| ours(list)).collect();
        principal(&mut worth);
        let is_worth = |entry: &Entry| worth.iter().any(|(known, _)| *known == work(entry, &entries));
        let ours: Vec<&Entry> =
            entries.iter().copied().filter(|entry| is_ours(&entry.subject) && is_worth(entry)).collect();
        let names = labels(&ours, |entry| work(entry, &entries));
        // Parameters that are alike in every line are said once, of the case.
        let alike = common(entries.iter().map(|entry| &entry.params));
        for (entry, label) in ours.into_iter().zip(names) {
            let mut done = work(entry, &entries);
            done.retain(|name, _| !["stride", "area"].contains(&name.as_str()) || !alike.contains_key(name));
            lines.push(Headline {
                case,
                metric: metric_name(case, metric),
                work: phrases(&done),
                ours: entry,
                ours_label: label,
                others: others(entry, &entries),
            });
        }
    }
    lines
}

/// The few of `lines` that say most: the first of each case, if it is surely better than the strongest rival, and last
/// the worst loss of all, if there is one.
pub(crate) fn leading<'l, 'a>(lines: &'l [Headline<'a>], most: usize) -> Vec<&'l Headline<'a>> {
    let standing = |line: &Headline| line.best().map_or(Standing::Unsure, Beside::standing);
    let losses = lines.iter().filter(|line| standing(line) == Standing::Loss);
    let loss = losses.min_by(|a, b| ratio_of(a).total_cmp(&ratio_of(b)));
    // Not the best of each case, since whoever looks for a gain finds one.
    let firsts = lines.iter().enumerate().filter(|(index, line)| lines[..*index].iter().all(|l| l.case != line.case));
    let gains = firsts.map(|(_, line)| line).filter(|line| standing(line) == Standing::Gain);
    gains.take(most.saturating_sub(usize::from(loss.is_some()))).chain(loss).collect()
}

fn ratio_of(line: &Headline) -> f64 {
    line.best().map_or(f64::INFINITY, |best| best.ratio)
}

/// Subjects of `machine` that stand aside, and why: a line for each subject and reason, with all cases where it is so.
pub(crate) fn asides(machine: &Machine) -> Vec<String> {
    let mut cases: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for entry in &machine.entries {
        if let Some(why) = aside(&entry.case, &entry.subject) {
            cases.entry((&entry.subject, why)).or_default().insert(&entry.case);
        }
    }
    let line = |((subject, why), cases): ((&str, &str), BTreeSet<&str>)| {
        format!("{subject} in {}: {why}", cases.into_iter().collect::<Vec<_>>().join(", "))
    };
    cases.into_iter().map(line).collect()
}

fn others<'a>(ours: &Entry, entries: &[&'a Entry]) -> Vec<Beside<'a>> {
    let same = work(ours, entries);
    let is_other =
        |other: &&Entry| is_rival(&other.subject) && other.unit == ours.unit && work(*other, entries) == same;
    let mut others: Vec<Beside> = entries.iter().copied().filter(is_other).map(|other| beside(ours, other)).collect();
    // If figures may be negative, no ratio says who is better.
    if others.iter().any(|other| !other.ratio.is_finite() || other.ratio <= 0.0) {
        return Vec::new();
    }
    others.sort_by(|a, b| a.aside.cmp(&b.aside).then(a.ratio.total_cmp(&b.ratio)));
    others
}

fn beside<'a>(ours: &Entry, entry: &'a Entry) -> Beside<'a> {
    let found = interval(&ours.samples, &entry.samples, seed([ours.case.as_str(), &ours.subject, &entry.subject]));
    let (ratio, interval) = match ours.better() {
        Better::Lower => (entry.median / ours.median, found),
        Better::Higher => (ours.median / entry.median, found.map(Interval::inverse)),
    };
    Beside { entry, aside: aside(&entry.case, &entry.subject).is_some(), ratio, interval }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;
    use crate::machines::machines;
    use crate::record::Record;

    fn record(case: &str, metric: &str, unit: &str, list: &[(&str, &str, f64)]) -> Record {
        let entry = |(subject, size, median): &(&str, &str, f64)| {
            serde_json::json!({"case": case, "subject": subject, "params": {"size": size}, "metric": metric, "unit": unit,
                "median": median})
        };
        let file = serde_json::json!({"schema": 1, "results": list.iter().map(entry).collect::<Vec<_>>()});
        parse("x", file.to_string().as_bytes()).unwrap()
    }

    fn ratios(record: Record) -> Vec<(String, f64)> {
        let records = [record];
        let found = headlines(&machines(&records)[0]);
        found.iter().flat_map(Headline::best).map(|best| (best.entry.subject.clone(), best.ratio)).collect()
    }

    #[test]
    fn the_strongest_rival_of_the_same_work_is_beside_hugefork() {
        let list = [("hugefork", "1GiB", 2.0), ("a", "1GiB", 8.0), ("b", "1GiB", 6.0), ("c", "2GiB", 1.0)];
        assert_eq!(ratios(record("snapshot", "pause", "ms", &list)), [("b".to_owned(), 3.0)]);
        assert_eq!(ratios(record("anon-w-seq", "throughput", "GiB/s", &list)), [("a".to_owned(), 0.25)]);
    }

    #[test]
    fn who_stands_aside_is_never_the_best() {
        let list =
            [("hugefork", "x", 2.0), ("kernel-4k", "x", 1.0), ("kernel-thp", "x", 6.0), ("straight/rep", "x", 0.1)];
        assert_eq!(ratios(record("zero-fault", "latency", "us", &list)), [("kernel-thp".to_owned(), 3.0)]);
        assert!(ratios(record("zero-fault", "latency", "us", &list[..2])).is_empty());
    }

    #[test]
    fn a_reason_to_stand_aside_is_told_once_with_all_its_cases() {
        let of = |case: &str, subject: &str| serde_json::json!({"case": case, "subject": subject, "params": {}, "metric": "x", "unit": "us", "median": 1.0});
        let cases = ["zero-fault", "anon-w-seq", "anon-cow-seq"];
        let mut results: Vec<_> = cases.iter().map(|case| of(case, "limit")).collect();
        results.push(of("zero-fault", "kernel-4k"));
        let file = serde_json::json!({"schema": 1, "results": results});
        let records = [parse("x", file.to_string().as_bytes()).unwrap()];
        let told = asides(&machines(&records)[0]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].starts_with("limit in anon-cow-seq, anon-w-seq, zero-fault: "), "{told:?}");
    }

    #[test]
    fn the_page_leads_with_gains_and_does_not_hide_the_worst_loss() {
        let of = |case: &str, subject: &str, use_of: &str, median: f64| {
            serde_json::json!({"case": case, "subject": subject, "params": {"use": use_of}, "metric": "pause", "unit": "ms",
                "samples": vec![median; 5], "median": median})
        };
        let (mut results, cases) = (Vec::new(), ["snapshot", "a", "b", "c"]);
        for (case, ours) in cases.into_iter().zip([1.0, 2.0, 40.0, 20.0]) {
            for use_of in ["x", "y"] {
                results.extend([of(case, "hugefork", use_of, ours), of(case, "kernel", use_of, 10.0)]);
            }
        }
        let file = serde_json::json!({"schema": 1, "results": results});
        let records = [parse("x", file.to_string().as_bytes()).unwrap()];
        let lines = headlines(&machines(&records)[0]);
        assert_eq!(lines.len(), 8);
        let leading = |most| -> Vec<&str> { leading(&lines, most).iter().map(|line| line.case).collect() };
        assert_eq!(leading(4), ["snapshot", "a", "b"]);
        assert_eq!(leading(2), ["snapshot", "b"]);
        assert!(super::leading(&[], 4).is_empty());
        let entries: Vec<&Entry> = records[0].entries.iter().collect();
        let of_case = |case: &str| -> Vec<&Entry> { entries.iter().copied().filter(|e| e.case == case).collect() };
        assert!(loses(of_case("c")[0], &of_case("c")) && !loses(of_case("a")[0], &of_case("a")));
    }

    #[test]
    fn a_case_of_a_later_hugefork_is_told_by_its_first_metric() {
        let list = [("hugefork", "x", 2.0), ("kernel", "x", 6.0)];
        assert_eq!(ratios(record("defragment", "moves", "us", &list)), [("kernel".to_owned(), 3.0)]);
    }
}
