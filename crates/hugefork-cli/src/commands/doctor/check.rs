//! The finding of a check, and its remedy.

use std::path::PathBuf;

use serde::Serialize;

use crate::settings::setting::Setting;

/// The judgement of a finding, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Irrelevant here, or could not be checked.
    Skip,
    /// As good as possible.
    Pass,
    /// hugefork works, but not at its best.
    Warn,
    /// hugefork, or a requested feature, does not work.
    Fail,
}

/// The remedy of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mend {
    /// A shell command for root.
    pub(super) command: String,
    /// The setting that `--fix` changes. Null if `--fix` could not undo it, or if people have to decide.
    pub(super) set: Option<Setting>,
}

/// One line of the diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// A stable name.
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// The reason why it matters.
    pub(super) why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<Mend>,
}

impl Check {
    /// Adds a setting for `--fix`.
    pub(super) fn set(mut self, path: PathBuf, value: impl ToString) -> Check {
        let setting = Setting { path, value: value.to_string() };
        self.mend = Some(Mend { command: setting.command(), set: Some(setting) });
        self
    }

    /// Adds a command that is only printed: people decide.
    pub(super) fn run(mut self, command: impl Into<String>) -> Check {
        self.mend = Some(Mend { command: command.into(), set: None });
        self
    }
}

/// The finding of a check that needs a trial when trials are not allowed.
pub(super) const NOT_TRIED: &str = "not tried: --root";

/// The name of a check and why it matters, without a finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct About(pub(super) &'static str, pub(super) &'static str);

impl About {
    pub(super) fn is(self, status: Status, found: impl Into<String>) -> Check {
        // Joins the lines of an error message; the output wraps it later.
        let found = found.into().split_whitespace().collect::<Vec<_>>().join(" ");
        Check { name: self.0, status, found, why: self.1, mend: None }
    }

    pub(super) fn skip(self, found: impl Into<String>) -> Check {
        self.is(Status::Skip, found)
    }

    pub(super) fn pass(self, found: impl Into<String>) -> Check {
        self.is(Status::Pass, found)
    }

    pub(super) fn warn(self, found: impl Into<String>) -> Check {
        self.is(Status::Warn, found)
    }

    pub(super) fn fail(self, found: impl Into<String>) -> Check {
        self.is(Status::Fail, found)
    }
}

/// Checks that belong together.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) checks: Vec<Check>,
}
