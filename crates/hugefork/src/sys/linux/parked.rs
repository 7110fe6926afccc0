//! Parked page tables: those of a whole GiB that a region has shown before are moved here, so that no fault has to
//! unmap them.
//!
//! ```text
//! region   | pool memory, read-only |  ──mremap(MREMAP_DONTUNMAP)──▶  | room 0 | room 1 | …      in the arena
//! region   | the same, no page tables|                                    ▲ a thread drops the pages later
//! ```
//! A fault that shows a CoW mapping replaces the mapping of the blocks themselves. To unmap a huge page takes about a
//! microsecond, because the kernel's data about the page is not in the cache: 0.7 ms a GiB. To move the page tables of
//! a GiB that begins at a multiple of a GiB takes 0.01 ms, since that is one entry (docs/design.md). Page tables of
//! less move one by one. For each, the kernel interrupts all processors that run the program: that took 4.6 ms beside
//! one other thread, where to unmap them takes 0.2.
//!
//! The mapping that stays behind shows the same memory, so other threads read on. The parked tables map pool memory,
//! which nothing reads or writes through them. Parking only saves time: if there is no room, or the kernel refuses, the
//! pages are unmapped at once.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

use hugefork_linux::parking::{self, Parking};
use rustix::mm::{Advice, madvise, munlock};

use super::arena::{Arena, Taken};
use super::mappings::Mappings;
use super::stderr::say_and_abort;
use crate::sys::Part;

const ROOMS: usize = 16;

/// The size of a room. A room begins at a multiple of it.
const ROOM_BYTES: usize = 1 << 30;

/// An arena of fewer slots (256 GiB) is small because the program may use few addresses. Then none are used for
/// parking.
const LEAST_ARENA_SLOTS: usize = 1 << 12;

/// One call drops this much. Threads that want the kernel's lock of all mappings wait for the call: 0.1 ms if the pages
/// are huge. Each call interrupts the processors that run the program.
const DROPPED_AT_ONCE_BYTES: usize = 256 << 20;

/// The state of an unused room.
const FREE: u8 = 0;

/// The state of a room that a thread is filling or emptying.
const IN_HAND: u8 = 1;

/// The state of a room with page tables that are to be dropped.
const FULL: u8 = 2;

/// A room in which a thread has just parked page tables.
#[derive(Clone, Copy)]
pub(super) struct Room(usize);

/// Addresses where page tables are parked.
pub(super) struct ParkedTables {
    range: Taken<'static>,
    rooms: [AtomicU8; ROOMS],
}

impl ParkedTables {
    /// Takes addresses for a pool of this size, if the process has plenty and a GiB may be parked.
    pub(super) fn open(arena: &'static Arena, capacity: usize) -> Option<ParkedTables> {
        let has_plenty = arena.slots() >= LEAST_ARENA_SLOTS && capacity >= ROOM_BYTES;
        let range = if has_plenty { arena.take(ROOMS * ROOM_BYTES, ROOM_BYTES).ok()? } else { return None };
        Some(ParkedTables { range, rooms: [const { AtomicU8::new(FREE) }; ROOMS] })
    }

    /// Parks the page tables of a part that shows pool memory, if they move as one entry. The part must be one mapping,
    /// because a call that moves several may fail after it has moved some. It must be a shared one: over a private
    /// mapping, few pages are in use. The caller then calls `keep` or `give_back`.
    pub(super) fn take(&self, mappings: &Mappings, part: Part<'_>) -> Option<Room> {
        let is_one_entry = part.len() == ROOM_BYTES && part.at().is_multiple_of(ROOM_BYTES);
        if !is_one_entry || !mappings.is_one_shared(part.at(), part.len()) {
            return None;
        }
        let enter = |nth: &usize| self.change(*nth, FREE, IN_HAND);
        let room = Room((0..ROOMS).find(enter)?);
        if self.parking(room, part).take_at_once().is_ok() {
            return Some(room);
        }
        self.leave(room, FREE);
        None
    }

    /// Leaves the page tables parked, to be dropped later, because the part shows other memory now.
    pub(super) fn keep(&self, room: Room) {
        self.leave(room, FULL);
    }

    /// Moves the page tables back, because the part still shows the same memory. There may be private pages among them,
    /// which exist nowhere else. Both mappings exist, so the kernel has no reason to refuse.
    #[cold]
    pub(super) fn give_back(&self, room: Room, part: Part<'_>) {
        if self.parking(room, part).bring_back().is_err() {
            say_and_abort(format_args!("the kernel refused to move memory back to {:#x}; aborting", part.at()));
        }
        self.leave(room, FREE);
    }

    fn change(&self, nth: usize, from: u8, to: u8) -> bool {
        self.rooms[nth].compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn leave(&self, room: Room, state: u8) {
        self.rooms[room.0].store(state, Ordering::Release);
    }

    fn parking(&self, room: Room, part: Part<'_>) -> Parking<'static> {
        // SAFETY: the caller owns the addresses of `room` and of `part`, and no other code uses either range. The
        // mapping at `part` still shows the memory that it showed before, or the caller gives the parked pages back to
        // it.
        unsafe { Parking::new(part.at(), self.at(room).addr(), part.len(), None) }
    }

    /// Drops all parked pages. Not for faults.
    pub(super) fn empty(&self) {
        for room in (0..ROOMS).filter(|&nth| self.change(nth, FULL, IN_HAND)).map(Room) {
            self.empty_room(room);
            self.leave(room, FREE);
        }
    }

    fn empty_room(&self, room: Room) {
        // Locked pages would stay, as they do if the kernel refuses. The next page tables that are parked here replace
        // them.
        // SAFETY: this thread alone has the room; this changes no contents.
        let _ = unsafe { munlock(self.at(room), ROOM_BYTES) };
        for at in (0..ROOM_BYTES).step_by(DROPPED_AT_ONCE_BYTES) {
            // SAFETY: this thread alone has the room, which maps a file, whose contents stay. No code uses the mapped
            // pages.
            let _ = unsafe { madvise(self.at(room).byte_add(at), DROPPED_AT_ONCE_BYTES, Advice::LinuxDontNeed) };
        }
        // The room becomes one mapping again. If the kernel refuses, the next page tables that are parked here replace
        // the others.
        // SAFETY: as above. The advice keeps the addresses from children, as it did before.
        unsafe {
            let _ = parking::clear(self.at(room).addr(), ROOM_BYTES);
            let _ = madvise(self.at(room), ROOM_BYTES, Advice::LinuxDontFork);
        }
    }

    fn at(&self, room: Room) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.range.at + room.0 * ROOM_BYTES)
    }

    /// How many rooms are not free.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.rooms.iter().filter(|room| room.load(Ordering::Relaxed) != FREE).count()
    }
}
