//! `mmap` and `munmap`: the pool gives the memory, and unmaps what it gave.

use std::ffi::{c_int, c_void};

use super::parts::{refused, special};
use crate::interposed::kernel::{kernel, quietly};
use crate::pool::{self, Wish};
use crate::threads::worker;

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
    let wish = Wish { hint: start as usize, len, rights, flags };
    if let Some(given) = quietly(|| pool::map(&wish)) {
        quietly(worker::start);
        return given as *mut c_void;
    }
    let (mut flags, mut taken) = (flags, None);
    let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if (is_fixed || !start.is_null() && flags & !FOLLOWED == 0)
        && let Some(range) = special(start, len)
    {
        if is_fixed && flags & libc::MAP_FIXED_NOREPLACE == 0 {
            // If the kernel refuses, what was is there still.
            if !quietly(|| pool::hand_over(&range) && pool::make_way(&range)) {
                return refused(libc::ENOMEM);
            }
            taken = Some(range);
        } else if quietly(|| pool::take_if_free(&range)) {
            // The kernel sees addresses there that are kept for later.
            flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
            taken = Some(range);
        }
    }
    // SAFETY: the caller's.
    let mapped = unsafe { kernel!(libc::SYS_mmap, start, len, rights, flags, file, offset) };
    if let Some(range) = taken {
        quietly(|| pool::settle(&range, mapped != -1));
    }
    mapped as *mut c_void
}

/// As libc's `mmap64`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(start, len, rights, flags, file, offset) }
}

/// As libc's `munmap`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(start: *mut c_void, len: usize) -> c_int {
    if let Some(range) = special(start, len) {
        if let Some(behind) = pool::behind(&range) {
            // First: where addresses end, only the kernel knows, and what it refuses changes nothing.
            // SAFETY: the caller's.
            let done = unsafe { kernel!(libc::SYS_munmap, behind.start, behind.len()) };
            if done != 0 {
                return -1;
            }
        }
        if quietly(|| pool::unmap(&range)) {
            return 0;
        }
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_munmap, start, len) as c_int }
}
