//! What a pool's memory is made of: which backing the machine grants.
//!
//! `Auto` prefers shmem huge pages to hugetlb. Both clear and copy at the same speed, but neighbouring shmem mappings
//! merge, where hugetlb takes one of the process's 65530 mappings for each block and a snapshot write-protects each on
//! its own; and hugetlb pages are set aside by hand for a program that counts on them (figures: docs/design.md).

use thiserror::Error;

use super::builder::PoolBuilder;
use super::pool::Grant;
use crate::sys::linux::memory::{Dump, Kind, Linux};
use crate::sys::linux::settings;
use crate::sys::{Sys, SystemError};
use crate::terms::backing::{Backing, CoreDump, Fallback, Granted};
use crate::terms::error::BuildError;
use crate::units::{BlockSize, ByteSize, HUGE_PAGE};

/// Why the machine does not grant a backing.
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
    #[error(
        "shmem_enabled is {setting} and MADV_COLLAPSE gave no huge page (Linux 6.1 has it): \
         echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    )]
    NotHuge { setting: String },
    #[error(transparent)]
    System(#[from] SystemError),
}

/// All that was refused, in one line.
fn in_words(refusals: &[(Backing, NotGranted)]) -> String {
    let each: Vec<_> = refusals.iter().map(|(backing, refusal)| format!("{backing}: {refusal}")).collect();
    each.join("; ")
}

impl PoolBuilder {
    /// The first backing, from the one asked for downwards, that the machine grants.
    pub(super) fn find_memory(&self) -> Result<(Linux, Grant), BuildError> {
        let candidates: &[Backing] = match self.backing {
            Backing::Auto => &[Backing::ShmemHuge, Backing::Hugetlb, Backing::ShmemBase],
            Backing::Hugetlb => &[Backing::Hugetlb, Backing::ShmemHuge, Backing::ShmemBase],
            Backing::ShmemHuge => &[Backing::ShmemHuge, Backing::ShmemBase],
            Backing::ShmemBase => &[Backing::ShmemBase],
        };
        let mut refusals: Vec<(Backing, NotGranted)> = Vec::new();
        for (nth, &backing) in candidates.iter().enumerate() {
            // Auto may take any of its candidates: each of them is what was asked for.
            if nth > 0 && self.fallback == Fallback::Refused && self.backing != Backing::Auto {
                break;
            }
            match self.try_backing(backing) {
                Ok((memory, granted)) => {
                    let fallback_reason = (!refusals.is_empty()).then(|| in_words(&refusals));
                    return Ok((memory, Grant { granted, fallback_reason }));
                }
                Err(refusal) => refusals.push((backing, refusal)),
            }
        }
        match refusals.last() {
            // Every machine grants base pages: what refuses them has nothing to do with backings.
            Some((Backing::ShmemBase, NotGranted::System(error))) => Err(BuildError::System(*error)),
            Some(_) | None => {
                Err(BuildError::BackingUnavailable { backing: self.backing, reason: in_words(&refusals) })
            }
        }
    }

    fn try_backing(&self, backing: Backing) -> Result<(Linux, Granted), NotGranted> {
        match backing {
            Backing::Hugetlb => self.try_hugetlb().map(|memory| (memory, Granted::Hugetlb)),
            Backing::ShmemBase => {
                let memory = self.open(Kind::ShmemBase)?;
                Ok((memory, Granted::ShmemBase))
            }
            Backing::ShmemHuge | Backing::Auto => self.try_shmem_huge(),
        }
    }

    fn open(&self, kind: Kind) -> Result<Linux, SystemError> {
        let dump = match self.core_dump {
            CoreDump::LeftOut => Dump::LeftOut,
            CoreDump::Included => Dump::Included,
        };
        Linux::new(kind, self.capacity, dump)
    }

    fn try_hugetlb(&self) -> Result<Linux, NotGranted> {
        let unreadable = |_| NotGranted::Unreadable { what: "/sys/kernel/mm/hugepages" };
        let pools = settings::hugetlb_pools().map_err(unreadable)?;
        // The largest page that a block is a whole number of, so that a block is as few pages as can be.
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

    /// Makes the memory and looks whether a block of it really becomes huge: `shmem_enabled` may say `never`, and the
    /// kernel then gives base pages without a word.
    fn try_shmem_huge(&self) -> Result<(Linux, Granted), NotGranted> {
        if self.capacity < HUGE_PAGE {
            return Err(NotGranted::SmallPool);
        }
        for (collapse, granted) in [(false, Granted::ShmemHuge), (true, Granted::ShmemCollapsed)] {
            let memory = self.open(Kind::ShmemHuge { collapse })?;
            memory.make_huge(0, HUGE_PAGE);
            memory.obtain(0, HUGE_PAGE, 0)?;
            match settings::mapped_huge(memory.direct_address()) {
                Some(0) => {}
                Some(_) => return Ok((memory, granted)),
                None => return Err(NotGranted::Unreadable { what: "/proc/self/smaps" }),
            }
        }
        let setting = settings::thp("shmem_enabled").unwrap_or_else(|| "not there: the kernel has no THP".to_owned());
        Err(NotGranted::NotHuge { setting })
    }
}
