//! Drops the contents of inherited memory in a child. They must read as zeros, but a private
//! mapping would show the file again.
//!
//! The range gets the kernel's zero page, which preserves the mapping with its flags. Programs drop
//! many small pieces one by one (Redis drops each value after saving it). Replacing each piece by a
//! mapping would add two mappings, and a process may have only 65 530. If the process may not
//! handle page faults, the piece is replaced by anonymous memory as long as mappings are left;
//! after that it is overwritten with zeros.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::userfaults;
use crate::proc::mappings;
use crate::threads::signals;

/// The result of dropping contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// All contents are zero.
    All,
    /// The kernel should drop them.
    Plain,
    /// The contents are zero up to a locked part.
    Locked,
    /// At least a part is unchanged: its owner could not be determined, or the kernel refused.
    Refused,
}

/// The treatment of memory that the program has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    /// Locked memory is not dropped.
    Heeded,
    Ignored,
}

/// Whether the program may have locked inherited memory.
static MAY_BE_LOCKED: AtomicBool = AtomicBool::new(false);

/// Notes that the program is about to lock memory, which must not be dropped from now on.
pub(crate) fn heed_locks() {
    MAY_BE_LOCKED.store(true, Ordering::Relaxed);
}

/// Drops the contents of a range. For parts that are not inherited it calls `plain`, and stops when that returns false,
/// or at locked memory if `locks` says so. A part that cannot be dropped is unchanged, since the kernel alone would
/// show the file's contents there.
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

/// Whether a mapping is locked.
fn is_locked(piece: &Range<usize>) -> bool {
    // The kernel refuses this advice for locked memory, and it drops nothing. SAFETY: the program's own memory; its
    // contents are preserved.
    let advise = || unsafe { madvise(piece.start as *mut c_void, piece.len(), Advice::LinuxCold) };
    MAY_BE_LOCKED.load(Ordering::Relaxed) && advise() == Err(Errno::INVAL)
}

/// Empties one mapping. Returns false if a part of it is unchanged.
fn empty_inherited(piece: &Range<usize>, rights: ProtFlags) -> bool {
    // If the first way fails in the middle, the file shows, and only writing zeros is left.
    rights.contains(ProtFlags::READ | ProtFlags::WRITE) && shows_zeros(piece) || replace(piece, rights)
}

/// Maps zero pages over a part of a block; returns whether that succeeded.
fn shows_zeros(part: &Range<usize>) -> bool {
    static MAY: AtomicBool = AtomicBool::new(true);
    if !MAY.load(Ordering::Relaxed) {
        return false;
    }
    // A signal handler of the program in this thread would sleep for ever if it accessed the range.
    // SAFETY: the program drops the range.
    let shown = signals::blocked(|| unsafe { userfaults::show_zeros(part) });
    if matches!(shown, Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS)) {
        MAY.store(false, Ordering::Relaxed);
    }
    shown.is_ok()
}

/// Maps anonymous memory over the range, or writes zeros. Returns false if the kernel refuses and the range is not
/// writable.
fn replace(part: &Range<usize>, rights: ProtFlags) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the program's own memory, which must read as zeros.
    let mapped = unsafe { mmap_anonymous(part.start as *mut c_void, part.len(), rights, flags) };
    if mapped.is_err() && !rights.contains(ProtFlags::READ | ProtFlags::WRITE) {
        return false;
    }
    if mapped.is_err() {
        // SAFETY: as above, and it is writable.
        unsafe { (part.start as *mut u8).write_bytes(0, part.len()) };
    }
    true
}
