//! Huge pages of what the program has filled, where the kernel makes none by itself, and memory that goes back to the
//! system.

use hugefork::seam::{FullBlock, Linux, Machine};

use crate::memory::ProgramMemory;

/// So many blocks at once are given back to the system.
const TRIMMED_AT_ONCE: usize = 16;

/// So many blocks at once are asked whether they are full: each takes a microsecond or two.
const LOOKED_AT_ONCE: usize = 256;

/// A block that the program has filled, and that may become a huge page.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork_program::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// memory.map(4 << 20).expect("there is room");
/// let mut next = Some(0);
/// while let Some(from) = next {
///     let (full, rest) = memory.next_full(from);
///     if let Some(full) = full.filter(|full| full.collapse()) {
///         memory.note_huge(&full);
///     }
///     next = rest;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Full<S: Machine = Linux>(FullBlock<S>);

impl<S: Machine> Full<S> {
    /// Makes a huge page of it. False if the kernel refuses. It takes a quarter of a millisecond, and tens of them
    /// where others want the processors, since the kernel waits for something to run on each: so nobody is kept
    /// waiting, and the program may go on with the block. If that is given back meanwhile, it has memory that reads as
    /// zeros until it is used again.
    pub fn collapse(&self) -> bool {
        self.0.collapse()
    }
}

impl<S: Machine> ProgramMemory<S> {
    /// Whether the kernel makes huge pages only of what it is asked to ([`Full::collapse`]).
    pub fn needs_collapse(&self) -> bool {
        self.region.needs_collapse()
    }

    /// The next block that the program has filled and that is not known to be huge, from the `from`th on, and where to
    /// go on.
    pub fn next_full(&self, from: usize) -> (Option<Full<S>>, Option<usize>) {
        let end = self.high.min(from.saturating_add(LOOKED_AT_ONCE));
        let mut indices = (from..end).filter(|&index| !self.is_huge[index]);
        let found = indices.find_map(|index| self.region.full(index));
        let next = found.as_ref().map_or(end.max(from), |block| block.entry() + 1);
        (found.map(Full), (next < self.high).then_some(next))
    }

    /// Notes that a block is huge, if it is where it was.
    pub fn note_huge(&mut self, full: &Full<S>) {
        if self.region.has_block(&full.0) {
            self.is_huge[full.0.entry()] = true;
        }
    }

    /// Gives memory back to the system that nobody holds, a few blocks at a time. True if there is more.
    pub fn trim(&mut self) -> bool {
        self.region.trim(TRIMMED_AT_ONCE)
    }
}
