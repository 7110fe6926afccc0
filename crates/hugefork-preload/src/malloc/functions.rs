//! The functions of libc that the library stands in for: all that give or take the memory of `malloc`, with libc's
//! results where the two would differ.

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

use libmimalloc_sys as mi;

use super::choice::{self, Choice};
use super::theirs::{self, Function};

/// As libc: a null pointer comes with `ENOMEM`.
fn or_no_memory(given: *mut c_void) -> *mut c_void {
    if given.is_null() {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    given
}

/// As libc's `malloc`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Mimalloc => or_no_memory(mi::mi_malloc(len)),
            Choice::Theirs => theirs::one(Function::Malloc, len),
            Choice::Undecided | Choice::Deciding => or_no_memory(ptr::null_mut()),
        }
    }
}

/// As libc's `calloc`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Mimalloc => or_no_memory(mi::mi_calloc(count, len)),
            Choice::Theirs => theirs::two(Function::Calloc, count, len),
            Choice::Undecided | Choice::Deciding => or_no_memory(ptr::null_mut()),
        }
    }
}

/// As libc's `realloc`, which frees what becomes nothing.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(old: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Mimalloc if len == 0 && !old.is_null() => {
                mi::mi_free(old);
                ptr::null_mut()
            }
            Choice::Mimalloc => or_no_memory(mi::mi_realloc(old, len)),
            Choice::Theirs => theirs::two(Function::Realloc, old, len),
            Choice::Undecided | Choice::Deciding => or_no_memory(ptr::null_mut()),
        }
    }
}

/// As libc's `reallocarray`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, len: usize) -> *mut c_void {
    if choice::made() == Choice::Theirs {
        // SAFETY: the caller's.
        return unsafe { theirs::three(Function::Reallocarray, old, count, len) };
    }
    match count.checked_mul(len) {
        // SAFETY: the caller's.
        Some(len) => unsafe { realloc(old, len) },
        None => or_no_memory(ptr::null_mut()),
    }
}

/// As libc's `free`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn free(old: *mut c_void) {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Mimalloc => mi::mi_free(old),
            Choice::Theirs => theirs::one(Function::Free, old),
            Choice::Undecided | Choice::Deciding => {}
        }
    }
}

/// As libc's `posix_memalign`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, alignment: usize, len: usize) -> c_int {
    if choice::made() == Choice::Theirs {
        // SAFETY: the caller's.
        return unsafe { theirs::three(Function::PosixMemalign, to, alignment, len) };
    }
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's.
    let given = unsafe { in_line(Function::PosixMemalign, alignment, len) };
    if given.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's.
    unsafe { *to = given };
    0
}

/// Memory at a multiple of a power of two; libc rounds other numbers up to one.
///
/// # Safety
/// As libc's `memalign`.
unsafe fn in_line(function: Function, alignment: usize, len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Mimalloc => match alignment.checked_next_power_of_two() {
                Some(alignment) => mi::mi_malloc_aligned(len, alignment),
                None => ptr::null_mut(),
            },
            Choice::Theirs => theirs::two(function, alignment, len),
            Choice::Undecided | Choice::Deciding => ptr::null_mut(),
        }
    }
}

/// As libc's `aligned_alloc`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    or_no_memory(unsafe { in_line(Function::AlignedAlloc, alignment, len) })
}

/// As libc's `memalign`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn memalign(alignment: usize, len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    or_no_memory(unsafe { in_line(Function::Memalign, alignment, len) })
}

/// As libc's `valloc`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn valloc(len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Theirs => theirs::one(Function::Valloc, len),
            Choice::Mimalloc | Choice::Undecided | Choice::Deciding => memalign(crate::BASE_PAGE, len),
        }
    }
}

/// As libc's `pvalloc`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn pvalloc(len: usize) -> *mut c_void {
    if choice::made() == Choice::Theirs {
        // SAFETY: the caller's.
        return unsafe { theirs::one(Function::Pvalloc, len) };
    }
    match len.checked_next_multiple_of(crate::BASE_PAGE) {
        // SAFETY: the caller's.
        Some(len) => unsafe { memalign(crate::BASE_PAGE, len) },
        None => or_no_memory(ptr::null_mut()),
    }
}

/// As libc's `malloc_usable_size`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(old: *mut c_void) -> usize {
    // SAFETY: the caller's.
    unsafe {
        match choice::made() {
            Choice::Mimalloc => mi::mi_usable_size(old),
            Choice::Theirs => theirs::one(Function::UsableSize, old),
            Choice::Undecided | Choice::Deciding => 0,
        }
    }
}

/// libc's own, as those call it who put a `malloc` of theirs before it. Programs that do so for some of the functions
/// have the others from here, and give back by `__libc_free` what those gave.
macro_rules! libcs_own {
    ($($name:ident = $of:ident($($word:ident: $kind:ty),*) => $gives:ty;)*) => {$(
        #[doc = concat!("As [`", stringify!($of), "`].\n\n# Safety\nAs libc's.")]
        #[cfg_attr(hugefork_malloc, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($word: $kind),*) -> $gives {
            if choice::made() != Choice::Theirs {
                // SAFETY: the caller's.
                return unsafe { $of($($word),*) };
            }
            // Not by the name of `malloc`, which may be that of whoever calls this.
            // SAFETY: libc's function of this name takes these.
            let function = unsafe {
                mem::transmute::<usize, unsafe extern "C" fn($($kind),*) -> $gives>(theirs::own(stringify!($name)))
            };
            // SAFETY: the caller's.
            unsafe { function($($word),*) }
        }
    )*};
}

libcs_own! {
    __libc_malloc = malloc(len: usize) => *mut c_void;
    __libc_calloc = calloc(count: usize, len: usize) => *mut c_void;
    __libc_realloc = realloc(old: *mut c_void, len: usize) => *mut c_void;
    __libc_memalign = memalign(alignment: usize, len: usize) => *mut c_void;
    __libc_valloc = valloc(len: usize) => *mut c_void;
    __libc_pvalloc = pvalloc(len: usize) => *mut c_void;
    __libc_free = free(old: *mut c_void) => ();
}

crate::interposed::aliases::aliases! { hugefork_malloc:
    // Of programs that were linked before 2018.
    cfree = free(old: *mut c_void) => ();
}
