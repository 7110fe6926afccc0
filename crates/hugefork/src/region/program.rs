//! The memory of a program that knows nothing of hugefork: all that it has is writable at all times, nobody's writes
//! fault into the engine, and `fork(2)` children inherit what it has. These methods change the states of blocks, so
//! they are the engine's. Which bytes are the program's is known to hugefork-program, which calls them by seam.rs.
//!
//! ```text
//!          open                 share, before a fork(2)
//!   Zero ────────▶ Private ──────────────────────────────▶ CowMapped: the kernel copies pages, here and in the child
//!    ▲  close, hand_over │ ▲                                  │
//!    └───────────────────┘ └─ write-back, when no child is ───┘
//!                             left that holds it
//! ```
//! The memory of a block that is opened comes from the kernel, at the first touch of each of its pages. So it is never
//! looked at whether a block that somebody holds is fresh: from `open` on it counts as used.
//!
//! What `Zero` entries show is not the region's: nothing, or plain memory that was handed over to the kernel.

use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::pool::frames::{Content, Wanted};
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::program::{ProgramSys, Zeros};
use crate::sys::{Access, PageRun, Part, ScanFor, Shows};
use crate::table::transition::Event;
use crate::table::{Entry, Locked, Origin, Reserved, State};
use crate::units::{BlockId, EntryIndex};

impl<S: ProgramSys> RegionCore<S> {
    /// Gives blocks to entries that have none. After an error, some have theirs.
    pub(crate) fn open(&self, entries: Range<usize>) -> Result<(), Unresolved> {
        let _signals = SignalsBlocked::new();
        let mut next = entries.start;
        while next < entries.end {
            let windows = self.table.lock_windows(self.windows_of(&(next..entries.end)));
            let publishing = self.lock.shared();
            let locked = Locked::windows(&windows, &publishing);
            next = self.show_empty(locked, next..entries.end)?.end;
        }
        Ok(())
    }

    /// Shows new blocks that take no memory at the first of `entries`, as many as can be had in a row. Returns where.
    fn show_empty(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<Range<usize>, Unresolved> {
        let (pool, most) = (self.pool(), entries.len());
        let wish = self.placement.hint(EntryIndex(entries.start), pool.frames.len());
        let taken = pool.frames.take(wish, 0, most - 1, Wanted::Any, Reserved::No).ok_or(Unresolved::PoolFull)?;
        let emptied = taken.blocks().try_for_each(|block| self.empty(block));
        let run = entries.start..entries.start + taken.count;
        let shows = Shows::Memory { start: taken.first, access: Access::ReadWrite };
        match emptied.and_then(|()| Ok(self.remap(locked, Place::Own, &run, shows)?)) {
            Ok(remapped) => {
                taken.blocks().for_each(|block| pool.frames.set_content(block, Content::Used));
                let block = |at: usize| taken.first.offset(at - run.start);
                let stored = self.store(locked, Event::Write, run.clone(), |at, _| Entry::Private(block(at.start)));
                remapped.published(stored);
                Ok(run)
            }
            Err(reason) => {
                pool.give_back(taken);
                Err(reason)
            }
        }
    }

    /// Gives the memory of a block back to the system, if it has any. The caller alone holds it, and it is shown
    /// nowhere, or the program wants zeros there.
    fn empty(&self, block: BlockId) -> Result<(), Unresolved> {
        let pool = self.pool();
        if pool.frames.content(block) == Content::Used {
            // SAFETY: the caller alone holds the block, and who is shown it wants zeros there.
            let punched = unsafe { pool.sys.punch_shown(pool.offset(block), pool.block_size.bytes()) };
            punched.map_err(Unresolved::OutOfMemory)?;
        }
        Ok(())
    }

    /// Takes the blocks of entries away, and their memory. Nothing is shown there.
    pub(crate) fn close(&self, entries: &Range<usize>) -> Result<(), Unresolved> {
        let _signals = SignalsBlocked::new();
        let windows = self.table.lock_windows(self.windows_of(entries));
        let publishing = self.lock.shared();
        let locked = Locked::windows(&windows, &publishing);
        let remapped = self.remap(locked, Place::Own, entries, Shows::Hidden)?;
        self.give_memory_back(entries);
        remapped.published(self.store(locked, Event::Discard, entries.clone(), |_, _| Entry::Zero));
        Ok(())
    }

    /// Gives the memory of entries back to the system, as far as nobody else holds it. It is shown nowhere any more.
    fn give_memory_back(&self, entries: &Range<usize>) {
        let pool = self.pool();
        entries.clone().filter_map(|index| self.table.get(EntryIndex(index)).block()).for_each(|block| {
            if self.is_alone_with(block) {
                // Where the kernel refuses, it counts as used, and is cleared for the next holder.
                pool.give_memory_back(block);
            }
        });
    }

    /// Makes whole blocks read as zeros, which they take no memory for.
    pub(crate) fn empty_blocks(&self, entries: Range<usize>) -> Result<(), Unresolved> {
        let _signals = SignalsBlocked::new();
        for index in entries.map(EntryIndex) {
            let window = self.table.lock(index);
            let publishing = self.lock.shared();
            let entry = self.table.get(index);
            if let Entry::Private(block) = entry {
                // The program wants zeros there.
                self.empty(block)?;
                continue;
            }
            if !entry.is_cow_mapping() {
                continue;
            }
            self.show_empty(Locked::windows(&window, &publishing), index.0..index.0 + 1)?;
        }
        Ok(())
    }

    /// Makes a part of an entry read as zeros, which take no memory for that. False if the caller is to fill it, since
    /// others hold it too.
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
        // SAFETY: the region alone holds it, and the program wants zeros there.
        unsafe { pool.sys.punch_shown(start + part.start, part.len()) }.is_ok()
    }

    /// Makes plain memory of the process, in one mapping, out of entries that all have blocks, with the same contents.
    /// Whoever uses it waits meanwhile.
    pub(crate) fn hand_over(&self, entries: &Range<usize>, zeros: Zeros) -> Result<(), Unresolved> {
        let _signals = SignalsBlocked::new();
        let windows = self.table.lock_windows(self.windows_of(entries));
        let publishing = self.lock.shared();
        let locked = Locked::windows(&windows, &publishing);
        let mut held = entries.start;
        while held < entries.end {
            let run = self.alike(held, entries.end);
            if !self.holds(locked, &run) {
                break;
            }
            held = run.end;
        }
        let handed = if held == entries.end { self.show_plain(entries, zeros) } else { Err(Unresolved::NotYet) };
        if handed.is_ok() {
            self.give_memory_back(entries);
            let Recount { before, after } = self.store(locked, Event::Discard, entries.clone(), |_, _| Entry::Zero);
            self.addresses.recount(before, after);
        } else {
            let mut next = entries.start;
            while next < held {
                let run = self.alike(next, held);
                next = run.end;
                self.site().unpark(locked, &self.bytes_of(&run));
            }
        }
        drop(publishing);
        if held > entries.start {
            self.site().resume(&self.bytes_of(&(entries.start..held)));
        }
        handed
    }

    /// The entries from `first` on, and before `end`, that are one mapping.
    fn alike(&self, first: usize, end: usize) -> Range<usize> {
        first..first + self.table.alike(first..end)
    }

    /// Shows plain memory in place of entries, which are all held.
    fn show_plain(&self, entries: &Range<usize>, zeros: Zeros) -> Result<(), Unresolved> {
        let (pool, bytes) = (self.pool(), self.bytes_of(entries));
        let mut plain = pool.sys.plain(bytes.len()).map_err(Unresolved::Unmappable)?;
        for index in entries.clone() {
            let one = self.bytes_of(&(index..index + 1));
            let from = self.addresses.part_at(Place::Parked, &one);
            self.each_with_memory(EntryIndex(index), from, |at, len| {
                pool.sys.fill(&mut plain, one.start - bytes.start + at, from.part(at, len), zeros);
            })?;
        }
        pool.sys.show_plain(plain, self.addresses.part(&bytes)).map_err(Unresolved::Unmappable)
    }

    /// Calls `each` with the places of what has memory of an entry that `part` shows, and how long each is: what its
    /// block has, and what writers have had copied. All else reads as zeros.
    fn each_with_memory(
        &self,
        index: EntryIndex,
        part: Part<'_>,
        mut each: impl FnMut(usize, usize),
    ) -> Result<(), Unresolved> {
        let (pool, entry) = (self.pool(), self.table.get(index));
        let Some(block) = entry.block() else { return Ok(()) };
        let start = pool.offset(block);
        let mut rest = start..start + part.len();
        while let Some(found) = pool.sys.next_memory(rest.clone()) {
            each(found.start - start, found.len());
            rest.start = found.end;
        }
        if !entry.is_cow_mapping() {
            return Ok(());
        }
        let (mut runs, mut at) = ([PageRun::default(); 64], 0);
        while at < part.len() {
            let scanned = pool.sys.scan(part.part(at, part.len() - at), ScanFor::Private, &mut runs);
            let scanned = scanned.map_err(Unresolved::Unmappable)?;
            for run in &runs[..scanned.runs] {
                each(run.start as usize - part.at(), (run.end - run.start) as usize);
            }
            at += scanned.looked_at;
        }
        Ok(())
    }

    /// Private entries some of whose addresses show something else than their blocks: the program has put it there,
    /// past whatever stands in for its calls. They are looked at run by run, and one by one only where something is
    /// found.
    pub(crate) fn not_shown(&self, entries: Range<usize>) -> Vec<EntryIndex> {
        let (mut found, mut next) = (Vec::new(), entries.start);
        while next < entries.end {
            let run = self.alike(next, entries.end);
            next = run.end;
            if matches!(self.table.get(EntryIndex(run.start)), Entry::Private(_)) && !self.shows(&run) {
                found.extend(run.filter(|&index| !self.shows(&(index..index + 1))).map(EntryIndex));
            }
        }
        found
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

    /// Lets go of an entry at which something else is shown too, which stays. What is left of the block becomes plain
    /// memory; where that cannot be, it is shown privately, and the block is nobody's from then on.
    pub(crate) fn give_up(&self, index: EntryIndex) {
        let (pool, _signals) = (self.pool(), SignalsBlocked::new());
        let window = self.table.lock(index);
        let publishing = self.lock.shared();
        let (locked, only) = (Locked::windows(&window, &publishing), index.0..index.0 + 1);
        let Some(block) = self.table.get(index).block() else { return };
        let (bytes, base) = (self.bytes_of(&only), self.addresses.base());
        let (offset, mut next) = (pool.offset(block), bytes.start);
        let rest = |next: usize| pool.sys.shown(&(base + next..base + bytes.end), Some(offset + (next - bytes.start)));
        while let Some(piece) = rest(next) {
            let piece = piece.start - base..piece.end - base;
            let start = offset + (piece.start - bytes.start);
            next = piece.end;
            if self.make_plain(&piece, start).is_err() {
                // Whatever becomes of it: the block is shown for ever.
                pool.frames.add_reference(block);
                let shows = Shows::CowMapping { start, access: Access::ReadWrite };
                let _ = pool.sys.show(self.addresses.part(&piece), shows);
            }
        }
        let Recount { before, after } = self.store(locked, Event::Discard, only, |_, _| Entry::Zero);
        self.addresses.recount(before, after);
    }

    /// Puts plain memory with the same contents in place of bytes that show the pool's memory from `offset` on. Whoever
    /// uses them waits meanwhile.
    fn make_plain(&self, bytes: &Range<usize>, offset: usize) -> Result<(), Unresolved> {
        let sys = &self.pool().sys;
        let (part, parked) = (self.addresses.part(bytes), self.addresses.part_at(Place::Parked, bytes));
        let mut plain = sys.plain(bytes.len()).map_err(Unresolved::Unmappable)?;
        sys.hold(part, parked).map_err(Unresolved::Unmappable)?;
        let mut rest = offset..offset + bytes.len();
        while let Some(found) = sys.next_memory(rest.clone()) {
            sys.fill(&mut plain, found.start - offset, parked.part(found.start - offset, found.len()), Zeros::Copied);
            rest.start = found.end;
        }
        let shown = sys.show_plain(plain, part).map_err(Unresolved::Unmappable);
        if shown.is_err() {
            sys.unpark(part, parked);
        }
        sys.resume(part, parked);
        shown
    }

    /// Shows all blocks among `entries` through private mappings, which a child inherits, and holds each for it, until
    /// the `HeldBlocks` of seam.rs are dropped. Gives
    /// the blocks, and how many there are that no child will see: the kernel refused.
    pub(crate) fn share(&self, entries: Range<usize>, held: &mut Vec<BlockId>) -> usize {
        if entries.is_empty() {
            return 0;
        }
        let windows = self.table.lock_windows(self.windows_of(&entries));
        let alone = self.lock.exclusive();
        let (locked, mut unseen, mut next) = (Locked::alone(&alone), 0, entries.start);
        while next < entries.end {
            let entry = self.table.get(EntryIndex(next));
            let Some(first) = entry.block() else {
                next += 1;
                continue;
            };
            let run = self.alike(next, entries.end);
            next = run.end;
            let blocks = || (0..run.len()).map(|by| first.offset(by));
            blocks().for_each(|block| self.pool().frames.add_reference(block));
            if !entry.is_cow_mapping() {
                // Until it is done the entries say that they are writable: if the kernel refuses, that is shown again.
                let shows = Shows::CowMapping { start: first, access: Access::ReadWrite };
                let Ok(remapped) = self.remap(locked, Place::Own, &run, shows) else {
                    blocks().for_each(|block| _ = self.pool().release(block));
                    unseen += run.len();
                    continue;
                };
                self.table.set_alike(run.clone(), Entry::Shared(first, Origin::Own));
                // Such a mapping is writable from the first.
                let _ = self.publish_cow_mappings(locked, run.clone(), remapped);
            }
            held.extend(blocks());
        }
        drop((windows, alone));
        unseen
    }

    /// The block of an entry, if the region alone holds it and all of it has memory.
    pub(crate) fn full_block(&self, index: EntryIndex) -> Option<BlockId> {
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let Entry::Private(block) = self.table.get(index) else { return None };
        self.pool().sys.is_full(self.pool().offset(block)).then_some(block)
    }

    /// Whether `entry` is the region's, and not the kernel's or nobody's.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.table.get(EntryIndex(index)).state() != State::Zero
    }
}
