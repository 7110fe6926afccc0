//! `mmap` and `munmap`: the pool provides memory, and unmaps its own.

use std::ffi::{c_int, c_void};

use super::parts::{refused, special};
use crate::interposed::kernel::{kernel, quietly};
use crate::pool::{self, Wish};
use crate::threads::worker;

/// The flags with which a mapping is placed at its hint if the hint is free.
const FOLLOWED: c_int =
    libc::MAP_PRIVATE | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE;

/// Like libc's `mmap`.
///
/// # Safety
/// As for libc's function.
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
            // If the kernel refuses, the old contents must still be there.
            if !quietly(|| pool::hand_over(&range) && pool::make_way(&range)) {
                return refused(libc::ENOMEM);
            }
            taken = Some(range);
        } else if quietly(|| pool::take_if_free(&range)) {
            // For the kernel the pool's reserved addresses are mapped, so `NOREPLACE` would fail.
            flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
            taken = Some(range);
        }
    }
    // SAFETY: the caller vouches for the call.
    let mapped = unsafe { kernel!(libc::SYS_mmap, start, len, rights, flags, file, offset) };
    if let Some(range) = taken {
        quietly(|| pool::finish_way(&range, mapped != -1));
    }
    mapped as *mut c_void
}

/// Like libc's `mmap64`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller vouches for the call.
    unsafe { mmap(start, len, rights, flags, file, offset) }
}

/// Like libc's `munmap`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(start: *mut c_void, len: usize) -> c_int {
    if let Some(range) = special(start, len) {
        if let Some(behind) = pool::behind(&range) {
            // The part above the pool comes first: only the kernel knows the end of the address space, and its refusal
            // must change nothing. SAFETY: the caller vouches for the call.
            let done = unsafe { kernel!(libc::SYS_munmap, behind.start, behind.len()) };
            if done != 0 {
                return -1;
            }
        }
        if quietly(|| pool::unmap(&range)) {
            return 0;
        }
    }
    // SAFETY: the caller vouches for the call.
    unsafe { kernel!(libc::SYS_munmap, start, len) as c_int }
}
