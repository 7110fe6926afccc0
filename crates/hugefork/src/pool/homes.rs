//! Ranges of a pool in which regions would like their blocks.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::EngineArc;
use crate::ranges::Ranges;
use crate::sync::SignalsBlocked;
use crate::units::{BlockId, BlockSize, HUGE_PAGE};

/// The ranges that are no region's home.
pub(crate) struct Homes(Mutex<Ranges>);

impl Homes {
    pub(crate) fn new(blocks: usize) -> Homes {
        Homes(Mutex::new(Ranges::new(blocks)))
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of blocks where a region would like its blocks, set aside until this is dropped.
pub(crate) struct Home {
    homes: EngineArc<Homes>,
    blocks: Range<usize>,
}

impl Home {
    /// Sets a range of `count` neighbouring blocks aside as a region's home: its neighbours are then neighbours in the
    /// pool, and their mappings merge. It is only a wish: others may take blocks in it, and there may be no such range.
    /// Small blocks start at a 2 MiB boundary if they do so in the region, so that a huge page can map a run of 2 MiB.
    pub(crate) fn claim(homes: &EngineArc<Homes>, count: usize, size: BlockSize) -> Option<Home> {
        let _signals = SignalsBlocked::new();
        let blocks = homes.lock().take(count, (HUGE_PAGE / size.bytes()).max(1))?;
        Some(Home { homes: homes.clone(), blocks })
    }

    pub(crate) fn first(&self) -> BlockId {
        BlockId(self.blocks.start as u32)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        self.homes.lock().give_back(self.blocks.clone());
    }
}
