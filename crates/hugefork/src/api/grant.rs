//! Chooses a pool's memory: the best backing that the machine grants.
//!
//! `Auto` prefers shmem huge pages to hugetlb. Both clear and copy at the same speed. But
//! neighbouring shmem mappings merge; hugetlb uses one of the process's 65530 mappings for each
//! block, and a snapshot write-protects each on its own. And an administrator reserves hugetlb
//! pages for a program that counts on them (figures: docs/design.md).

use thiserror::Error;

use super::builder::PoolBuilder;
use crate::sys::Sys;
use crate::sys::linux::memory::{Huge, Kind, Linux, NoMemory};
use crate::sys::linux::settings;
use crate::types::backing::{Backing, Fallback, Granted, Swap};
use crate::types::error::BuildError;
use crate::units::{BASE_PAGE, BlockSize, ByteSize, HUGE_PAGE};

/// The reason why the machine does not grant a backing.
#[derive(Debug, Error)]
enum NotGranted {
    #[error("this kernel has no hugetlb")]
    NoHugetlb,
    #[error("{what} cannot be read to find out: mount it, or raise RLIMIT_NOFILE (ulimit -n)")]
    Unreadable { what: &'static str },
    #[error("blocks of {block} are smaller than its pages of {page}: take blocks of {page}")]
    SmallBlocks { block: BlockSize, page: ByteSize },
    #[error("{needed} free pages of {page} are needed and {free} are free: sysctl -w vm.nr_hugepages={enough}")]
    FewPages { page: ByteSize, needed: usize, free: usize, enough: usize },
    #[error("the pool is smaller than one huge page ({})", ByteSize(HUGE_PAGE))]
    SmallPool,
    #[error("shmem_enabled is {setting}: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")]
    ForbiddenBySetting { setting: String },
    #[error("in a tmpfs of its own there is no huge page either: shmem_enabled is {setting}")]
    NotHugeInTmpfs { setting: String },
    #[error("they may be swapped: take another backing, or allow it")]
    MayBeSwapped,
    #[error("MADV_COLLAPSE gave no huge page (Linux 6.1 has it)")]
    NotCollapsed,
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// A way to get memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Hugetlb,
    ShmemHuge(Huge),
    ShmemBase,
}

/// The ways to get huge pages of shmem, the best first.
const SHMEM: [Way; 3] =
    [Way::ShmemHuge(Huge::BySetting), Way::ShmemHuge(Huge::OwnTmpfs(Swap::Allowed)), Way::ShmemHuge(Huge::Collapse)];

impl Way {
    fn backing(self) -> Backing {
        match self {
            Way::Hugetlb => Backing::Hugetlb,
            Way::ShmemHuge(_) => Backing::ShmemHuge,
            Way::ShmemBase => Backing::ShmemBase,
        }
    }

    fn may_be_swapped(self) -> bool {
        !matches!(self, Way::Hugetlb | Way::ShmemHuge(Huge::OwnTmpfs(Swap::Refused)))
    }
}

/// All refusals, in one line.
fn in_words(refusals: &[(Way, NotGranted)]) -> String {
    let each: Vec<_> = refusals.iter().map(|(way, refusal)| format!("{}: {refusal}", way.backing())).collect();
    each.join("; ")
}

impl PoolBuilder {
    /// All ways to get memory, the best first.
    fn ways(&self) -> Vec<Way> {
        let mut ways = match self.backing {
            Backing::Auto => [&SHMEM[..], &[Way::Hugetlb, Way::ShmemBase]].concat(),
            Backing::Hugetlb => [&[Way::Hugetlb], &SHMEM[..], &[Way::ShmemBase]].concat(),
            Backing::ShmemHuge => [&SHMEM[..], &[Way::ShmemBase]].concat(),
            Backing::ShmemBase => vec![Way::ShmemBase],
        };
        if self.swap == Swap::Refused {
            let first_of_shmem = ways.iter().take_while(|way| **way == Way::Hugetlb).count();
            ways.insert(first_of_shmem, Way::ShmemHuge(Huge::OwnTmpfs(Swap::Refused)));
            // Not sorted: sorting alone takes 10 KiB of code.
            let (never, perhaps): (Vec<Way>, Vec<Way>) = ways.into_iter().partition(|way| !way.may_be_swapped());
            ways = [never, perhaps].concat();
        }
        ways
    }

    /// Whether `way` is no fallback: it gives the requested backing, or `Auto` was requested.
    fn is_asked_for(&self, way: Way) -> bool {
        let is_swap = self.swap == Swap::Allowed || !way.may_be_swapped();
        is_swap && (self.backing == Backing::Auto || self.backing == way.backing())
    }

    /// The first backing, from the requested one downwards, that the machine grants.
    #[inline(always)] // So a caller that requests one backing contains no code for the others (`hugefork run`).
    pub(crate) fn find_memory(&self) -> Result<(Linux, Granted, Option<String>), BuildError> {
        let mut refusals: Vec<(Way, NotGranted)> = Vec::new();
        if self.backing == Backing::ShmemBase && self.swap == Swap::Refused {
            refusals.push((Way::ShmemBase, NotGranted::MayBeSwapped));
        }
        for way in self.ways() {
            if self.fallback == Fallback::Refused && !self.is_asked_for(way) {
                continue;
            }
            match self.try_way(way) {
                Ok((memory, granted)) => {
                    // A refused setting is not mentioned if another way is as good.
                    let is_as_good = granted == Granted::ShmemOwnTmpfs && self.is_asked_for(way);
                    let fallback_reason = (!refusals.is_empty() && !is_as_good).then(|| in_words(&refusals));
                    return Ok((memory, granted, fallback_reason));
                }
                Err(refusal) => refusals.push((way, refusal)),
            }
        }
        match refusals.last() {
            // Every machine grants base pages: a refusal of these has nothing to do with backings.
            Some((Way::ShmemBase, NotGranted::NoMemory(NoMemory::System(error)))) => Err(BuildError::System(*error)),
            Some(_) | None => {
                Err(BuildError::BackingUnavailable { backing: self.backing, reason: in_words(&refusals) })
            }
        }
    }

    fn try_way(&self, way: Way) -> Result<(Linux, Granted), NotGranted> {
        match way {
            Way::Hugetlb => Ok((self.try_hugetlb()?, Granted::Hugetlb)),
            Way::ShmemHuge(huge) => self.try_shmem_huge(huge),
            Way::ShmemBase => Ok((self.open(Kind::ShmemBase)?, Granted::ShmemBase)),
        }
    }

    /// Memory in base pages, which the kernel collapses into huge pages on request: sparsely used memory takes only its
    /// pages.
    pub(crate) fn find_dense_memory(&self) -> Result<Linux, BuildError> {
        let unavailable =
            |why: NotGranted| BuildError::BackingUnavailable { backing: Backing::ShmemHuge, reason: why.to_string() };
        self.check_page_size(settings::other_page_size())?;
        self.try_shmem_huge(Huge::Collapse).map(|(memory, _)| memory).map_err(unavailable)
    }

    /// An error if the kernel's pages are not 4 KiB, the unit of the whole engine.
    pub(super) fn check_page_size(&self, other: Option<usize>) -> Result<(), BuildError> {
        let Some(page) = other.map(ByteSize) else { return Ok(()) };
        let reason = format!(
            "hugefork works with pages of {}, and this kernel has pages of {page}: boot a kernel with pages of {0}",
            ByteSize(BASE_PAGE)
        );
        Err(BuildError::BackingUnavailable { backing: self.backing, reason })
    }

    fn open(&self, kind: Kind) -> Result<Linux, NoMemory> {
        Linux::new(kind, self.capacity, self.core_dump, self.exports)
    }

    fn try_hugetlb(&self) -> Result<Linux, NotGranted> {
        let unreadable = |_| NotGranted::Unreadable { what: "/sys/kernel/mm/hugepages" };
        let pools = settings::hugetlb_pools().map_err(unreadable)?;
        // The largest page size that divides the block size, so that a block has as few pages as possible.
        let fitting = pools
            .iter()
            .rev()
            .find(|pool| self.block_size.bytes() >= pool.page && pool.available() >= self.capacity.div_ceil(pool.page));
        let Some(pool) = fitting else {
            let Some(smallest) = pools.first() else { return Err(NotGranted::NoHugetlb) };
            if self.block_size.bytes() < smallest.page {
                return Err(NotGranted::SmallBlocks { block: self.block_size, page: ByteSize(smallest.page) });
            }
            let needed = self.capacity.div_ceil(smallest.page);
            let free = smallest.available();
            let enough = smallest.total + needed - free.min(needed);
            return Err(NotGranted::FewPages { page: ByteSize(smallest.page), needed, free, enough });
        };
        Ok(self.open(Kind::Hugetlb { page: pool.page })?)
    }

    /// Creates the memory and checks that a block of it really becomes huge: if `shmem_enabled` says `never`, the
    /// kernel silently provides base pages.
    fn try_shmem_huge(&self, huge: Huge) -> Result<(Linux, Granted), NotGranted> {
        if self.capacity < HUGE_PAGE {
            return Err(NotGranted::SmallPool);
        }
        let memory = self.open(Kind::ShmemHuge(huge))?;
        memory.make_huge(0, HUGE_PAGE);
        memory.obtain(0, HUGE_PAGE, 0).map_err(NoMemory::System)?;
        let mapped_huge = settings::mapped_huge(memory.direct().addr());
        let is_huge = mapped_huge.ok_or(NotGranted::Unreadable { what: "/proc/self/smaps" })? > 0;
        let setting = || match settings::thp("shmem_enabled") {
            Ok(setting) => Ok(setting.unwrap_or_else(|| "missing: the kernel has no THP".to_owned())),
            Err(_) => Err(NotGranted::Unreadable { what: "/sys/kernel/mm/transparent_hugepage/shmem_enabled" }),
        };
        match huge {
            Huge::BySetting if is_huge => Ok((memory, Granted::ShmemHuge)),
            Huge::OwnTmpfs(_) if is_huge => Ok((memory, Granted::ShmemOwnTmpfs)),
            Huge::Collapse if is_huge => Ok((memory, Granted::ShmemCollapsed)),
            Huge::BySetting => Err(NotGranted::ForbiddenBySetting { setting: setting()? }),
            Huge::OwnTmpfs(_) => Err(NotGranted::NotHugeInTmpfs { setting: setting()? }),
            Huge::Collapse => Err(NotGranted::NotCollapsed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_pages_than_those_of_4_kib_are_refused_with_a_reason() {
        let builder = PoolBuilder::default();
        assert_eq!(builder.check_page_size(None), Ok(()));
        for (page, name) in [(16 << 10, "16KiB"), (64 << 10, "64KiB")] {
            let said = builder.check_page_size(Some(page)).unwrap_err().to_string();
            assert!(said.contains(&format!("this kernel has pages of {name}")), "{said}");
            assert!(said.contains("boot a kernel with pages of 4KiB"), "{said}");
        }
    }
}
