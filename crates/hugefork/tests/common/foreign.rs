//! Helpers for faults that are not hugefork's, beside faults that are.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use hugefork::{Pool, Region};
use libc::siginfo_t;

use super::signals::{address_of, give_up};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

static FORBIDDEN: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// The number of faults that [`mend`] and [`mend_plain`] have mended.
pub(crate) static MENDED: AtomicUsize = AtomicUsize::new(0);

/// A page that may not be touched until [`mend`] has mended it.
pub(crate) fn forbidden_page() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    FORBIDDEN.store(page.cast(), Ordering::Release);
    page.cast()
}

/// Forbids the page again.
pub(crate) fn forbid_again(page: *mut u8) {
    // SAFETY: the page of `forbidden_page`.
    assert_eq!(unsafe { libc::mprotect(page.cast(), PAGE, libc::PROT_NONE) }, 0);
}

/// Writes one byte, which may fault.
pub(crate) fn write(at: *mut u8, value: u8) {
    // SAFETY: this is memory of the test, or a fault that the test wants.
    unsafe { at.write_volatile(value) };
}

/// Writes to a forbidden page, which a handler must mend.
pub(crate) fn write_to_be_mended(page: *mut u8) {
    let mended = MENDED.load(Ordering::Relaxed);
    forbid_again(page);
    write(page, 42);
    // SAFETY: the handler has made it readable.
    assert_eq!(unsafe { page.read_volatile() }, 42);
    assert_eq!(MENDED.load(Ordering::Relaxed), mended + 1);
}

/// A handler that makes the forbidden page writable. Any other fault ends the process.
pub(crate) extern "C" fn mend(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    if address_of(info) != FORBIDDEN.load(Ordering::Acquire).addr() {
        give_up("the handler got a fault at another address\n");
    }
    mend_plain(libc::SIGSEGV);
}

/// As [`mend`], for handlers that get only the signal.
pub(crate) extern "C" fn mend_plain(_: c_int) {
    MENDED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the page of `forbidden_page`.
    unsafe { libc::mprotect(FORBIDDEN.load(Ordering::Acquire).cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

/// A region of two blocks, in a pool with room for a copy of it.
pub(crate) fn small_region() -> Region {
    let pool = Pool::builder().name("test").capacity(4 * BLOCK).build().unwrap();
    pool.region_with(2 * BLOCK, super::by_block()).unwrap()
}

/// Provokes a fault of each kind.
pub(crate) fn check_region_faults(region: &mut Region) {
    let before = region.stats().faults;
    region.discard(0..2 * BLOCK).unwrap();
    region.as_mut_slice()[..BLOCK].fill(1);
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[7] = 2;
    assert_eq!((snapshot[7], region.as_mut_slice()[7]), (1, 2));
    drop(snapshot);
    drop(region.snapshot().unwrap());
    region.as_mut_slice()[8] = 3;
    assert_eq!(region.as_mut_slice()[6..10], [1, 2, 3, 1]);
    let after = region.stats().faults;
    let more = (after.demand_zero - before.demand_zero, after.copied - before.copied, after.reused - before.reused);
    assert_eq!(more, (1, 1, 1));
}
