//! `--fix`: writes the settings that can be undone.

use std::fs::OpenOptions;
use std::io::{self, Write};

use serde::Serialize;

use super::finding::Finding;
use crate::settings::{Setting, value};

/// A setting that was changed, or could not be changed.
#[derive(Debug, Serialize)]
pub(super) struct Fix {
    /// The name of the check that wanted it.
    pub(super) name: &'static str,
    /// The values before and after the change (the kernel may provide fewer huge pages than requested), or the error.
    pub(super) what: String,
    /// The command that makes the change, for root.
    pub(super) command: String,
    /// The command that undoes the change; null if it could not be made.
    pub(super) undo: Option<String>,
}

/// Changes the setting that the finding wants, if any.
pub(super) fn apply(finding: &Finding) -> Option<Fix> {
    let wanted = finding.mend.as_ref()?.set.as_ref()?;
    let (what, undo) = match set(wanted) {
        Ok((before, after)) => (format!("{} -> {after}", before.value), Some(before.command())),
        Err(error) => (format!("{}: {error}", wanted.path.display()), None),
    };
    Some(Fix { name: finding.name, what, command: wanted.command(), undo })
}

/// Changes a setting. A setting that cannot be read is not written.
fn set(wanted: &Setting) -> io::Result<(Setting, String)> {
    let before = Setting::read(&wanted.path)?;
    OpenOptions::new().write(true).truncate(true).open(&wanted.path)?.write_all(wanted.value.as_bytes())?;
    let after = value(&wanted.path)?;
    if after == before.value {
        return Err(io::Error::other(format!("is still {after}")));
    }
    Ok((before, after))
}
