//! Reports about the processes that are kept.

use std::fmt;

use serde::Serialize;

/// The time that a fork takes for each byte of base pages: 20 ms for a GiB (Linux 6.18, 2 CPUs of a Xeon, KVM).
const FORK_USEC_A_GIB: u64 = 20_000;

/// Reports about all processes that are kept.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this shape.
    pub schema: u32,
    /// Each process, by number.
    pub processes: Vec<ProcessReport>,
}

/// One process. Counts are since the keeper first saw it, or since its last `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessReport {
    /// Its number.
    pub pid: u32,
    /// Its name, as `ps` has it.
    pub name: String,
    /// Its memory in bytes, whatever it is.
    pub resident_bytes: u64,
    /// Children that were seen and that had a copy of its memory. A child that lives less than 0.1 s may be missed.
    pub forks: u64,
    /// Bytes of its private anonymous memory in huge pages, as of the last scan and the collapses since.
    pub huge_bytes: u64,
    /// The same, in base pages of 4 KiB.
    pub base_bytes: u64,
    /// Blocks of 2 MiB that are still to be collapsed.
    pub blocks_pending: u64,
    /// Blocks that were collapsed.
    pub blocks_collapsed: u64,
    /// Blocks that the kernel refused to collapse.
    pub blocks_refused: u64,
    /// Microseconds in collapses.
    pub collapse_usec: u64,
    /// The longest of them.
    pub longest_collapse_usec: u64,
    /// Why it has fewer huge pages than it could, if there is a reason.
    pub trouble: Option<Trouble>,
}

impl ProcessReport {
    /// An estimate of the microseconds in which a fork copies the entries of the base pages, from 20 ms for a GiB.
    pub fn fork_usec(&self) -> u64 {
        self.base_bytes.saturating_mul(FORK_USEC_A_GIB) >> 30
    }
}

/// Why a process has fewer huge pages than it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Trouble {
    /// It has not forked, so nothing is done.
    NeverForked,
    /// It has switched them off.
    SwitchedOff,
    /// It may not be read.
    NotReadable,
    /// The kernel cannot say which pages it has.
    OldKernel,
    /// The keeper lacks `CAP_SYS_NICE`.
    NotAllowed,
    /// It has freed memory lazily, which a collapse would make stay.
    FreedLazily,
    /// The kernel has no huge page, or memory is short.
    ShortOfMemory,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::NeverForked => "has not forked; nothing is done",
            Trouble::SwitchedOff => {
                "has switched its huge pages off (prctl); start it so that it does not (Redis: --disable-thp no)"
            }
            Trouble::NotReadable => {
                "may not be read: run hugefork as its user or as root (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)"
            }
            Trouble::OldKernel => "this kernel cannot say which pages are huge; Linux 6.7 or newer can",
            Trouble::NotAllowed => "the kernel wants CAP_SYS_NICE: run hugefork as root outside of user namespaces",
            Trouble::FreedLazily => {
                "has freed memory lazily (MADV_FREE), which a collapse would make stay: such mappings are left alone"
            }
            Trouble::ShortOfMemory => "memory is short, or in pieces: nothing is collapsed just now",
        })
    }
}
