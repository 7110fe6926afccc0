//! The requested and the granted kind of a pool's memory.

use std::fmt;
use std::str::FromStr;

use super::error::BuildError;
pub use crate::sys::linux::memory::CoreDump;
pub use crate::sys::linux::own_tmpfs::Swap;

/// The requested kind of a pool's memory. [`Granted`] is the actual kind.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Backing, Pool};
/// let backing: Backing = "shmem-base".parse()?; // from a configuration
/// let pool = Pool::builder().capacity(8 << 20).backing(backing).build()?;
/// assert_eq!(pool.backing().to_string(), "shmem-base");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// The best that the machine allows now: shmem huge pages, else hugetlb, else shmem base pages.
    #[default]
    Auto,
    /// Huge pages that the administrator reserved (`vm.nr_hugepages`). They belong to the pool from `build()` on, so a
    /// fault never finds the machine without memory. A block is at least one such page. Writes to shared blocks copy
    /// whole blocks, never single pages ([`CopyGrain`](crate::CopyGrain)): the kernel would copy whole huge pages.
    Hugetlb,
    /// shmem huge pages, which need no setting and no privilege. [`Granted`] has their origin: by `shmem_enabled`,
    /// otherwise from a tmpfs of the pool's own, otherwise block by block with `MADV_COLLAPSE` (Linux 6.1).
    ShmemHuge,
    /// shmem base pages of 4 KiB. Blocks of any size work.
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

/// The actual kind of a pool's memory, see [`Pool::backing`](crate::Pool::backing).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::Granted;
/// match pool.backing() {
///     Granted::ShmemBase => println!("no huge pages: {}", pool.fallback_reason().unwrap_or("as asked")),
///     granted => println!("huge pages: {granted}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Granted {
    /// Reserved huge pages.
    Hugetlb,
    /// shmem huge pages that the kernel makes at first touch, as `shmem_enabled` allows.
    ShmemHuge,
    /// shmem huge pages that the kernel makes at first touch: the pool's memory is a file in a tmpfs of its own,
    /// mounted `huge=always` and not attached anywhere. It is freed with the pool. This process mounts it if it has the
    /// right; otherwise a process does that lives for half a millisecond in a user namespace of its own.
    ShmemOwnTmpfs,
    /// shmem huge pages that hugefork requests with `MADV_COLLAPSE` when a block is first used. That takes 0.2 ms.
    /// [`Pool::fallback_reason`](crate::Pool::fallback_reason) has the reason why there is no tmpfs.
    ShmemCollapsed,
    /// shmem base pages.
    ShmemBase,
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Granted::Hugetlb => "hugetlb",
            Granted::ShmemHuge => "shmem-thp",
            Granted::ShmemOwnTmpfs => "shmem-thp (own tmpfs)",
            Granted::ShmemCollapsed => "shmem-thp (MADV_COLLAPSE)",
            Granted::ShmemBase => "shmem-base",
        })
    }
}

/// Whether a pool may be built of another kind of memory than requested.
///
/// ```
/// use hugefork::{Backing, BuildError, Fallback, Pool};
/// let builder = Pool::builder().capacity(8 << 20).backing(Backing::Hugetlb);
/// match builder.fallback(Fallback::Refused).build() {
///     Ok(pool) => assert_eq!(pool.fallback_reason(), None),
///     Err(error @ BuildError::BackingUnavailable { .. }) => println!("{error}"), // says what to do
///     Err(error) => panic!("{error}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Use the next best; [`Pool::backing`](crate::Pool::backing) returns it, and
    /// [`Pool::fallback_reason`](crate::Pool::fallback_reason) the reason.
    #[default]
    Allowed,
    /// Fail.
    Refused,
}

/// The time when a pool gets its memory from the system.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Commit, Pool};
/// let pool = Pool::builder().capacity(8 << 20).commit(Commit::Upfront).build()?;
/// let stats = pool.stats();
/// assert_eq!(stats.blocks_zeroed_free, stats.blocks); // each first write finds zeroed memory
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Commit {
    /// Block by block: at the first use of a block, or before a snapshot uses it by a thread of the pool
    /// ([`PoolBuilder::obtain_ahead`](crate::PoolBuilder::obtain_ahead)). The kernel clears it then, which takes as
    /// long as one of its own faults. For shmem, memory may have run out by then; hugetlb pages are reserved in any
    /// case.
    #[default]
    OnDemand,
    /// All of it in `build()`, with a thread for each CPU. That takes 240 to 300 ms for each GiB, and no fault ever
    /// waits for memory.
    Upfront,
}
