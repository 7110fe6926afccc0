//! Functions by which few programs change their memory, or that libc has under no name of their own.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `process_madvise` | on the process itself, what drops contents is done piece by piece, as `madvise` |
//! | `mseal`, `mbind`, `set_mempolicy_home_node`, `remap_file_pages` | what they name is plain anonymous memory first |
//! | `ioctl` | the same, where page faults of memory are to be handled by the program (`UFFDIO_REGISTER`) |
//! | `shmat` | with `SHM_REMAP`, what was there makes way |
//! | `syscall` | what the library stands in for by name, it stands in for by number ([`number`]) |
//!
//! What is done to memory past all of these, by a program that makes its system calls itself, the engine finds out
//! before a fork, as far as it would do harm there (`ProgramMemory::before_fork`).

pub mod number;

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;

use hugefork_linux::userfaultfd::{MODE_MISSING, MODE_WP, Register, UFFDIO_REGISTER};

use crate::environment::Mode;
use crate::interposed::kernel::{failed, is_readable, kernel, quietly};
use crate::interposed::memory::advise::madvise;
use crate::interposed::memory::parts::{make_own, refused, special};
use crate::modes::{self, Zeros};
use crate::{BASE_PAGE, config};

/// As many pieces the kernel takes in one call.
const MOST_PIECES: usize = 1024;

/// Whether an array of pieces can be read; otherwise the kernel says what is wrong.
pub(crate) fn are_readable(pieces: *const libc::iovec, count: usize) -> bool {
    !pieces.is_null()
        && count.checked_mul(size_of::<libc::iovec>()).is_some_and(|len| is_readable(pieces as usize, len))
}

/// As libc's `process_madvise`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    pieces: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // What may be said of others drops nothing.
    let is_harmless =
        matches!(advice, libc::MADV_COLD | libc::MADV_PAGEOUT | libc::MADV_WILLNEED | libc::MADV_COLLAPSE);
    if is_harmless || config::mode() != Some(Mode::Pool) || count > MOST_PIECES || !are_readable(pieces, count) {
        // SAFETY: the caller's.
        return unsafe { kernel!(libc::SYS_process_madvise, process, pieces, count, advice, flags) as isize };
    }
    // All else only the process itself may say of its memory (Linux 6.13): the kernel tells whether this is the one.
    // SAFETY: names no memory.
    let allowed = unsafe { kernel!(libc::SYS_process_madvise, process, pieces, 0, advice, flags) };
    if allowed != 0 {
        return -1;
    }
    let mut done = 0;
    for nth in 0..count {
        // SAFETY: it can be read.
        let piece = unsafe { pieces.add(nth).read() };
        // SAFETY: the caller's.
        if unsafe { madvise(piece.iov_base, piece.iov_len, advice) } != 0 {
            return if done == 0 { -1 } else { done };
        }
        done += piece.iov_len as isize;
    }
    done
}

/// As libc's `mseal` (glibc 2.43). The kernel refuses to put anything in place of what is sealed.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mseal(start: *mut c_void, len: usize, flags: c_ulong) -> c_int {
    if !make_own(start, len) {
        return failed(libc::ENOMEM);
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_mseal, start, len, flags) as c_int }
}

/// As libnuma's `mbind`. The kernel would keep the policy with the pool's file, for whoever has the block next.
///
/// # Safety
/// As libnuma's.
unsafe fn mbind(start: *mut c_void, len: usize, rest: [c_long; 4]) -> c_long {
    if !make_own(start, len) {
        return failed(libc::ENOMEM);
    }
    let [mode, nodes, most, flags] = rest;
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_mbind, start, len, mode, nodes, most, flags) }
}

/// As the call of this name. As for `mbind`.
///
/// # Safety
/// As the call.
unsafe fn set_mempolicy_home_node(start: *mut c_void, len: usize, node: c_long, flags: c_long) -> c_long {
    if !make_own(start, len) {
        return failed(libc::ENOMEM);
    }
    // SAFETY: the caller's.
    unsafe { kernel!(number::SET_MEMPOLICY_HOME_NODE, start, len, node, flags) }
}

/// As libc's `remap_file_pages`, which the kernel refuses where no file is shared.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn remap_file_pages(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    if !make_own(start, len) {
        return failed(libc::ENOMEM);
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_remap_file_pages, start, len, rights, page, flags) as c_int }
}

/// As libc's `shmat`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn shmat(segment: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's.
    let attach = || unsafe { kernel!(libc::SYS_shmat, segment, at, flags) as *mut c_void };
    if flags & libc::SHM_REMAP == 0 || modes::is_plain(at as usize, usize::MAX) {
        return attach();
    }
    let rounded = if flags & libc::SHM_RND == 0 { at as usize } else { at as usize / BASE_PAGE * BASE_PAGE };
    let Some(range) = quietly(|| len_of(segment)).and_then(|len| special(rounded as *mut c_void, len)) else {
        return attach();
    };
    // If the kernel refuses, what was is there still.
    if !quietly(|| modes::hand_over(&range) && modes::make_way(&range)) {
        return refused(libc::ENOMEM);
    }
    let attached = attach();
    quietly(|| modes::settle(&range, attached != libc::MAP_FAILED));
    attached
}

/// How long a segment of shared memory is. None if the kernel does not say, and will not attach it either.
fn len_of(segment: c_int) -> Option<usize> {
    let mut known = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: writes to the structure.
    let asked = unsafe { libc::shmctl(segment, libc::IPC_STAT, known.as_mut_ptr()) };
    // SAFETY: it has.
    (asked == 0).then(|| unsafe { known.assume_init() }.shm_segsz)
}

/// As libc's `ioctl`. Whatever the last argument is, it fits a register.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let is_ours =
        request == c_ulong::from(UFFDIO_REGISTER) && config::mode() == Some(Mode::Pool) && !argument.is_null();
    if is_ours && is_readable(argument as usize, size_of::<Register>()) {
        // SAFETY: it can be read.
        let Register { range: wanted, mode, .. } = unsafe { argument.cast::<Register>().read_unaligned() };
        // The program is to be asked about pages that it has dropped, or never used, in the middle of a huge page.
        let zeros = if mode & (MODE_MISSING | MODE_WP) == MODE_MISSING { Zeros::LeftOut } else { Zeros::Copied };
        // What moves blocks would take the registration away. Where it cannot be plain memory, there is none to lose.
        if special(wanted.start as *mut c_void, wanted.len as usize)
            .is_some_and(|range| !quietly(|| modes::make_own(&range, zeros)))
        {
            return failed(libc::ENOMEM);
        }
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_ioctl, file, request, argument) as c_int }
}
