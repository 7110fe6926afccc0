//! A second mapping of all that a child has inherited, which shows what the pool's file has below the child's private
//! pages. Nobody but the child's thread reads it.
//!
//! ```text
//! place  | private mapping, pages | ──▶ | the same, no pages | ──▶ | private mapping, pages |
//! twin   | nothing                |     | the same, pages    |     | the same, no pages     |
//! ```
//! It is made in the handler of the fork, when the child has one thread, by moving page tables there and back. So no
//! descriptor of the file is needed, which a child does not have: whoever has it has the parent's memory, now and
//! later. A child's child inherits the twins.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use hugefork_linux::parking::Parking;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};

use super::marks;
use super::privatise::{abort_without, unmap};
use crate::HUGE_PAGE;
use crate::proc::mappings;

/// How far behind its place a twin lies; 0: there are none.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

/// Makes the twins, unless they are there. False if there are none: nothing is inherited, there are too many mappings
/// for as many again, or the kernel refuses. Allocates nothing. Nobody else may use what is inherited meanwhile.
pub(super) fn make() -> bool {
    if DISTANCE.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let Some((all, pieces)) = inherited() else { return false };
    // Each may cut what keeps the addresses, and be in two for a moment. At the limit, nothing could be moved back.
    if !mappings::have_room_for(4 * pieces) {
        return false;
    }
    let Some(twins) = keep_addresses(&all) else { return false };
    let distance = twins.start.wrapping_sub(all.start);
    let mut is_made = true;
    let told = mappings::inherited(&all, |piece, _| is_made = is_made && make_one(&piece, distance));
    if told.is_err() || !is_made {
        unmap(twins.start, twins.len());
        return false;
    }
    marks::note_twins(&twins);
    DISTANCE.store(distance, Ordering::Relaxed);
    true
}

/// From the first block that is inherited to behind the last, and how many mappings there are.
fn inherited() -> Option<(Range<usize>, usize)> {
    let mut all: Option<(Range<usize>, usize)> = None;
    let note = |piece: Range<usize>, _| {
        let (start, pieces) = all.take().map_or((piece.start, 0), |(all, pieces)| (all.start, pieces));
        all = Some((start..piece.end, pieces + 1));
    };
    mappings::inherited(&marks::addresses(), note).ok()?;
    let whole = |all: Range<usize>| all.start / HUGE_PAGE * HUGE_PAGE..all.end.next_multiple_of(HUGE_PAGE);
    all.map(|(all, pieces)| (whole(all), pieces))
}

/// As many addresses as `all`, at the end of the engine's: none that the program was ever given, and if it takes them
/// all the same, that is noticed (marks.rs).
fn keep_addresses(all: &Range<usize>) -> Option<Range<usize>> {
    let end = marks::addresses().end / HUGE_PAGE * HUGE_PAGE;
    let start = end.checked_sub(all.len()).filter(|start| *start >= all.end)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag it replaces nothing.
    unsafe { mmap_anonymous(start as *mut _, all.len(), ProtFlags::empty(), flags) }.ok()?;
    Some(start..end)
}

/// Makes the twin of one mapping.
fn make_one(place: &Range<usize>, distance: usize) -> bool {
    let (twin, len) = (place.start.wrapping_add(distance), place.len());
    if place.contains(&(&raw const len).addr()) {
        // This thread's own stack.
        return false;
    }
    // SAFETY: addresses of ours, and a mapping that nobody uses meanwhile: this process has one thread.
    let parking = unsafe { Parking::new(place.start, twin, len, None) };
    if parking.take_at_once().is_err() {
        return false;
    }
    if parking.bring_back().is_err() {
        abort_without(place.start);
    }
    // SAFETY: ours, and without pages.
    unsafe {
        let _ = madvise(twin as *mut _, len, Advice::LinuxDontDump);
        mprotect(twin as *mut _, len, MprotectFlags::READ).is_ok()
    }
}

/// Where the twin of an address is, which is inherited and there.
pub(super) fn of(place: usize) -> usize {
    place.wrapping_add(DISTANCE.load(Ordering::Relaxed))
}

/// Takes the pages of a block's twin off the page tables, so that they count for nobody.
pub(super) fn drop_pages(block: usize) {
    // SAFETY: ours; the next to read it has the file's pages again.
    let _ = unsafe { madvise(of(block) as *mut _, HUGE_PAGE, Advice::LinuxDontNeed) };
}
