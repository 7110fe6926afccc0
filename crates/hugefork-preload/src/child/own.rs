//! Makes anonymous memory of what is inherited, at its place and with its contents, before the program does what would
//! show that it is a file's: moves it, where nobody would know it again; seals it; handles its page faults.
//!
//! ```text
//! place    | private mapping | ──▶ | the same: who writes sleeps | ──▶ | anonymous |  wake
//! staging  | anonymous ◀──────────────── copy                    ──────── mremap ──┘
//! ```
//! What is one mapping for the program becomes one for the kernel, which moves no others as one. Where the process may
//! not handle page faults, nobody sleeps: a write from beside the copy is lost then.

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

/// So many pages at once are asked whether they are there.
const PAGES: usize = 512;

/// Makes anonymous memory of what is inherited of a range. False if that cannot be: the rest stays what it is.
pub(crate) fn make_own(range: &Range<usize>) -> bool {
    match mappings::is_own(range) {
        Ok((true, true)) => return replace(range, READ_WRITE),
        Ok(_) => {}
        // Nobody can say what is there.
        Err(_) => return false,
    }
    let mut is_done = true;
    let told = mappings::inherited(range, |piece, rights| is_done &= replace(&piece, rights));
    told.is_ok() && is_done
}

/// Puts anonymous memory with the same contents in place of a range.
fn replace(range: &Range<usize>, rights: ProtFlags) -> bool {
    let here = 0_u8;
    if range.contains(&(&raw const here).addr()) {
        // This thread's own stack: it would wait for itself.
        return false;
    }
    // SAFETY: a new mapping where the kernel likes.
    let staging =
        unsafe { mmap_anonymous(ptr::null_mut(), range.len(), READ_WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE) };
    let Ok(staging) = staging else { return false };
    // A handler of the program's in this thread would sleep for ever, if it wrote there meanwhile.
    let mask = signals::block();
    let is_hidden = !rights.contains(ProtFlags::READ);
    let held = hold_writers(range);
    let is_done = (!is_hidden || protect(range.start, range.len(), rights | ProtFlags::READ)) && {
        copy(range, staging.addr());
        (rights == READ_WRITE || protect(staging.addr(), range.len(), rights)) && {
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: the staging is ours, and what is at the place has just been copied.
            unsafe { mremap_fixed(staging, range.len(), range.len(), flags, range.start as *mut c_void) }.is_ok()
        }
    };
    if !is_done {
        // SAFETY: ours, and nobody uses it.
        let _ = unsafe { munmap(staging, range.len()) };
        let _ = is_hidden && protect(range.start, range.len(), rights);
    }
    drop(held);
    mask.restore();
    is_done
}

fn protect(at: usize, len: usize, rights: ProtFlags) -> bool {
    let rights = MprotectFlags::from_bits_retain(rights.bits());
    // SAFETY: our own memory, or the program's, which is about to have other rights there.
    unsafe { mprotect(at as *mut c_void, len, rights) }.is_ok()
}

/// Copies what there is of a range, and what is not zero of that: the rest takes no memory.
fn copy(range: &Range<usize>, to: usize) {
    let mut is_there = [0_u8; PAGES];
    for piece in range.clone().step_by(PAGES * BASE_PAGE) {
        let len = (range.end - piece).min(PAGES * BASE_PAGE);
        // SAFETY: the call writes a byte for each page.
        let looked = unsafe { syscall!(Sysno::mincore, piece, len, is_there.as_mut_ptr()) };
        // What was swapped out is not there either. `swapon` counts before the first page goes.
        let is_known = looked.is_ok() && usage::machine().is_some_and(|machine| machine.totalswap == 0);
        for page in (piece..piece + len).step_by(BASE_PAGE) {
            if is_known && is_there[(page - piece) / BASE_PAGE] & 1 == 0 {
                continue;
            }
            // SAFETY: whole pages that can be read, and that nobody writes to, or the program knows what it does; the
            // other is ours.
            unsafe {
                let from = page as *const u64;
                if (0..BASE_PAGE / 8).any(|nth| from.add(nth).read_volatile() != 0) {
                    ptr::copy_nonoverlapping(from.cast::<u8>(), (to + (page - range.start)) as *mut u8, BASE_PAGE);
                }
            }
        }
    }
}
