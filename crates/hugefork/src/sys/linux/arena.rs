//! The address range that regions and snapshots live in.
//!
//! ```text
//! arena   | slot | slot | slot | slot | …         a slot is 64 MiB of addresses, inaccessible until used
//!         └── region A ──┘ gap  └─ B ─┘           a range takes whole slots and leaves addresses free behind it
//! ```
//! Addresses cost nothing: the range is reserved with `PROT_NONE` and no memory. The gap behind each range turns a write
//! past its end into a fault that belongs to nobody. The pools' direct maps take their addresses here too, and so do some zeros
//! that nobody touches, of which others are made ([`Arena::zeros`]).
//!
//! # In a child of `fork(2)`
//! What is used of the arena does not cross a fork and would leave holes, which the child's next mappings would fill: a
//! pointer or a borrow from before the fork would reach them. So the first thing that a child does is to make the holes
//! inaccessible. One that was forked without the C library (raw `clone`, `_Fork`) has the holes; methods know it all the same,
//! by the owner's mark.

use core::ops::{Range, RangeInclusive};
use core::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags, madvise, mmap_anonymous, mprotect, msync};

use super::mask::SignalsBlocked;
use super::{named, owner};
use crate::ranges::Ranges;
use crate::sys::SystemError;
use crate::units::BASE_PAGE;

/// One slot: 64 MiB.
const SLOT: usize = 64 << 20;

/// The arena starts at a multiple of the largest block size.
const ALIGN: usize = 1 << 30;

/// Zeros that others are made of.
pub(crate) const ZEROS: usize = 1 << 30;

/// What is tried, largest first, for programs under `RLIMIT_AS`: 16 TiB … 16 GiB.
const SIZES: [usize; 6] = [16 << 40, 4 << 40, 1 << 40, 256 << 30, 64 << 30, LEAST];

/// Less than this is not worth having.
const LEAST: usize = 16 << 30;

/// What that takes of the addresses that a process may have.
pub(crate) const TAKES: RangeInclusive<usize> = LEAST + ALIGN..=SIZES[0] + ALIGN;

static ARENA: OnceLock<Arena> = OnceLock::new();

/// The one arena of the process.
pub(crate) struct Arena {
    base: usize,
    slots: usize,
    free: Mutex<Ranges>,
}

impl Arena {
    /// The arena, set up at the first call.
    pub(crate) fn open() -> Result<&'static Arena, SystemError> {
        if let Some(arena) = ARENA.get() {
            return Ok(arena);
        }
        // Before the first lock of ours is taken, which a child of another thread's fork might find held for ever, and before
        // the first range is used: from then on a child would have holes.
        owner::claim(close_holes)?;
        let arena = Arena::reserve()?;
        Ok(ARENA.get_or_init(|| arena))
    }

    /// The arena if it is set up. For the fault handler.
    pub(crate) fn get() -> Option<&'static Arena> {
        ARENA.get()
    }

    fn reserve() -> Result<Arena, SystemError> {
        let mut refused = Errno::NOMEM;
        for size in SIZES {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new anonymous mapping touches nothing that exists.
            match unsafe { mmap_anonymous(ptr::null_mut(), size + ALIGN, ProtFlags::empty(), flags) } {
                Ok(at) => {
                    let slots = size / SLOT;
                    let arena = Arena {
                        base: at.expose_provenance().next_multiple_of(ALIGN),
                        slots,
                        free: Mutex::new(Ranges::new(slots)),
                    };
                    // The first range of all, for good.
                    let zeros = arena.take(ZEROS, ALIGN)?;
                    debug_assert_eq!(zeros, arena.zeros());
                    arena.show_zeros(zeros, ZEROS)?;
                    return Ok(arena);
                }
                Err(errno) => refused = errno,
            }
        }
        named("mmap of the region arena", Err(refused))
    }

    /// A range of at least `len` bytes followed by unused addresses, aligned to `align`.
    pub(crate) fn take(&self, len: usize, align: usize) -> Result<usize, SystemError> {
        let slots = slots_of(len);
        let _signals = SignalsBlocked::new();
        let taken = self.free().take(slots, (align / SLOT).max(1));
        let range = taken.ok_or(SystemError::new("taking addresses for it (raise RLIMIT_AS)", Errno::NOMEM))?;
        Ok(self.base + range.start * SLOT)
    }

    /// Makes a range that was just taken, and that nobody knows yet, read as zeros. In no moment is it in a `fork(2)` child,
    /// where zeros would look like data that was lost.
    pub(crate) fn show_zeros(&self, at: usize, len: usize) -> Result<(), SystemError> {
        let range = ptr::with_exposed_provenance_mut(at);
        // SAFETY: inaccessible as yet, and known to the caller alone; this advice changes no contents.
        named("madvise(MADV_DONTFORK)", unsafe { madvise(range, len, Advice::LinuxDontFork) })?;
        // With this, reading 2 MiB of zeros is one fault (the huge zero page) and not 512. A kernel without THP refuses.
        // SAFETY: as above.
        let _ = unsafe { madvise(range, len, Advice::LinuxHugepage) };
        // SAFETY: as above.
        named("mprotect", unsafe { mprotect(range, len, MprotectFlags::READ) })
    }

    /// [`ZEROS`] bytes that [`Arena::show_zeros`] made.
    pub(crate) fn zeros(&self) -> usize {
        self.base
    }

    /// Gives a range back that is inaccessible again.
    pub(crate) fn give_back(&self, at: usize, len: usize) {
        let _signals = SignalsBlocked::new();
        self.free().give_back(self.slots_of(at, len));
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The slots of a range that was taken.
    pub(crate) fn slots_of(&self, at: usize, len: usize) -> Range<usize> {
        let start = (at - self.base) / SLOT;
        start..start + slots_of(len)
    }

    /// The slot that `address` lies in, if it lies in the arena. For the fault handler.
    pub(crate) fn slot_of(&self, address: usize) -> Option<usize> {
        let slot = address.checked_sub(self.base)? / SLOT;
        (slot < self.slots).then_some(slot)
    }

    fn range(&self) -> Range<usize> {
        self.base..self.base + self.slots * SLOT
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Ranges> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs in each child that the C library forks, before anything that was registered later and before `fork` returns there.
extern "C" fn close_holes() {
    if let Some(arena) = Arena::get() {
        let Range { start, end } = arena.range();
        close(start, end - start);
    }
}

/// Makes what is mapped nowhere in a range inaccessible. What somebody has mapped there already stays: a handler that runs
/// before ours may have got memory. If the kernel refuses there is nobody to tell, and the accessors know the child anyway.
fn close(start: usize, len: usize) {
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: looks whether all of the range is mapped; with this flag it does nothing else.
    if unsafe { msync(at, len, MsyncFlags::ASYNC) }.is_ok() {
        return;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag it replaces nothing.
    let closed = unsafe { mmap_anonymous(at, len, ProtFlags::empty(), flags) };
    if closed == Err(Errno::EXIST) && len > BASE_PAGE {
        let half = (len / 2).next_multiple_of(BASE_PAGE);
        close(start, half);
        close(start + half, len - half);
    }
}

/// Slots that a range takes, at least one byte of the last of which stays unused.
fn slots_of(len: usize) -> usize {
    len / SLOT + 1
}
