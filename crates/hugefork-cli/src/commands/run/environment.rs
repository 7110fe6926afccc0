//! What the program finds in its environment: what was there, the library, and what the library is asked for.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hugefork_preload::environment::{CHILDREN, MALLOC, MEMORY, MIN_SIZE, MODE, ONLY, STATS, STATS_SIGNAL};
use hugefork_preload::{LIBRARY, Settings};

use crate::args::run::EnvFormat;
use crate::failure::Failure;

/// What the loader reads.
const PRELOAD: &str = "LD_PRELOAD";

/// What glibc's `malloc` reads, and what asks it for transparent huge pages (glibc 2.35): its mappings are made within
/// libc, where no library sees them.
const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE_MALLOC: &str = "glibc.malloc.hugetlb";

/// An environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Environment {
    all: BTreeMap<OsString, OsString>,
    /// The names of those that were added or changed.
    ours: Vec<OsString>,
}

impl Environment {
    /// That of this process.
    pub(super) fn of_this_process() -> Environment {
        Environment { all: env::vars_os().collect(), ours: Vec::new() }
    }

    /// With the library in it.
    pub(super) fn with(mut self, settings: &Settings, library: &Path) -> Environment {
        // An outer `hugefork run` may have asked for something else.
        for name in [MODE, MIN_SIZE, MALLOC, CHILDREN, MEMORY, ONLY, STATS, STATS_SIGNAL] {
            self.all.remove(OsStr::new(name));
        }
        for (name, value) in settings.variables() {
            self.set(name, value);
        }
        let preloaded = self.all.get(OsStr::new(PRELOAD)).cloned().unwrap_or_default();
        self.set(PRELOAD, with_library(&preloaded, library));
        let tunables = self.all.get(OsStr::new(TUNABLES)).cloned().unwrap_or_default();
        if let Some(tunables) = with_huge_malloc(&tunables) {
            self.set(TUNABLES, tunables);
        }
        self
    }

    fn set(&mut self, name: &str, value: OsString) {
        self.all.insert(name.into(), value);
        self.ours.push(name.into());
    }

    /// Every variable.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.all.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Those that were added or changed, a line each.
    pub(super) fn printed(&self, format: EnvFormat) -> Result<String, Failure> {
        let mut text = String::new();
        for name in &self.ours {
            let (name, value) = (name.to_str(), self.all[name].to_str());
            let (Some(name), Some(value)) = (name, value.filter(|value| !value.contains('\n'))) else {
                return Err(Failure::Usage(
                    "--print-env: a value is not plain text; run the program instead".to_owned(),
                ));
            };
            text += &line(name, value, format);
            text.push('\n');
        }
        Ok(text)
    }
}

fn line(name: &str, value: &str, format: EnvFormat) -> String {
    match format {
        EnvFormat::Shell => format!("export {name}='{}'", value.replace('\'', r"'\''")),
        EnvFormat::Systemd => {
            // A unit expands what begins with a per cent sign.
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%");
            format!("Environment=\"{name}={value}\"")
        }
        EnvFormat::File => format!("{name}={value}"),
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

/// With huge pages for `malloc`; none if somebody has decided about that already.
fn with_huge_malloc(tunables: &OsStr) -> Option<OsString> {
    let decided = tunables.as_bytes().split(|byte| *byte == b':').any(|part| part.starts_with(HUGE_MALLOC.as_bytes()));
    if decided {
        return None;
    }
    let mut all = tunables.to_owned();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(format!("{HUGE_MALLOC}=1"));
    Some(all)
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
        let older = "/old/libhugefork-run-1.so:/old/libhugefork-run-malloc-1.so";
        assert_eq!(with(older), "/c/libhugefork-run-2.so");
    }

    #[test]
    fn what_an_outer_run_asked_for_is_asked_for_no_more() {
        let outer = Settings {
            mode: hugefork_preload::Mode::Pool,
            min_size: 1,
            malloc: hugefork_preload::Malloc::Mimalloc,
            children: hugefork_preload::Children::Share,
            memory: "any".parse().unwrap(),
            only: Some("one".into()),
            at_exit: true,
            signal: Some(12),
        };
        let inner = Settings {
            malloc: hugefork_preload::Malloc::Keep,
            children: hugefork_preload::Children::Alone,
            memory: hugefork_preload::Memory::default(),
            only: None,
            at_exit: false,
            signal: None,
            ..outer.clone()
        };
        let none = Environment { all: BTreeMap::new(), ours: Vec::new() };
        let library = Path::new("/c/libhugefork-run-2.so");
        let twice = Environment { ours: Vec::new(), ..none.with(&outer, library) }.with(&inner, library);
        let names: Vec<_> = twice.all.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names, [TUNABLES, MIN_SIZE, MODE, PRELOAD]);
    }

    #[test]
    fn what_was_decided_about_malloc_stays() {
        let with = |there: &str| with_huge_malloc(OsStr::new(there));
        assert_eq!(with("").unwrap(), "glibc.malloc.hugetlb=1");
        assert_eq!(with("glibc.malloc.check=3").unwrap(), "glibc.malloc.check=3:glibc.malloc.hugetlb=1");
        assert_eq!(with("glibc.malloc.hugetlb=0"), None);
    }

    #[test]
    fn values_are_quoted_for_who_reads_them() {
        let value = r#"a'b"c\d%e"#;
        assert_eq!(line("N", value, EnvFormat::Shell), r#"export N='a'\''b"c\d%e'"#);
        assert_eq!(line("N", value, EnvFormat::Systemd), r#"Environment="N=a'b\"c\\d%%e""#);
        assert_eq!(line("N", value, EnvFormat::File), format!("N={value}"));
    }
}
