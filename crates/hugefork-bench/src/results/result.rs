//! Results as JSON, schema 1.
//!
//! ```text
//! { "schema": 1, "version": "0.1.0", "commit": "bc87d9e03f41", "date": "2026-11-21T14:53:23Z",
//!   "command": "hugefork bench …", "host": {…},
//!   "results": [ { "case": "zero-fault", "subject": "kernel-thp", "params": {"size": "1GiB", …},
//!                  "metric": "latency", "unit": "us", "samples": [81.9, …], "median": 82.0 }, … ],
//!   "curves": [ { "case": "writer-latency", "subject": "fork-4k", "params": {…}, "metric": "latency", "unit": "us",
//!                 "over": "percentile", "rounds": 5, "at": [1.0, …, 100.0], "median": [0.2, …, 112.0] }, … ],
//!   "not_run": [ { "case": …, "subject": …, "why": … } ], "failed": [ … ], "warnings": [ … ], "interrupted": false }
//! ```
//!
//! Names are stable. Raw samples are kept in the order in which they were taken, and give the minimum and the maximum.
//! Each subject also has its user and system time, as the metrics `user` and `sys`, and `cycles`, `instructions` and
//! `llc_misses` (in millions) if the CPU counts them. If it does not, `counters` says why.

use std::collections::BTreeMap;
use std::fmt;

use hugefork::ByteSize;
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::results::date;
use crate::results::stats::Summary;

/// The schema that this crate writes.
pub const SCHEMA: u32 = 1;

/// Everything a bench found, as far as it got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// hugefork's version.
    pub version: String,
    /// The commit that it was built from, followed by `-changed` if not everything was committed; none outside of a
    /// repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// When the bench began: UTC, such as `2026-11-21T14:53:23Z`.
    #[serde(default)]
    pub date: String,
    /// The command.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// Figures.
    pub results: Vec<CaseResult>,
    /// Figures that are curves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<CurveResult>,
    /// Subjects that the machine cannot run.
    #[serde(default)]
    pub not_run: Vec<Absent>,
    /// Subjects that went wrong.
    #[serde(default)]
    pub failed: Vec<Absent>,
    /// What a reader must know before quoting a figure.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why there are no `cycles`, `instructions` and `llc_misses`, if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<String>,
    /// Whether the bench was stopped before its end.
    #[serde(default)]
    pub interrupted: bool,
}

/// One metric of one subject of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// What distinguishes this from other runs of the subject.
    pub params: Params,
    /// The metric's name.
    pub metric: String,
    /// The metric's unit.
    pub unit: String,
    /// One value for each counted round, in order.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
}

impl CaseResult {
    /// Least, median and greatest sample.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.samples).unwrap_or(Summary { min: self.median, median: self.median, max: self.median })
    }
}

/// One curve of one subject of one case: the medians of the rounds, place by place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveResult {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// What distinguishes this from other runs of the subject.
    pub params: Params,
    /// What the values are: `latency` of a write, or `cost` of a write by the time at which the program asks for it.
    pub metric: String,
    /// Their unit.
    pub unit: String,
    /// What the places are: `percentile`, or `time` in milliseconds since the call that takes a snapshot. A value holds
    /// up to its time, and 0 stands for all time before the call.
    pub over: String,
    /// Rounds that were counted.
    pub rounds: usize,
    /// The places, ascending.
    pub at: Vec<f64>,
    /// The value at each.
    pub median: Vec<f64>,
}

/// The option whose name begins the reason of a subject for which there was no time.
pub(crate) const TIME_BUDGET: &str = "--time-budget";

/// A subject without a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// Why, and what would help.
    pub why: String,
}

impl Absent {
    pub(crate) fn new(case: &str, subject: String, why: String) -> Absent {
        Absent { case: case.to_owned(), subject, why }
    }

    /// Whether it did not run only for lack of time.
    pub fn lacked_time(&self) -> bool {
        self.why.starts_with(TIME_BUDGET)
    }
}

/// The parameters of an entry by name, in the order of the names.
pub type Params = BTreeMap<String, Param>;

/// One parameter: a word, a size such as `2MiB`, or a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Param {
    /// A count.
    Number(u64),
    /// A word or a size.
    Text(String),
}

impl Param {
    /// A size, written in its largest whole unit.
    pub fn size(bytes: usize) -> Param {
        Param::Text(ByteSize(bytes).to_string())
    }

    /// A word.
    pub fn text(text: impl fmt::Display) -> Param {
        Param::Text(text.to_string())
    }
}

/// Parameters by name.
pub(crate) fn params<const N: usize>(list: [(&str, Param); N]) -> Params {
    list.into_iter().map(|(name, param)| (name.to_owned(), param)).collect()
}

/// A parameter in words; nothing if there is none of that name.
pub(crate) fn shown(params: &Params, name: &str) -> String {
    params.get(name).map_or_else(String::new, Param::to_string)
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Number(number) => fmt::Display::fmt(number, f),
            Param::Text(text) => f.pad(text),
        }
    }
}

impl Report {
    /// An empty report of `command` on `host`.
    pub fn new(command: String, host: Host) -> Report {
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("HUGEFORK_COMMIT").map(str::to_owned),
            date: date::now(),
            command,
            host,
            results: Vec::new(),
            curves: Vec::new(),
            not_run: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
            counters: None,
            interrupted: false,
        }
    }

    /// Adds a warning once.
    pub fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// As JSON with a newline at the end.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("hugefork bench".to_owned(), Host { cpus: 2, ..Host::default() });
        report.results.push(CaseResult {
            case: "zero-fault".to_owned(),
            subject: "kernel-thp".to_owned(),
            params: Params::from([
                ("size".to_owned(), Param::size(1 << 30)),
                ("tasks".to_owned(), Param::Number(2)),
                ("kernel".to_owned(), Param::text("rep")),
            ]),
            metric: "latency".to_owned(),
            unit: "us".to_owned(),
            samples: vec![82.5, 80.0, 81.25],
            median: 81.25,
        });
        report.curves.push(CurveResult {
            case: "writer-latency".to_owned(),
            subject: "fork-4k".to_owned(),
            params: Params::from([("density".to_owned(), Param::text("sparse"))]),
            metric: "latency".to_owned(),
            unit: "us".to_owned(),
            over: "percentile".to_owned(),
            rounds: 5,
            at: vec![50.0, 100.0],
            median: vec![2.0, 112.5],
        });
        report.not_run.push(Absent {
            case: "zero-fault".to_owned(),
            subject: "kernel-hugetlb".to_owned(),
            why: "no pages".to_owned(),
        });
        report
    }

    #[test]
    fn the_shape_is_schema_1() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(json["host"]["cpus"], 2);
        let result = &json["results"][0];
        assert_eq!(result["case"], "zero-fault");
        assert_eq!(result["subject"], "kernel-thp");
        assert_eq!(result["params"]["size"], "1GiB");
        assert_eq!(result["params"]["tasks"], 2);
        assert_eq!(result["metric"], "latency");
        assert_eq!(result["unit"], "us");
        assert_eq!(result["samples"], serde_json::json!([82.5, 80.0, 81.25]));
        assert_eq!(result["median"], 81.25);
        let curve = &json["curves"][0];
        assert_eq!((&curve["case"], &curve["params"]["density"]), (&"writer-latency".into(), &"sparse".into()));
        assert_eq!(
            (&curve["metric"], &curve["unit"], &curve["over"]),
            (&"latency".into(), &"us".into(), &"percentile".into())
        );
        assert_eq!(
            (&curve["at"], &curve["median"]),
            (&serde_json::json!([50.0, 100.0]), &serde_json::json!([2.0, 112.5]))
        );
        let date = json["date"].as_str().unwrap();
        assert!(date.len() == 20 && date.ends_with('Z'), "{date}");
        // Digits of a commit in a repository, and nothing elsewhere.
        if let Some(commit) = json.get("commit") {
            let digits = commit.as_str().unwrap().trim_end_matches("-changed");
            assert!(digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digits}");
        }
        assert_eq!(json["not_run"][0]["why"], "no pages");
        assert_eq!(json["interrupted"], false);
    }

    #[test]
    fn what_is_written_reads_back() {
        let report = report();
        let back: Report = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(back, report);
        assert_eq!(back.results[0].summary(), Summary { min: 80.0, median: 81.25, max: 82.5 });
    }

    #[test]
    fn a_file_without_the_later_fields_still_reads() {
        let text = r#"{"schema":1,"version":"0.1.0","command":"x","host":{"cpu":"","cpus":1,"caches":[],"kernel":"",
            "memory":"","thp":{"enabled":"","defrag":"","shmem_enabled":""},"hugetlb":[]},"results":[]}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert!(report.not_run.is_empty() && !report.interrupted);
        assert!(report.commit.is_none() && report.date.is_empty() && report.curves.is_empty());
    }

    #[test]
    fn the_same_warning_is_kept_once() {
        let mut report = report();
        report.warn("few runs".to_owned());
        report.warn("few runs".to_owned());
        assert_eq!(report.warnings.len(), 1);
    }
}
