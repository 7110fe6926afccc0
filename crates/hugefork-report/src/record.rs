//! The contents of a result file of schema 1, as far as a reader needs them.
//!
//! The bench has types of its own for the same file. These skip unknown fields and accept missing
//! ones, so that files of any age stay readable. [`crate::load`] is the only way to get a record:
//! its strings hold no control characters, and its numbers are finite and no larger than a clock
//! can measure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::figures::spaced;

/// One result file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The path of the file, as the caller named it.
    pub name: String,
    /// hugefork's version.
    pub version: String,
    /// The commit of the build; empty where it is not known.
    pub commit: String,
    /// When the bench began, such as `2026-11-21T14:53:23Z`; empty in older files.
    pub date: String,
    /// The command.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// Figures, in the file's order.
    pub entries: Vec<Entry>,
    /// Subjects that the machine could not run.
    pub not_run: Vec<Absent>,
    /// Subjects that failed.
    pub failed: Vec<Absent>,
    /// Conditions that a reader must know before quoting a figure.
    pub warnings: Vec<String>,
    /// Whether the bench was stopped before its end.
    pub interrupted: bool,
}

/// The parameters of an entry by name, each as it is shown: `2MiB`, `hugetlb`, `2`.
pub type Params = BTreeMap<String, String>;

/// One metric of one subject of one case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// The work, and how the subject did it.
    #[serde(default, deserialize_with = "as_shown")]
    pub params: Params,
    /// The metric's name.
    pub metric: String,
    /// The metric's unit.
    #[serde(default)]
    pub unit: String,
    /// One value for each counted round, in order.
    #[serde(default)]
    pub samples: Vec<f64>,
    /// The median of the samples.
    #[serde(skip)]
    pub median: f64,
}

/// Reads parameters as text: strings as they are, any other value as JSON.
fn as_shown<'de, D: Deserializer<'de>>(file: D) -> Result<Params, D::Error> {
    let shown = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let fields = Map::<String, Value>::deserialize(file)?;
    Ok(fields.into_iter().map(|(name, value)| (name, shown(value))).collect())
}

/// A subject without a figure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Absent {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// The reason, and the remedy.
    pub why: String,
}

/// The machine, as far as it decides the figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Host {
    /// The CPU's name.
    pub cpu: String,
    /// CPUs that the process could use.
    pub cpus: u64,
    /// Operating system and its release.
    pub kernel: String,
    /// All memory.
    pub memory: String,
    /// Transparent huge pages.
    pub thp: Thp,
    /// The pools of hugetlb pages.
    pub hugetlb: Vec<HugetlbPool>,
    /// The hypervisor; none on bare metal.
    pub hypervisor: Option<String>,
}

/// The kernel's settings for transparent huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Thp {
    /// For anonymous memory.
    pub enabled: String,
    /// For shmem.
    pub shmem_enabled: String,
}

/// One hugetlb pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct HugetlbPool {
    /// The size of its pages.
    pub page: String,
    /// Pages in the pool.
    pub total: u64,
}

/// The direction in which a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times, sizes, ratios.
    Lower,
    /// Rates.
    Higher,
}

impl Entry {
    /// The direction in which the unit is better: more of something a second, and less of anything else.
    pub fn better(&self) -> Better {
        if self.unit.ends_with("/s") { Better::Higher } else { Better::Lower }
    }

    /// The least sample.
    pub fn min(&self) -> f64 {
        self.samples.iter().copied().fold(self.median, f64::min)
    }

    /// The greatest sample.
    pub fn max(&self) -> f64 {
        self.samples.iter().copied().fold(self.median, f64::max)
    }

    /// How many times worse this entry is than `other`, and whether all its samples are worse than all of the other's.
    /// None if a median is not positive, because a ratio has no meaning then.
    pub(crate) fn times_worse_than(&self, other: &Entry) -> Option<(f64, bool)> {
        let (ratio, surely) = match self.better() {
            Better::Lower => (self.median / other.median, self.min() > other.max()),
            Better::Higher => (other.median / self.median, self.max() < other.min()),
        };
        (self.median > 0.0 && other.median > 0.0 && ratio.is_finite()).then_some((ratio, surely))
    }

    /// Two entries with the same key, in two files, are the same figure.
    pub(crate) fn key(&self) -> (&str, &str, &Params, &str, &str) {
        (&self.case, &self.subject, &self.params, &self.metric, &self.unit)
    }
}

/// Records of one machine and one hugefork, which share pictures and tables.
pub(crate) struct Machine<'a> {
    pub(crate) records: Vec<&'a Record>,
    pub(crate) entries: Vec<&'a Entry>,
}

/// Groups `records` by machine, in their order. A second record of a figure begins another group.
pub(crate) fn machines(records: &[Record]) -> Vec<Machine<'_>> {
    // Settings are no part of a machine's identity, because `--tune` changes them.
    let identity = |record: &Record| {
        let Host { cpu, cpus, kernel, memory, hypervisor, .. } = record.host.clone();
        (cpu, cpus, kernel, memory, hypervisor, record.version.clone())
    };
    let mut machines: Vec<Machine> = Vec::new();
    for record in records {
        let keys: BTreeSet<_> = record.entries.iter().map(Entry::key).collect();
        let joins = |machine: &&mut Machine| {
            identity(machine.records[0]) == identity(record)
                && machine.entries.iter().all(|entry| !keys.contains(&entry.key()))
        };
        match machines.iter_mut().find(joins) {
            Some(machine) => {
                machine.records.push(record);
                machine.entries.extend(&record.entries);
            }
            None => machines.push(Machine { records: vec![record], entries: record.entries.iter().collect() }),
        }
    }
    machines
}

impl Record {
    /// The commit, and the settings that users and `--tune` change between runs.
    pub(crate) fn settings(&self) -> String {
        let thp = &self.host.thp;
        let words = [("commit", &self.commit), ("THP", &thp.enabled), ("shmem_enabled", &thp.shmem_enabled)];
        let words = words.iter().filter(|(_, word)| !word.is_empty()).map(|(name, word)| format!("{name} {word}"));
        let pools = self.host.hugetlb.iter().filter(|pool| pool.total > 0);
        let pools = pools.map(|pool| format!("{} hugetlb pages of {}", pool.total, spaced(&pool.page)));
        words.chain(pools).collect::<Vec<_>>().join(", ")
    }
}

impl Host {
    /// The machine in one line.
    pub(crate) fn name(&self) -> String {
        let cpus = if self.cpus == 0 { String::new() } else { format!("{} CPUs", self.cpus) };
        let (memory, hypervisor) = (spaced(&self.memory), self.hypervisor.as_deref().unwrap_or_default());
        let parts = [self.cpu.as_str(), &cpus, &self.kernel, &memory, hypervisor];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
    }
}

impl Machine<'_> {
    /// The day or days of the records, and hugefork's version.
    pub(crate) fn days(&self) -> String {
        let days: BTreeSet<&str> = self.records.iter().filter_map(|record| record.date.split('T').next()).collect();
        let days: Vec<&str> = days.into_iter().filter(|day| !day.is_empty()).collect();
        let days = match days[..] {
            [] => String::new(),
            [day] => format!(", {day}"),
            [first, .., last] => format!(", {first} to {last}"),
        };
        format!("hugefork {}{days}", self.records[0].version)
    }

    /// Conditions that a reader must know before quoting a figure, each once.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        if self.records.len() > 1 {
            notes.push(
                "Figures of one file were measured interleaved; between files the machine may have changed.".into(),
            );
        }
        for record in &self.records {
            for (what, list) in [("failed: ", &record.failed), ("did not run: ", &record.not_run)] {
                notes.extend(absent(what, list.iter().map(|line| [line.case.as_str(), &line.subject, &line.why])));
            }
            if record.interrupted {
                notes.push(format!(
                    "{}: stopped before the end; the figures are of the rounds until then.",
                    record.name
                ));
            }
            notes.extend(record.warnings.iter().cloned());
        }
        let mut seen = BTreeSet::new();
        notes.retain(|line| seen.insert(line.clone()));
        notes
    }
}

/// If more subjects than this have one reason, the line counts them and does not name them.
const NAMED: usize = 4;

/// Lists the subjects without figures. Each item of `list` is a case, a subject and the reason; the result has one line
/// for each case and reason, with `what` before the reason.
pub fn absent<'a>(what: &str, list: impl IntoIterator<Item = [&'a str; 3]>) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for [case, subject, why] in list {
        match reasons.iter_mut().find(|(known, reason, _)| *known == case && *reason == why) {
            Some((.., subjects)) if subjects.contains(&subject) => {}
            Some((.., subjects)) => subjects.push(subject),
            None => reasons.push((case, why, vec![subject])),
        }
    }
    let line = |(case, why, subjects): (&str, &str, Vec<&str>)| {
        let names = if subjects.len() > NAMED { format!("{} subjects", subjects.len()) } else { subjects.join(", ") };
        format!("{case} {names}: {what}{why}")
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_subjects_have_one_line_for_each_case_and_reason() {
        let mut list = vec![["clear", "a", "no room"], ["clear", "b", "no room"]];
        list.extend([["clear", "a", "no room"], ["clear", "c", "no CPU"]]);
        assert_eq!(absent("not run: ", list.clone()), ["clear a, b: not run: no room", "clear c: not run: no CPU"]);
        list.extend(["d", "e", "f"].map(|subject| ["clear", subject, "no room"]));
        assert_eq!(absent("not run: ", list)[0], "clear 5 subjects: not run: no room");
    }

    #[test]
    fn only_records_of_one_machine_without_a_common_figure_join() {
        let of = |cpu: &str, subject: &str| {
            let file = serde_json::json!({"schema": 1, "host": {"cpu": cpu},
                "results": [{"case": "c", "subject": subject, "metric": "m", "median": 1}]});
            crate::load::parse("x", file.to_string().as_bytes()).unwrap()
        };
        let records = [of("A", "s"), of("B", "s"), of("A", "t"), of("A", "s")];
        let sizes: Vec<usize> = machines(&records).iter().map(|machine| machine.entries.len()).collect();
        assert_eq!(sizes, [2, 1, 1]);
    }
}
