//! The counts of a region: its reservation, the blocks that its forks and snapshots cost it, its CoW mappings, and its
//! lazily freed memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::mem::EngineArc;
use crate::pool::lineage::{CowAccount, Derived};
use crate::types::options::{CopyGrain, RegionOptions, Reserve, Writers};
use crate::types::snapshot_id::Place;
use crate::units::BlockSize;

/// The counts of one region.
#[derive(Default)]
pub(crate) struct Accounts {
    pub(crate) reserve: Reserve,
    /// The limit of [`Accounts::cost`]: the most blocks that forks and snapshots may cost the region.
    pub(crate) limit: Option<usize>,
    pub(crate) cow: EngineArc<CowAccount>,
    /// For a fork: its share in its parent's account.
    pub(crate) parent: Option<Derived>,
    /// The number of `Lazy` entries.
    pub(crate) lazy_blocks: AtomicUsize,
    /// The number of `Lazy` pages in `Split` entries.
    pub(crate) lazy_pages: AtomicUsize,
    /// The number of `Revoked` entries.
    pub(crate) revoked: AtomicUsize,
    /// The number of `CowMapped` entries.
    pub(crate) cow_mappings: AtomicUsize,
    /// The number of writable `CowMapped` entries over blocks that the region wrote. Each is charged as a whole block,
    /// because later page copies raise no fault.
    pub(crate) charged: AtomicUsize,
    pub(crate) grain: CopyGrain,
    /// Whether a system call that writes to the region waits, instead of failing, while the engine keeps writers off.
    pub(crate) calls_wait: bool,
    pub(crate) writers: Writers,
    /// The region's place in the tree of snapshots: the snapshot that was taken of it, that it was forked from or that
    /// it was reset to, whichever came last.
    pub(crate) origin: Place,
    /// Whether some `CowMapped` entry that counts as writable may be read-only in the kernel, because a system call
    /// failed.
    pub(in crate::region) unsure: AtomicBool,
}

impl Accounts {
    pub(super) fn new(options: RegionOptions, parent: Option<Derived>, size: BlockSize) -> Accounts {
        let limit = options.limit.map(|bytes| bytes.div_ceil(size.bytes()));
        Accounts {
            reserve: options.reserve,
            limit,
            parent,
            grain: options.grain,
            calls_wait: options.calls_wait,
            writers: options.writers,
            ..Accounts::default()
        }
    }

    /// The blocks that forks and snapshots cost the region, and those that they may cost it later without a fault.
    pub(crate) fn cost(&self) -> usize {
        self.cow.blocks() + self.charged.load(Ordering::Relaxed)
    }

    /// Whether any entry is `CowMapped`.
    pub(crate) fn has_cow_mappings(&self) -> bool {
        self.cow_mappings.load(Ordering::Relaxed) > 0
    }

    /// Whether any block or page is lazily freed.
    pub(in crate::region) fn has_lazy(&self) -> bool {
        self.lazy_blocks.load(Ordering::Relaxed) > 0 || self.lazy_pages.load(Ordering::Relaxed) > 0
    }
}
