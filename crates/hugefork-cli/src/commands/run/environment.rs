//! What the program finds in its environment: what was there, the library, and what the library is asked for. The
//! library takes both out again before the program's `main`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hugefork_preload::{ALL, BIG, LIBRARY, VARIABLE};

/// What the loader reads.
const PRELOAD: &str = "LD_PRELOAD";

/// An environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// That of this process.
    pub(super) fn of_this_process() -> Environment {
        Environment(env::vars_os().collect())
    }

    /// With the library in it.
    pub(super) fn with(mut self, library: &Path) -> Environment {
        let asked = self.0.get(OsStr::new(VARIABLE)).filter(|asked| *asked == ALL).map_or(BIG, |_| ALL);
        self.0.insert(VARIABLE.into(), asked.into());
        let preloaded = self.0.get(OsStr::new(PRELOAD)).cloned().unwrap_or_default();
        self.0.insert(PRELOAD.into(), with_library(&preloaded, library));
        self
    }

    /// Every variable.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

/// The libraries that are there, less older ones of ours, and ours at their end: theirs come first.
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
    fn libraries_that_are_there_stay_and_come_first() {
        let with = |there: &str| with_library(OsStr::new(there), Path::new("/c/libhugefork-run-2.so"));
        assert_eq!(with(""), "/c/libhugefork-run-2.so");
        assert_eq!(with("/a.so b.so"), "/a.so:b.so:/c/libhugefork-run-2.so");
        assert_eq!(with("/old/libhugefork-run-1.so:/a.so"), "/a.so:/c/libhugefork-run-2.so");
    }
}
