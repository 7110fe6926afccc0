//! What changes rights of memory, or asks for it by page: `mprotect`, `msync`, `mincore` and their like.

use std::ffi::{c_int, c_void};

use super::parts::{AtHole, by_parts, make_plain, special};
use crate::child::heed_locks;
use crate::interposed::kernel::{kernel, quietly};
use crate::{BASE_PAGE, pool};

/// As libc's `mprotect`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(start: *mut c_void, len: usize, rights: c_int) -> c_int {
    by_parts(start as usize, len, AtHole::Stop, |start, len| {
        if let Some(range) = special(start as *mut c_void, len) {
            if quietly(|| pool::has_rights(&range, rights)) {
                return 0;
            }
            quietly(|| pool::hand_over(&range));
        }
        // SAFETY: the caller's.
        unsafe { kernel!(libc::SYS_mprotect, start, len, rights) as c_int }
    })
}

/// As libc's `pkey_mprotect`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(start: *mut c_void, len: usize, rights: c_int, key: c_int) -> c_int {
    if key == -1 {
        // SAFETY: the caller's.
        return unsafe { mprotect(start, len, rights) };
    }
    by_parts(start as usize, len, AtHole::Stop, |start, len| {
        make_plain(start as *mut c_void, len);
        // SAFETY: the caller's.
        unsafe { kernel!(libc::SYS_pkey_mprotect, start, len, rights, key) as c_int }
    })
}

/// What locks memory, which becomes the kernel's before, and what unlocks it. The first page may be named by any byte.
macro_rules! locks {
    ($($name:ident, $call:ident, $flags:ident: $kind:ty;)*) => {$(
        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(start: *mut c_void, len: usize, $flags: $kind) -> c_int {
            let within = start as usize % BASE_PAGE;
            heed_locks();
            by_parts(start as usize - within, len.saturating_add(within), AtHole::Stop, |start, len| {
                make_plain(start as *mut c_void, len);
                // SAFETY: the caller's. The first and the last take no flags, and the kernel looks at none.
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

/// As libc's `msync`, by which programs ask whether something is mapped. It cannot be cancelled by `pthread_cancel`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn msync(start: *mut c_void, len: usize, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    let sync = |start: usize, len: usize| unsafe { kernel!(libc::SYS_msync, start, len, flags) as c_int };
    by_parts(start as usize, len, AtHole::GoOn, sync)
}

/// As libc's `mincore`, by which programs ask whether something is mapped.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mincore(start: *mut c_void, len: usize, seen: *mut u8) -> c_int {
    by_parts(start as usize, len, AtHole::Stop, |part, len| {
        let seen = seen.wrapping_add(part.wrapping_sub(start as usize) / BASE_PAGE);
        // SAFETY: the caller's; it has a byte for each page.
        unsafe { kernel!(libc::SYS_mincore, part, len, seen) as c_int }
    })
}
