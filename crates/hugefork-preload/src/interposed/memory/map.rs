//! `mmap` and `munmap`: the mode gives the memory, or is told of the new mapping, and unmaps what it gave.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::parts::{refused, special};
use crate::interposed::kernel::{errno, kernel, quietly};
use crate::modes::{self, Mapping, Wish};
use crate::{BASE_PAGE, fork};

/// A mapping with no other flags lies at its hint, if nothing is there.
const FOLLOWED: c_int =
    libc::MAP_PRIVATE | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE;

/// As libc's `mmap`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let wish = Wish { hint: start as usize, len, rights, flags, file, offset };
    if let Some(given) = quietly(|| modes::map(&wish)) {
        if modes::wants_worker() {
            quietly(fork::want_worker);
        }
        return given as *mut c_void;
    }
    let (mut flags, mut taken) = (flags, None);
    let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if (is_fixed || !start.is_null() && flags & !FOLLOWED == 0)
        && let Some(range) = special(start, len)
        && !quietly(|| goes_beyond(&range))
    {
        // What the kernel refuses, whatever the place, leaves there what was.
        // SAFETY: the caller's.
        let refusal = unsafe { refusal(len, rights, flags, file, offset) };
        if is_fixed && flags & libc::MAP_FIXED_NOREPLACE == 0 {
            match refusal {
                None if quietly(|| modes::make_way(&range)) => {}
                // There may be no memory for one more: only the kernel can say. What was is there until it has said.
                Some(libc::ENOMEM) if quietly(|| modes::hand_over(&range) && modes::make_way(&range)) => {}
                refusal => return refused(refusal.unwrap_or(libc::ENOMEM)),
            }
            taken = Some(range);
        } else if refusal.is_none() && quietly(|| modes::take_if_free(&range)) {
            // The kernel sees addresses there that are kept for later.
            flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
            taken = Some(range);
        }
    }
    // SAFETY: the caller's.
    let mapped = unsafe { kernel!(libc::SYS_mmap, start, len, rights, flags, file, offset) };
    if let Some(range) = taken {
        quietly(|| modes::settle(&range, mapped != -1));
    }
    if mapped != -1 {
        modes::mapped(&Mapping { start: mapped as usize, len, rights, flags });
    }
    mapped as *mut c_void
}

/// What the kernel says if it refuses a mapping at any address, none in particular.
///
/// # Safety
/// As libc's `mmap`.
unsafe fn refusal(len: usize, rights: c_int, flags: c_int, file: c_int, offset: i64) -> Option<c_int> {
    quietly(|| {
        let flags = flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE);
        // SAFETY: a new mapping where the kernel likes, which nobody uses.
        unsafe {
            match kernel!(libc::SYS_mmap, 0, len, rights, flags, file, offset) {
                -1 => Some(errno()),
                tried => {
                    kernel!(libc::SYS_munmap, tried, len);
                    None
                }
            }
        }
    })
}

/// Whether a range ends where no process has addresses, as far as nothing lies behind it that the mode knows of.
pub(super) fn goes_beyond(range: &Range<usize>) -> bool {
    if modes::behind(range).is_none() {
        return false;
    }
    let (last, flags) = (range.end - BASE_PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: a new mapping that replaces nothing, and that nobody uses.
    unsafe {
        match kernel!(libc::SYS_mmap, last, BASE_PAGE, libc::PROT_NONE, flags, -1, 0) {
            -1 => errno() == libc::ENOMEM,
            tried => {
                kernel!(libc::SYS_munmap, tried, BASE_PAGE);
                false
            }
        }
    }
}

/// As libc's `munmap`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(start: *mut c_void, len: usize) -> c_int {
    if let Some(range) = special(start, len) {
        if let Some(behind) = modes::behind(&range) {
            // First: where addresses end, only the kernel knows, and what it refuses changes nothing.
            // SAFETY: the caller's.
            let done = unsafe { kernel!(libc::SYS_munmap, behind.start, behind.len()) };
            if done != 0 {
                return -1;
            }
        }
        if quietly(|| modes::unmap(&range)) {
            return 0;
        }
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_munmap, start, len) as c_int }
}
