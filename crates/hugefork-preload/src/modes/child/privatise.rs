//! Privatises blocks: plain memory in place of private mappings of the pool's file, with the same contents.
//!
//! ```text
//! place    | private mapping | ──▶ | the same, no pages: who needs one sleeps | ──▶ | huge page |  wake
//! parked   | nothing         |     | the pages ──────────── copy ─────┐       |     | nothing   |
//! staging  | nothing         |     | a new huge page of zeros ◀───────┘ ──────────── mremap ──┘
//! ```
//! Until the huge page is in its place, nothing is lost: a failure moves the pages back. What the file has no memory
//! for stays zero, so that it takes none.
//!
//! *Fault-ahead*: a block may also be held before its first touch. Its pages, none of which is private, are parked, so
//! that the next to use it sleeps and the helper is told. Whoever finds it so in another way, such as a copy of the
//! process by `clone(2)`, sees what the file has, which is right.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use hugefork_linux::parking::{Parking, clear};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap};
use syscalls::{Sysno, syscall};

use super::marks::{self, Session};
use super::userfaults::UserFaults;
use crate::line::Line;
use crate::proc::pages::Pagemap;
use crate::proc::shortage::has_swap;
use crate::{BASE_PAGE, HUGE_PAGE};

/// So many blocks are privatised in a session: whoever forks or unmaps waits for its end.
pub(super) const MOST: usize = 4;

/// So many streams are followed at once.
pub(super) const HEADS: usize = 4;
/// Each has two blocks that are held ahead.
const SLOTS: usize = 2 * HEADS;

/// What blocks are privatised with.
pub(super) struct Privatiser {
    pub(super) faults: UserFaults,
    pub(super) pagemap: Pagemap,
    /// Addresses for the pages of blocks that are held ahead, and then of those that are privatised. Whole huge pages.
    parked: usize,
}

/// What became of holding a block ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldAhead {
    Held,
    /// It has private pages already: it is held, and to be privatised in the same session.
    Written,
    Refused,
}

/// Blocks that are next to each other, and in which order they are wanted.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) places: Range<usize>,
    pub(super) is_downwards: bool,
    /// The slot of the first in order, if that is held ahead.
    pub(super) slot: Option<usize>,
}

/// The kernel has refused what it should not: nothing more is privatised in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused;

impl Privatiser {
    /// None if the process may not, or has no addresses.
    pub(super) fn open() -> Option<Privatiser> {
        let (faults, pagemap) = (UserFaults::open().ok()?, Pagemap::open().ok()?);
        let parked = aligned((SLOTS + MOST) * HUGE_PAGE, ProtFlags::empty())?;
        Some(Privatiser { faults, pagemap, parked })
    }

    fn slot(&self, slot: usize) -> usize {
        self.parked + slot * HUGE_PAGE
    }

    /// The number of private pages of a range; none if the kernel cannot say.
    pub(super) fn private_pages(&self, range: &Range<usize>) -> Option<usize> {
        let mut pages = 0;
        self.pagemap.own(range, |run| pages += run.len() / BASE_PAGE).ok()?;
        Some(pages)
    }

    /// Parks the pages of a range; who needs one sleeps.
    fn hold(&self, range: &Range<usize>, parked: usize) -> Result<(), Refused> {
        let held = self.faults.register(range).is_ok() && parking(range, parked).take_at_once().is_ok();
        if !held {
            // The helper leaves, and with it what the kernel may keep registered.
            let _ = self.faults.unregister(range);
        }
        held.then_some(()).ok_or(Refused)
    }

    /// Holds a block ahead.
    pub(super) fn hold_ahead(&self, _: &Session, block: usize, slot: usize) -> HeldAhead {
        let (range, parked) = (block..block + HUGE_PAGE, self.slot(slot));
        if self.hold(&range, parked).is_err() {
            return HeldAhead::Refused;
        }
        match self.private_pages(&(parked..parked + HUGE_PAGE)) {
            Some(0) => HeldAhead::Held,
            Some(_) | None => HeldAhead::Written,
        }
    }

    /// Lets those go who wait for a block that is held ahead: they have the file's pages.
    pub(super) fn let_on(&self, block: usize, slot: usize) -> Result<(), Refused> {
        self.let_in(block)?;
        empty(self.slot(slot), HUGE_PAGE);
        Ok(())
    }

    /// Nobody waits for a block any more, or will.
    pub(super) fn let_in(&self, block: usize) -> Result<(), Refused> {
        self.faults.unregister(&(block..block + HUGE_PAGE)).map_err(|_| Refused)
    }

    /// Privatises blocks, as many as can be. Those that are held ahead and stay here are let go of.
    pub(super) fn privatise(&self, _: &Session, batch: &Batch) -> Result<usize, Refused> {
        let Batch { places, is_downwards, slot } = batch.clone();
        let first = if is_downwards { places.end - HUGE_PAGE } else { places.start };
        let others = match (slot, is_downwards) {
            (None, _) => places.clone(),
            (Some(_), true) => places.start..first,
            (Some(_), false) => first + HUGE_PAGE..places.end,
        };
        let rest_parked = self.slot(SLOTS);
        let parked_at = |place: usize| match slot {
            Some(slot) if place == first => self.slot(slot),
            _ => rest_parked + (place - others.start),
        };
        let staging = new_huge(places.len());
        let held = match staging {
            Some(_) if others.is_empty() => Ok(()),
            Some(_) => self.hold(&others, rest_parked),
            None => Ok(()),
        };
        let count = places.len() / HUGE_PAGE;
        let in_order =
            |nth: usize| if is_downwards { places.end - (nth + 1) * HUGE_PAGE } else { places.start + nth * HUGE_PAGE };
        let (mut privatised, mut goes_on, mut woken) = (0, staging.is_some(), Ok(()));
        for place in (0..count).map(in_order) {
            let is_held = slot.is_some() && place == first || staging.is_some() && held.is_ok();
            let parked = parked_at(place);
            let is_privatised = goes_on
                && is_held
                && staging.is_some_and(|staging| self.privatise_one(parked, staging + (place - places.start), place));
            if is_privatised {
                marks::note_privatised(place);
                privatised += 1;
            } else {
                goes_on = false;
                if is_held {
                    bring_back(parked, place);
                }
                if let Some(staging) = staging {
                    unmap(staging + (place - places.start), HUGE_PAGE);
                }
            }
            if is_held {
                woken = woken.and(self.faults.wake(&(place..place + HUGE_PAGE)));
            }
        }
        slot.into_iter().for_each(|slot| empty(self.slot(slot), HUGE_PAGE));
        // Where the kernel has refused to take pages to, somebody else's may be by now.
        if staging.is_some() && held.is_ok() && !others.is_empty() {
            empty(rest_parked, others.len());
        }
        held.and(woken.map_err(|_| Refused)).map(|()| privatised)
    }

    /// One block. False if it is to be brought back.
    fn privatise_one(&self, parked: usize, staging: usize, place: usize) -> bool {
        if !self.copy(parked, staging) {
            // It is not tried again.
            marks::note_left(place);
            return false;
        }
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: the staging block is ours, and what is at the place has no pages.
        let moved =
            unsafe { mremap_fixed(staging as *mut c_void, HUGE_PAGE, HUGE_PAGE, flags, place as *mut c_void) }.is_ok();
        let behind = marks::behind(place);
        if moved && !behind.is_empty() {
            // None of the program's, and nobody would know it again as something that was inherited.
            unmap(behind.start, behind.len());
        }
        moved
    }

    /// Copies what there is of a block. False if there is nothing, or no memory.
    fn copy(&self, parked: usize, staging: usize) -> bool {
        let mut is_there = [0_u8; HUGE_PAGE / BASE_PAGE];
        // SAFETY: the call writes a byte for each page.
        let looked = unsafe { syscall!(Sysno::mincore, parked, HUGE_PAGE, is_there.as_mut_ptr()) };
        // Nobody can tell what was swapped out from what was never there. Asked afterwards: swap may come at any time.
        if looked.is_err() || has_swap() {
            is_there.fill(1);
        }
        if is_there.iter().all(|there| there & 1 == 0) {
            return false;
        }
        if is_there.iter().all(|there| there & 1 == 1) {
            // In one call, where it takes up to 32 faults. What it does not do, they do.
            populate(parked, HUGE_PAGE, Advice::LinuxPopulateRead);
        }
        // Just before it is filled, while the zeros are in the cache.
        if !populate(staging, HUGE_PAGE, Advice::LinuxPopulateWrite) {
            return false;
        }
        let mut from = 0;
        while let Some(skipped) = is_there[from..].iter().position(|there| there & 1 == 1) {
            let start = from + skipped;
            let len = is_there[start..].iter().position(|there| there & 1 == 0).unwrap_or(is_there.len() - start);
            from = start + len;
            let (start, len) = (start * BASE_PAGE, len * BASE_PAGE);
            // SAFETY: both are ours, whole blocks, and nobody else uses them.
            unsafe { ptr::copy_nonoverlapping((parked + start) as *const u8, (staging + start) as *mut u8, len) };
        }
        true
    }
}

/// Where the pages of a range lie.
fn parking(range: &Range<usize>, parked: usize) -> Parking<'static> {
    // SAFETY: the callers give blocks, and as many addresses of those for parked pages. Who uses the blocks meanwhile
    // sleeps. The kernel refuses a call for several mappings, since they are registered.
    unsafe { Parking::new(range.start, parked, range.len(), None) }
}

/// Moves the pages of a block back to its place.
fn bring_back(parked: usize, place: usize) {
    if parking(&(place..place + HUGE_PAGE), parked).bring_back().is_err() {
        abort_without(place);
    }
}

/// Pages cannot be moved back to their place. Without them the program would not see its memory.
#[cold]
pub(super) fn abort_without(place: usize) -> ! {
    Line::new(format_args!("hugefork: the kernel refused to move memory back to {place:#x}; aborting"))
        .write_to(libc::STDERR_FILENO);
    std::process::abort();
}

/// Gives up what is parked, and keeps the addresses.
fn empty(at: usize, len: usize) {
    // SAFETY: our own addresses. If the kernel refuses, the next that comes there takes its place.
    let _ = unsafe { clear(at, len) };
}

pub(super) fn unmap(at: usize, len: usize) {
    // SAFETY: our own, and nobody uses it any more.
    let _ = unsafe { munmap(at as *mut c_void, len) };
}

/// New addresses from a multiple of 2 MiB on.
fn aligned(len: usize, rights: ProtFlags) -> Option<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping where the kernel likes.
    let whole = unsafe { mmap_anonymous(ptr::null_mut(), len + HUGE_PAGE, rights, flags) }.ok()? as usize;
    let start = whole.next_multiple_of(HUGE_PAGE);
    for (at, len) in [(whole, start - whole), (start + len, whole + HUGE_PAGE - start)] {
        if len > 0 {
            unmap(at, len);
        }
    }
    Some(start)
}

/// Addresses for new memory in huge pages, which come as they are filled.
fn new_huge(len: usize) -> Option<usize> {
    let start = aligned(len, ProtFlags::READ | ProtFlags::WRITE)?;
    // SAFETY: our own new memory. A kernel without huge pages refuses.
    let _ = unsafe { madvise(start as *mut c_void, len, Advice::LinuxHugepage) };
    Some(start)
}

/// Has the kernel make pages of a range there. False if it has no memory.
fn populate(at: usize, len: usize, advice: Advice) -> bool {
    // SAFETY: our own memory, whose contents stay.
    unsafe { madvise(at as *mut c_void, len, advice) }.is_ok()
}
