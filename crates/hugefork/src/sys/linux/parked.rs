//! Parked page tables: the mappings that a region has shown before are moved here, so that no fault has to unmap them.
//!
//! ```text
//! region   | pool memory, read-only |  ──mremap(MREMAP_DONTUNMAP)──▶  | room 0 | room 1 | …      in the arena
//! region   | the same, no page tables|                                    ▲ a thread drops the pages later
//! ```
//! A fault that shows a CoW mapping replaces a mapping of pool memory. To unmap a huge page takes about a microsecond,
//! because the kernel's data about the page is not in the cache: 0.7 ms a GiB. A move of page tables does not touch
//! that data: it takes 0.2 ms, and 0.01 ms where a GiB begins at a multiple of a GiB, since that is one entry
//! (docs/design.md). The mapping that stays behind shows the same memory, so other threads read on. The parked tables
//! map pool memory, which nothing reads or writes through them.
//!
//! A part is parked as far behind a multiple of a GiB as it was in the region. So a room has place for all parts of one
//! GiB of a region, if they come in ascending order, as a fork goes through them: each begins behind the last.
//!
//! Parking only saves time: if there is no room, or the kernel refuses, the pages are unmapped at once. A reset that
//! drops all private pages of a GiB parks their tables, too, and shows nothing new: the mapping that stays behind shows
//! the snapshot.

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

/// The size of a room. A room begins at a multiple of it.
pub(super) const ROOM_BYTES: usize = 1 << 30;

/// An arena of fewer slots (256 GiB) is small because the program may use few addresses. Then none are used for
/// parking.
const LEAST_ARENA_SLOTS: usize = 1 << 12;

/// A part with less than this in huge pages is unmapped at its place.
pub(super) const LEAST_PARKED_BYTES: usize = 16 << 20;

/// With at least this many base pages, which take half a microsecond each, even a single block is better parked.
pub(super) const LEAST_PARKED_PAGES: usize = 32;

/// One call drops this much. Threads that want the kernel's lock of all mappings wait for the call: 0.1 ms if the pages
/// are huge, and 2 ms if a reset has dropped 20 000 of a GiB. Each call interrupts the processors that run the program.
const DROPPED_AT_ONCE_BYTES: usize = 256 << 20;

/// The state of an unused room.
const FREE: usize = 0;

/// The state of a room that a thread is filling or emptying. Any other number says how many bytes of the room, from its
/// beginning, are in use.
const IN_HAND: usize = usize::MAX;

/// How many consecutive rooms a part takes.
fn rooms_of(part: Part<'_>) -> usize {
    (part.at() % ROOM_BYTES + part.len()).div_ceil(ROOM_BYTES)
}

/// The place where the page tables of a part are parked.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    /// The first of its rooms, and how much of that room was in use before.
    first: usize,
    before: usize,
}

/// Addresses where page tables are parked. The owner gives them back to the arena.
pub(super) struct ParkedTables {
    start: usize,
    count: usize,
    rooms: [AtomicUsize; ROOMS],
}

impl ParkedTables {
    /// Takes addresses for a pool of this size, if the process has plenty.
    pub(super) fn open(arena: &Arena, capacity: usize) -> Option<ParkedTables> {
        // A part that does not begin at a multiple of a GiB takes one more room. Resets of a GiB fill ten rooms before
        // the maintenance thread empties them once; without a free room, the caller drops the pages itself.
        let count = if capacity < ROOM_BYTES { 2 } else { ROOMS };
        let has_plenty = arena.slots() >= LEAST_ARENA_SLOTS && capacity >= LEAST_PARKED_BYTES;
        let start = if has_plenty { arena.take(count * ROOM_BYTES, ROOM_BYTES).ok()? } else { return None };
        Some(ParkedTables { start, count, rooms: [const { AtomicUsize::new(FREE) }; ROOMS] })
    }

    /// Parks the page tables of a part that shows pool memory, if possible. The part must be one mapping, because a
    /// call that moves several may fail after it has moved some. Returns the place. The caller then calls `keep` or
    /// `give_back`.
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

    /// Makes a room the caller's, if nothing lies in it from `place` on. Returns how much of it was in use, or
    /// [`IN_HAND`] if it is not the caller's.
    fn enter(&self, nth: usize, place: usize) -> usize {
        let before = self.rooms[nth].load(Ordering::Relaxed);
        // A room that another thread has counts as full.
        if before > place {
            return IN_HAND;
        }
        match self.rooms[nth].compare_exchange(before, IN_HAND, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => before,
            Err(_) => IN_HAND,
        }
    }

    /// Gives up rooms in which nothing was put.
    fn leave(&self, moved: Moved, count: usize) {
        if count > 0 {
            self.set(moved.first, 1, moved.before);
            self.set(moved.first + 1, count - 1, FREE);
        }
    }

    /// Leaves the page tables parked, to be dropped later, because the part shows other memory now.
    pub(super) fn keep(&self, moved: Moved, part: Part<'_>) {
        let last = moved.first + rooms_of(part) - 1;
        self.set(moved.first, last - moved.first, ROOM_BYTES);
        self.rooms[last].store((part.at() % ROOM_BYTES + part.len() - 1) % ROOM_BYTES + 1, Ordering::Release);
    }

    /// Moves the page tables back, because the part still shows the same memory. There may be private pages among them,
    /// which exist nowhere else. Both mappings exist, so the kernel has no reason to refuse.
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

    /// A part is parked as far behind a multiple of a GiB as it is itself.
    fn parking(&self, first: usize, part: Part<'_>) -> Parking<'static> {
        // SAFETY: the caller has the rooms and the part, and no other code uses either. The part still shows the same
        // memory, or gets it back.
        unsafe { Parking::new(part.at(), self.start + first * ROOM_BYTES + part.at() % ROOM_BYTES, part.len(), None) }
    }

    /// Drops all parked pages. Not for faults.
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
        // Locked pages would stay, as they do if the kernel refuses. The next page tables that are parked here replace
        // them.
        // SAFETY: this thread alone has the room; this changes no contents.
        let _ = unsafe { munlock(self.room(nth), len) };
        for at in (0..len).step_by(DROPPED_AT_ONCE_BYTES) {
            // SAFETY: this thread alone has the room, which maps a file, whose contents stay. No code uses the mapped
            // pages.
            let _ = unsafe {
                madvise(self.room(nth).byte_add(at), DROPPED_AT_ONCE_BYTES.min(len - at), Advice::LinuxDontNeed)
            };
        }
        // The room becomes one mapping again. If the kernel refuses, the next page tables that are parked here replace
        // the others.
        // SAFETY: as above. The advice keeps the addresses from children, as it did before.
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

    /// All addresses of the rooms.
    pub(super) fn addresses(&self) -> Range<usize> {
        self.start..self.start + self.count * ROOM_BYTES
    }
}
