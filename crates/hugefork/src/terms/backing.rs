//! What a pool's memory is to be made of, and what it is.

use std::fmt;
use std::str::FromStr;

use super::error::BuildError;

/// What a pool's memory should be made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// The best that the machine allows now: shmem huge pages, else hugetlb, else shmem base pages.
    #[default]
    Auto,
    /// Huge pages that the administrator reserved (`vm.nr_hugepages`). They are the pool's from `build()` on, so a fault
    /// never finds the machine without memory. Blocks are at least one such page.
    Hugetlb,
    /// shmem huge pages: by `shmem_enabled`, or block by block with `MADV_COLLAPSE`, which needs no setting and no
    /// privilege (Linux 6.1).
    ShmemHuge,
    /// shmem base pages. Blocks of any size work, mapped 4 KiB at a time.
    ShmemBase,
}

const BACKINGS: [(Backing, &str); 4] = [
    (Backing::Auto, "auto"),
    (Backing::Hugetlb, "hugetlb"),
    (Backing::ShmemHuge, "shmem-thp"),
    (Backing::ShmemBase, "shmem-base"),
];

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = BACKINGS.iter().find(|(backing, _)| backing == self).expect("every backing has a name");
        f.pad(name)
    }
}

impl FromStr for Backing {
    type Err = BuildError;

    /// Reads `auto`, `hugetlb`, `shmem-thp` or `shmem-base`.
    fn from_str(text: &str) -> Result<Self, BuildError> {
        let found = BACKINGS.iter().find(|(_, name)| *name == text);
        found.map(|(backing, _)| *backing).ok_or_else(|| BuildError::UnknownBacking { text: text.to_owned() })
    }
}

/// What a pool's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Granted {
    /// Reserved huge pages.
    Hugetlb,
    /// shmem huge pages.
    ShmemHuge(HugeBy),
    /// shmem base pages.
    ShmemBase,
}

/// How shmem gets its huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugeBy {
    /// The kernel makes them at first touch: `shmem_enabled` allows it.
    Setting,
    /// hugefork asks for each with `MADV_COLLAPSE` when a block is first used.
    Collapse,
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Granted::Hugetlb => "hugetlb",
            Granted::ShmemHuge(HugeBy::Setting) => "shmem-thp",
            Granted::ShmemHuge(HugeBy::Collapse) => "shmem-thp (MADV_COLLAPSE)",
            Granted::ShmemBase => "shmem-base",
        })
    }
}

/// Whether a pool may be built of something else than was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Take the next best; [`Pool::backing`](crate::Pool::backing) tells what it is, [`Pool::fallback_reason`](crate::Pool::fallback_reason) why.
    #[default]
    Allowed,
    /// Fail.
    Refused,
}

/// When a pool gets its memory from the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Commit {
    /// Block by block, when one is used for the first time or, by a thread of the pool, shortly before
    /// ([`PoolBuilder::obtain_ahead`](crate::PoolBuilder::obtain_ahead)). The kernel clears it then, which is as slow as the kernel's own fault, and shmem may find
    /// no memory left (hugetlb pages are reserved in any case).
    #[default]
    OnDemand,
    /// All of it in `build()`, with a thread for each CPU: building takes some 50 ms a GiB, faults never wait for memory.
    Upfront,
}

/// Whether the contents of regions are part of a core dump. The direct map never is. For hugetlb memory it is bit 6 of
/// `/proc/self/coredump_filter` that decides, and not this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoreDump {
    /// Left out, as databases do with their buffers.
    #[default]
    LeftOut,
    /// Part of it, for 1 us more a fault.
    Included,
}
