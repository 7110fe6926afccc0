//! The memory of a program that knows nothing of hugefork. All of it is writable at all times, writes to it never fault
//! into the engine, and `fork(2)` children inherit it. The methods here change the states of blocks, so they belong to
//! the engine. The crate hugefork-program knows which bytes the program uses, and calls these methods through seam.rs.
//!
//! ```text
//!          open                 share, before a fork(2)
//!   Zero ────────▶ Private ──────────────────────────────▶ CowMapped: the kernel copies pages, here and in the child
//!    ▲  close, hand_over │ ▲                                  │
//!    └───────────────────┘ └─ write-back, when no child ──────┘
//!                             holds the block any more
//! ```
//! The memory of an opened block comes from the kernel, when the program first touches each page. The engine does not
//! see these touches. So it never asks whether a held block is fresh, and counts the block as used from `open` on.
//!
//! `Zero` entries show nothing, or plain memory of the process that was handed over to the kernel.

use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::pool::frames::{Content, Wanted};
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::program::{ProgramSys, Zeros};
use crate::sys::{Access, PageRun, ScanFor, Shows};
use crate::table::transition::Event;
use crate::table::{Entry, Locked, Origin, Reserved, State};
use crate::units::{BlockId, EntryIndex};

impl<S: ProgramSys> RegionCore<S> {
    /// Gives blocks to entries that have none. After an error, some of the entries have got theirs.
    pub(crate) fn open(&self, entries: Range<usize>) -> Result<(), Unresolved> {
        let mut next = entries.start;
        while next < entries.end {
            let held = self.lock_entries(&(next..entries.end));
            next = self.show_empty(held.locked(), next..entries.end)?.end;
        }
        Ok(())
    }

    /// Shows new blocks, without memory, at the first of `entries`: as many as the pool has in a row. Returns these
    /// entries.
    fn show_empty(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<Range<usize>, Unresolved> {
        let (pool, most) = (self.pool(), entries.len());
        let wish = self.placement.hint(EntryIndex(entries.start), pool.frames.len());
        let taken = pool.frames.take(wish, 0, most - 1, Wanted::Any, Reserved::No).ok_or(Unresolved::PoolFull)?;
        let emptied = taken.blocks().try_for_each(|block| self.empty(block));
        let run = entries.start..entries.start + taken.count;
        let shows = Shows::Memory { start: taken.first, access: Access::ReadWrite };
        let block = |at: Range<usize>, _| {
            let first = taken.first.offset(at.start - entries.start);
            (0..at.len()).for_each(|by| pool.frames.set_content(first.offset(by), Content::Used));
            Entry::Private(first)
        };
        emptied
            .and_then(|()| Ok(self.replace(locked, run.clone(), shows, Event::Write, block)?))
            .inspect_err(|_| pool.give_back(taken))?;
        Ok(run)
    }

    /// Gives back the memory of a block, if it has any. The caller alone holds the block. It is shown nowhere, or only
    /// where the program wants zeros.
    fn empty(&self, block: BlockId) -> Result<(), Unresolved> {
        let pool = self.pool();
        if pool.frames.content(block) == Content::Used {
            // SAFETY: the caller alone holds the block, and a program that is shown it wants zeros there.
            let punched = unsafe { pool.sys.punch_shown(pool.offset(block), pool.block_size.bytes()) };
            punched.map_err(Unresolved::OutOfMemory)?;
        }
        Ok(())
    }

    /// Releases the blocks of entries, and gives back their memory. The entries show nothing then.
    pub(crate) fn close(&self, entries: &Range<usize>) -> Result<(), Unresolved> {
        let held = self.lock_entries(entries);
        let locked = held.locked();
        let remapped = self.remap(locked, Place::Own, entries, Shows::Hidden)?;
        self.give_memory_back(entries);
        remapped.published(self.store(locked, Event::Discard, entries.clone(), |_, _| Entry::Zero));
        Ok(())
    }

    /// Gives back the memory of the entries' blocks that have no other holder. They are shown nowhere any more.
    fn give_memory_back(&self, entries: &Range<usize>) {
        let pool = self.pool();
        entries.clone().filter_map(|index| self.table.get(EntryIndex(index)).block()).for_each(|block| {
            if self.is_alone_with(block) {
                // If the kernel refuses, the block counts as used, and is cleared for its next holder.
                pool.give_memory_back(block);
            }
        });
    }

    /// Makes whole blocks read as zeros, without memory.
    pub(crate) fn empty_blocks(&self, entries: Range<usize>) -> Result<(), Unresolved> {
        for index in entries.map(EntryIndex) {
            let held = self.lock_entry(index);
            let entry = self.table.get(index);
            if let Entry::Private(block) = entry {
                // The program wants zeros there.
                self.empty(block)?;
                continue;
            }
            if !entry.is_cow_mapping() {
                continue;
            }
            self.show_empty(held.locked(), index.0..index.0 + 1)?;
        }
        Ok(())
    }

    /// Makes a part of an entry read as zeros, without memory. False if the caller has to write zeros there instead,
    /// for example because the block has other holders.
    pub(crate) fn drop_part(&self, index: EntryIndex, part: &Range<usize>) -> bool {
        let (pool, _signals) = (self.pool(), SignalsBlocked::new());
        let _window = self.table.lock(index);
        let entry = self.table.get(index);
        let Some(block) = entry.block() else { return false };
        let start = pool.offset(block);
        if pool.sys.next_memory(start + part.start..start + part.end).is_none() {
            let only = self.bytes_of(&(index.0..index.0 + 1));
            let shown = self.addresses.part(&(only.start + part.start..only.start + part.end));
            return !entry.is_cow_mapping() || pool.sys.drop_private(shown).is_ok();
        }
        if !matches!(entry, Entry::Private(_)) {
            return false;
        }
        // SAFETY: the region alone holds the block, and the program wants zeros there.
        unsafe { pool.sys.punch_shown(start + part.start, part.len()) }.is_ok()
    }

    /// Replaces entries, which all have blocks, by plain memory of the process with the same contents, in one mapping.
    /// Threads that use the entries wait meanwhile.
    pub(crate) fn hand_over(&self, entries: &Range<usize>, zeros: Zeros) -> Result<(), Unresolved> {
        let _signals = SignalsBlocked::new();
        let windows = self.table.lock_windows(self.windows_of(entries));
        let publishing = self.lock.shared();
        let locked = Locked::windows(&windows, &publishing);
        let is_held = |run: &Range<usize>| self.holds(locked, run);
        let held = self.alike(entries.clone()).take_while(is_held).last().map_or(entries.start, |run| run.end);
        let handed = if held == entries.end { self.show_plain(entries, zeros) } else { Err(Unresolved::NotYet) };
        if handed.is_ok() {
            self.give_memory_back(entries);
            let Recount { before, after } = self.store(locked, Event::Discard, entries.clone(), |_, _| Entry::Zero);
            self.addresses.recount(before, after);
        } else {
            self.alike(entries.start..held).for_each(|run| self.site().unpark(locked, &self.bytes_of(&run)));
        }
        drop(publishing);
        if held > entries.start {
            self.site().resume(&self.bytes_of(&(entries.start..held)));
        }
        handed
    }

    /// The runs of entries that are one mapping each.
    fn alike(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut rest = entries;
        std::iter::from_fn(move || {
            let start = rest.start;
            rest.start += self.table.alike(rest.clone());
            (start < rest.start).then_some(start..rest.start)
        })
    }

    /// Shows plain memory in place of entries, whose contents are all parked. It gets the pieces of their blocks that
    /// have memory, and the private pages. All else reads as zeros.
    fn show_plain(&self, entries: &Range<usize>, zeros: Zeros) -> Result<(), Unresolved> {
        let (pool, bytes) = (self.pool(), self.bytes_of(entries));
        let (size, parked) = (pool.block_size, self.addresses.part_at(Place::Parked, &bytes));
        let mut plain = pool.sys.plain(bytes.len())?;
        let mut fill = |at: usize, len: usize| pool.sys.fill(&mut plain, at, parked.part(at, len), zeros);
        for (nth, index) in entries.clone().enumerate() {
            let Some(block) = self.table.get(EntryIndex(index)).block() else { continue };
            let start = pool.offset(block);
            for found in self.pieces(start..start + size.bytes()) {
                fill(size.len_of(nth) + found.start - start, found.len());
            }
        }
        for run in self.cow_mappings(entries.clone()) {
            let place = (&self.bytes_of(&run), Place::Parked);
            self.scan(ScanFor::Private, place, &mut [PageRun::default(); 64], |pages, _| {
                fill(pages.start - bytes.start, pages.len());
                Ok::<(), Unresolved>(())
            })?;
        }
        Ok(pool.sys.show_plain(plain, self.addresses.part(&bytes))?)
    }

    /// The pieces of a range of the pool that have memory.
    fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut rest = range;
        std::iter::from_fn(move || {
            let found = self.pool().sys.next_memory(rest.clone())?;
            rest.start = found.end;
            Some(found)
        })
    }

    /// The `Private` entries that show something else than their blocks at some of their addresses. The program has
    /// mapped it there with a call that the library of `hugefork run` did not see. Whole runs are checked first, and
    /// single entries only in runs where something else is found.
    pub(crate) fn not_shown(&self, entries: Range<usize>) -> Vec<EntryIndex> {
        let is_private = |run: &Range<usize>| matches!(self.table.get(EntryIndex(run.start)), Entry::Private(_));
        let others = self.alike(entries).filter(|run| is_private(run) && !self.shows(run));
        others.flatten().filter(|index| !self.shows(&(*index..index + 1))).map(EntryIndex).collect()
    }

    /// Whether entries that are one mapping show their blocks and nothing else.
    fn shows(&self, run: &Range<usize>) -> bool {
        let Some(first) = self.table.get(EntryIndex(run.start)).block() else { return false };
        let (bytes, base) = (self.bytes_of(run), self.addresses.base());
        let mut rest = base + bytes.start..base + bytes.end;
        let offset = self.pool().offset(first);
        while !rest.is_empty() {
            let at = offset + (rest.start - base - bytes.start);
            match self.pool().sys.shown(&rest, Some(at)) {
                Some(piece) if piece.start == rest.start => rest.start = piece.end,
                _ => return false,
            }
        }
        true
    }

    /// Gives up an entry at whose addresses something else is shown, too, and keeps that in place. The rest of the
    /// block becomes plain memory. Where that is refused, a private mapping shows the rest, and no other holder gets
    /// the block from then on.
    pub(crate) fn give_up(&self, index: EntryIndex) {
        let (pool, held, only) = (self.pool(), self.lock_entry(index), index.0..index.0 + 1);
        let Some(block) = self.table.get(index).block() else { return };
        let (bytes, base) = (self.bytes_of(&only), self.addresses.base());
        let (offset, mut next) = (pool.offset(block), bytes.start);
        let rest = |next: usize| pool.sys.shown(&(base + next..base + bytes.end), Some(offset + (next - bytes.start)));
        while let Some(piece) = rest(next) {
            let piece = piece.start - base..piece.end - base;
            let start = offset + (piece.start - bytes.start);
            next = piece.end;
            if self.make_plain(&piece, start).is_err() {
                // The mapping may be there for ever, whether the call works or not, so this reference is never
                // released.
                pool.frames.add_reference(block);
                let shows = Shows::CowMapping { start, access: Access::ReadWrite };
                let _ = pool.sys.show(self.addresses.part(&piece), shows);
            }
        }
        let Recount { before, after } = self.store(held.locked(), Event::Discard, only, |_, _| Entry::Zero);
        self.addresses.recount(before, after);
    }

    /// Replaces bytes that show the pool's memory from `offset` on by plain memory with the same contents. Threads that
    /// use the bytes wait meanwhile.
    fn make_plain(&self, bytes: &Range<usize>, offset: usize) -> Result<(), Unresolved> {
        let sys = &self.pool().sys;
        let (part, parked) = (self.addresses.part(bytes), self.addresses.part_at(Place::Parked, bytes));
        let mut plain = sys.plain(bytes.len())?;
        sys.hold(part, parked)?;
        for found in self.pieces(offset..offset + bytes.len()) {
            sys.fill(&mut plain, found.start - offset, parked.part(found.start - offset, found.len()), Zeros::Copied);
        }
        let shown = sys.show_plain(plain, part);
        if shown.is_err() {
            sys.unpark(part, parked);
        }
        sys.resume(part, parked);
        Ok(shown?)
    }

    /// Shows all blocks among `entries` through private mappings, which a child inherits, and takes a reference to each
    /// for the child. The `HeldBlocks` of seam.rs release these references. Adds the blocks to `held`. Returns the
    /// number of blocks that no child will see, because the kernel refused.
    pub(crate) fn share(&self, entries: Range<usize>, held: &mut Vec<BlockId>) -> usize {
        if entries.is_empty() {
            return 0;
        }
        let windows = self.table.lock_windows(self.windows_of(&entries));
        let alone = self.lock.exclusive();
        let (locked, mut unseen) = (Locked::alone(&alone), 0);
        for run in self.alike(entries) {
            let entry = self.table.get(EntryIndex(run.start));
            let Some(first) = entry.block() else { continue };
            let blocks = || (0..run.len()).map(|by| first.offset(by));
            blocks().for_each(|block| self.pool().frames.add_reference(block));
            if !entry.is_cow_mapping() {
                // The entries stay `Private` until this is done: if the kernel refuses, they show their blocks again.
                let shows = Shows::CowMapping { start: first, access: Access::ReadWrite };
                let Ok(remapped) = self.remap(locked, Place::Own, &run, shows) else {
                    blocks().for_each(|block| _ = self.pool().release(block));
                    unseen += run.len();
                    continue;
                };
                self.table.set_alike(run.clone(), Entry::Shared(first, Origin::Own));
                // Such a mapping is writable from the start.
                let _ = self.publish_cow_mappings(locked, run.clone(), remapped);
            }
            held.extend(blocks());
        }
        drop((windows, alone));
        unseen
    }

    /// The block of an entry, if the region alone holds it and every page of it has memory.
    pub(crate) fn full_block(&self, index: EntryIndex) -> Option<BlockId> {
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let Entry::Private(block) = self.table.get(index) else { return None };
        self.pool().sys.is_full(self.pool().offset(block)).then_some(block)
    }

    /// Whether the entry at `index` is the region's: a `Zero` entry shows nothing, or memory of the kernel.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.table.get(EntryIndex(index)).state() != State::Zero
    }
}
