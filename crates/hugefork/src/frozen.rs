//! The blocks of a region at one moment: what `fork()` and `snapshot()` are made of.
//!
//! ```text
//!            freeze                      share
//!  Space ─────────────▶ Frozen ─────────────────────────▶ Space (a fork)
//!                        │  ▲
//!                        │  └── duplicate
//!                        └── map, on first use ─▶ View (a snapshot's bytes)
//! ```
//! Invariant: a `Frozen` holds one reference to each of its blocks, so none of them is ever written again while it lives:
//! a region writes only to blocks it holds alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::RegionError;
use crate::pool::core::{Home, PoolCore};
use crate::space::{Addresses, Space, joined, runs};
use crate::sync::SignalsBlocked;
use crate::sys::{Access, Sys};
use crate::table::Entry;
use crate::units::{BlockId, EntryIndex};

/// The blocks of a region at one moment. `None` reads as zeros.
pub(crate) struct Frozen<S: Sys> {
    pool: Arc<PoolCore<S>>,
    blocks: Box<[Option<BlockId>]>,
    /// Keeps the range of the pool that the blocks lie in set aside, so that the next region settles elsewhere.
    _home: Option<Home<S>>,
}

impl<S: Sys> Space<S> {
    /// Freezes the region: the pause of a fork or snapshot. Takes time in proportion to the number of blocks, some
    /// nanoseconds each, and one write-protection.
    ///
    /// The cut is consistent. A write that lands before its page is protected is in the blocks that we keep. A thread
    /// whose write comes later waits in its fault until the lock is free, so nothing that it does afterwards can be in
    /// them either.
    pub(crate) fn freeze(&self) -> Result<Frozen<S>, RegionError> {
        let pool = self.pool();
        let mut blocks = vec![None; self.table.len()].into_boxed_slice();

        let signals = SignalsBlocked::new();
        let started = pool.sys.now();
        let alone = self.lock.exclusive();
        let (mut first, mut last) = (usize::MAX, 0);
        let mut mappings = 1;
        let mut before = None;
        for (index, frozen) in blocks.iter_mut().enumerate() {
            let mut entry = self.table.get(EntryIndex(index));
            if let Some(block) = entry.block() {
                pool.frames.add_reference(block);
                *frozen = Some(block);
                (first, last) = (first.min(index), index);
                entry = Entry::Shared(block);
                self.table.set(EntryIndex(index), entry);
            }
            mappings += usize::from(before.is_some_and(|before| !joined(before, entry, pool.sys.merging())));
            before = Some(entry);
        }
        let mut frozen = Frozen { pool: Arc::clone(pool), blocks, _home: None };
        if first <= last {
            let len = pool.block_size.len_of(last + 1 - first);
            // On failure the entries stay `Shared` and `frozen` gives its references back: the next writes find a
            // single reference and make their blocks writable again, whatever the kernel has left of the protection.
            // That is also why what was `Shared` already is protected once more: it costs nothing where nothing changes.
            pool.sys.protect(self.address_of(first), len, Access::Read)?;
        }
        self.addresses.recount(self.addresses.mappings(), mappings);
        drop(alone);
        let pause = pool.sys.now().saturating_sub(started);
        drop(signals);

        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        self.counters.longest_pause.fetch_max(pause, Ordering::Relaxed);
        frozen._home = self.move_home();
        Ok(frozen)
    }
}

impl<S: Sys> Frozen<S> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pool.block_size.len_of(self.blocks.len())
    }

    /// A region that shares these blocks, taking this holder's references over.
    pub(crate) fn share(mut self) -> Result<Space<S>, RegionError> {
        let space = Space::sharing(&self.pool, &self.blocks)?;
        // Its entries hold the references from here on.
        self.blocks = Box::default();
        Ok(space)
    }

    /// A second holder of the same blocks.
    pub(crate) fn duplicate(&self) -> Frozen<S> {
        self.blocks.iter().flatten().for_each(|block| self.pool.frames.add_reference(*block));
        Frozen { pool: Arc::clone(&self.pool), blocks: self.blocks.clone(), _home: None }
    }

    /// Copies bytes out, through the direct map. `offset + to.len()` is at most [`Frozen::len`].
    pub(crate) fn read(&self, mut offset: usize, mut to: &mut [u8]) {
        let size = self.pool.block_size;
        while !to.is_empty() {
            let start = size.within(offset);
            let (now, rest) = to.split_at_mut(to.len().min(size.bytes() - start));
            match self.blocks[size.count(offset)] {
                None => now.fill(0),
                // SAFETY: the block is held by `self`, so nobody writes to it; `start + now.len()` is within the block.
                Some(block) => unsafe {
                    core::ptr::copy_nonoverlapping(self.pool.direct(block).add(start), now.as_mut_ptr(), now.len());
                },
            }
            offset += now.len();
            to = rest;
        }
    }

    /// Makes the bytes visible at an address.
    pub(crate) fn map(&self) -> Result<View<S>, RegionError> {
        let mappings = runs(&self.blocks, self.pool.sys.merging()).count();
        let addresses = Addresses::reserve(&self.pool, self.len(), mappings)?;
        addresses.map_frozen(&self.blocks)?;
        Ok(View { addresses })
    }

    /// Gives the references up without giving the blocks back: they are out of use for good.
    pub(crate) fn leak(mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        self.pool.leak(blocks.iter().flatten().count());
    }

    /// The blocks, for tests that count references.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> &[Option<BlockId>] {
        &self.blocks
    }
}

impl<S: Sys> Drop for Frozen<S> {
    fn drop(&mut self) {
        for block in self.blocks.iter().flatten() {
            self.pool.release(*block);
        }
    }
}

/// Frozen bytes at an address. Must go before the [`Frozen`] that it shows.
pub(crate) struct View<S: Sys> {
    addresses: Addresses<S>,
}

impl<S: Sys> View<S> {
    pub(crate) fn as_ptr(&self) -> *const u8 {
        core::ptr::with_exposed_provenance(self.addresses.base)
    }

    /// Unmaps. On failure the blocks may still be visible: whoever holds them must keep them.
    pub(crate) fn close(mut self) -> Result<(), crate::error::SystemError> {
        self.addresses.close()
    }
}
