//! The arena: the range of addresses where regions and snapshots lie.
//!
//! ```text
//! arena   | slot | slot | slot | slot | …         a slot is 64 MiB of addresses, inaccessible until used
//!         └── region A ──┘ gap  └─ B ─┘           a range takes whole slots and leaves addresses free behind it
//! ```
//! Addresses cost nothing: the arena is reserved with `PROT_NONE` and no memory. Behind each range lies a gap, so that
//! a write past the end of a range is a fault that belongs to no region. The direct maps of pools also take their
//! addresses here. So does one range of zeros that nothing touches, from which mappings of zeros are made
//! ([`Arena::zeros`]).
//!
//! # In a child of `fork(2)`
//! The used parts of the arena do not cross a fork. They would leave holes, which the child's next mappings would fill,
//! and pointers or borrows from before the fork would reach those. So a child first makes the holes inaccessible. A
//! child that was forked without the C library (raw `clone`, `_Fork`) keeps the holes, but methods recognise it by the
//! owner's mark. If the program knows nothing of regions ([`leave_holes`]), its children keep the holes as well.

use core::ops::{Range, RangeInclusive};
use core::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use hugefork_linux::parking::{clear, fill};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};

use super::mask::SignalsBlocked;
use super::{named, owner};
use crate::ranges::Ranges;
use crate::sys::{Extent, SystemError};
use crate::units::BASE_PAGE;

/// The size of a slot.
pub(crate) const SLOT_BYTES: usize = 64 << 20;

/// The arena starts at a multiple of the largest block size.
const ALIGN_BYTES: usize = 1 << 30;

/// The size of the range of zeros from which mappings of zeros are made.
pub(crate) const ZEROS_BYTES: usize = 1 << 30;

/// The sizes to try, largest first, because `RLIMIT_AS` may limit the process: 16 TiB … 16 GiB.
const TRIED_BYTES: [usize; 6] = [16 << 40, 4 << 40, 1 << 40, 256 << 30, 64 << 30, LEAST_BYTES];

/// A smaller arena is of no use.
const LEAST_BYTES: usize = 16 << 30;

/// How many addresses of the process the arena may take, at least and at most.
pub(crate) const TAKES_BYTES: RangeInclusive<usize> = LEAST_BYTES + ALIGN_BYTES..=TRIED_BYTES[0] + ALIGN_BYTES;

static ARENA: OnceLock<Arena> = OnceLock::new();

/// The one arena of the process.
pub(crate) struct Arena {
    /// The reserved addresses: a little more than the slots, which begin at a multiple of [`ALIGN_BYTES`].
    reserved: Range<usize>,
    base: usize,
    slots: usize,
    free: Mutex<Ranges>,
}

impl Arena {
    /// The arena. The first call sets it up.
    pub(crate) fn open() -> Result<&'static Arena, SystemError> {
        if let Some(arena) = ARENA.get() {
            return Ok(arena);
        }
        // This comes before the first of our locks is taken, because a child that another thread forks might find one
        // held for ever. It also comes before the first range is used, because from then on a child would have holes.
        owner::claim(close_holes)?;
        let arena = Arena::reserve()?;
        Ok(ARENA.get_or_init(|| arena))
    }

    fn reserve() -> Result<Arena, SystemError> {
        let mut refused = Errno::NOMEM;
        for size in TRIED_BYTES {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new anonymous mapping touches nothing that exists.
            match unsafe { mmap_anonymous(ptr::null_mut(), size + ALIGN_BYTES, ProtFlags::empty(), flags) } {
                Ok(at) => {
                    let (start, slots) = (at.expose_provenance(), size / SLOT_BYTES);
                    let arena = Arena {
                        reserved: start..start + size + ALIGN_BYTES,
                        base: start.next_multiple_of(ALIGN_BYTES),
                        slots,
                        free: Mutex::new(Ranges::new(slots)),
                    };
                    // This is the first range, and it is never given back.
                    let zeros = arena.take(ZEROS_BYTES, ALIGN_BYTES)?.into_extent().base();
                    debug_assert_eq!(zeros, arena.zeros());
                    arena.show_zeros(zeros, ZEROS_BYTES)?;
                    return Ok(arena);
                }
                Err(errno) => refused = errno,
            }
        }
        named("mmap of the region arena", Err(refused))
    }

    /// Takes a range of at least `len` bytes, aligned to `align`, with unused addresses behind it.
    pub(super) fn take(&self, len: usize, align: usize) -> Result<Taken<'_>, SystemError> {
        let slots = slots_of(len);
        let _signals = SignalsBlocked::new();
        let taken = self.free().take(slots, (align / SLOT_BYTES).max(1));
        let range = taken.ok_or(SystemError::new("taking addresses for it (raise RLIMIT_AS)", Errno::NOMEM))?;
        Ok(Taken { arena: self, at: self.base + range.start * SLOT_BYTES, len })
    }

    /// As [`Arena::take`], but a range of a GiB or more begins at a multiple of a GiB, if there is such a range. The
    /// kernel then moves the page tables of a whole GiB as one entry (parked.rs).
    pub(super) fn take_in_whole_gib(&self, len: usize, align: usize) -> Result<Taken<'_>, SystemError> {
        const GIB: usize = 1 << 30;
        match len {
            GIB.. => self.take(len, align.max(GIB)).or_else(|_| self.take(len, align)),
            _ => self.take(len, align),
        }
    }

    /// Makes a range read as zeros. The range was just taken, and nothing else uses it yet. It is never in a `fork(2)`
    /// child, where zeros would look like lost data.
    pub(crate) fn show_zeros(&self, at: usize, len: usize) -> Result<(), SystemError> {
        let range = ptr::with_exposed_provenance_mut(at);
        let advice = if seeded!("children-see-zeros") { Advice::Normal } else { Advice::LinuxDontFork };
        // SAFETY: the range is still inaccessible, and only the caller knows it; this advice changes no contents.
        named("madvise(MADV_DONTFORK)", unsafe { madvise(range, len, advice) })?;
        // With this, reading 2 MiB of zeros takes one fault (the huge zero page) instead of 512. A kernel without THP
        // refuses it.
        // SAFETY: as above.
        let _ = unsafe { madvise(range, len, Advice::LinuxHugepage) };
        // SAFETY: as above.
        named("mprotect", unsafe { mprotect(range, len, MprotectFlags::READ) })
    }

    /// The address of [`ZEROS_BYTES`] bytes of zeros, made by [`Arena::show_zeros`].
    pub(crate) fn zeros(&self) -> usize {
        self.base
    }

    /// Makes a range inaccessible and gives it back. If the kernel refuses, it stays taken.
    pub(super) fn give_up(&self, at: usize, len: usize) -> Result<(), SystemError> {
        // SAFETY: the caller took the range, and gives it up.
        named("mmap to unmap a range", unsafe { clear(at, len) })?;
        let _signals = SignalsBlocked::new();
        self.free().give_back(self.slots_of(at, len));
        Ok(())
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The slots of a range that was taken.
    pub(crate) fn slots_of(&self, at: usize, len: usize) -> Range<usize> {
        let start = (at - self.base) / SLOT_BYTES;
        start..start + slots_of(len)
    }

    /// The slot of `address`, and the offset there, if it lies in the arena. The fault handler calls this.
    pub(crate) fn slot_of(&self, address: usize) -> Option<(usize, usize)> {
        let offset = address.checked_sub(self.base)?;
        let slot = offset / SLOT_BYTES;
        (slot < self.slots).then_some((slot, offset % SLOT_BYTES))
    }

    /// All addresses that the arena has reserved.
    pub(super) fn reserved(&self) -> Range<usize> {
        self.reserved.clone()
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Ranges> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of the arena that was set aside for the owner of this value. The drop gives it up.
pub(super) struct Taken<'a> {
    arena: &'a Arena,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Taken<'_> {
    /// Leaves the range taken until [`Arena::give_up`].
    pub(super) fn into_extent(self) -> Extent {
        // SAFETY: the arena sets each range aside for one caller until it is given up.
        let extent = unsafe { Extent::new(self.at, self.len) };
        core::mem::forget(self);
        extent
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A fork(2) child never had the range, and other memory may be in its place.
        if !owner::is_forked_child() {
            let _ = self.arena.give_up(self.at, self.len);
        }
    }
}

/// Whether children keep the holes, because no pointer of theirs leads into them.
static HOLES_STAY: AtomicBool = AtomicBool::new(false);

/// Leaves holes in children from now on. A program that knows nothing of regions has unmapped this memory by calls of
/// its own, and may ask the kernel whether the addresses are free. The free parts of the arena become holes, too: a
/// child that limits its addresses (`RLIMIT_AS`) must have no addresses that it does not know of.
pub(crate) fn leave_holes() {
    HOLES_STAY.store(true, Ordering::Relaxed);
    if let Some(Arena { reserved, .. }) = ARENA.get() {
        let at = ptr::with_exposed_provenance_mut(reserved.start);
        // If the kernel refuses, children have these addresses.
        // SAFETY: children need nothing that is mapped there; this advice changes no contents.
        let _ = unsafe { madvise(at, reserved.len(), Advice::LinuxDontFork) };
    }
}

/// Runs in each child that the C library forks, before any handler that was registered later, and before `fork` returns
/// there.
extern "C" fn close_holes() {
    if let Some(arena) = ARENA.get()
        && !HOLES_STAY.load(Ordering::Relaxed)
        && !seeded!("holes-stay-open-in-a-child")
    {
        close(arena.base, arena.slots * SLOT_BYTES);
    }
}

/// Makes the unmapped parts of a range inaccessible. Existing mappings stay: a fork handler that ran before this one
/// may have mapped memory. If the kernel refuses, there is no caller to tell, and methods recognise the child anyway.
fn close(start: usize, len: usize) {
    if fill(start, len) == Err(Errno::EXIST) && len > BASE_PAGE {
        let half = (len / 2).next_multiple_of(BASE_PAGE);
        close(start, half);
        close(start + half, len - half);
    }
}

/// The number of slots that a range takes. At least one byte of the last slot stays unused.
fn slots_of(len: usize) -> usize {
    len / SLOT_BYTES + 1
}
