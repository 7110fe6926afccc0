//! The environment of the program: the command's own, plus the library and the variable that
//! activates it. The library removes both before the program's `main`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::{env, fs};

use hugefork_preload::{ALL, BIG, LIBRARY, VARIABLE};

/// The variable that the loader reads.
const PRELOAD: &str = "LD_PRELOAD";

/// An environment: `NAME=VALUE` entries, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Environment(Vec<OsString>);

impl Environment {
    /// The original environment of the command. If the command has a file capability, libc removes variables such as
    /// `LD_LIBRARY_PATH` from its copy; the kernel still has them.
    pub(super) fn of_this_process() -> Environment {
        // SAFETY: the call takes numbers. It does not allow a process without the capability to trace this one.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
        match fs::read("/proc/self/environ") {
            Ok(bytes) => Environment(bytes.split(|byte| *byte == 0).filter(|one| !one.is_empty()).map(owned).collect()),
            Err(_) => Environment(env::vars_os().map(|(name, value)| variable(&name, &value)).collect()),
        }
    }

    /// Adds the library.
    pub(super) fn with(mut self, library: &Path) -> Environment {
        let asked = self.value(VARIABLE).filter(|asked| *asked == ALL).map_or(BIG, |_| ALL);
        self.set(VARIABLE, OsStr::new(asked));
        let preloaded = self.value(PRELOAD).unwrap_or_default().to_owned();
        self.set(PRELOAD, &with_library(&preloaded, library));
        self
    }

    /// All variables.
    pub(super) fn variables(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter().map(OsString::as_os_str)
    }

    fn value(&self, name: &str) -> Option<&OsStr> {
        self.0
            .iter()
            .find_map(|one| Some(OsStr::from_bytes(one.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?)))
    }

    fn set(&mut self, name: &str, value: &OsStr) {
        self.0.retain(|one| !one.as_bytes().starts_with(format!("{name}=").as_bytes()));
        self.0.push(variable(OsStr::new(name), value));
    }
}

fn owned(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_owned())
}

fn variable(name: &OsStr, value: &OsStr) -> OsString {
    [name, OsStr::new("="), value].into_iter().collect()
}

/// The present libraries, without older versions of ours, followed by ours.
fn with_library(preloaded: &OsStr, library: &Path) -> OsString {
    let parts = preloaded.as_bytes().split(|byte| *byte == b':' || *byte == b' ');
    let is_ours = |part: &[u8]| {
        let name = part.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name.starts_with(LIBRARY.as_bytes())
    };
    let theirs = parts.filter(|part| !part.is_empty() && !is_ours(part)).map(OsStr::from_bytes);
    let mut all = OsString::new();
    for library in theirs.chain([library.as_os_str()]) {
        if !all.is_empty() {
            all.push(":");
        }
        all.push(library);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_variables_and_their_order_are_preserved() {
        let before = Environment(["A=1", "LD_PRELOAD=/a.so", "B="].map(OsString::from).into());
        let after = before.with(Path::new("/c/libhugefork-run-2.so"));
        let theirs: Vec<_> = after.variables().filter(|one| !one.as_bytes().starts_with(VARIABLE.as_bytes())).collect();
        assert_eq!(theirs, ["A=1", "B=", "LD_PRELOAD=/a.so:/c/libhugefork-run-2.so"]);
        assert_eq!(after.value(VARIABLE), Some(OsStr::new(BIG)));
    }

    #[test]
    fn present_libraries_are_preserved_and_come_first() {
        let with = |there: &str| with_library(OsStr::new(there), Path::new("/c/libhugefork-run-2.so"));
        assert_eq!(with(""), "/c/libhugefork-run-2.so");
        assert_eq!(with("/a.so b.so"), "/a.so:b.so:/c/libhugefork-run-2.so");
        assert_eq!(with("/old/libhugefork-run-1.so:/a.so"), "/a.so:/c/libhugefork-run-2.so");
    }
}
