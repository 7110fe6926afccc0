//! [`ProgramMemory`]: records the program's part of each block.

use std::ops::Range;
use std::sync::Arc;

use hugefork::BuildError;
use hugefork::seam::{Figures, Linux, Machine, ProgramRegion, Ranges, Zeros};
use hugefork_linux::Descriptor;

use crate::children::LivingChildren;
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// The address space is this multiple of the capacity, because addresses that were handed over to the kernel are never
/// used again.
const ADDRESSES: usize = 4;

/// A value of [`ProgramMemory::used`] in place of a number of bytes: the block belongs to the kernel for ever.
pub(crate) const PLAIN: u32 = u32::MAX;

/// Another such value of [`ProgramMemory::used`]: the block is empty now, and will belong to the kernel once the
/// program has mapped memory in the block.
pub(crate) const SOON_PLAIN: u32 = u32::MAX - 1;

/// Memory that replaces a program's own big anonymous mappings, so that `fork(2)` does not copy the page tables of
/// these mappings.
///
/// This type exists for `hugefork run` only. It installs no handler and starts no thread. All mapped memory is writable
/// at all times. The caller announces a fork ([`ProgramMemory::before_fork`]), and the child has private copies of the
/// memory. The memory consists of whole huge pages; before the program changes the mapping of a part of a huge page,
/// [`ProgramMemory::hand_over`] turns that huge page into plain memory of the kernel.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork_program::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// let at = memory.map(5 << 20).expect("there is room");
/// assert!(memory.has(at..at + 1));
/// memory.unmap(at..at + (5 << 20), |_| unreachable!("all of it was still here"));
/// assert!(!memory.has(at..at + (5 << 20)));
/// # Ok(())
/// # }
/// ```
pub struct ProgramMemory<S: Machine = Linux> {
    pub(crate) region: ProgramRegion<S>,
    pub(crate) free: Ranges,
    /// All entries from this index on are unused.
    pub(crate) high: usize,
    /// For each block, the number of bytes at its start that belong to the program; or [`PLAIN`] or [`SOON_PLAIN`].
    pub(crate) used: Vec<u32>,
    /// The blocks that [`Full::collapse`](crate::Full::collapse) has turned into huge pages.
    pub(crate) is_huge: Vec<bool>,
    /// Entries of failed mappings that could not be unmapped completely. The program does not know of these entries.
    rests: Vec<Range<usize>>,
    pub(crate) counts: ProgramCounts,
    pub(crate) living: Arc<LivingChildren>,
    /// The entry where [`ProgramMemory::maintain`] continues its round over the blocks; `None` between rounds.
    pub(crate) round: Option<usize>,
}

/// Statistics of a [`ProgramMemory`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork_program::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// let at = memory.map(4 << 20).expect("there is room");
/// memory.hand_over(at + 4096..at + 8192, hugefork_program::Zeros::Copied); // a page, and with it the block around it
/// assert_eq!(memory.counts().handed_over, 1);
/// assert!(!memory.has(at..at + (2 << 20)) && memory.has_all(at + (2 << 20)..at + (4 << 20)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramCounts {
    /// Blocks handed over to the kernel.
    pub handed_over: u64,
    /// Number of times that a child could not inherit a block.
    pub unseen: u64,
    /// Pages that writers had copied, and that were written back into their blocks.
    pub pages_written_back: u64,
    /// Bytes of memory in all blocks, without the copies of pages that the kernel has made for writers.
    pub memory: u64,
    /// Bytes of memory in blocks that nobody holds, which [`ProgramMemory::trim`] would free. A partly filled block
    /// counts as a whole block, but the sum is at most `memory`.
    pub kept: u64,
}

impl ProgramMemory {
    /// Creates a memory of at most `capacity` bytes, without allocating any of these bytes.
    ///
    /// # Errors
    /// Any [`BuildError`]. [`BuildError::BackingUnavailable`] also if the process may not suspend threads at page
    /// faults (for this permission, the process needs `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1` or access to
    /// `/dev/userfaultfd`), and before Linux 6.7.
    pub fn new(capacity: usize) -> Result<ProgramMemory, BuildError> {
        Ok(Self::of(ProgramRegion::new(capacity / HUGE_PAGE * HUGE_PAGE, ADDRESSES)?))
    }

    /// The descriptors of this memory; the program opened none of them.
    pub fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        self.region.descriptors()
    }

    /// Reopens descriptors that the program has closed. The memory's own descriptor cannot be reopened; operations that
    /// need it use the mappings instead, or fail.
    pub fn reopen(&mut self) {
        self.region.reopen();
    }

    /// Returns all addresses to the kernel, except blocks handed over to the kernel. The returned addresses no longer
    /// count against `RLIMIT_AS`. Returns false if memory is still mapped. After true, the caller must not use this
    /// memory, and must close its descriptors and [forget](std::mem::forget) this value.
    pub fn leave(&mut self) -> bool {
        if (0..self.high).any(|index| self.region.has(index)) {
            return false;
        }
        let (Range { start: mut next, end }, base) = (self.region.leave(), self.base());
        for index in (0..self.used.len()).filter(|&index| [PLAIN, SOON_PLAIN].contains(&self.used[index])) {
            let block = base + index * HUGE_PAGE;
            self.region.unmap_plain(next..block);
            next = block + HUGE_PAGE;
        }
        self.region.unmap_plain(next..end);
        true
    }
}

impl<S: Machine> ProgramMemory<S> {
    /// Like [`ProgramMemory::new`], on a given machine.
    ///
    /// # Errors
    /// As in [`ProgramMemory::new`].
    #[doc(hidden)]
    pub fn on(memory: S, capacity: usize) -> Result<Self, BuildError> {
        Ok(Self::of(ProgramRegion::on(memory, capacity / HUGE_PAGE * HUGE_PAGE, ADDRESSES)?))
    }

    fn of(region: ProgramRegion<S>) -> Self {
        let count = region.addresses().len() / HUGE_PAGE;
        let (used, is_huge) = (vec![0; count], vec![false; count]);
        ProgramMemory {
            region,
            free: Ranges::new(count),
            high: 0,
            used,
            is_huge,
            rests: Vec::new(),
            counts: ProgramCounts::default(),
            living: Arc::default(),
            round: None,
        }
    }

    /// All addresses of this memory, used or not.
    pub fn addresses(&self) -> Range<usize> {
        self.region.addresses()
    }

    pub(crate) fn base(&self) -> usize {
        self.region.addresses().start
    }

    /// Maps `len` bytes of zeros at a multiple of 2 MiB. Returns `None` if no memory or addresses are left.
    pub fn map(&mut self, len: usize) -> Option<usize> {
        let len = len.checked_next_multiple_of(BASE_PAGE)?;
        let count = len.div_ceil(HUGE_PAGE);
        self.take_rests_away();
        let entries = self.free.take(count.max(1), 1)?;
        if !self.region.open(entries.clone()) {
            self.rests.push(entries);
            self.take_rests_away();
            return None;
        }
        self.used[entries.clone()].fill(HUGE_PAGE as u32);
        self.is_huge[entries.clone()].fill(false);
        self.used[entries.end - 1] = (len - (count - 1) * HUGE_PAGE) as u32;
        self.high = self.high.max(entries.end);
        Some(self.base() + entries.start * HUGE_PAGE)
    }

    /// Unmaps the remains of failed mappings. If the kernel refuses to unmap some, the next call tries to unmap them
    /// again.
    pub(crate) fn take_rests_away(&mut self) {
        for entries in std::mem::take(&mut self.rests) {
            let opened = entries.start..entries.clone().find(|&index| !self.region.has(index)).unwrap_or(entries.end);
            if opened.is_empty() || self.region.close(&opened) {
                self.free.give_back(entries);
            } else {
                self.rests.push(entries);
            }
        }
    }

    /// Whether all of a range is mapped by this memory and not handed over to the kernel.
    pub fn has_all(&self, range: Range<usize>) -> bool {
        let base = self.base();
        let blocks = range.start / HUGE_PAGE..range.end.div_ceil(HUGE_PAGE);
        blocks.len() == self.touched(&range).len()
            && self.touched(&range).all(|index| {
                let end = base + index * HUGE_PAGE + self.used[index] as usize;
                self.region.has(index) && (range.end.min(base + (index + 1) * HUGE_PAGE) <= end)
            })
    }

    /// All blocks that this memory has mapped and not handed over to the kernel, in the order of their addresses. Each
    /// range covers its whole block, including an unused end.
    pub fn blocks(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let base = self.base();
        let block_at = move |index| base + index * HUGE_PAGE..base + (index + 1) * HUGE_PAGE;
        (0..self.high).filter(|&index| self.region.has(index)).map(block_at)
    }

    /// The unused ends of blocks after the ends of mappings, within a range. A forked child may also call this function
    /// for the memory that the child inherited.
    pub fn behind_ends(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let (base, range) = (self.base(), range.clone());
        let is_cut = |index: &usize| self.region.has(*index) && (self.used[*index] as usize) < HUGE_PAGE;
        let behind = move |index: usize| {
            let start = base + index * HUGE_PAGE;
            (start + self.used[index] as usize).max(range.start)..(start + HUGE_PAGE).min(range.end)
        };
        self.touched(&range.clone()).filter(is_cut).map(behind).filter(|behind| !behind.is_empty())
    }

    /// Whether a range touches a block that this memory has mapped and not handed over to the kernel.
    pub fn has(&self, range: Range<usize>) -> bool {
        self.touched(&range).any(|index| self.region.has(index))
    }

    /// Unmaps a range. Calls `others` with each piece that does not (or no longer) belong to this memory; the caller
    /// must unmap that piece. Such pieces are other mappings, and blocks handed over to the kernel, including those
    /// that this call hands over. If the range covers a part of a block, and the block cannot be handed over at the
    /// moment, that part remains mapped.
    pub fn unmap(&mut self, range: Range<usize>, mut others: impl FnMut(Range<usize>)) {
        self.split(&range, |this, piece, what| match what {
            What::Block(index) if this.region.close(&(index..index + 1)) => {
                this.used[index] = 0;
                this.free.give_back(index..index + 1);
            }
            What::Block(_) | What::Part(_) => {
                this.hand_over(piece.clone(), Zeros::Copied);
                if !this.has(piece.clone()) {
                    others(piece);
                }
            }
            What::Plain => others(piece),
        });
    }

    /// Makes a range read as zeros. Calls `others` with each piece that does not belong to this memory, like
    /// [`ProgramMemory::unmap`].
    pub fn empty(&mut self, range: Range<usize>, mut others: impl FnMut(Range<usize>)) {
        self.split(&range, |this, piece, what| match what {
            What::Block(index) => {
                if this.region.empty(index) {
                    this.is_huge[index] = false;
                } else {
                    this.region.fill_with_zeros(&piece);
                }
            }
            What::Part(index) => this.empty_part(index, &piece),
            What::Plain => others(piece),
        });
    }

    /// Makes a part of a block read as zeros. If the part consists of whole pages, their memory returns to the system
    /// at once, unless children hold that memory too. Freeing a part of a huge page splits the huge page, as in any
    /// mapping of the kernel.
    fn empty_part(&mut self, index: usize, piece: &Range<usize>) {
        let start = self.base() + index * HUGE_PAGE;
        let part = piece.start - start..piece.end - start;
        let are_pages = part.start.is_multiple_of(BASE_PAGE) && part.end.is_multiple_of(BASE_PAGE);
        if are_pages && self.region.empty_part(index, &part) {
            self.is_huge[index] = false;
        } else {
            self.region.fill_with_zeros(piece);
        }
    }

    /// Extends a mapping in place, if its last block has room.
    pub fn grow_in_place(&mut self, old: Range<usize>, new_end: usize) -> bool {
        let Some(last) = self.touched(&old).last().filter(|&index| self.region.has(index)) else { return false };
        let start = self.base() + last * HUGE_PAGE;
        let fits = old.end == start + self.used[last] as usize && new_end <= start + HUGE_PAGE;
        if fits {
            let gap = old.end..new_end;
            self.region.fill_with_zeros(&gap);
            self.used[last] = (new_end - start) as u32;
        }
        fits
    }

    /// Statistics of this memory. The call takes some milliseconds for each GiB.
    pub fn counts(&self) -> ProgramCounts {
        let Figures { pages_written_back, memory, kept } = self.region.figures();
        ProgramCounts { pages_written_back, memory: memory as u64, kept: memory.min(kept) as u64, ..self.counts }
    }

    /// The entries that a range of addresses touches.
    pub(crate) fn touched(&self, range: &Range<usize>) -> Range<usize> {
        let all = self.addresses();
        let (start, end) = (range.start.max(all.start), range.end.min(all.end));
        if start >= end {
            return 0..0;
        }
        (start - all.start) / HUGE_PAGE..(end - 1 - all.start) / HUGE_PAGE + 1
    }

    /// Splits a range into pieces by block. Unmapped addresses produce no piece.
    fn split(&mut self, range: &Range<usize>, mut each: impl FnMut(&mut Self, Range<usize>, What)) {
        let (base, mut at) = (self.base(), range.start);
        for index in self.touched(range) {
            let start = base + index * HUGE_PAGE;
            if at < start {
                each(self, at..start, What::Plain);
            }
            let piece = range.start.max(start)..range.end.min(start + HUGE_PAGE);
            at = piece.end;
            if self.used[index] == PLAIN {
                each(self, piece, What::Plain);
            } else if self.region.has(index) {
                let all = start..start + self.used[index] as usize;
                let piece = piece.start..piece.end.min(all.end);
                let what = if piece == all { What::Block(index) } else { What::Part(index) };
                if !piece.is_empty() {
                    each(self, piece, what);
                }
            }
        }
        if at < range.end {
            each(self, at..range.end, What::Plain);
        }
    }
}

/// The kind of a piece that [`ProgramMemory::split`] produces.
enum What {
    /// The program's whole part of a block.
    Block(usize),
    /// A part of the program's part of a block.
    Part(usize),
    /// Memory of the kernel.
    Plain,
}
