//! The result of a check.

use serde::Serialize;

use crate::settings::Setting;

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

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) group: &'static str,
    /// A stable name.
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// The reason why it matters.
    pub(super) why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<Mend>,
}
