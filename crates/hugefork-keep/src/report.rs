//! Reports on the kept processes.

use std::fmt;

use serde::Serialize;

/// Duration of a fork for each GiB of base pages: 20 ms (Linux 6.18, 2 CPUs of a Xeon, KVM).
const FORK_USEC_PER_GIB: u64 = 20_000;

/// Reports on all kept processes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this structure.
    pub schema: u32,
    /// One report per process, ordered by process number.
    pub processes: Vec<ProcessReport>,
}

/// One process. Counts begin when the keeper first saw the process, or at the last `exec` of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessReport {
    /// The number of the process.
    pub pid: u32,
    /// The name of the process, as `ps` prints it.
    pub name: String,
    /// The process's resident memory of all kinds, in bytes.
    pub resident_bytes: u64,
    /// Number of observed children that had a copy of the process's memory. Children that live less than 0.1 s may be
    /// missed.
    pub forks: u64,
    /// Bytes of the process's private anonymous memory in huge pages, according to the last scan and the collapses
    /// since then.
    pub huge_bytes: u64,
    /// Bytes of the process's private anonymous memory in base pages of 4 KiB, according to the same scan and
    /// collapses.
    pub base_bytes: u64,
    /// Number of blocks of 2 MiB that wait for their collapse.
    pub blocks_pending: u64,
    /// Number of collapsed blocks.
    pub blocks_collapsed: u64,
    /// Number of blocks that the kernel refused to collapse.
    pub blocks_refused: u64,
    /// Total duration of collapses, in microseconds.
    pub collapse_usec: u64,
    /// The duration of the longest collapse, in microseconds.
    pub longest_collapse_usec: u64,
    /// The reason why the process has fewer huge pages than possible; `None` if it has no fewer.
    pub trouble: Option<Trouble>,
}

impl ProcessReport {
    /// An estimate in microseconds of the time in which a fork copies the page-table entries of the base pages, 20 ms
    /// for each GiB.
    pub fn fork_usec(&self) -> u64 {
        self.base_bytes.saturating_mul(FORK_USEC_PER_GIB) >> 30
    }
}

/// The reason why a process has fewer huge pages than possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Trouble {
    /// The process has not forked, so the keeper collapses none of its blocks.
    NeverForked,
    /// The process has switched huge pages off.
    SwitchedOff,
    /// The keeper may not read the process.
    NotReadable,
    /// The kernel cannot report the kinds of the process's pages.
    OldKernel,
    /// The keeper lacks `CAP_SYS_NICE`.
    NotAllowed,
    /// The process has freed memory lazily, and a collapse would keep that memory.
    FreedLazily,
    /// The kernel has no free huge page, or memory is short.
    ShortOfMemory,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::NeverForked => "has not forked; nothing to do",
            Trouble::SwitchedOff => {
                "has disabled huge pages for itself (prctl); configure it not to (Redis: --disable-thp no)"
            }
            Trouble::NotReadable => {
                "may not be read: run hugefork as its user or as root (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)"
            }
            Trouble::OldKernel => "this kernel cannot report huge pages; use Linux 6.7 or newer",
            Trouble::NotAllowed => "hugefork lacks CAP_SYS_NICE: run it as root outside of user namespaces",
            Trouble::FreedLazily => {
                "has freed memory lazily (MADV_FREE); its mappings are skipped, since a collapse would keep that memory"
            }
            Trouble::ShortOfMemory => "memory is short or fragmented: no block is collapsed at the moment",
        })
    }
}
