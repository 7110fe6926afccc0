//! The functions of libc that the library stands in for: all of them, and nothing else.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `mmap`, `mmap64` | the mode is told of the new mapping |
//! | `fork` | afterwards, in the parent, the worker is started if it is needed |
//! | `prctl` | `PR_SET_THP_DISABLE` is not passed on, and `PR_GET_THP_DISABLE` answers as if it had been |
//!
//! Each does the kernel's work by the system call itself, with libc's `errno`, so that it works before the constructor
//! has run. Only `fork` calls libc's, which runs the program's handlers.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::modes::{self, Mapping};
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{config, fork};

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
    // SAFETY: the caller's.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, start, len, rights, flags, file, offset) };
    if mapped != -1 {
        modes::mapped(&Mapping { start: mapped as usize, len, rights, flags });
    }
    mapped as *mut c_void
}

/// As libc's `mmap64`, which is `mmap`.
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

/// Whether the program believes that it has no huge pages.
static THINKS_DISABLED: AtomicBool = AtomicBool::new(false);

/// As libc's `prctl`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if config::mode().is_some() {
        match option {
            libc::PR_SET_THP_DISABLE => {
                THINKS_DISABLED.store(a != 0, Ordering::Relaxed);
                stats::add(Word::ThpDisablesKept, u64::from(a != 0));
                return 0;
            }
            libc::PR_GET_THP_DISABLE => return THINKS_DISABLED.load(Ordering::Relaxed).into(),
            _ => {}
        }
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_prctl, c_long::from(option), a, b, c, d) as c_int }
}

/// The address of libc's `fork`; 0 before it was looked for.
static LIBC_FORK: AtomicUsize = AtomicUsize::new(0);

/// Looks for libc's `fork`.
pub(crate) fn resolve() -> usize {
    // SAFETY: a name that ends.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) } as usize;
    LIBC_FORK.store(found, Ordering::Relaxed);
    found
}

/// As libc's `fork`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let libcs = match LIBC_FORK.load(Ordering::Relaxed) {
        0 => resolve(),
        known => known,
    };
    assert!(libcs != 0, "libc has a `fork`");
    // SAFETY: libc's `fork` has this type.
    let libcs = unsafe { mem::transmute::<usize, unsafe extern "C" fn() -> libc::pid_t>(libcs) };
    // SAFETY: the caller's.
    let child = unsafe { libcs() };
    if child > 0 {
        // SAFETY: this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        fork::afterwards();
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    child
}
