//! What a result file of schema 1 says, as far as a reader needs it.
//!
//! These types are the reader's own and not the bench's: a file must stay readable for ever, whatever the bench writes
//! by then. Unknown fields are skipped, and later fields may be absent. [`crate::load`] is the only way to get a
//! record, so strings hold no control characters, and numbers are finite and not larger than a clock can measure.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// One result file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The file, as it was named.
    pub name: String,
    /// hugefork's version.
    pub version: String,
    /// The commit that it was built from; empty where that is not known.
    pub commit: String,
    /// When the bench began, such as `2026-11-21T14:53:23Z`; empty in older files.
    pub date: String,
    /// The command.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// Figures, in the file's order.
    pub entries: Vec<Entry>,
    /// Figures that are curves, in the file's order.
    pub curves: Vec<Curve>,
    /// Subjects that the machine could not run.
    pub not_run: Vec<Absent>,
    /// Subjects that went wrong.
    pub failed: Vec<Absent>,
    /// What a reader must know before quoting a figure.
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
    /// What distinguishes this from other runs of the subject.
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
    /// Their median.
    #[serde(skip)]
    pub median: f64,
}

/// One curve of one subject of one case: medians of the rounds, place by place.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Curve {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// What distinguishes this from other runs of the subject.
    #[serde(default, deserialize_with = "as_shown")]
    pub params: Params,
    /// What the values are, such as `latency`.
    pub metric: String,
    /// Their unit.
    #[serde(default)]
    pub unit: String,
    /// What the places are, such as `percentile`.
    pub over: String,
    /// Rounds that were counted.
    #[serde(default)]
    pub rounds: u64,
    /// Places, ascending, each with its value. There is at least one.
    #[serde(skip)]
    pub points: Vec<(f64, f64)>,
}

/// Parameters as text: words as they are, anything else as JSON.
fn as_shown<'de, D: Deserializer<'de>>(file: D) -> Result<Params, D::Error> {
    let shown = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let fields = Map::<String, Value>::deserialize(file)?;
    Ok(fields.into_iter().map(|(name, value)| (name, shown(value))).collect())
}

/// What was measured of a subject that did some work.
pub(crate) trait Measured {
    fn subject(&self) -> &str;
    fn params(&self) -> &Params;
}

impl Measured for Entry {
    fn subject(&self) -> &str {
        &self.subject
    }

    fn params(&self) -> &Params {
        &self.params
    }
}

impl Measured for Curve {
    fn subject(&self) -> &str {
        &self.subject
    }

    fn params(&self) -> &Params {
        &self.params
    }
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
    /// Why, and what would help.
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
    /// The first CPU's caches, nearest first.
    pub caches: Vec<Cache>,
    /// Operating system and its release.
    pub kernel: String,
    /// All memory.
    pub memory: String,
    /// Transparent huge pages.
    pub thp: Thp,
    /// The pools of hugetlb pages.
    pub hugetlb: Vec<HugetlbPool>,
    /// The frequency governor, where there is one.
    pub governor: Option<String>,
    /// The hypervisor; none on bare metal.
    pub hypervisor: Option<String>,
}

/// One cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u64,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size, such as `32MiB`.
    pub size: String,
}

/// The kernel's settings for transparent huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Thp {
    /// For anonymous memory.
    pub enabled: String,
    /// What a fault does to get a huge page.
    pub defrag: String,
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

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times, ratios, counts.
    Lower,
    /// Rates.
    Higher,
}

impl Entry {
    /// Which way is better, by the unit: more of something a second is better, and less of anything else.
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

    /// What makes an entry the same in two files.
    pub(crate) fn key(&self) -> (&str, &str, &Params, &str, &str) {
        (&self.case, &self.subject, &self.params, &self.metric, &self.unit)
    }
}

impl Host {
    /// The last cache that holds data.
    pub(crate) fn last_cache(&self) -> Option<&Cache> {
        self.caches.iter().filter(|cache| cache.kind != "Instruction").max_by_key(|cache| cache.level)
    }

    /// Whether `other` may be the same machine under the same kernel. Settings do not count: `--tune` changes them.
    pub(crate) fn same_machine(&self, other: &Host) -> bool {
        let identity = |host: &Host| {
            let Host { cpu, cpus, caches, kernel, memory, hypervisor, .. } = host.clone();
            (cpu, cpus, caches, kernel, memory, hypervisor)
        };
        identity(self) == identity(other)
    }
}
