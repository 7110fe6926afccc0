//! `madvise`: the pool empties its own memory, and leaves to the kernel all advice that changes
//! more than contents.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::parts::{AtHole, by_parts, special};
use crate::interposed::kernel::{errno, failed, kernel, quietly};
use crate::pool::{self, Emptied, Locks, Zeros};
use crate::proc::mappings;

/// Like libc's `madvise`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    let at_hole = match advice {
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => AtHole::Stop,
        _ => AtHole::GoOn,
    };
    // SAFETY: the caller vouches for the call.
    by_parts(start as usize, len, at_hole, |start, len| unsafe { advise(start as *mut c_void, len, advice) })
}

/// `MADV_GUARD_INSTALL` (Linux 6.13).
const GUARD_INSTALL: c_int = 102;

/// Handles a part of the range that is mapped without gaps.
///
/// # Safety
/// As for libc's `madvise`.
unsafe fn advise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if let Some(range) = special(start, len) {
        let said = Cell::new(0);
        let plain = |others: Range<usize>| {
            // SAFETY: the caller vouches for the call.
            let done = unsafe { kernel!(libc::SYS_madvise, others.start, others.len(), advice) } == 0;
            if !done {
                said.set(errno());
            }
            // The kernel continues after unmapped addresses, and so does the loop.
            done || said.get() == libc::ENOMEM
        };
        let is_done = match advice {
            // With `MADV_FREE` the kernel may drop the pages at any time, so dropping them now is correct.
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                let locks = if advice == libc::MADV_DONTNEED_LOCKED { Locks::Ignored } else { Locks::Heeded };
                match quietly(|| pool::empty(&range, locks, plain)) {
                    Emptied::All if said.get() == 0 => true,
                    Emptied::Plain => false,
                    Emptied::Locked => return failed(libc::EINVAL),
                    // The kernel's error for its own parts; otherwise the error that it gives when it lacks resources.
                    Emptied::All | Emptied::Refused => {
                        return failed(if said.get() != 0 { said.get() } else { libc::ENOMEM });
                    }
                }
            }
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_HUGEPAGE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_DODUMP
            | libc::MADV_DOFORK => quietly(|| pool::is_all_ours(&range)),
            libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => false,
            GUARD_INSTALL | libc::MADV_WIPEONFORK => {
                // Guard pages: the kernel drops the contents, and after the guards are removed, inherited memory would
                // show the file's contents again. Wipe-on-fork: the kernel allows it for anonymous memory only.
                if !quietly(|| pool::make_own(&range, Zeros::Copied)) {
                    return failed(libc::EAGAIN);
                }
                false
            }
            _ => {
                quietly(|| pool::hand_over(&range));
                false
            }
        };
        if is_done {
            return 0;
        }
    }
    // SAFETY: the caller vouches for the call.
    let done = unsafe { kernel!(libc::SYS_madvise, start, len, advice) as c_int };
    // For inherited memory, a private file mapping, the kernel gives an error that anonymous memory would not give
    // (`EINVAL`).
    if done != 0
        && advice == libc::MADV_REMOVE
        && let Some(range) = special(start, len)
        && errno() == libc::EACCES
        && quietly(|| mappings::has_inherited(&range))
    {
        return failed(libc::EINVAL);
    }
    done
}
