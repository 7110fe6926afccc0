//! Calls that change the protection of memory, lock it or query it by page: `mprotect`, `mlock`,
//! `msync`, `mincore` and their like.

use std::ffi::{c_int, c_void};

use super::parts::{AtHole, by_parts, make_plain, special};
use crate::child::heed_locks;
use crate::interposed::kernel::{kernel, quietly};
use crate::{BASE_PAGE, pool};

/// Like libc's `mprotect`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(start: *mut c_void, len: usize, rights: c_int) -> c_int {
    by_parts(start as usize, len, AtHole::Stop, |start, len| {
        if let Some(range) = special(start as *mut c_void, len) {
            if quietly(|| pool::has_rights(&range, rights)) {
                return 0;
            }
            quietly(|| pool::hand_over(&range));
        }
        // SAFETY: the caller vouches for the call.
        unsafe { kernel!(libc::SYS_mprotect, start, len, rights) as c_int }
    })
}

/// Like libc's `pkey_mprotect`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(start: *mut c_void, len: usize, rights: c_int, key: c_int) -> c_int {
    if key == -1 {
        // SAFETY: the caller vouches for the call.
        return unsafe { mprotect(start, len, rights) };
    }
    by_parts(start as usize, len, AtHole::Stop, |start, len| {
        make_plain(start as *mut c_void, len);
        // SAFETY: the caller vouches for the call.
        unsafe { kernel!(libc::SYS_pkey_mprotect, start, len, rights, key) as c_int }
    })
}

/// Defines the calls that lock memory, which is handed over to the kernel first, and those that unlock it. Their first
/// argument need not be the start of a page.
macro_rules! locks {
    ($($name:ident, $call:ident, $flags:ident: $kind:ty;)*) => {$(
        /// Like libc's function.
        ///
        /// # Safety
        /// As for libc's function.
        #[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(start: *mut c_void, len: usize, $flags: $kind) -> c_int {
            let within = start as usize % BASE_PAGE;
            heed_locks();
            by_parts(start as usize - within, len.saturating_add(within), AtHole::Stop, |start, len| {
                make_plain(start as *mut c_void, len);
                // SAFETY: the caller vouches for the call. `mlock` and `munlock` take no flags, and the kernel ignores
                // the argument.
                unsafe { kernel!(libc::$call, start, len, $flags) as c_int }
            })
        }
    )*};
}

locks! {
    mlock, SYS_mlock, none: c_int;
    mlock2, SYS_mlock2, flags: c_int;
    munlock, SYS_munlock, none: c_int;
}

/// Like libc's `msync`, which programs also use to test for mappings. It is no cancellation point here.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn msync(start: *mut c_void, len: usize, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for the call.
    let sync = |start: usize, len: usize| unsafe { kernel!(libc::SYS_msync, start, len, flags) as c_int };
    by_parts(start as usize, len, AtHole::GoOn, sync)
}

/// Like libc's `mincore`, which programs also use to test for mappings.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mincore(start: *mut c_void, len: usize, seen: *mut u8) -> c_int {
    by_parts(start as usize, len, AtHole::Stop, |part, len| {
        let seen = seen.wrapping_add(part.wrapping_sub(start as usize) / BASE_PAGE);
        // SAFETY: the caller vouches for the call; `seen` has a byte for each page.
        unsafe { kernel!(libc::SYS_mincore, part, len, seen) as c_int }
    })
}
