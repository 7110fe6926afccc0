//! What the child drops of what it has inherited is to read as zeros: a private mapping would show the file again.
//!
//! Whole blocks become anonymous memory. Parts of blocks get the kernel's page of zeros instead: programs drop many
//! small pieces one by one (Redis each value that it has saved), and each would cost two mappings, of which a process
//! may have 65 530. Where the process may not handle page faults, such a part is anonymous memory, too, as long as it
//! may have mappings; and after that it is written.
//!
//! A new mapping has none of the flags of the old one (`MADV_DONTFORK`, a key). Locked memory is not dropped.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::userfaults;
use crate::HUGE_PAGE;
use crate::proc::mappings;
use crate::threads::signals;

/// Drops the contents of a range; `plain` has the kernel do so where nothing is inherited, up to where it says that it
/// does not go on. False if it cannot be done: it has said so, nobody can say what is inherited, or the kernel refuses
/// all ways to show zeros. What is not dropped then stays as it is, since the kernel alone would show the file's.
pub(crate) fn empty(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> bool {
    let (mut next, mut goes_on, mut is_done) = (range.start, true, true);
    let told = mappings::inherited(range, |piece, rights| {
        goes_on = goes_on && (next >= piece.start || plain(next..piece.start));
        next = piece.end;
        is_done &= !goes_on || empty_inherited(&piece, rights);
    });
    goes_on = goes_on && told.is_ok() && (next >= range.end || plain(next..range.end));
    goes_on && is_done
}

/// Whether one mapping is locked: the kernel drops nothing of such.
fn is_locked(piece: &Range<usize>) -> bool {
    // The kernel refuses this advice of locked memory. It drops nothing.
    // SAFETY: the program's own memory, whose contents stay.
    unsafe { madvise(piece.start as *mut c_void, piece.len(), Advice::LinuxCold) == Err(Errno::INVAL) }
}

/// One mapping. False if some of it is as it was. The page of zeros leaves the mapping its flags; where it is not to be
/// had, anonymous memory shows zeros.
fn empty_inherited(piece: &Range<usize>, rights: ProtFlags) -> bool {
    if is_locked(piece) {
        return false;
    }
    let is_writable = rights.contains(ProtFlags::READ | ProtFlags::WRITE);
    let first = piece.start.next_multiple_of(HUGE_PAGE).min(piece.end);
    let last = (piece.end / HUGE_PAGE * HUGE_PAGE).max(first);
    // Whole blocks are seldom: to have them replaced takes the page tables away, too.
    [piece.start..first, last..piece.end].into_iter().all(|part| {
        // The first way shows the file if it fails in the middle: then all that is left is to write there.
        part.is_empty() || is_writable && shows_zeros(&part) || replace(&part, rights)
    }) && (first == last || replace(&(first..last), rights))
}

/// Whether a part of a block reads as zeros from now on.
fn shows_zeros(part: &Range<usize>) -> bool {
    static MAY: AtomicBool = AtomicBool::new(true);
    if !MAY.load(Ordering::Relaxed) {
        return false;
    }
    // A handler of the program's in this thread would sleep for ever, if it came there meanwhile.
    let mask = signals::block();
    // SAFETY: the program drops it.
    let shown = unsafe { userfaults::show_zeros(part) };
    mask.restore();
    if matches!(shown, Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS)) {
        MAY.store(false, Ordering::Relaxed);
    }
    shown.is_ok()
}

/// Shows anonymous memory there, or fills it. False if the kernel refuses, and the program may not write there.
fn replace(part: &Range<usize>, rights: ProtFlags) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the program's own memory, which is to read as zeros.
    let mapped = unsafe { mmap_anonymous(part.start as *mut c_void, part.len(), rights, flags) };
    if mapped.is_err() && !rights.contains(ProtFlags::READ | ProtFlags::WRITE) {
        return false;
    }
    if mapped.is_err() {
        // SAFETY: as above, and it can be written.
        unsafe { (part.start as *mut u8).write_bytes(0, part.len()) };
    }
    true
}
