//! [`ProgramMemory`]: which bytes are the program's.

use std::ops::Range;
use std::sync::Arc;

use hugefork::BuildError;
use hugefork::seam::{Figures, Linux, Machine, ProgramRegion, Ranges, Zeros};
use hugefork_linux::Descriptor;

use crate::children::LivingChildren;
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// How many times its capacity the addresses are: those that were handed over to the kernel are never used again.
const ADDRESSES: usize = 4;

/// In the place of a number of bytes: the kernel's for ever.
pub(crate) const PLAIN: u32 = u32::MAX;

/// The same: the kernel's as soon as it has mapped something there. Nothing is there until then.
pub(crate) const SOON_PLAIN: u32 = u32::MAX - 1;

/// Memory that stands in for a program's own big anonymous mappings, and that `fork(2)` does not copy page tables of.
///
/// This is what `hugefork run` is made of, and of no use to anybody else. It installs no handler and starts no thread.
/// All that was mapped is writable at all times; around a fork the caller says so ([`ProgramMemory::before_fork`]), and
/// the child has what it inherits as private memory of its own. Only whole huge pages are handed out. What the program
/// does to parts of one is done by the kernel: [`ProgramMemory::hand_over`] makes plain memory of it first.
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
    /// No entry from here on was ever used.
    pub(crate) high: usize,
    /// How many bytes of each block are the program's, from its start on; or [`PLAIN`].
    pub(crate) used: Vec<u32>,
    /// What [`Full::collapse`](crate::Full::collapse) has made huge pages of.
    pub(crate) is_huge: Vec<bool>,
    /// Entries of mappings that failed, some of which could not be taken away yet. Nobody knows of them.
    rests: Vec<Range<usize>>,
    pub(crate) counts: ProgramCounts,
    pub(crate) living: Arc<LivingChildren>,
    /// Where the round goes on.
    pub(crate) round: Option<usize>,
}

/// Counts of a [`ProgramMemory`].
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
    /// Blocks that were handed over to the kernel.
    pub handed_over: u64,
    /// Blocks that a child could not be given.
    pub unseen: u64,
    /// Pages that writers had copied, and that went back into their blocks.
    pub pages_written_back: u64,
    /// Bytes of memory that all blocks have now. What writers have had copied by page is not in it.
    pub memory: u64,
    /// Bytes of those that nobody holds ([`ProgramMemory::trim`]). Blocks that have memory in part count whole, but all
    /// of them as no more than there is.
    pub kept: u64,
}

impl ProgramMemory {
    /// Memory of at most `capacity` bytes, of which none is taken yet.
    ///
    /// # Errors
    /// Any [`BuildError`]. [`BuildError::BackingUnavailable`] also where nobody may be made to wait for a page
    /// (`CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1` or access to `/dev/userfaultfd` is needed), and before Linux
    /// 6.7.
    pub fn new(capacity: usize) -> Result<ProgramMemory, BuildError> {
        Ok(Self::of(ProgramRegion::new(capacity / HUGE_PAGE * HUGE_PAGE, ADDRESSES)?))
    }

    /// Its descriptors, none of which the program has opened.
    pub fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        self.region.descriptors()
    }

    /// Opens descriptors again that the program has closed. The memory's own cannot be opened again: what needs it is
    /// done by the mappings, or not at all.
    pub fn reopen(&mut self) {
        self.region.reopen();
    }

    /// Gives all addresses back to the kernel but those of what was handed over: they count for no limit of the
    /// process's any more (`RLIMIT_AS`). False if something is mapped here still. Otherwise this memory is of no use
    /// from now on: close its descriptors, and [forget](std::mem::forget) it.
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
    /// As [`ProgramMemory::new`], in this memory.
    ///
    /// # Errors
    /// As there.
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

    /// All addresses that it may hand out.
    pub fn addresses(&self) -> Range<usize> {
        self.region.addresses()
    }

    pub(crate) fn base(&self) -> usize {
        self.region.addresses().start
    }

    /// New memory of `len` bytes, all zero, which begins at a multiple of 2 MiB. None if there is no more.
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

    /// Takes away what was opened for mappings that failed. What the kernel keeps is tried again the next time.
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

    /// Whether all of a range of addresses is memory that was mapped here and not handed over.
    pub fn has_all(&self, range: Range<usize>) -> bool {
        let base = self.base();
        let blocks = range.start / HUGE_PAGE..range.end.div_ceil(HUGE_PAGE);
        blocks.len() == self.touched(&range).len()
            && self.touched(&range).all(|index| {
                let end = base + index * HUGE_PAGE + self.used[index] as usize;
                self.region.has(index) && (range.end.min(base + (index + 1) * HUGE_PAGE) <= end)
            })
    }

    /// The blocks of memory that was mapped here and not handed over, whole, in order.
    pub fn blocks(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let base = self.base();
        let block_at = move |index| base + index * HUGE_PAGE..base + (index + 1) * HUGE_PAGE;
        (0..self.high).filter(|&index| self.region.has(index)).map(block_at)
    }

    /// The parts of blocks behind the ends of mappings, as far as a range touches them: nothing there is the program's.
    /// A child that has been forked may ask, too, of what it has inherited.
    pub fn behind_ends(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let (base, range) = (self.base(), range.clone());
        let is_cut = |index: &usize| self.region.has(*index) && (self.used[*index] as usize) < HUGE_PAGE;
        let behind = move |index: usize| {
            let start = base + index * HUGE_PAGE;
            (start + self.used[index] as usize).max(range.start)..(start + HUGE_PAGE).min(range.end)
        };
        self.touched(&range.clone()).filter(is_cut).map(behind).filter(|behind| !behind.is_empty())
    }

    /// Whether any of a range of addresses is memory that was mapped here and not handed over.
    pub fn has(&self, range: Range<usize>) -> bool {
        self.touched(&range).any(|index| self.region.has(index))
    }

    /// Takes away what was mapped, or a part of it. Calls `others` with each piece of the range that is not here (any
    /// more), for the caller to unmap: what lies elsewhere, and what was handed over, perhaps for this. A part that
    /// cannot be handed over just now stays.
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

    /// Makes a range read as zeros. Calls `others` as [`ProgramMemory::unmap`] does, with what is not here.
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

    /// Makes a part of a block read as zeros. Its memory goes back to the system at once, unless children hold it too:
    /// a huge page is split for that, as the kernel does it with a program's own.
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

    /// Makes a mapping longer where it is, if its last block has room for that.
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

    /// Counts, and bytes of memory. It takes some milliseconds for each GiB.
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

    /// Cuts a range at the blocks that are here. Where nothing is, there is no piece.
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

/// What a piece of a range is.
enum What {
    /// All that is the program's of this block.
    Block(usize),
    /// A part of one.
    Part(usize),
    /// The kernel's.
    Plain,
}
