//! Placements: ranges of a pool that regions prefer for their blocks.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::mem::EngineArc;
use crate::ranges::Ranges;
use crate::sync::SignalsBlocked;
use crate::units::{BlockSize, HUGE_PAGE};

/// A range of blocks that a region prefers. No other region can claim it until this is dropped.
pub(crate) struct Placement {
    /// The ranges that are no region's placement.
    free: EngineArc<Mutex<Ranges>>,
    pub(crate) blocks: Range<usize>,
}

impl Placement {
    /// Claims `count` neighbouring blocks as a region's placement. Neighbours of the region are then neighbours in the
    /// pool, and their mappings merge. A placement is only a preference: other regions may take blocks in it, and there
    /// may be no free range for one. A placement of small blocks starts at a multiple of 2 MiB. If they do so in the
    /// region, too, a huge page can map 2 MiB of them.
    pub(crate) fn claim(free: &EngineArc<Mutex<Ranges>>, count: usize, size: BlockSize) -> Option<Placement> {
        let _signals = SignalsBlocked::new();
        let align = (HUGE_PAGE / size.bytes()).max(1);
        let blocks = free.lock().unwrap_or_else(PoisonError::into_inner).take(count, align)?;
        Some(Placement { free: free.clone(), blocks })
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        self.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.blocks.clone());
    }
}
