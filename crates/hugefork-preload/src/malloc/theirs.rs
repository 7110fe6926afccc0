//! The functions that the process would have without this library: those of the next one that has them.

use std::ffi::{CStr, c_void};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The functions, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Malloc,
    Calloc,
    Realloc,
    Reallocarray,
    Free,
    PosixMemalign,
    AlignedAlloc,
    Memalign,
    Valloc,
    Pvalloc,
    UsableSize,
}

/// glibc has all of them, so that a search never fails, which would call `malloc`.
const NAMES: [&CStr; 11] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"reallocarray",
    c"free",
    c"posix_memalign",
    c"aligned_alloc",
    c"memalign",
    c"valloc",
    c"pvalloc",
    c"malloc_usable_size",
];

static ADDRESSES: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// What libc calls some of them itself.
const OWN: [&CStr; 7] = [
    c"__libc_malloc",
    c"__libc_calloc",
    c"__libc_realloc",
    c"__libc_memalign",
    c"__libc_valloc",
    c"__libc_pvalloc",
    c"__libc_free",
];

static OWN_ADDRESSES: [AtomicUsize; OWN.len()] = [const { AtomicUsize::new(0) }; OWN.len()];

/// Looks for all of them.
pub(super) fn find() {
    for (name, address) in NAMES.iter().zip(&ADDRESSES).chain(OWN.iter().zip(&OWN_ADDRESSES)) {
        // SAFETY: a name that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        address.store(found as usize, Ordering::Relaxed);
    }
}

/// The next library's function.
fn address(function: Function) -> usize {
    let found = ADDRESSES[function as usize].load(Ordering::Relaxed);
    assert!(found != 0, "libc has all of them");
    found
}

/// The next library's function of a name in [`OWN`].
pub(super) fn own(name: &str) -> usize {
    let place = OWN.iter().position(|known| known.to_bytes() == name.as_bytes());
    let found = place.map_or(0, |place| OWN_ADDRESSES[place].load(Ordering::Relaxed));
    assert!(found != 0, "libc has all of them");
    found
}

/// Calls a function of one argument.
///
/// # Safety
/// The function has these types, and the caller does as libc asks.
pub(super) unsafe fn one<A, R>(function: Function, argument: A) -> R {
    // SAFETY: an address of a function of this type, by contract.
    let function = unsafe { mem::transmute::<usize, unsafe extern "C" fn(A) -> R>(address(function)) };
    // SAFETY: the caller's.
    unsafe { function(argument) }
}

/// Calls a function of two arguments.
///
/// # Safety
/// As [`one`].
pub(super) unsafe fn two<A, B>(function: Function, first: A, second: B) -> *mut c_void {
    // SAFETY: an address of a function of this type, by contract.
    let function = unsafe { mem::transmute::<usize, unsafe extern "C" fn(A, B) -> *mut c_void>(address(function)) };
    // SAFETY: the caller's.
    unsafe { function(first, second) }
}

/// Calls a function of three arguments.
///
/// # Safety
/// As [`one`].
pub(super) unsafe fn three<A, R>(function: Function, first: A, second: usize, third: usize) -> R {
    // SAFETY: an address of a function of this type, by contract.
    let function = unsafe { mem::transmute::<usize, unsafe extern "C" fn(A, usize, usize) -> R>(address(function)) };
    // SAFETY: the caller's.
    unsafe { function(first, second, third) }
}
