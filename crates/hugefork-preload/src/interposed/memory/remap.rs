//! `mremap`: the mode resizes what it gave, or hands it over, or it is moved by a copy.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::map::{mmap, munmap};
use super::parts::{NOWHERE, make_plain, pages, refused, special};
use crate::BASE_PAGE;
use crate::interposed::kernel::{errno, kernel, quietly};
use crate::pool::{self, Resized, Zeros};
use crate::proc::mappings;

/// As libc's `mremap`. The last argument is only there with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`, and otherwise
/// whatever the register holds.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    start: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let taken = if flags & libc::MREMAP_FIXED == 0 { None } else { special(to, new_len) };
    if let Some(range) = taken {
        // If the kernel refuses, what was is there still.
        if !quietly(|| pool::hand_over(&range) && pool::make_way(&range)) {
            return refused(libc::ENOMEM);
        }
        // SAFETY: the caller's.
        let done = unsafe { remapped(start, len, new_len, flags, to) };
        quietly(|| pool::settle(&range, done != libc::MAP_FAILED));
        return done;
    }
    // SAFETY: the caller's.
    unsafe { remapped(start, len, new_len, flags, to) }
}

/// The same where way was made for what is to be at a place of the program's choice.
///
/// # Safety
/// As libc's `mremap`.
unsafe fn remapped(start: *mut c_void, len: usize, new_len: usize, flags: c_int, to: *mut c_void) -> *mut c_void {
    if len == 0 {
        // The kernel maps shared memory twice then, as the pool's is, and refuses to do so with plain memory.
        make_plain(start, 1);
    }
    if let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
    {
        let mapped = quietly(|| pool::first_mapped(&old)).unwrap_or(0..0);
        if mapped.start == old.start && mapped != old && new.len() <= old.len() && flags & !libc::MREMAP_MAYMOVE == 0 {
            // All that is longer goes, whatever it is. Of what was handed over, the kernel alone knows what is there.
            // SAFETY: a page becomes as long as it was; the rest is the caller's.
            let is_cut = unsafe {
                kernel!(libc::SYS_mremap, start, BASE_PAGE, BASE_PAGE, 0) != -1
                    && (new.end == old.end || munmap(new.end as *mut c_void, old.end - new.end) == 0)
            };
            return if is_cut { start } else { libc::MAP_FAILED };
        }
        if mapped != old {
            // As the kernel refuses where nothing is mapped.
            // SAFETY: the caller's.
            return unsafe { kernel!(libc::SYS_mremap, NOWHERE, len, new_len, flags, to) as *mut c_void };
        }
        let may_move = flags == libc::MREMAP_MAYMOVE;
        let is_resized = may_move || flags == 0;
        let resized = if is_resized { quietly(|| pool::resize(&old, new.len())) } else { Resized::Plain };
        let stays = is_resized && new.len() <= old.len();
        match resized {
            Resized::InPlace => return start,
            // SAFETY: the caller's.
            Resized::ByCopy if may_move => return unsafe { moved(&old, new.len(), None) },
            Resized::ByCopy => return refused(libc::ENOMEM),
            // At other addresses, nobody would know that a child has inherited it.
            Resized::Plain
                if !quietly(|| if stays { pool::hand_over(&old) } else { pool::make_own(&old, Zeros::Copied) }) =>
            {
                return refused(libc::ENOMEM);
            }
            Resized::Plain => {}
        }
    }
    // SAFETY: the caller's.
    let done = unsafe { kernel!(libc::SYS_mremap, start, len, new_len, flags, to) as *mut c_void };
    // What was handed over at different times is several mappings for the kernel, and one for the program.
    if done == libc::MAP_FAILED
        && flags & !libc::MREMAP_FIXED == libc::MREMAP_MAYMOVE
        && errno() == libc::EFAULT
        && let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
        && quietly(|| mappings::is_own(&old).is_ok_and(|(is_own, _)| is_own))
    {
        let to = if flags & libc::MREMAP_FIXED != 0 { Some(to) } else { None };
        // SAFETY: the caller's.
        return unsafe { moved(&old, new.len(), to) };
    }
    done
}

/// Moves a mapping to another place, or to any, by copying it.
///
/// # Safety
/// It is the caller's, who does not use it meanwhile. At the other place nothing is that he needs.
unsafe fn moved(old: &Range<usize>, new_len: usize, to: Option<*mut c_void>) -> *mut c_void {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let fixed = if to.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping.
    let new = unsafe { mmap(to.unwrap_or(std::ptr::null_mut()), new_len, rights, flags | fixed, -1, 0) };
    if new != libc::MAP_FAILED {
        // SAFETY: by contract, and the new one is ours and at least as long.
        unsafe {
            std::ptr::copy_nonoverlapping(old.start as *const u8, new.cast::<u8>(), old.len().min(new_len));
            munmap(old.start as *mut c_void, old.len());
        }
    }
    new
}
