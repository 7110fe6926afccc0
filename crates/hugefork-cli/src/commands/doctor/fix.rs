//! `--fix`: writes the settings that can be undone.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use super::check::Check;
use crate::settings::setting::{Setting, value};

/// A setting that was changed.
#[derive(Debug, Serialize)]
pub(super) struct Fixed {
    /// The name of the check that wanted it.
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    pub(super) before: String,
    /// The value after the change; the kernel may provide fewer huge pages than requested.
    pub(super) after: String,
    /// The command that undoes the change.
    pub(super) undo: String,
}

/// A setting that could not be changed.
#[derive(Debug, Serialize)]
pub(super) struct Refused {
    pub(super) name: &'static str,
    pub(super) why: String,
    /// The command that makes the change, for root.
    pub(super) command: String,
}

/// The result of `--fix`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fixes {
    pub(super) fixed: Vec<Fixed>,
    pub(super) refused: Vec<Refused>,
}

impl Fixes {
    /// Whether there were settings to change, and all changes failed.
    pub(super) fn changed_nothing(&self) -> bool {
        self.fixed.is_empty() && !self.refused.is_empty()
    }
}

/// Changes the settings that `checks` want.
pub(super) fn apply<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Fixes {
    let mut fixes = Fixes::default();
    for check in checks {
        let Some(setting) = check.mend.as_ref().and_then(|mend| mend.set.as_ref()) else { continue };
        match set(check.name, setting) {
            Ok(fixed) => fixes.fixed.push(fixed),
            Err(error) => fixes.refused.push(Refused {
                name: check.name,
                why: format!("{}: {error}", setting.path.display()),
                command: setting.command(),
            }),
        }
    }
    fixes
}

/// Changes a setting. A setting that cannot be read is not written.
fn set(name: &'static str, Setting { path, value: wanted }: &Setting) -> io::Result<Fixed> {
    let before = value(path)?;
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(wanted.as_bytes())?;
    let after = value(path)?;
    if after == before {
        return Err(io::Error::other(format!("is still {before}")));
    }
    let undo = Setting { path: path.clone(), value: before.clone() }.command();
    Ok(Fixed { name, path: path.clone(), before, after, undo })
}
