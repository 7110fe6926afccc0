//! Placements: ranges of a pool that regions prefer for their blocks.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::EngineArc;
use crate::ranges::Ranges;
use crate::sync::SignalsBlocked;
use crate::units::{BlockId, BlockSize, HUGE_PAGE};

/// The ranges that are no region's placement.
pub(crate) struct Placements(Mutex<Ranges>);

impl Placements {
    pub(crate) fn new(blocks: usize) -> Placements {
        Placements(Mutex::new(Ranges::new(blocks)))
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of blocks that a region prefers. No other region can claim it until this is dropped.
pub(crate) struct Placement {
    placements: EngineArc<Placements>,
    blocks: Range<usize>,
}

impl Placement {
    /// Claims `count` neighbouring blocks as a region's placement. Neighbours of the region are then neighbours in the
    /// pool, and their mappings merge. A placement is only a preference: other regions may take blocks in it, and there
    /// may be no free range for one. A placement of small blocks starts at a multiple of 2 MiB. If they do so in the
    /// region, too, a huge page can map 2 MiB of them.
    pub(crate) fn claim(placements: &EngineArc<Placements>, count: usize, size: BlockSize) -> Option<Placement> {
        let _signals = SignalsBlocked::new();
        let blocks = placements.lock().take(count, (HUGE_PAGE / size.bytes()).max(1))?;
        Some(Placement { placements: placements.clone(), blocks })
    }

    pub(crate) fn first(&self) -> BlockId {
        BlockId(self.blocks.start as u32)
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        self.placements.lock().give_back(self.blocks.clone());
    }
}
