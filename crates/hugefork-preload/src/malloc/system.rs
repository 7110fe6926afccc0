//! What mimalloc asks of the kernel. It is compiled to call these in place of `mmap`, `madvise` and `prctl` (the build
//! script of `hugefork-cli`).

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::HUGE_PAGE;
use crate::interposed::kernel::kernel;

/// What mimalloc's segments are aligned to.
const ALIGNMENT: usize = 32 << 20;

/// Whether mimalloc has its first arena.
static HAS_FIRST: AtomicBool = AtomicBool::new(false);

/// As `mmap`, with two differences. The first arena is the kernel's, and nobody hears of it: most programs never need
/// more. And mimalloc wishes for addresses that suit its alignment; with another it does as well.
#[unsafe(no_mangle)]
unsafe extern "C" fn hugefork_mimalloc_mmap(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    at: i64,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 {
        // SAFETY: mimalloc's.
        return unsafe { libc::mmap(start, len, rights, flags, file, at) };
    }
    if len == ALIGNMENT && file == -1 && !HAS_FIRST.swap(true, Ordering::Relaxed) {
        let first = aligned(len, rights, flags);
        if first != libc::MAP_FAILED {
            return first;
        }
    }
    // SAFETY: mimalloc's.
    unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, file, at) }
}

/// Has the kernel map memory at an address that suits mimalloc.
fn aligned(len: usize, rights: c_int, flags: c_int) -> *mut c_void {
    // SAFETY: new memory, at an address of the kernel's choice.
    let all = unsafe { kernel!(libc::SYS_mmap, 0, len + ALIGNMENT, rights, flags, -1, 0) };
    if all == -1 {
        return libc::MAP_FAILED;
    }
    let (all, end) = (all as usize, all as usize + len + ALIGNMENT);
    let start = all.next_multiple_of(ALIGNMENT);
    for rest in [all..start, start + len..end].into_iter().filter(|rest| !rest.is_empty()) {
        // SAFETY: part of what was just mapped, and nobody else knows of.
        unsafe { kernel!(libc::SYS_munmap, rest.start, rest.len()) };
    }
    start as *mut c_void
}

/// As `prctl`, but mappings get no names: who filters system calls allows what `malloc` needs, and that is not part of
/// it.
#[unsafe(no_mangle)]
unsafe extern "C" fn hugefork_mimalloc_prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_VMA {
        return 0;
    }
    // SAFETY: mimalloc's.
    unsafe { libc::prctl(option, a, b, c, d) }
}

/// As `madvise`, but only whole huge pages are dropped: parts of one save no memory, and would have to be filled with
/// zeros or split. mimalloc does not rely on zeros there.
#[unsafe(no_mangle)]
unsafe extern "C" fn hugefork_mimalloc_madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if !matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE) {
        // SAFETY: mimalloc's.
        return unsafe { libc::madvise(start, len, advice) };
    }
    let whole = (start as usize).next_multiple_of(HUGE_PAGE)..(start as usize + len) / HUGE_PAGE * HUGE_PAGE;
    if whole.is_empty() {
        return 0;
    }
    // SAFETY: part of what mimalloc drops.
    unsafe { libc::madvise(whole.start as *mut c_void, whole.len(), advice) }
}
