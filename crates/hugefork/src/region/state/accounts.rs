//! What is counted of a region: its reservation, what its forks and snapshots cost, and what is lazily freed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::mem::EngineArc;
use crate::pool::lineage::{CowAccount, Derived};
use crate::types::options::{CopyGrain, RegionOptions, Reserve, Writers};
use crate::types::snapshot_id::Place;
use crate::units::BlockSize;

/// The counts of one region.
pub(crate) struct Accounts {
    pub(crate) reserve: Reserve,
    /// The most blocks that its account may come to.
    pub(crate) limit: Option<usize>,
    pub(crate) cow: EngineArc<CowAccount>,
    /// For a fork: its share in the account of its parent.
    pub(crate) parent: Option<Derived>,
    /// The number of `Lazy` entries.
    pub(crate) lazy_blocks: AtomicUsize,
    /// The number of `Lazy` pages in `Split` entries.
    pub(crate) lazy_pages: AtomicUsize,
    /// The number of `Revoked` entries.
    pub(crate) revoked: AtomicUsize,
    /// The number of `CowMapped` entries.
    pub(crate) cow_mappings: AtomicUsize,
    /// The number of writable `CowMapped` entries over blocks of the region's own, each of which counts as a block that
    /// its forks and snapshots cost.
    pub(crate) charged: AtomicUsize,
    pub(crate) grain: CopyGrain,
    /// Whether system calls are to wait, not to fail, while writers are kept off.
    pub(crate) calls_wait: bool,
    pub(crate) writers: Writers,
    /// The snapshot that the region is at: the last that was taken of it, or that it was made of or set to.
    pub(crate) origin: Place,
    /// Whether an entry may be `CowMapped` whose pages cannot be written, because a call has failed.
    pub(in crate::region) unsure: AtomicBool,
}

impl Accounts {
    pub(super) fn new(options: RegionOptions, parent: Option<Derived>, size: BlockSize) -> Accounts {
        let limit = options.limit.map(|bytes| bytes.div_ceil(size.bytes()));
        Accounts {
            reserve: options.reserve,
            limit,
            cow: EngineArc::default(),
            parent,
            lazy_blocks: AtomicUsize::new(0),
            lazy_pages: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
            cow_mappings: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            grain: options.grain,
            calls_wait: options.calls_wait,
            writers: options.writers,
            origin: Place::default(),
            unsure: AtomicBool::new(false),
        }
    }

    /// Blocks that forks and snapshots cost the region, or may come to cost it without a fault.
    pub(crate) fn cost(&self) -> usize {
        self.cow.blocks() + self.charged.load(Ordering::Relaxed)
    }

    /// Whether anything is shown through private mappings.
    pub(crate) fn has_cow_mappings(&self) -> bool {
        self.cow_mappings.load(Ordering::Relaxed) > 0
    }

    /// Whether anything is lazily freed.
    pub(in crate::region) fn has_lazy(&self) -> bool {
        self.lazy_blocks.load(Ordering::Relaxed) > 0 || self.lazy_pages.load(Ordering::Relaxed) > 0
    }
}
