//! The memory of `clear` and `copy`. All subjects of a case share this memory, so that the subjects have gone over the
//! whole area between two visits to a block.

use std::cell::RefCell;
use std::rc::Rc;

use super::tool::Operation;
use crate::error::BenchError;
use crate::memory::kernel_memory::{KernelMemory, PageKind};

pub(super) type RcCell<T> = Rc<RefCell<T>>;

/// The shared area. The first subject allocates its memory.
pub(super) struct SharedArea {
    pub(super) operation: Operation,
    pub(super) size: usize,
    /// Bytes in a block.
    pub(super) block: usize,
    pub(super) held: Option<Blocks>,
}

pub(super) struct Blocks {
    /// The blocks to clear, or to copy to.
    pub(super) to: KernelMemory,
    /// The blocks to copy from, as many bytes as the blocks to copy to.
    pub(super) from: Option<KernelMemory>,
    next: usize,
}

impl SharedArea {
    /// Allocates the memory, unless it is allocated already.
    pub(super) fn prepare(&mut self) -> Result<(), BenchError> {
        if self.held.is_none() {
            // The memory is on huge pages if the machine has them; since all subjects share the area, small pages are a
            // caveat and no error. The words are not zero, because pages that were never written may be cheaper to
            // read, and because a clear must change the memory.
            let populated = || KernelMemory::written(PageKind::Thp, self.size, 1);
            let to = populated()?;
            let from = match self.operation {
                Operation::Clear => None,
                Operation::Copy => Some(populated()?),
            };
            self.held = Some(Blocks { to, from, next: 0 });
        }
        Ok(())
    }

    /// A caveat for the reader of figures that were taken in this area.
    pub(super) fn caveat(&self) -> Option<String> {
        let small = self.held.as_ref().is_some_and(|held| held.to.check_huge().is_err());
        small.then(|| {
            let case = self.operation.name();
            format!("{case}: the area is not on huge pages, so every subject also pays for TLB misses")
        })
    }
}

impl Blocks {
    /// The offset of the next block.
    pub(super) fn advance(&mut self, block: usize) -> usize {
        let offset = self.next * block;
        self.next = (self.next + 1) % (self.to.len() / block);
        offset
    }
}
