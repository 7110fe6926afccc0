//! [`ProgramMemory`]: the big memory of a program that knows nothing of hugefork.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::builder::PoolBuilder;
use crate::mapping::addresses::Addresses;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::pool::core::PoolCore;
use crate::pool::frames::Content;
use crate::pool::holders::OverlayHolder;
use crate::pool::stock::Stock;
use crate::ranges::Ranges;
use crate::region::state::RegionCore;
use crate::sync::SignalsBlocked;
use crate::sys::linux::arena;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::sys::{Shows, Sys};
use crate::types::backing::{Backing, CoreDump, Fallback};
use crate::types::error::BuildError;
use crate::types::options::{CopyGrain, RegionOptions, Writers};
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex, HUGE_PAGE};

/// How many times its capacity the addresses are: those that were handed over to the kernel are never used again.
const ADDRESSES_A_BLOCK: usize = 4;

/// In the place of a number of bytes: the kernel's for ever.
const PLAIN: u32 = u32::MAX;

/// The same: the kernel's as soon as it has mapped something there. Nothing is there until then.
const PLAIN_SOON: u32 = u32::MAX - 1;

/// So often is tried to have everybody wait.
const HOLD_TRIES: usize = 100;

/// So many blocks at once are given back to the system.
const TRIMMED_AT_ONCE_BLOCKS: usize = 16;

/// So many blocks at once are asked whether they are full: each takes a microsecond or two.
const LOOKED_AT_ONCE_BLOCKS: usize = 256;

/// So many blocks at once are handed over: while they are copied, who uses one of them waits.
const HANDED_AT_ONCE_BLOCKS: usize = 32;

/// So many faults for each block are worth a look at all of them, and fewer than this are worth none.
const FAULTS_A_BLOCK: u64 = 2;
const LEAST_FAULTS: u64 = 64;

/// Memory that stands in for a program's own big anonymous mappings, and that `fork(2)` does not copy page tables of.
///
/// This is what `hugefork run` is made of, and of no use to anybody else. It installs no handler and starts no thread.
/// All that was mapped is writable at all times; around a fork the caller says so ([`ProgramMemory::before_fork`]), and
/// the child has what it inherits as private memory of its own. Only whole huge pages are handed out. What the program
/// does to parts of one is done by the kernel: [`ProgramMemory::hand_over`] makes plain memory of it first.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// let at = memory.map(5 << 20).expect("there is room");
/// assert!(memory.has(at..at + 1));
/// memory.unmap(at..at + (5 << 20), |_| unreachable!("all of it was still here"));
/// assert!(!memory.has(at..at + (5 << 20)));
/// # Ok(())
/// # }
/// ```
pub struct ProgramMemory {
    core: PinnedBox<RegionCore<Linux>>,
    free: Ranges,
    /// No entry from here on was ever used.
    high: usize,
    /// How many bytes of each block are the program's, from its start on; or [`PLAIN`].
    used: Vec<u32>,
    /// What [`Full::collapse`] has made huge pages of.
    is_huge: Vec<bool>,
    /// Entries of mappings that failed, some of which could not be taken away yet. Nobody knows of them.
    rests: Vec<Range<usize>>,
    /// How many bytes of each block were dropped and filled with zeros since it was last looked at for that.
    dropped: Vec<u32>,
    counts: ProgramCounts,
    children: Arc<LivingChildren>,
    /// Where the round goes on, and the faults that were counted after the last.
    round: Option<usize>,
    faults: u64,
}

/// Who holds blocks for children.
#[derive(Debug, Default)]
struct LivingChildren {
    living: AtomicUsize,
    /// Whether some are gone since the last round.
    have_gone: AtomicBool,
}

/// What has happened so far to a [`ProgramMemory`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// let at = memory.map(4 << 20).expect("there is room");
/// memory.hand_over(at + 4096..at + 8192); // a page, and with it the block around it
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
    /// Blocks that became the program's own again while a child shared them.
    pub promoted: u64,
    /// Bytes of memory that all blocks have now. What writers have had copied by page is not in it.
    pub memory: u64,
    /// Bytes of those that nobody holds: they are kept for the copies of the next child ([`ProgramMemory::trim`]).
    /// Blocks that have memory in part count whole, but all of them as no more than there is.
    pub kept: u64,
}

/// What the children of one fork hold of the program's memory. Drop it when none of them lives any more, and
/// [forget](std::mem::forget) it in a child.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// memory.map(4 << 20).expect("there is room");
/// let inherited = memory.before_fork(); // … fork(2), and the child comes and goes
/// drop(inherited);
/// while memory.is_shared() {
///     memory.maintain(); // as long as it takes until everything is in huge pages again
/// }
/// # Ok(())
/// # }
/// ```
pub struct Inherited {
    pool: EngineArc<PoolCore<Linux>>,
    blocks: Vec<BlockId>,
    children: Arc<LivingChildren>,
}

impl ProgramMemory {
    /// Memory of at most `capacity` bytes, of which none is taken yet.
    ///
    /// # Errors
    /// Any [`BuildError`]. [`BuildError::BackingUnavailable`] also where nobody may be made to wait for a page
    /// (`CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1` or access to `/dev/userfaultfd` is needed), and before Linux
    /// 6.7.
    pub fn new(capacity: usize) -> Result<ProgramMemory, BuildError> {
        if owner::is_forked_child() {
            return Err(BuildError::ForkedChild);
        }
        let size = BlockSize::MIB_2;
        let capacity = capacity / size.bytes() * size.bytes();
        let builder = PoolBuilder::default().name("program").capacity(capacity).block_size(size);
        let builder = builder.backing(Backing::ShmemHuge).fallback(Fallback::Refused).core_dump(CoreDump::Included);
        let (memory, _) = builder.find_memory()?;
        let unavailable = |reason: String| BuildError::BackingUnavailable { backing: Backing::ShmemHuge, reason };
        if let Some(why) = memory.no_page_grain() {
            return Err(unavailable(why.to_string()));
        }
        let blocks = size.count(capacity);
        let kernels = hugefork_kernels::Kernels::default_for_this_cpu();
        let stock = Stock::new(None, size, blocks);
        let core = PoolCore::new(memory.with_children()?, "program".to_owned(), size, blocks, kernels, stock);
        let pool = EngineArc::new(core);
        let options =
            RegionOptions { writers: Writers::NeverFault, ..RegionOptions::new().copy_grain(CopyGrain::Page) };
        let addresses =
            Addresses::claim(&pool, ADDRESSES_A_BLOCK * capacity, 1).map_err(|error| unavailable(error.to_string()))?;
        let core = RegionCore::of_program(addresses, options);
        if !core.addresses.can_hold() {
            return Err(unavailable("the process may not handle the page faults of system calls".to_owned()));
        }
        let count = ADDRESSES_A_BLOCK * blocks;
        // What was tried out there. If the kernel keeps it, the first block has it.
        // SAFETY: nobody has a block yet.
        let _ = unsafe { pool.sys.retire(0, capacity.min(size.bytes())) };
        let hidden = pool.sys.show(core.addresses.part(&(0..core.len())), Shows::Hidden);
        hidden.map_err(|failure| BuildError::System(failure.error))?;
        arena::leave_holes();
        let (used, is_huge, dropped) = (vec![0; count], vec![false; count], vec![0; count]);
        Ok(ProgramMemory {
            core,
            free: Ranges::new(count),
            high: 0,
            used,
            is_huge,
            rests: Vec::new(),
            dropped,
            counts: ProgramCounts::default(),
            children: Arc::default(),
            round: None,
            faults: 0,
        })
    }

    /// Descriptors that the program must not close: it did not open them.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        self.core.pool().sys.descriptors()
    }

    /// Opens descriptors again that the program has closed, past whatever keeps it from that, and gives their numbers.
    /// The memory's own cannot be opened again: what needs it is done by the mappings, or not at all.
    pub fn reopen(&mut self) -> Vec<i32> {
        self.core.pool().sys.reopen().collect()
    }

    /// All addresses that it may hand out.
    pub fn addresses(&self) -> Range<usize> {
        let base = self.core.addresses.base();
        base..base + self.core.len()
    }

    /// Gives memory back to the system that nobody holds, a few blocks at a time. True if there is more.
    pub fn trim(&mut self) -> bool {
        let _signals = SignalsBlocked::new();
        let pool = self.core.pool();
        for _ in 0..TRIMMED_AT_ONCE_BLOCKS {
            let Some(block) = pool.frames.take_used(0) else { return false };
            // SAFETY: taken just now; nobody holds it, and it is shown nowhere any more.
            let punched = unsafe { pool.sys.retire(pool.offset(block), pool.block_size.bytes()) };
            pool.frames.put_back(block, if punched.is_ok() { Content::Fresh } else { Content::Used });
            if punched.is_err() {
                return false;
            }
        }
        true
    }

    /// Whether memory is to be saved: while it is, no block is copied for a child whose pages can be.
    pub fn save_memory(&mut self, is_short: bool) {
        let _signals = SignalsBlocked::new();
        self.core.pool().maintenance.tell_short(is_short);
    }

    /// Whether the kernel makes huge pages only of what it is asked to ([`Full::collapse`]).
    pub fn needs_collapse(&self) -> bool {
        self.core.pool().sys.collapses()
    }

    /// The next block that the program has filled and that is not known to be huge, from the `from`th on, and where to
    /// go on.
    pub fn next_full(&self, from: usize) -> (Option<Full>, Option<usize>) {
        let end = self.high.min(from.saturating_add(LOOKED_AT_ONCE_BLOCKS));
        let block_at = |index| self.core.full_block(EntryIndex(index)).map(|block| (index, block));
        let found = (from..end).filter(|&index| !self.is_huge[index]).find_map(block_at);
        let next = found.map_or(end.max(from), |(index, _)| index + 1);
        let full = found.map(|(index, block)| Full { pool: self.core.pool().clone(), index, block });
        (full, (next < self.high).then_some(next))
    }

    /// Notes that a block is huge, if it is where it was.
    pub fn note_huge(&mut self, full: &Full) {
        if self.core.table.get(EntryIndex(full.index)).block() == Some(full.block) {
            self.is_huge[full.index] = true;
        }
    }

    /// How many blocks were made huge and still are, as far as is known here.
    pub fn huge(&self) -> usize {
        self.is_huge[..self.high].iter().filter(|is_huge| **is_huge).count()
    }

    /// New memory of `len` bytes, all zero, which begins at a multiple of 2 MiB. None if there is no more.
    pub fn map(&mut self, len: usize) -> Option<usize> {
        let len = len.checked_next_multiple_of(BASE_PAGE)?;
        let count = len.div_ceil(HUGE_PAGE);
        self.take_rests_away();
        let entries = self.free.take(count.max(1), 1)?;
        if self.core.open(entries.clone()).is_err() {
            self.rests.push(entries);
            self.take_rests_away();
            return None;
        }
        self.used[entries.clone()].fill(HUGE_PAGE as u32);
        self.is_huge[entries.clone()].fill(false);
        self.dropped[entries.clone()].fill(0);
        self.used[entries.end - 1] = (len - (count - 1) * HUGE_PAGE) as u32;
        self.high = self.high.max(entries.end);
        Some(self.core.addresses.base() + entries.start * HUGE_PAGE)
    }

    /// Takes away what was opened for mappings that failed. What the kernel keeps is tried again the next time.
    fn take_rests_away(&mut self) {
        for entries in std::mem::take(&mut self.rests) {
            let opened = entries.start..entries.clone().find(|&index| !self.core.has(index)).unwrap_or(entries.end);
            if opened.is_empty() || self.core.close(&opened).is_ok() {
                self.free.give_back(entries);
            } else {
                self.rests.push(entries);
            }
        }
    }

    /// Whether all of a range of addresses is memory that was mapped here and not handed over.
    pub fn has_all(&self, range: Range<usize>) -> bool {
        let base = self.core.addresses.base();
        let blocks = range.start / HUGE_PAGE..range.end.div_ceil(HUGE_PAGE);
        blocks.len() == self.touched(&range).len()
            && self.touched(&range).all(|index| {
                let end = base + index * HUGE_PAGE + self.used[index] as usize;
                self.core.has(index) && (range.end.min(base + (index + 1) * HUGE_PAGE) <= end)
            })
    }

    /// The blocks of memory that was mapped here and not handed over, whole, in order. A child that has just been
    /// forked may still ask: it has them as they are after [`ProgramMemory::before_fork`].
    pub fn blocks(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let base = self.core.addresses.base();
        let block_at = move |index| base + index * HUGE_PAGE..base + (index + 1) * HUGE_PAGE;
        (0..self.high).filter(|&index| self.core.has(index)).map(block_at)
    }

    /// Whether any of a range of addresses is memory that was mapped here and not handed over.
    pub fn has(&self, range: Range<usize>) -> bool {
        self.touched(&range).any(|index| self.core.has(index))
    }

    /// Takes away what was mapped, or a part of it. Calls `others` with each piece of the range that is not here (any
    /// more), for the caller to unmap: what lies elsewhere, and what was handed over, perhaps for this. A part that
    /// cannot be handed over just now stays.
    pub fn unmap(&mut self, range: Range<usize>, mut others: impl FnMut(Range<usize>)) {
        self.split(&range, |this, piece, what| match what {
            What::Block(index) if this.core.close(&(index..index + 1)).is_ok() => {
                this.used[index] = 0;
                this.free.give_back(index..index + 1);
            }
            What::Block(_) | What::Part(_) => {
                this.hand_over(piece.clone());
                if !this.has(piece.clone()) {
                    others(piece);
                }
            }
            What::Plain => others(piece),
        });
    }

    /// Leaves a range to the kernel, for a mapping at an address of the program's choice. What was there is gone, but
    /// for what was handed over. False if that cannot be: then nothing may be mapped there. Otherwise
    /// [`ProgramMemory::settle`] comes next.
    pub fn make_way(&mut self, range: Range<usize>) -> bool {
        self.unmap(range.clone(), |_| {});
        let touched = self.touched(&range);
        if touched.clone().any(|index| self.core.has(index)) {
            return false;
        }
        for index in touched {
            if self.used[index] != PLAIN && self.free.take_at(index) {
                self.used[index] = PLAIN_SOON;
            }
        }
        true
    }

    /// The kernel has mapped something where way was made, or has refused.
    pub fn settle(&mut self, range: Range<usize>, is_mapped: bool) {
        for index in self.touched(&range) {
            if self.used[index] != PLAIN_SOON {
                continue;
            }
            if is_mapped {
                self.used[index] = PLAIN;
                // The rest of the block is the kernel's, too, and nothing is there.
                let start = self.core.addresses.base() + index * HUGE_PAGE;
                self.unmap_rest(start..range.start);
                self.unmap_rest(range.end..start + HUGE_PAGE);
            } else {
                self.used[index] = 0;
                self.free.give_back(index..index + 1);
            }
        }
    }

    /// Whether a range is as good as unmapped: all of it lies here, and nothing is there.
    pub fn is_free(&self, range: Range<usize>) -> bool {
        let all = self.addresses();
        let is_free = |index: usize| !self.core.has(index) && ![PLAIN, PLAIN_SOON].contains(&self.used[index]);
        all.start <= range.start && range.end <= all.end && self.touched(&range).all(is_free)
    }

    /// The first part of a range at which something is mapped everywhere, for all that is known here: what the kernel
    /// has got counts, whatever it has done with it.
    pub fn first_mapped(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (mut found, _) = self.first_piece(range)?;
        while let Some((next, _)) =
            self.first_piece(&(found.end..range.end)).filter(|(next, _)| next.start == found.end)
        {
            found.end = next.end;
        }
        Some(found)
    }

    /// The first piece of a range at which something is mapped, for all that is known here, and whether it was mapped
    /// here and not handed over.
    pub fn first_piece(&self, range: &Range<usize>) -> Option<(Range<usize>, bool)> {
        let (mut at, mut found): (_, Option<(Range<usize>, bool)>) = (range.start, None);
        while at < range.end {
            let (end, is_here) = self.what_is_at(at);
            let piece = at..end.min(range.end);
            at = piece.end;
            match (&mut found, is_here) {
                (None, None) => {}
                (None, Some(is_here)) => found = Some((piece, is_here)),
                (Some((so_far, before)), Some(is_here)) if *before == is_here => so_far.end = piece.end,
                (Some(_), _) => break,
            }
        }
        found
    }

    /// Up to where something lies at an address, and whether it was mapped here; None if nothing is there.
    fn what_is_at(&self, at: usize) -> (usize, Option<bool>) {
        let all = self.addresses();
        if !all.contains(&at) {
            return (if at < all.start { all.start } else { usize::MAX }, Some(false));
        }
        let index = (at - all.start) / HUGE_PAGE;
        let start = all.start + index * HUGE_PAGE;
        let used = start + self.used[index] as usize;
        match self.used[index] {
            PLAIN => (start + HUGE_PAGE, Some(false)),
            _ if at < used && self.core.has(index) => (used, Some(true)),
            _ => (start + HUGE_PAGE, None),
        }
    }

    /// Makes a range read as zeros. Calls `others` as [`ProgramMemory::unmap`] does, with what is not here.
    pub fn empty(&mut self, range: Range<usize>, mut others: impl FnMut(Range<usize>)) {
        self.split(&range, |this, piece, what| match what {
            What::Block(index) => {
                if this.core.empty_blocks(index..index + 1).is_err() {
                    this.fill_with_zeros(&piece);
                } else {
                    this.is_huge[index] = false;
                }
            }
            What::Part(index) => this.empty_part(index, &piece),
            What::Plain => others(piece),
        });
    }

    /// Makes a part of a block read as zeros. Its memory goes back to the system at once, or with the rest of the huge
    /// page that it is part of.
    fn empty_part(&mut self, index: usize, piece: &Range<usize>) {
        let start = self.core.addresses.base() + index * HUGE_PAGE;
        let part = piece.start - start..piece.end - start;
        let is_huge = self.is_huge[index] || !self.needs_collapse();
        let are_pages = part.start.is_multiple_of(BASE_PAGE) && part.end.is_multiple_of(BASE_PAGE);
        if are_pages && self.core.drop_part(EntryIndex(index), &part, is_huge) {
            return;
        }
        self.fill_with_zeros(piece);
        self.dropped[index] += part.len() as u32;
        if self.dropped[index] < self.used[index] {
            return;
        }
        // So much was dropped that it may be all. What was used again since is not zero.
        self.dropped[index] = 0;
        let here = (&raw const start).addr();
        if !(start..start + HUGE_PAGE).contains(&here) && self.core.drop_zeros(EntryIndex(index)) {
            self.is_huge[index] = false;
        }
    }

    fn fill_with_zeros(&self, piece: &Range<usize>) {
        let _signals = SignalsBlocked::new();
        // SAFETY: mapped here, and writable; the program wants zeros there.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(piece.start).write_bytes(0, piece.len()) };
    }

    /// Makes plain memory of all blocks that the range touches: the kernel's from now on, with the same contents. Those
    /// stay here that the caller's own stack lies among, since he would wait for himself.
    pub fn hand_over(&mut self, range: Range<usize>) {
        let touched = self.touched(&range);
        let mut next = touched.start;
        while let Some(start) = (next..touched.end).find(|&index| self.core.has(index)) {
            let most = touched.end.min(start + HANDED_AT_ONCE_BLOCKS);
            let end = (start..most).find(|&index| !self.core.has(index)).unwrap_or(most);
            next = end;
            let here = (&raw const next).addr();
            let base = self.core.addresses.base();
            if (base + start * HUGE_PAGE..base + end * HUGE_PAGE).contains(&here) {
                continue;
            }
            // Whoever works on a page just then may be in the way.
            if (0..HOLD_TRIES).any(|_| self.core.hand_over(&(start..end)).is_ok()) {
                self.counts.handed_over += (end - start) as u64;
                self.unmap_behind(start..end);
                self.used[start..end].fill(PLAIN);
            }
        }
    }

    /// Takes away what is behind the program's part of blocks that are plain memory now.
    fn unmap_behind(&self, entries: Range<usize>) {
        let base = self.core.addresses.base();
        for index in entries.filter(|&index| (self.used[index] as usize) < HUGE_PAGE) {
            let start = base + index * HUGE_PAGE;
            self.unmap_rest(start + self.used[index] as usize..start + HUGE_PAGE);
        }
    }

    /// Has the kernel forget a part of a block that is its own from now on, and that nobody uses.
    fn unmap_rest(&self, rest: Range<usize>) {
        if !rest.is_empty() {
            // If the kernel refuses, something is there, and nobody knows of it.
            let _ = self.core.pool().sys.unmap_plain(rest);
        }
    }

    /// Makes a mapping longer where it is, if its last block has room for that.
    pub fn grow_in_place(&mut self, old: Range<usize>, new_end: usize) -> bool {
        let Some(last) = self.touched(&old).last().filter(|&index| self.core.has(index)) else { return false };
        let start = self.core.addresses.base() + last * HUGE_PAGE;
        let fits = old.end == start + self.used[last] as usize && new_end <= start + HUGE_PAGE;
        if fits {
            let gap = old.end..new_end;
            self.fill_with_zeros(&gap);
            self.used[last] = (new_end - start) as u32;
        }
        fits
    }

    /// Prepares for a fork: shows everything through private mappings, which the child inherits. Nothing may be mapped,
    /// unmapped or maintained until the fork is over. Where something else lies in the place of what was mapped here,
    /// it stays, and is the kernel's with the block around it (from Linux 6.11 on, which tells what lies where).
    pub fn before_fork(&mut self) -> Inherited {
        for index in self.core.not_shown(0..self.high) {
            self.core.give_up(index);
            self.used[index.0] = PLAIN;
        }
        let mut blocks = Vec::with_capacity(self.high);
        self.counts.unseen += self.core.share(0..self.high, &mut blocks) as u64;
        self.children.living.fetch_add(1, Ordering::Relaxed);
        Inherited { pool: self.core.pool().clone(), blocks, children: self.children.clone() }
    }

    /// Gives all addresses back to the kernel but those of what was handed over: they count for no limit of the
    /// process's any more (`RLIMIT_AS`). False if something is mapped here still. Otherwise this memory is of no use
    /// from now on: close its descriptors, and [forget](std::mem::forget) it.
    pub fn leave(&mut self) -> bool {
        if (0..self.high).any(|index| self.core.has(index)) {
            return false;
        }
        let _signals = SignalsBlocked::new();
        let (sys, base) = (&self.core.pool().sys, self.core.addresses.base());
        let Range { start: mut next, end } = sys.reserved();
        sys.leave();
        for index in (0..self.used.len()).filter(|&index| [PLAIN, PLAIN_SOON].contains(&self.used[index])) {
            let block = base + index * HUGE_PAGE;
            self.unmap_rest(next..block);
            next = block + HUGE_PAGE;
        }
        self.unmap_rest(next..end);
        true
    }

    /// Looks after some of what children share or shared, for about a millisecond, if there is reason to. True if more
    /// is to be looked at at once.
    pub fn maintain(&mut self) -> bool {
        let _signals = SignalsBlocked::new();
        self.take_rests_away();
        let sys = &self.core.pool().sys;
        sys.tidy();
        if !self.core.has_overlays() {
            self.round = None;
            return false;
        }
        let from = match self.round {
            Some(from) => from,
            None => {
                let overlays = self.core.accounts.overlays.load(Ordering::Relaxed) as u64;
                let faults = sys.minor_faults();
                let are_many = faults.wrapping_sub(self.faults) >= LEAST_FAULTS.max(FAULTS_A_BLOCK * overlays);
                let have_gone = self.children.have_gone.swap(false, Ordering::Relaxed);
                if !are_many && !have_gone && self.children.living.load(Ordering::Relaxed) > 0 {
                    return false;
                }
                // What is written from now on may be where this round has been: it counts for the next.
                self.faults = faults;
                0
            }
        };
        self.round = self.core.maintain(from).filter(|&next| next < self.high);
        self.round.is_some()
    }

    /// Whether anything is shown through private mappings still.
    pub fn is_shared(&self) -> bool {
        self.core.has_overlays()
    }

    /// What has happened so far.
    pub fn counts(&self) -> ProgramCounts {
        let (counters, pool) = (&self.core.counters, self.core.pool());
        let memory = pool.sys.bytes().unwrap_or(0);
        ProgramCounts {
            pages_written_back: counters.pages_written_back.load(Ordering::Relaxed),
            promoted: counters.blocks_promoted.load(Ordering::Relaxed),
            memory: memory as u64,
            kept: memory.min(pool.frames.used_and_free() * HUGE_PAGE) as u64,
            ..self.counts
        }
    }

    /// The entries that a range of addresses touches.
    fn touched(&self, range: &Range<usize>) -> Range<usize> {
        let all = self.addresses();
        let (start, end) = (range.start.max(all.start), range.end.min(all.end));
        if start >= end {
            return 0..0;
        }
        (start - all.start) / HUGE_PAGE..(end - 1 - all.start) / HUGE_PAGE + 1
    }

    /// Cuts a range at the blocks that are here. Where nothing is, there is no piece.
    fn split(&mut self, range: &Range<usize>, mut each: impl FnMut(&mut ProgramMemory, Range<usize>, What)) {
        let (base, mut at) = (self.core.addresses.base(), range.start);
        for index in self.touched(range) {
            let start = base + index * HUGE_PAGE;
            if at < start {
                each(self, at..start, What::Plain);
            }
            let piece = range.start.max(start)..range.end.min(start + HUGE_PAGE);
            at = piece.end;
            if self.used[index] == PLAIN {
                each(self, piece, What::Plain);
            } else if self.core.has(index) {
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

/// A block that the program has filled, and that may become a huge page.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork::ProgramMemory::new(64 << 20) else { return Ok(()) };
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
pub struct Full {
    pool: EngineArc<PoolCore<Linux>>,
    index: usize,
    block: BlockId,
}

impl Full {
    /// Makes a huge page of it. False if the kernel refuses. It takes a quarter of a millisecond, and tens of them
    /// where others want the processors, since the kernel waits for something to run on each: so nobody is kept
    /// waiting, and the program may go on with the block. If that is given back meanwhile, it has memory that reads as
    /// zeros until it is used again.
    pub fn collapse(&self) -> bool {
        self.pool.sys.collapse_full(self.pool.offset(self.block))
    }
}

impl fmt::Debug for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Full").field("block", &self.block).finish_non_exhaustive()
    }
}

impl Inherited {
    /// Takes up what the children of another fork hold: from now on, both are given up together.
    pub fn join(&mut self, mut other: Inherited) {
        self.blocks.append(&mut other.blocks);
        // What is dropped of the other is empty.
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        // Their memory is kept for the copies that the next child makes necessary ([`ProgramMemory::trim`]): to get and
        // clear new memory takes longer than to copy.
        self.blocks.iter().for_each(|&block| _ = self.pool.release(block));
        self.children.have_gone.store(true, Ordering::Relaxed);
        self.children.living.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ProgramMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramMemory").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inherited").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}
