//! What a check finds, and what mends it.

use std::path::PathBuf;

use serde::Serialize;

use crate::settings::setting::Setting;

/// How a finding is judged; the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// It does not matter here, or could not be looked at.
    Skip,
    /// It is as good as it gets.
    Pass,
    /// hugefork works, but not at its best.
    Warn,
    /// hugefork, or what was asked of it, does not work.
    Fail,
}

/// What mends a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mend {
    /// To be run in a shell, as root.
    pub(super) command: String,
    /// What `--fix` sets. Null where it does nothing: it could not undo that, or people have to decide.
    pub(super) set: Option<Setting>,
}

/// One line of the diagnosis.
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
    /// `--fix` sets it.
    pub(super) fn set(mut self, path: PathBuf, value: impl ToString) -> Check {
        let setting = Setting { path, value: value.to_string() };
        self.mend = Some(Mend { command: setting.command(), set: Some(setting) });
        self
    }

    /// The command is only printed: people decide.
    pub(super) fn run(mut self, command: impl Into<String>) -> Check {
        self.mend = Some(Mend { command: command.into(), set: None });
        self
    }
}

/// What a check finds that would have to try something and may not.
pub(super) const NOT_TRIED: &str = "not tried: --root";

/// The name of a check and why it matters, before anything is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct About(pub(super) &'static str, pub(super) &'static str);

impl About {
    pub(super) fn is(self, status: Status, found: impl Into<String>) -> Check {
        // Errors come with line breaks; the text is wrapped later.
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
