//! Results as JSON, schema 1.
//!
//! ```text
//! { "schema": 1, "version": "0.1.0", "commit": "bc87d9e03f41", "date": "2026-11-21T14:53:23Z",
//!   "command": "hugefork bench …", "host": {…},
//!   "results": [ { "case": "snapshot", "subject": "fork-thp", "params": {"size": "1GiB", …},
//!                  "metric": "call", "unit": "ms", "samples": [1.9, …], "median": 2.0 }, … ],
//!   "not_run": [ { "case": …, "subject": …, "why": … } ], "failed": [ … ], "warnings": [ … ], "interrupted": false }
//! ```
//!
//! Names are stable. The samples are listed in the order in which they were taken, and the reader can compute minimum
//! and maximum from them.

use std::collections::BTreeMap;
use std::fmt;

use hugefork::ByteSize;
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::results::date;
use crate::results::stats::Summary;

/// The schema that this crate writes.
pub const SCHEMA: u32 = 1;

/// The results of a bench, up to its end or to its interruption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// hugefork's version.
    pub version: String,
    /// The commit from which hugefork was built, followed by `-changed` if files had uncommitted changes; `None` if
    /// hugefork was not built in a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The time at which the bench began: UTC, such as `2026-11-21T14:53:23Z`.
    #[serde(default)]
    pub date: String,
    /// The command line of the bench.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// Figures.
    pub results: Vec<CaseResult>,
    /// The subjects that this machine cannot run, with reasons.
    #[serde(default)]
    pub not_run: Vec<Absent>,
    /// The subjects that failed, with reasons.
    #[serde(default)]
    pub failed: Vec<Absent>,
    /// Caveats for the reader of the figures.
    #[serde(default)]
    pub warnings: Vec<String>,
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
    /// The parameters that distinguish this run of the subject from others.
    pub params: Params,
    /// The metric's name.
    pub metric: String,
    /// The metric's unit.
    pub unit: String,
    /// One value for each counted round, in order.
    pub samples: Vec<f64>,
    /// The median of the samples.
    pub median: f64,
}

impl CaseResult {
    /// Least, median and greatest sample.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.samples).unwrap_or(Summary { min: self.median, median: self.median, max: self.median })
    }
}

/// A subject without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// The case's name.
    pub case: String,
    /// The subject's name.
    pub subject: String,
    /// The reason, with a remedy.
    pub why: String,
}

impl Absent {
    pub(crate) fn new(case: &str, subject: String, why: String) -> Absent {
        Absent { case: case.to_owned(), subject, why }
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

/// The parameter `name` in words; empty if there is no parameter of that name.
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
            not_run: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
            interrupted: false,
        }
    }

    /// Adds a warning, unless the report has it already.
    pub fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The report as JSON, with a newline at the end.
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
            case: "first-touch".to_owned(),
            subject: "kernel-thp".to_owned(),
            params: Params::from([
                ("size".to_owned(), Param::size(1 << 30)),
                ("tasks".to_owned(), Param::Number(2)),
                ("kernel".to_owned(), Param::text("rep")),
            ]),
            metric: "pass".to_owned(),
            unit: "us".to_owned(),
            samples: vec![82.5, 80.0, 81.25],
            median: 81.25,
        });
        report.not_run.push(Absent {
            case: "first-touch".to_owned(),
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
        assert_eq!(result["case"], "first-touch");
        assert_eq!(result["subject"], "kernel-thp");
        assert_eq!(result["params"]["size"], "1GiB");
        assert_eq!(result["params"]["tasks"], 2);
        assert_eq!(result["metric"], "pass");
        assert_eq!(result["unit"], "us");
        assert_eq!(result["samples"], serde_json::json!([82.5, 80.0, 81.25]));
        assert_eq!(result["median"], 81.25);
        let date = json["date"].as_str().unwrap();
        assert!(date.len() == 20 && date.ends_with('Z'), "{date}");
        // The field holds the digits of a commit if the build was in a repository, and is absent otherwise.
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
        assert!(report.commit.is_none() && report.date.is_empty());
    }

    #[test]
    fn the_same_warning_is_kept_once() {
        let mut report = report();
        report.warn("few runs".to_owned());
        report.warn("few runs".to_owned());
        assert_eq!(report.warnings.len(), 1);
    }
}
