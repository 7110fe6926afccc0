//! Turns inherited memory into anonymous memory at the same address with the same contents. The
//! program needs that before calls that would reveal the file: before it moves the memory, where
//! the library would not recognise it; seals it; or handles its page faults.
//!
//! ```text
//! place    | private mapping | ──▶ | writers sleep              | ──▶ | anonymous |  wake
//! staging  | anonymous ◀──────────────── copy                    ──────── mremap ──┘
//! ```
//! A range that is one mapping for the program becomes one mapping for the kernel, which can move
//! only single mappings. If the process may not handle page faults, other threads are not
//! suspended, and a write during the copy is lost.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap_fixed, munmap};
use syscalls::{Sysno, syscall};

use super::userfaults::hold_writers;
use crate::BASE_PAGE;
use crate::proc::{mappings, usage};
use crate::threads::signals;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Number of pages per query for presence.
const PAGES: usize = 512;

/// Turns the inherited parts of a range into anonymous memory. Returns false if that is impossible; the rest is then
/// unchanged.
pub(crate) fn make_own(range: &Range<usize>) -> bool {
    match mappings::is_own(range) {
        Ok((true, true)) => return replace(range, READ_WRITE),
        Ok(_) => {}
        // The mappings cannot be read.
        Err(_) => return false,
    }
    let mut is_done = true;
    let told = mappings::inherited(range, |piece, rights| is_done &= replace(&piece, rights));
    told.is_ok() && is_done
}

/// Replaces a range by anonymous memory with the same contents.
fn replace(range: &Range<usize>, rights: ProtFlags) -> bool {
    let here = 0_u8;
    if range.contains(&(&raw const here).addr()) {
        // This thread's own stack lies there: the thread would wait for itself.
        return false;
    }
    // SAFETY: a new mapping at an address of the kernel's choice.
    let staging =
        unsafe { mmap_anonymous(ptr::null_mut(), range.len(), READ_WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE) };
    let Ok(staging) = staging else { return false };
    // A signal handler of the program in this thread would sleep for ever if it wrote to the range.
    let mask = signals::block();
    let is_hidden = !rights.contains(ProtFlags::READ);
    let held = hold_writers(range);
    let is_done = (!is_hidden || protect(range.start, range.len(), rights | ProtFlags::READ)) && {
        copy(range, staging.addr());
        (rights == READ_WRITE || protect(staging.addr(), range.len(), rights)) && {
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: the staging memory belongs to this function, and the contents of the range have just been copied.
            unsafe { mremap_fixed(staging, range.len(), range.len(), flags, range.start as *mut c_void) }.is_ok()
        }
    };
    if !is_done {
        // SAFETY: this function's own mapping, no longer used.
        let _ = unsafe { munmap(staging, range.len()) };
        let _ = is_hidden && protect(range.start, range.len(), rights);
    }
    drop(held);
    mask.restore();
    is_done
}

fn protect(at: usize, len: usize, rights: ProtFlags) -> bool {
    let rights = MprotectFlags::from_bits_retain(rights.bits());
    // SAFETY: the library's own memory, or memory of the program that is about to get other rights.
    unsafe { mprotect(at as *mut c_void, len, rights) }.is_ok()
}

/// Copies the present, non-zero pages of a range; the other pages take no memory.
fn copy(range: &Range<usize>, to: usize) {
    let mut is_there = [0_u8; PAGES];
    for piece in range.clone().step_by(PAGES * BASE_PAGE) {
        let len = (range.end - piece).min(PAGES * BASE_PAGE);
        // SAFETY: the call writes a byte for each page.
        let looked = unsafe { syscall!(Sysno::mincore, piece, len, is_there.as_mut_ptr()) };
        // Swapped-out pages count as absent too. The kernel counts a swap area before the first page goes there.
        let is_known = looked.is_ok() && usage::machine().is_some_and(|machine| machine.totalswap == 0);
        for page in (piece..piece + len).step_by(BASE_PAGE) {
            if is_known && is_there[(page - piece) / BASE_PAGE] & 1 == 0 {
                continue;
            }
            // SAFETY: whole readable pages that no thread writes to, except at the program's own risk; the target
            // belongs to this function.
            unsafe {
                let from = page as *const u64;
                if (0..BASE_PAGE / 8).any(|nth| from.add(nth).read_volatile() != 0) {
                    ptr::copy_nonoverlapping(from.cast::<u8>(), (to + (page - range.start)) as *mut u8, BASE_PAGE);
                }
            }
        }
    }
}
