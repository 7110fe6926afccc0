//! Makes huge pages of full blocks if the kernel does not do so, and returns unused memory to the
//! system.

use hugefork::seam::Machine;

use crate::memory::ProgramMemory;

/// Most blocks to free in one call.
const MAX_TRIMMED_AT_ONCE: usize = 16;

/// Most blocks to check for fullness in one call: the check of a block takes a microsecond or two.
const MAX_CHECKED_AT_ONCE: usize = 256;

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
pub use hugefork::seam::FullBlock as Full;

impl<S: Machine> ProgramMemory<S> {
    /// Whether the kernel makes huge pages only on request ([`Full::collapse`]).
    pub fn needs_collapse(&self) -> bool {
        self.region.needs_collapse()
    }

    /// The next full block, from index `from` on, that is not known to be a huge page; and the index where the next
    /// search starts.
    pub fn next_full(&self, from: usize) -> (Option<Full<S>>, Option<usize>) {
        let end = self.high.min(from.saturating_add(MAX_CHECKED_AT_ONCE));
        let mut indices = (from..end).filter(|&index| !self.is_huge[index]);
        let found = indices.find_map(|index| self.region.full(index));
        let next = found.as_ref().map_or(end.max(from), |block| block.entry() + 1);
        (found, (next < self.high).then_some(next))
    }

    /// Notes that a block is a huge page, if the block has not moved since the search found it.
    pub fn note_huge(&mut self, full: &Full<S>) {
        if self.region.has_block(full) {
            self.is_huge[full.entry()] = true;
        }
    }

    /// Returns the memory of a few blocks that nobody holds to the system. Returns true if more such blocks are left.
    pub fn trim(&mut self) -> bool {
        self.region.trim(MAX_TRIMMED_AT_ONCE)
    }
}
