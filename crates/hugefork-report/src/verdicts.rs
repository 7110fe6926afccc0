//! Two results side by side, of two machines, kernels or builds, with a verdict on each figure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::bootstrap::{FEWEST, Interval, interval, seed};
use crate::cases::{HOW, is_ours};
use crate::record::{Better, Entry, Params, Record};

/// CPU time below this many seconds is a few ticks of the scheduler, and differs from run to run for no reason.
const TICKS: f64 = 0.010;

/// What `b` is beside `a`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The first result.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// What both have, in the order of `a`.
    pub rows: Vec<Row>,
    /// What only `a` has.
    pub only_a: Vec<Lone>,
    /// What only `b` has.
    pub only_b: Vec<Lone>,
}

/// Where figures are from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Side {
    /// The file.
    pub file: String,
    /// hugefork's version.
    pub version: String,
    /// The CPU.
    pub cpu: String,
    /// CPUs that could be used.
    pub cpus: u64,
    /// Operating system and release.
    pub kernel: String,
}

/// One metric that both have.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The case.
    pub case: String,
    /// The subject.
    pub subject: String,
    /// The parameters that are the same.
    pub params: Params,
    /// The parameters that differ, in `a` and in `b`: which kernel hugefork chose, what its pool stands on.
    pub how: BTreeMap<String, [String; 2]>,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// The median in `a`.
    pub a: f64,
    /// The median in `b`.
    pub b: f64,
    /// `b` / `a`; none unless both are positive.
    pub ratio: Option<f64>,
    /// Where the ratio lies, with 95 % confidence; none with fewer than four samples on a side, or with samples that
    /// are not positive.
    pub interval: Option<Interval>,
    /// What the ratio means for somebody who goes from `a` to `b`.
    pub verdict: Verdict,
}

/// Going from `a` to `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// The interval says better.
    #[serde(rename = "better")]
    Better,
    /// The interval says worse.
    #[serde(rename = "worse")]
    Worse,
    /// The interval holds 1, or both are CPU times of a few ticks.
    #[serde(rename = "no difference seen")]
    NoDifferenceSeen,
    /// There is no interval.
    #[serde(rename = "cannot tell")]
    CannotTell,
}

/// One metric that only one of them has.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Lone {
    /// The case.
    pub case: String,
    /// The subject.
    pub subject: String,
    /// Its parameters.
    pub params: Params,
    /// The metric.
    pub metric: String,
    /// The median.
    pub median: f64,
    /// Its unit.
    pub unit: String,
}

/// Puts `b` beside `a`. Entries are the same if case, subject, all parameters, metric and unit are. They are also the
/// same if only a choice of hugefork's own differs, such as the kernel after its calibration, and there is one such
/// entry on either side: that is what people want to compare of two machines.
pub fn compare(a: &Record, b: &Record) -> Comparison {
    let (ours, theirs) = (once(a), once(b));
    let (mut pairs, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for view in [View::Exact, View::SameBacking, View::SameWork] {
        let left = single(&theirs, view, |index| taken.contains(&index));
        for (what, index) in single(&ours, view, |index| pairs.contains_key(&index)) {
            if let Some(other) = left.get(&what) {
                pairs.insert(index, *other);
                taken.insert(*other);
            }
        }
    }
    let (mut rows, mut only_a) = (Vec::new(), Vec::new());
    for (index, entry) in ours.iter().enumerate() {
        match pairs.get(&index) {
            Some(other) => rows.push(row(entry, theirs[*other])),
            None => only_a.push(lone(entry)),
        }
    }
    let left = theirs.iter().enumerate().filter(|(index, _)| !taken.contains(index));
    Comparison { a: side(a), b: side(b), rows, only_a, only_b: left.map(|(_, entry)| lone(entry)).collect() }
}

/// The entries of `record`, each once.
fn once(record: &Record) -> Vec<&Entry> {
    let mut seen = BTreeSet::new();
    record.entries.iter().filter(|entry| seen.insert(entry.key())).collect()
}

/// How closely parameters are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// All of them.
    Exact,
    /// Of what hugefork chose only the backing, without how it got huge pages.
    SameBacking,
    /// Nothing of what hugefork chose.
    SameWork,
}

/// What an entry is about, in some view.
type What<'a> = (&'a str, &'a str, Vec<(&'a str, &'a str)>, &'a str, &'a str);

impl View {
    /// None for those that are looked at exactly or not at all: nobody but hugefork chooses.
    fn of(self, entry: &Entry) -> Option<What<'_>> {
        if self != View::Exact && !is_ours(&entry.subject) {
            return None;
        }
        let mut params: Vec<(&str, &str)> = entry.params.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        if self != View::Exact {
            params.retain(|(name, _)| !HOW.contains(name) || (self == View::SameBacking && *name == "backing"));
            for (_, value) in &mut params {
                // `shmem-thp (MADV_COLLAPSE)` stands on the same as `shmem-thp`.
                *value = value.split(" (").next().unwrap_or_default();
            }
        }
        Some((&entry.case, &entry.subject, params, &entry.metric, &entry.unit))
    }
}

/// Where those of `entries` are that are not `taken`, and alone about what they are about.
fn single<'a>(entries: &[&'a Entry], view: View, taken: impl Fn(usize) -> bool) -> BTreeMap<What<'a>, usize> {
    let mut found: BTreeMap<What, Vec<usize>> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate().filter(|(index, _)| !taken(*index)) {
        if let Some(what) = view.of(entry) {
            found.entry(what).or_default().push(index);
        }
    }
    let alone = |(what, list): (What<'a>, Vec<usize>)| match list.as_slice() {
        [only] => Some((what, *only)),
        _ => None,
    };
    found.into_iter().filter_map(alone).collect()
}

impl Comparison {
    /// What `--fail-above PERCENT` fails for: rows that got worse by more than `percent` of `a`, and surely so: the
    /// whole interval lies beyond. A time that doubles is worse by 100 %, a rate that halves by 50 %.
    pub fn worse_by_more_than(&self, percent: f64) -> Vec<&Row> {
        let beyond = |row: &&Row| row.verdict == Verdict::Worse && row.least_loss() > percent / 100.0;
        self.rows.iter().filter(beyond).collect()
    }

    /// How many rows have `verdict`.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }
}

impl Row {
    /// The part of `a` that is lost at the interval's better end; negative for a gain.
    fn least_loss(&self) -> f64 {
        match (self.interval, self.better) {
            (None, _) => f64::NEG_INFINITY,
            (Some(interval), Better::Lower) => interval.low - 1.0,
            (Some(interval), Better::Higher) => 1.0 - interval.high,
        }
    }
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Verdict; 4] = [Verdict::Better, Verdict::Worse, Verdict::NoDifferenceSeen, Verdict::CannotTell];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifferenceSeen => "no difference seen",
            Verdict::CannotTell => "cannot tell",
        }
    }
}

fn row(a: &Entry, b: &Entry) -> Row {
    let names = [&a.case, &a.subject, &a.metric].into_iter().chain(a.params.values());
    let interval = interval(&a.samples, &b.samples, seed(names.map(String::as_str)));
    let better = a.better();
    Row {
        case: a.case.clone(),
        subject: a.subject.clone(),
        params: a.params.iter().filter(|(name, value)| b.params.get(*name) == Some(value)).map(owned).collect(),
        how: how(&a.params, &b.params),
        metric: a.metric.clone(),
        unit: a.unit.clone(),
        better,
        a: a.median,
        b: b.median,
        ratio: (a.median > 0.0 && b.median > 0.0).then(|| b.median / a.median),
        interval,
        verdict: verdict(a, b, interval),
    }
}

fn owned((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// Where `a` and `b` differ.
fn how(a: &Params, b: &Params) -> BTreeMap<String, [String; 2]> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).filter(|name| a.get(*name) != b.get(*name)).collect();
    let of = |params: &Params, name: &String| params.get(name).cloned().unwrap_or_default();
    names.into_iter().map(|name| (name.clone(), [of(a, name), of(b, name)])).collect()
}

fn verdict(a: &Entry, b: &Entry, interval: Option<Interval>) -> Verdict {
    let few = a.samples.len().min(b.samples.len()) < FEWEST;
    let ticks = a.unit == "s" && a.max().max(b.max()) < TICKS;
    match interval {
        _ if few => Verdict::CannotTell,
        _ if ticks => Verdict::NoDifferenceSeen,
        None if a.median == b.median => Verdict::NoDifferenceSeen,
        None => Verdict::CannotTell,
        Some(interval) if interval.holds_one() => Verdict::NoDifferenceSeen,
        Some(interval) if (interval.low > 1.0) == (a.better() == Better::Higher) => Verdict::Better,
        Some(_) => Verdict::Worse,
    }
}

fn lone(entry: &Entry) -> Lone {
    Lone {
        case: entry.case.clone(),
        subject: entry.subject.clone(),
        params: entry.params.clone(),
        metric: entry.metric.clone(),
        median: entry.median,
        unit: entry.unit.clone(),
    }
}

fn side(record: &Record) -> Side {
    Side {
        file: record.name.clone(),
        version: record.version.clone(),
        cpu: record.host.cpu.clone(),
        cpus: record.host.cpus,
        kernel: record.host.kernel.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

    fn record(entries: &[(&str, &str, &str, [f64; 5])]) -> Record {
        let entries: Vec<_> = entries
            .iter()
            .map(|(subject, metric, unit, samples)| {
                serde_json::json!({"case": "c", "subject": subject, "metric": metric, "unit": unit, "samples": samples})
            })
            .collect();
        let file = serde_json::json!({"schema": 1, "results": entries});
        parse("x.json", file.to_string().as_bytes()).unwrap()
    }

    fn around(median: f64) -> [f64; 5] {
        [0.99, 0.995, 1.0, 1.005, 1.01].map(|part| part * median)
    }

    #[test]
    fn better_is_less_time_and_more_throughput() {
        let of =
            |time, rate| record(&[("s", "latency", "us", around(time)), ("s", "throughput", "GiB/s", around(rate))]);
        let verdicts = |a, b| compare(&a, &b).rows.iter().map(|row| row.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(of(10.0, 10.0), of(20.0, 20.0)), [Verdict::Worse, Verdict::Better]);
        assert_eq!(verdicts(of(20.0, 20.0), of(10.0, 10.0)), [Verdict::Better, Verdict::Worse]);
        assert_eq!(verdicts(of(10.0, 10.0), of(10.0, 10.0)), [Verdict::NoDifferenceSeen; 2]);
    }

    #[test]
    fn failing_takes_a_loss_that_is_sure() {
        let of = |time| record(&[("s", "latency", "us", time)]);
        let worse = |a, b, percent| compare(&of(a), &of(b)).worse_by_more_than(percent).len();
        assert_eq!(worse(around(10.0), around(12.0), 10.0), 1);
        assert_eq!(worse(around(10.0), around(12.0), 19.0), 0, "the interval reaches to 18 %");
        assert_eq!(worse(around(12.0), around(10.0), 0.0), 0);
        assert_eq!(worse(around(10.0), [9.0, 9.5, 12.0, 12.5, 13.0], 10.0), 0, "the interval holds 1");
        let of = |rate| record(&[("s", "throughput", "GiB/s", rate)]);
        let worse = |a, b, percent| compare(&of(a), &of(b)).worse_by_more_than(percent).len();
        assert_eq!((worse(around(10.0), around(5.0), 45.0), worse(around(10.0), around(5.0), 55.0)), (1, 0));
    }

    #[test]
    fn what_one_lacks_is_apart_and_order_does_not_matter() {
        let a = record(&[("s", "x", "us", around(1.0)), ("s", "y", "us", around(1.0)), ("t", "x", "us", around(1.0))]);
        let b = record(&[("t", "x", "us", around(1.0)), ("u", "x", "us", around(1.0)), ("s", "x", "ms", around(1.0))]);
        let found = compare(&a, &b);
        let names =
            |list: &[Lone]| list.iter().map(|l| format!("{} {} {}", l.subject, l.metric, l.unit)).collect::<Vec<_>>();
        assert_eq!(found.rows.len(), 1);
        assert_eq!(names(&found.only_a), ["s x us", "s y us"]);
        assert_eq!(names(&found.only_b), ["u x us", "s x ms"]);
    }

    #[test]
    fn what_hugefork_chose_for_itself_keeps_nothing_apart_unless_there_is_a_choice() {
        let file = |list: &[(&str, &str)]| {
            let entry = |(subject, kernel): &(&str, &str)| {
                serde_json::json!({"case": "c", "subject": subject, "params": {"kernel": kernel, "size": "1GiB"},
                    "metric": "m", "unit": "us", "median": 1})
            };
            let file = serde_json::json!({"schema": 1, "results": list.iter().map(entry).collect::<Vec<_>>()});
            parse("x", file.to_string().as_bytes()).unwrap()
        };
        let count = |found: &Comparison| (found.rows.len(), found.only_a.len(), found.only_b.len());
        let found = compare(&file(&[("hugefork", "avx2"), ("k", "rep")]), &file(&[("hugefork", "rep"), ("k", "avx2")]));
        assert_eq!(count(&found), (1, 1, 1), "a single kernel is what it is");
        assert_eq!(found.rows[0].how["kernel"], ["avx2", "rep"]);
        assert_eq!(found.rows[0].params.keys().collect::<Vec<_>>(), ["size"]);
        let found = compare(&file(&[("hugefork", "avx2"), ("hugefork", "sse2")]), &file(&[("hugefork", "rep")]));
        assert_eq!(count(&found), (0, 2, 1));
        let found = compare(&file(&[("hugefork", "avx2"), ("hugefork", "rep")]), &file(&[("hugefork", "rep")]));
        assert_eq!(count(&found), (1, 1, 0));
    }

    #[test]
    fn ticks_and_zeros_are_no_difference() {
        let of = |samples| record(&[("s", "user", "s", samples)]);
        let verdict = |a, b| compare(&of(a), &of(b)).rows[0].verdict;
        assert_eq!(verdict(around(0.001), around(0.008)), Verdict::NoDifferenceSeen);
        assert_eq!(verdict(around(0.1), around(0.8)), Verdict::Worse);
        assert_eq!(verdict([0.0; 5], [0.0; 5]), Verdict::NoDifferenceSeen);
        let of = |samples| record(&[("s", "overhead", "us", samples)]);
        let row = compare(&of([-1.0, 0.0, 1.0, 2.0, 3.0]), &of(around(9.0))).rows.remove(0);
        assert_eq!((row.verdict, row.interval), (Verdict::CannotTell, None));
    }

    #[test]
    fn the_json_has_the_names_of_the_text() {
        let of = |time| record(&[("s", "latency", "us", around(time))]);
        let json = serde_json::to_value(compare(&of(1.0), &of(1.0))).unwrap();
        assert_eq!(json["rows"][0]["verdict"], "no difference seen");
        assert_eq!(json["rows"][0]["better"], "lower");
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.name());
        }
    }
}
