//! The functions of libc that close descriptors or put others in their place: the library's stay, in mode `pool`.

use std::ffi::{c_int, c_uint};

use crate::descriptors::passing;
use crate::interposed::kernel::{failed, kernel};
use crate::{Mode, config, descriptors};

/// Whether a descriptor is the library's, and the program must not have it.
fn is_ours(number: c_int) -> bool {
    config::mode() == Some(Mode::Pool) && descriptors::is_ours(number)
}

/// Puts another file in the place of a number, while the library has none that is low.
fn put(another: impl FnOnce() -> c_int) -> c_int {
    if config::mode().is_none() { another() } else { passing::undisturbed(another) }
}

/// As libc's `close`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn close(number: c_int) -> c_int {
    if is_ours(number) {
        // It is not open, as far as the program knows.
        return failed(libc::EBADF);
    }
    // SAFETY: the caller's. libc's own can be cancelled by `pthread_cancel`; this cannot.
    unsafe { kernel!(libc::SYS_close, number) as c_int }
}

/// As libc's `dup2`. A number that the library has is refused, as one beyond the program's limit is.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_ours(to) {
        // It is not open, as far as the program knows.
        return failed(libc::EBADF);
    }
    #[cfg(not(target_arch = "x86_64"))]
    if from == to {
        // SAFETY: only asks whether it is open.
        return if unsafe { libc::fcntl(from, libc::F_GETFD) } == -1 { -1 } else { to };
    }
    // As libc: a filter may know the one and not the other.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's.
    return put(|| unsafe { kernel!(libc::SYS_dup2, from, to) as c_int });
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    return put(|| unsafe { kernel!(libc::SYS_dup3, from, to, 0) as c_int });
}

/// As libc's `dup3`. As for [`dup2`].
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_ours(to) {
        // It is not open, as far as the program knows.
        return failed(libc::EBADF);
    }
    // SAFETY: the caller's.
    put(|| unsafe { kernel!(libc::SYS_dup3, from, to, flags) as c_int })
}

/// As libc's `close_range`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(from: c_uint, to: c_uint, flags: c_int) -> c_int {
    let mut next = from;
    while config::mode() == Some(Mode::Pool)
        && let Some(ours) = descriptors::first_in(next, to)
    {
        if ours > next {
            // SAFETY: the caller's.
            let closed = unsafe { kernel!(libc::SYS_close_range, next, ours - 1, flags) };
            if closed != 0 {
                return -1;
            }
        }
        if ours >= to {
            return 0;
        }
        next = ours + 1;
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_close_range, next, to, flags) as c_int }
}

/// As libc's `closefrom`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(from: c_int) {
    // SAFETY: the caller's.
    unsafe { close_range(from.max(0) as c_uint, c_uint::MAX, 0) };
}
