//! Where the kernel puts what a region has shown, so that no fault waits until it is unmapped.
//!
//! ```text
//! region   | pool memory, read-only |  ──mremap(MREMAP_DONTUNMAP)──▶  | room 0 | room 1 | …      in the arena
//! region   | the same, no page tables|                                    ▲ a thread drops the pages later
//! ```
//! To unmap a huge page takes about a microsecond, as it goes to memory for what the kernel keeps of the page: 0.7 ms a
//! GiB, in the fault that shows a CoW mapping. To move page tables goes to none: 0.2 ms, and 0.01 ms where a GiB begins
//! at a multiple of that, since then it is one entry (docs/design.md). The mapping that is left behind shows the same,
//! so other threads read on. What lies in the parked tables is pool memory that nobody reads or writes there.
//!
//! Parts come to lie as far behind a multiple of a GiB as they are. So a room has place for all parts of one GiB of a
//! region, if they come in order, as a fork goes through them: each begins behind the last.
//!
//! It is only faster: if there is no room, or the kernel refuses, the pages are unmapped at once. A reset that drops
//! all pages of a GiB moves their tables here and shows nothing new: what is left behind is the snapshot.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use hugefork_linux::parking::{self, Parking};
use rustix::mm::{Advice, madvise, munlock};

use super::arena::Arena;
use super::mappings::Mappings;
use super::stderr::say_and_abort;
use crate::sys::Part;

const ROOMS: usize = 16;

/// The size of a room, and what it begins at a multiple of.
pub(super) const ROOM_BYTES: usize = 1 << 30;

/// An arena of fewer slots (256 GiB) is small because the program may use few addresses. They are not for this.
const LEAST_ARENA_SLOTS: usize = 1 << 12;

/// Less than so much in huge pages is unmapped where it is.
pub(super) const LEAST_PARKED_BYTES: usize = 16 << 20;

/// From so many base pages on, which take half a microsecond each, even a block is better moved.
pub(super) const LEAST_PARKED_PAGES: usize = 32;

/// So much is dropped by one call: whoever waits for the kernel's lock of all mappings waits for 0.1 ms where pages are
/// huge, and for 2 ms where a reset has dropped 20 000 of a GiB. Each call interrupts the program's processors.
const DROPPED_AT_ONCE_BYTES: usize = 256 << 20;

/// A room that nobody uses.
const FREE: usize = 0;

/// A room that somebody just fills or empties. Other numbers say how many bytes from its beginning on are in use.
const IN_HAND: usize = usize::MAX;

/// How many rooms a part takes, one after the other.
fn rooms_of(part: Part<'_>) -> usize {
    (part.at() % ROOM_BYTES + part.len()).div_ceil(ROOM_BYTES)
}

/// Where the page tables of a part have come to lie.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    /// The first of its rooms, and how much of that was in use before.
    first: usize,
    before: usize,
}

/// Addresses for what is to be unmapped. Whoever opened it gives them back.
pub(super) struct ParkedTables {
    start: usize,
    count: usize,
    rooms: [AtomicUsize; ROOMS],
}

impl ParkedTables {
    /// Addresses for a pool of this size, if there are plenty.
    pub(super) fn open(arena: &Arena, capacity: usize) -> Option<ParkedTables> {
        // What begins within a GiB takes a room more. Resets of a GiB fill ten in the time in which the thread looks
        // once: without room the caller drops the pages.
        let count = if capacity < ROOM_BYTES { 2 } else { ROOMS };
        let has_plenty = arena.slots() >= LEAST_ARENA_SLOTS && capacity >= LEAST_PARKED_BYTES;
        let start = if has_plenty { arena.take(count * ROOM_BYTES, ROOM_BYTES).ok()? } else { return None };
        Some(ParkedTables { start, count, rooms: [const { AtomicUsize::new(FREE) }; ROOMS] })
    }

    /// Moves the page tables of a part that shows pool memory out of the way, if that can be done. It has to be one
    /// mapping: a call that moves several may fail when some have moved. Returns where they lie: the caller keeps them
    /// there, or gives them back.
    pub(super) fn take(&self, mappings: &Mappings, part: Part<'_>) -> Option<Moved> {
        if !mappings.is_one(part.at(), part.len()) {
            return None;
        }
        let wanted = rooms_of(part);
        let mut first = 0;
        while first + wanted <= self.count {
            let before = self.enter(first, part.at() % ROOM_BYTES);
            let mut taken = usize::from(before != IN_HAND);
            while taken > 0 && taken < wanted && self.enter(first + taken, 0) != IN_HAND {
                taken += 1;
            }
            let moved = Moved { first, before };
            if taken == wanted {
                if self.parking(first, part).take_at_once().is_ok() {
                    return Some(moved);
                }
                self.leave(moved, taken);
                return None;
            }
            self.leave(moved, taken);
            first += taken + 1;
        }
        None
    }

    /// Makes a room the caller's, if nothing lies in it from this place on. Gives how much of it was in use;
    /// [`IN_HAND`] if it is not the caller's.
    fn enter(&self, nth: usize, place: usize) -> usize {
        let before = self.rooms[nth].load(Ordering::Relaxed);
        // What is busy counts as full.
        if before > place {
            return IN_HAND;
        }
        match self.rooms[nth].compare_exchange(before, IN_HAND, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => before,
            Err(_) => IN_HAND,
        }
    }

    /// Nothing was put into these rooms.
    fn leave(&self, moved: Moved, count: usize) {
        if count > 0 {
            self.set(moved.first, 1, moved.before);
            self.set(moved.first + 1, count - 1, FREE);
        }
    }

    /// Something else is shown at the part now: what lies in its rooms is to be dropped.
    pub(super) fn keep(&self, moved: Moved, part: Part<'_>) {
        let last = moved.first + rooms_of(part) - 1;
        self.set(moved.first, last - moved.first, ROOM_BYTES);
        self.rooms[last].store((part.at() % ROOM_BYTES + part.len() - 1) % ROOM_BYTES + 1, Ordering::Release);
    }

    /// The part shows what it showed: its page tables come back. There may be private pages among them, which are
    /// nowhere else. Both mappings are there, so the kernel has no reason to refuse.
    #[cold]
    pub(super) fn give_back(&self, moved: Moved, part: Part<'_>) {
        if self.parking(moved.first, part).bring_back().is_err() {
            say_and_abort(format_args!("the kernel refused to move memory back to {:#x}; aborting", part.at()));
        }
        self.leave(moved, rooms_of(part));
    }

    fn set(&self, first: usize, count: usize, state: usize) {
        let mut nth = first;
        while nth < first + count {
            self.rooms[nth].store(state, Ordering::Release);
            nth += 1;
        }
    }

    /// A part comes to lie as far behind a multiple of a GiB as it is.
    fn parking(&self, first: usize, part: Part<'_>) -> Parking<'static> {
        // SAFETY: the rooms are the caller's, who alone uses them, and the part is, too. What the part shows is not
        // changed, or comes back.
        unsafe { Parking::new(part.at(), self.start + first * ROOM_BYTES + part.at() % ROOM_BYTES, part.len(), None) }
    }

    /// Drops what lies here. Not for faults.
    pub(super) fn empty(&self) {
        for (nth, room) in self.rooms.iter().enumerate() {
            let len = room.load(Ordering::Relaxed);
            if len == FREE || len == IN_HAND {
                continue;
            }
            if room.compare_exchange(len, IN_HAND, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.empty_room(nth, len);
                room.store(FREE, Ordering::Release);
            }
        }
    }

    fn empty_room(&self, nth: usize, len: usize) {
        // Locked pages would stay, as they do if the kernel refuses: until the next that comes here is put over them.
        // SAFETY: the room is ours alone; this changes no contents.
        let _ = unsafe { munlock(self.room(nth), len) };
        for at in (0..len).step_by(DROPPED_AT_ONCE_BYTES) {
            // SAFETY: the room is ours alone and shows a file, whose contents stay. Nobody uses what is there.
            let _ = unsafe {
                madvise(self.room(nth).byte_add(at), DROPPED_AT_ONCE_BYTES.min(len - at), Advice::LinuxDontNeed)
            };
        }
        // Many mappings become one again. If the kernel refuses, the next that come here are put over them.
        // SAFETY: as above. The advice keeps the addresses from children, as it does before something comes here.
        unsafe {
            let _ = parking::clear(self.room(nth).addr(), len);
            let _ = madvise(self.room(nth), len, Advice::LinuxDontFork);
        }
    }

    fn room(&self, nth: usize) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.start + nth * ROOM_BYTES)
    }

    /// How many rooms are not free.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.rooms.iter().filter(|room| room.load(Ordering::Relaxed) != FREE).count()
    }

    /// All of it.
    pub(super) fn addresses(&self) -> Range<usize> {
        self.start..self.start + self.count * ROOM_BYTES
    }
}
