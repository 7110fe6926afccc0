//! Reads `/proc` and `/sys` of this machine, or of a copy of another machine's files. Features
//! without a file are tried, on the running machine only.

use std::fs;
use std::path::{Path, PathBuf};

use hugefork::{Backing, BlockSize, BuildError, Commit, Fallback, Granted, Pool};

use crate::settings::value;

/// The machine to check. An unreadable file counts as missing, and is never guessed.
#[derive(Debug)]
pub(super) struct Machine {
    /// The directory that contains `proc` and `sys`.
    pub(super) root: PathBuf,
    /// The results of trials; `None` for a copy of another machine's files.
    pub(super) tried: Option<Tried>,
    /// The number of 2 MiB pages after `--hugepages`.
    pub(super) hugepages: Option<u64>,
}

/// The backings that small pools get on this machine.
#[derive(Debug)]
pub(super) struct Tried {
    /// The choice of [`Backing::Auto`], and the reason against a better one.
    pub(super) chosen: Result<(Granted, Option<String>), BuildError>,
    /// Huge pages of shmem.
    pub(super) shmem: Result<(), BuildError>,
    /// hugetlb pages.
    pub(super) hugetlb: Result<(), BuildError>,
    /// The reason why shmem pools cannot copy single pages; `None` if they can.
    pub(super) no_page_grain: Option<String>,
}

impl Tried {
    pub(super) fn now() -> Tried {
        let pool = |backing, fallback| {
            let pool = Pool::builder().name("survey").capacity(BlockSize::MIB_2.bytes());
            pool.backing(backing).fallback(fallback).commit(Commit::Upfront).build()
        };
        let chosen = pool(Backing::Auto, Fallback::Allowed);
        let base = pool(Backing::ShmemBase, Fallback::Refused);
        Tried {
            chosen: chosen.map(|pool| (pool.backing(), pool.fallback_reason().map(str::to_owned))),
            shmem: pool(Backing::ShmemHuge, Fallback::Refused).map(drop),
            hugetlb: pool(Backing::Hugetlb, Fallback::Refused).map(drop),
            no_page_grain: base.map_or_else(|error| Some(error.to_string()), |pool| pool.no_page_grain()),
        }
    }
}

impl Machine {
    /// The machine with the files below `root`, or this one, on which the features are tried.
    pub(super) fn new(root: Option<&Path>, hugepages: Option<u64>) -> Machine {
        Machine { tried: root.is_none().then(Tried::now), hugepages, ..Machine::files(root) }
    }

    /// The same without trials.
    pub(super) fn files(root: Option<&Path>) -> Machine {
        Machine { root: root.unwrap_or(Path::new("/")).to_owned(), tried: None, hugepages: None }
    }

    /// The path below the root for a path of a running machine.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The contents of a file, trimmed.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    /// A setting's value.
    pub(super) fn value(&self, path: &str) -> Option<String> {
        value(&self.at(path)).ok()
    }

    /// The contents of a file, as a number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Bytes of a field in `/proc/meminfo`.
    pub(super) fn memory(&self, field: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    }

    /// The kernel's release name, and its first two numbers.
    pub(super) fn release(&self) -> Option<(String, (u32, u32))> {
        let release = self.text("/proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Some((release, version))
    }
}
