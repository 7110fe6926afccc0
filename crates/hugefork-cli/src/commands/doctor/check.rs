//! What a check comes to.

use std::path::PathBuf;

use serde::Serialize;

use crate::settings::setting::Setting;

/// How a finding is judged; the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Does not matter here, or could not be looked at.
    Skip,
    /// As good as it gets.
    Pass,
    /// hugefork works, though not at its best.
    Warn,
    /// hugefork, or what was asked of it, does not work.
    Fail,
}

/// What mends a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mend {
    /// For a shell, as root.
    pub(super) command: String,
    /// What `--fix` does about it; null: nothing, since it could not undo it, or it is not for it to decide.
    pub(super) set: Option<Setting>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Stays the same from version to version.
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// Why it matters.
    pub(super) why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<Mend>,
}

impl Check {
    /// Has `--fix` set the setting.
    pub(super) fn set(mut self, path: PathBuf, value: impl ToString) -> Check {
        let setting = Setting { path, value: value.to_string() };
        self.mend = Some(Mend { command: setting.command(), set: Some(setting) });
        self
    }

    /// Leaves it to people.
    pub(super) fn run(mut self, command: impl Into<String>) -> Check {
        self.mend = Some(Mend { command: command.into(), set: None });
        self
    }
}

/// What is found of what has to be tried, where nothing is tried.
pub(super) const NOT_TRIED: &str = "not tried: --root";

/// What is looked at and why it matters, before it is known what is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct About(pub(super) &'static str, pub(super) &'static str);

impl About {
    pub(super) fn is(self, status: Status, found: impl Into<String>) -> Check {
        // Errors come with line breaks, and text is wrapped later.
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

/// Findings that belong together.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) checks: Vec<Check>,
}
