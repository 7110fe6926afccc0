//! Where in the pool a region would like its blocks. Neighbours in the region that are neighbours in the pool are one
//! mapping.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::pool::core::PoolCore;
use crate::pool::homes::Home;
use crate::sys::Sys;
use crate::units::{BlockId, EntryIndex};

/// The home of one region.
pub(crate) struct Settled {
    home: Mutex<Option<Home>>,
    /// The first block of `home`, where the fault handler can read it.
    first: AtomicU32,
}

impl Settled {
    /// Settles in a home for `blocks` blocks, if there is room for one.
    pub(super) fn new<S: Sys>(pool: &PoolCore<S>, blocks: usize) -> Settled {
        let settled = Settled { home: Mutex::new(None), first: AtomicU32::new(0) };
        settled.move_on(pool, blocks);
        settled
    }

    /// The block that the entry would like, out of `blocks` in the pool: it has the same place in the home as the entry
    /// in the region.
    pub(in crate::region) fn wish(&self, index: EntryIndex, blocks: usize) -> BlockId {
        BlockId(((self.first.load(Ordering::Relaxed) as usize + index.0) % blocks) as u32)
    }

    /// Chooses a new home for blocks that are written from now on, and returns the old one, which stays set aside while
    /// the caller keeps it. If there is no room for a new one, the region stays where it is.
    pub(in crate::region) fn move_on<S: Sys>(&self, pool: &PoolCore<S>, blocks: usize) -> Option<Home> {
        let new = Home::claim(&pool.homes, blocks, pool.block_size)?;
        self.first.store(new.first().0, Ordering::Relaxed);
        self.home.lock().unwrap_or_else(PoisonError::into_inner).replace(new)
    }
}
