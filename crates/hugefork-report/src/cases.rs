//! What the reader says of cases, metrics and subjects. It goes by names alone, and needs to know none of them: a case
//! from a later hugefork is shown under its own name, each metric as bars.

use std::collections::BTreeSet;

use crate::figures::phrase;
use crate::known::known;
use crate::record::{Entry, Measured, Params};

/// What a case is about, in plain words; the name of a case from a later hugefork.
pub(crate) fn title(case: &str) -> &str {
    known(case).map_or(case, |known| known.title)
}

/// What a chart of a metric shows, in plain words.
pub(crate) fn chart_title(case: &str, metric: &str) -> String {
    let known = match (case, metric) {
        ("clear", "total") => "Clear a block and use it",
        ("copy", "total") => "Copy a block and use it",
        ("zero-fault", "latency") => "First write, and use of what lies around it",
        ("writer-latency", "taken") => "What a snapshot takes from the program",
        ("fork", "taken") => "What a fork takes from the program",
        ("writer-latency" | "fork", "total") => "All writes together",
        ("writer-latency", "latency") => "How long single writes take",
        ("history", "each") => "What one more snapshot takes from the program",
        ("paced", "p99.9") => "How late one put of a thousand is",
        ("paced", "latency") => "How late single puts are",
        ("writer-latency", "cost") => "What a write costs, by time",
        (_, "pause") => "How long the program stands still",
        (_, "throughput") => "How fast memory is written",
        ("changes", "pages") => "Finding the pages that have changed",
        ("changes", "blocks") => "Finding the blocks that have changed",
        ("reset", "round") => "Write, and put back",
        (_, "create") => "Making areas and tasks",
        (_, "victim_slowdown") => "How much slower another CPU gets",
        (_, "mark") => "Free lazily",
        (_, "mark+rewrite") => "Free lazily, then write again",
        (_, "mark+reclaim") => "From in use to free again",
        (case, metric) => return capital(&metric_name(case, metric)),
    };
    known.to_owned()
}

pub(crate) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// What was done, for people; none for cases from a later hugefork.
pub(crate) fn description(case: &str) -> Option<&'static str> {
    known(case).map(|known| known.description)
}

/// What a metric is, for axes. Other metrics have their own names there.
pub(crate) fn metric_name(case: &str, metric: &str) -> String {
    let known = match (case, metric) {
        ("clear", "total") => "clear and use",
        ("copy", "total") => "copy and use",
        ("writer-latency" | "fork", "taken") => "pause and writes",
        ("writer-latency" | "fork", "total") => "all writes together",
        ("writer-latency" | "paced", "extra") => "memory beyond the area",
        ("history", "each") => "snapshot and writes",
        ("history", "extra") => "memory of each snapshot",
        ("paced", "max") => "the latest put",
        ("paced", "call") => "the longest call",
        (_, "victim_slowdown") => "slowdown of another CPU",
        (_, "latency") => "write and use",
        ("changes", "pages") => "pages found",
        ("changes", "blocks") => "blocks found",
        ("changes", "live") => "pages found in the region itself",
        ("changes", "mark") => "following of writes begun",
        ("reset", "round") => "written and put back",
        ("reset", "reset") => "put back",
        (_, "create") => "areas and tasks made",
        (_, "amplification") => "bytes copied for each byte written",
        (_, "mark") => "lazily freed",
        (_, "mark+rewrite") => "lazily freed, then written again",
        (_, "mark+reclaim") => "populated to free again",
        (_, other) => return other.replace('_', " "),
    };
    known.to_owned()
}

/// The metric that a case is about, out of those that were measured.
pub(crate) fn lead_metric<'a>(case: &str, entries: &[&'a Entry]) -> Option<&'a str> {
    let leads = known(case).map_or(&["throughput"][..], |known| known.leads);
    let metrics = || entries.iter().map(|entry| entry.metric.as_str());
    let lead = leads.iter().find_map(|lead| metrics().find(|metric| metric == lead));
    lead.or_else(|| metrics().find(|metric| has_chart(case, metric)))
}

/// Whether a metric is worth a chart. The others explain it, and are in the table of all figures.
pub(crate) fn has_chart(case: &str, metric: &str) -> bool {
    let explains = known(case).is_some_and(|known| known.explains.contains(&metric));
    !explains && !["user", "sys", "cycles", "instructions", "llc_misses"].contains(&metric)
}

/// Whether a metric is drawn over the density of writes: what a case is about, and the memory of a history.
pub(crate) fn is_by_density(case: &str, metric: &str, lead: Option<&str>) -> bool {
    lead == Some(metric) || (case, metric) == ("history", "extra")
}

/// The percentile that a metric is, as a part of 1; `max` is 1.
pub(crate) fn percentile(metric: &str) -> Option<f64> {
    if metric == "max" {
        return Some(1.0);
    }
    let digits = metric.strip_prefix('p')?;
    // Names such as `pause` are no percentiles, nor are numbers that `parse` knows but nobody writes (`inf`, `+5`).
    digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then_some(())?;
    let percent: f64 = digits.parse().ok()?;
    (0.0..100.0).contains(&percent).then_some(percent / 100.0)
}

/// Whether a subject is hugefork: a pool, or a program under `hugefork run`.
pub(crate) fn is_ours(subject: &str) -> bool {
    subject == "hugefork" || subject.starts_with("hugefork-") || subject.starts_with("run-")
}

/// What Linux up to 6.19 does.
const LINUX_ORDER: &str = "target-last/rep";

/// Whether a subject is what a program would have without hugefork. Single kernels of `clear` and `copy` are not,
/// except for the one that Linux uses.
pub(crate) fn is_rival(subject: &str) -> bool {
    !is_ours(subject) && (!subject.contains('/') || subject == LINUX_ORDER)
}

/// Why a subject does not do the same service in `case`, and is never "the kernel's best" whatever its figure.
pub(crate) fn aside(case: &str, subject: &str) -> Option<&'static str> {
    known(case)?.aside.iter().find(|(aside, _)| *aside == subject).map(|(_, why)| *why)
}

/// A subject's name, and what it is if the name does not say so.
fn subject_name(subject: &str) -> String {
    if subject == LINUX_ORDER { format!("{subject} (Linux)") } else { subject.to_owned() }
}

/// Parameters that tell subjects apart and do not say what was done.
pub(crate) const HOW: [&str; 5] = ["backing", "kernel", "order", "near", "window"];

/// The parameters of `entry` that say what was done: those that all of `entries` have, which are all that one might put
/// beside it. Parameters that only some have (the block size of a pool) say how they did it.
pub(crate) fn work<M: Measured>(entry: &M, entries: &[&M]) -> Params {
    let everywhere = |name: &str| entries.iter().all(|other| other.params().contains_key(name));
    entry
        .params()
        .iter()
        .filter(|(name, _)| !HOW.contains(&name.as_str()) && everywhere(name))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect()
}

/// A text for each of `entries`, with just enough to tell them apart. `told` gives what is already said of each, such
/// as its place on an axis.
pub(crate) fn labels<M: Measured, K: PartialEq>(entries: &[&M], told: impl Fn(&M) -> K) -> Vec<String> {
    let told: Vec<K> = entries.iter().map(|entry| told(entry)).collect();
    let names: BTreeSet<&str> = entries.iter().flat_map(|entry| entry.params().keys()).map(String::as_str).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    // What users choose comes first.
    names.sort_by_key(|name| ["backing", "block_size"].iter().position(|known| known == name).unwrap_or(2));
    let mut added: Vec<Vec<String>> = vec![Vec::new(); entries.len()];
    for name in names {
        let value = |index: usize| entries[index].params().get(name);
        let twins = |i: usize, j: usize| {
            let same = entries[i].subject() == entries[j].subject() && added[i] == added[j] && told[i] == told[j];
            same && value(i) != value(j)
        };
        let all = 0..entries.len();
        let unclear: BTreeSet<&str> =
            all.clone().filter(|i| all.clone().any(|j| twins(*i, j))).map(|index| entries[index].subject()).collect();
        for (added, entry) in added.iter_mut().zip(entries) {
            if let Some(value) = entry.params().get(name).filter(|_| unclear.contains(entry.subject())) {
                added.push(phrase(name, value));
            }
        }
    }
    let label = |(entry, added): (&&M, &Vec<String>)| {
        let name = subject_name(entry.subject());
        if added.is_empty() { name } else { format!("{name} {}", added.join(", ")) }
    };
    entries.iter().zip(&added).map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

    fn entries(list: &[(&str, &[(&str, &str)])]) -> Vec<Entry> {
        let entry = |(subject, params): &(&str, &[(&str, &str)])| {
            let params: serde_json::Map<_, _> = params.iter().map(|(n, v)| ((*n).to_owned(), (*v).into())).collect();
            serde_json::json!({"case": "c", "subject": subject, "params": params, "metric": "m", "median": 1})
        };
        let file = serde_json::json!({"schema": 1, "results": list.iter().map(entry).collect::<Vec<_>>()});
        parse("x", file.to_string().as_bytes()).unwrap().entries
    }

    #[test]
    fn labels_say_what_sets_subjects_apart_and_no_more() {
        let thp: &[_] = &[("backing", "shmem-thp"), ("block_size", "2MiB"), ("kernel", "a"), ("size", "1GiB")];
        let hugetlb: &[_] = &[("backing", "hugetlb"), ("block_size", "2MiB"), ("kernel", "b"), ("size", "1GiB")];
        let other: &[_] = &[("backing", "hugetlb"), ("block_size", "64KiB"), ("kernel", "b"), ("size", "1GiB")];
        let list = entries(&[("hugefork", thp), ("hugefork", hugetlb), ("kernel-4k", &[("size", "1GiB")])]);
        let list: Vec<&Entry> = list.iter().collect();
        assert_eq!(labels(&list, |_| ()), ["hugefork shmem-thp", "hugefork hugetlb", "kernel-4k"]);
        assert_eq!(labels(&list[..1], |_| ()), ["hugefork"]);
        let list = entries(&[("hugefork", hugetlb), ("hugefork", other), ("target-last/rep", &[])]);
        let list: Vec<&Entry> = list.iter().collect();
        let blocks = ["hugefork 2\u{a0}MiB blocks", "hugefork 64\u{a0}KiB blocks", "target-last/rep (Linux)"];
        assert_eq!(labels(&list, |_| ()), blocks);
        let told = labels(&list, |entry| entry.params.get("block_size").cloned());
        assert_eq!(told, ["hugefork", "hugefork", "target-last/rep (Linux)"]);
    }

    #[test]
    fn work_is_what_all_have_and_not_how() {
        let list = entries(&[
            ("hugefork", &[("size", "1GiB"), ("block_size", "2MiB"), ("backing", "hugetlb")]),
            ("kernel", &[("size", "1GiB"), ("backing", "thp")]),
        ]);
        let list: Vec<&Entry> = list.iter().collect();
        assert_eq!(work(list[0], &list), Params::from([("size".to_owned(), "1GiB".to_owned())]));
    }

    #[test]
    fn percentiles_are_told_from_other_names() {
        assert_eq!(percentile("p50"), Some(0.5));
        assert_eq!(percentile("p99"), Some(0.99));
        assert_eq!(percentile("max"), Some(1.0));
        for metric in ["pause", "p", "p100", "p1e1", "pinf", "p-1", "p+1", "p.", "mark"] {
            assert_eq!(percentile(metric), None, "{metric}");
        }
    }
}
