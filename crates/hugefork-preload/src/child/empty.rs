//! What the child drops of what it has inherited is to read as zeros: a private mapping would show the file again.
//!
//! It gets the kernel's page of zeros, which keeps the mapping with its flags: programs drop many small pieces one by
//! one (Redis each value that it has saved), and other mappings in their places would be two more for each, of which a
//! process may have 65 530. Where the process may not handle page faults, such a part is anonymous memory, as long as
//! it may have mappings; and after that it is written.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::userfaults;
use crate::proc::mappings;
use crate::threads::signals;

/// What became of contents that the program drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// They are zero.
    All,
    /// The kernel is to do it.
    Plain,
    /// They are up to where something is locked.
    Locked,
    /// They are what they were, at least in part: nobody can say whose they are just now, or the kernel refuses.
    Refused,
}

/// What is done about memory that the program has locked and drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    /// It stays.
    Heeded,
    Ignored,
}

/// Whether the program may have locked what is inherited.
static MAY_BE_LOCKED: AtomicBool = AtomicBool::new(false);

/// The program is about to lock memory: nothing of such is dropped.
pub(crate) fn heed_locks() {
    MAY_BE_LOCKED.store(true, Ordering::Relaxed);
}

/// Drops the contents of a range; `plain` has the kernel do so where nothing is inherited, up to where it says that it
/// does not go on, or to where something is locked, if that is heeded. What cannot be dropped stays as it is, since the
/// kernel alone would show the file's: nobody can say what is inherited, or the kernel refuses all ways to show zeros.
pub(crate) fn empty(range: &Range<usize>, locks: Locks, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    let (mut next, mut goes_on, mut is_done, mut has_locked) = (range.start, true, true, false);
    let told = mappings::inherited(range, |piece, rights| {
        goes_on = goes_on && (next >= piece.start || plain(next..piece.start));
        has_locked |= goes_on && locks == Locks::Heeded && is_locked(&piece);
        goes_on &= !has_locked;
        next = piece.end;
        is_done &= !goes_on || empty_inherited(&piece, rights);
    });
    goes_on = goes_on && told.is_ok() && (next >= range.end || plain(next..range.end));
    match goes_on && is_done {
        true => Emptied::All,
        false if has_locked => Emptied::Locked,
        false => Emptied::Refused,
    }
}

/// Whether one mapping is locked.
fn is_locked(piece: &Range<usize>) -> bool {
    // The kernel refuses this advice of locked memory. It drops nothing.
    // SAFETY: the program's own memory, whose contents stay.
    let advise = || unsafe { madvise(piece.start as *mut c_void, piece.len(), Advice::LinuxCold) };
    MAY_BE_LOCKED.load(Ordering::Relaxed) && advise() == Err(Errno::INVAL)
}

/// One mapping. False if some of it is as it was.
fn empty_inherited(piece: &Range<usize>, rights: ProtFlags) -> bool {
    // The first way shows the file if it fails in the middle: then all that is left is to write there.
    rights.contains(ProtFlags::READ | ProtFlags::WRITE) && shows_zeros(piece) || replace(piece, rights)
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
