//! What the child drops of what it has inherited is to read as zeros: a private mapping would show the file again.
//!
//! Whole blocks become anonymous memory. Parts of blocks get the kernel's page of zeros instead: programs drop many
//! small pieces one by one (Redis each value that it has saved), and each would cost two mappings, of which a process
//! may have 65 530. Where the process may not handle page faults, such a part is anonymous memory, too, as long as it
//! may have mappings; and after that it is written.
//!
//! A new mapping has none of the flags of the old one. So once the program has given some to what is inherited
//! (`MADV_DONTFORK`, `mlock`, a key), whole blocks get the page of zeros, too.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::noted;
use super::userfaults;
use crate::HUGE_PAGE;
use crate::proc::mappings;
use crate::sandbox::withdrawn;
use crate::threads::signals;

/// Drops the contents of a range; `plain` has the kernel do so where nothing is inherited, up to where it says that it
/// does not go on. False if it cannot be done: it has said so, nobody can say what is inherited, or the kernel refuses
/// all ways to show zeros. What is not dropped then stays as it is, since the kernel alone would show the file's.
pub(in crate::modes) fn empty(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> bool {
    let (mut next, mut goes_on, mut is_done, mut has_begun) = (range.start, true, true, false);
    let told = mappings::inherited(range, |piece, rights| {
        has_begun = true;
        goes_on = goes_on && (next >= piece.start || plain(next..piece.start));
        next = piece.end;
        is_done &= !goes_on || empty_inherited(&piece, rights);
    });
    if told.is_err() && !has_begun {
        return noted::empty(range, plain);
    }
    goes_on = goes_on && told.is_ok() && (next >= range.end || plain(next..range.end));
    goes_on && is_done
}

/// Whether what is inherited may have flags of the program's.
static HAS_FLAGS: AtomicBool = AtomicBool::new(false);

/// The program gives flags to what is inherited: they are to stay, in children too.
pub(in crate::modes) fn keep_flags() {
    HAS_FLAGS.store(true, Ordering::Relaxed);
}

/// Where something that the program has locked begins in a range: the kernel drops nothing from there on.
pub(in crate::modes) fn first_locked(range: &Range<usize>) -> Option<usize> {
    if !HAS_FLAGS.load(Ordering::Relaxed) || withdrawn::is_withdrawn() {
        return None;
    }
    let mut found = None;
    let _ = mappings::inherited(range, |piece, _| {
        if found.is_none() && is_locked(&piece) {
            found = Some(piece.start);
        }
    });
    found
}

/// Whether one mapping is locked.
pub(super) fn is_locked(piece: &Range<usize>) -> bool {
    // The kernel refuses this advice of locked memory. It drops nothing.
    // SAFETY: the program's own memory, whose contents stay.
    let advise = || unsafe { madvise(piece.start as *mut c_void, piece.len(), Advice::LinuxCold) };
    HAS_FLAGS.load(Ordering::Relaxed) && advise() == Err(Errno::INVAL)
}

/// One mapping. False if some of it is as it was.
fn empty_inherited(piece: &Range<usize>, rights: ProtFlags) -> bool {
    let (mut is_done, is_writable) = (true, rights.contains(ProtFlags::READ | ProtFlags::WRITE));
    if HAS_FLAGS.load(Ordering::Relaxed) && is_writable && shows_zeros(piece) {
        return true;
    }
    let first = piece.start.next_multiple_of(HUGE_PAGE).min(piece.end);
    let last = (piece.end / HUGE_PAGE * HUGE_PAGE).max(first);
    for part in [piece.start..first, last..piece.end] {
        // The first way shows the file if it fails in the middle: then all that is left is to write there.
        is_done &= part.is_empty() || is_writable && shows_zeros(&part) || replace(&part, rights);
    }
    is_done && (first == last || replace(&(first..last), rights))
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
