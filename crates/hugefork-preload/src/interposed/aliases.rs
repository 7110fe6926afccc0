//! Other names under which libc has functions that the library stands in for: those of programs with 64-bit offsets,
//! of programs that were built with `_FORTIFY_SOURCE`, and those with underscores. A call by a name that is not here
//! would not be noticed; tests/run_names.rs compares with the names that libc has.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use crate::interposed::descriptors::{close, dup2};
use crate::interposed::forks::fork;
use crate::interposed::kernel::{errno, quietly};
use crate::interposed::limits::{prlimit, setrlimit};
use crate::interposed::memory::advise::madvise;
use crate::interposed::memory::map::mmap;
use crate::interposed::pins::{fcntl, mkostemp, mkostemps, open, openat};

/// Functions that pass their arguments on: one for each name, exported where the flag of the build is set.
macro_rules! aliases {
    ($build:ident: $($name:ident = $of:ident($($word:ident: $kind:ty),*) $(+ $more:expr)? => $gives:ty;)*) => {$(
        #[doc = concat!("As [`", stringify!($of), "`].\n\n# Safety\nAs libc's.")]
        #[cfg_attr($build, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($word: $kind),*) -> $gives {
            // SAFETY: the caller's.
            unsafe { $of($($word,)* $($more)?) }
        }
    )*};
}
pub(crate) use aliases;

aliases! { hugefork_interposed:
    __open = open(path: *const c_char, flags: c_int, mode: c_uint) => c_int;
    open64 = open(path: *const c_char, flags: c_int, mode: c_uint) => c_int;
    __open64 = open(path: *const c_char, flags: c_int, mode: c_uint) => c_int;
    openat64 = openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) => c_int;
    // Those who call these create nothing.
    __open_2 = open(path: *const c_char, flags: c_int) + 0 => c_int;
    __open64_2 = open(path: *const c_char, flags: c_int) + 0 => c_int;
    __openat_2 = openat(directory: c_int, path: *const c_char, flags: c_int) + 0 => c_int;
    __openat64_2 = openat(directory: c_int, path: *const c_char, flags: c_int) + 0 => c_int;
    mkostemp64 = mkostemp(path: *mut c_char, flags: c_int) => c_int;
    mkostemps64 = mkostemps(path: *mut c_char, end_len: c_int, flags: c_int) => c_int;
    __fcntl = fcntl(file: c_int, command: c_int, argument: c_long) => c_int;
    fcntl64 = fcntl(file: c_int, command: c_int, argument: c_long) => c_int;
    mmap64 = mmap(start: *mut c_void, len: usize, rights: c_int, flags: c_int, file: c_int, offset: i64) => *mut c_void;
    __close = close(number: c_int) => c_int;
    __dup2 = dup2(from: c_int, to: c_int) => c_int;
    __fork = fork() => libc::pid_t;
    setrlimit64 = setrlimit(which: c_uint, new: *const libc::rlimit64) => c_int;
    prlimit64 = prlimit(process: libc::pid_t, which: c_uint, new: *const libc::rlimit64, old: *mut libc::rlimit64) => c_int;
}

/// As libc's `posix_madvise`, which does not drop memory whatever it is told, and leaves `errno` alone.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn posix_madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: the caller's.
    quietly(|| if unsafe { madvise(start, len, advice) } == 0 { 0 } else { errno() })
}
