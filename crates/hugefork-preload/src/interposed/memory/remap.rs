//! `mremap`: the pool resizes its own memory, hands it over, or moves it by a copy.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::map::{mmap, munmap};
use super::parts::{NOWHERE, make_plain, pages, refused, special};
use crate::BASE_PAGE;
use crate::interposed::kernel::{errno, kernel, quietly};
use crate::pool::{self, Resized, Zeros};
use crate::proc::mappings;

/// Like libc's `mremap`. The last argument exists only with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`; otherwise it is the
/// register's arbitrary value.
///
/// # Safety
/// As for libc's function.
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
        // If the kernel refuses, the old contents must still be there.
        if !quietly(|| pool::hand_over(&range) && pool::make_way(&range)) {
            return refused(libc::ENOMEM);
        }
        // SAFETY: the caller vouches for the call.
        let done = unsafe { remapped(start, len, new_len, flags, to) };
        quietly(|| pool::finish_way(&range, done != libc::MAP_FAILED));
        return done;
    }
    // SAFETY: the caller vouches for the call.
    unsafe { remapped(start, len, new_len, flags, to) }
}

/// Like `mremap`, after way was made for a target address of the program's choice.
///
/// # Safety
/// As for libc's `mremap`.
unsafe fn remapped(start: *mut c_void, len: usize, new_len: usize, flags: c_int, to: *mut c_void) -> *mut c_void {
    if len == 0 {
        // For a length of zero the kernel maps shared memory a second time, and the pool's memory is shared. For plain
        // memory it refuses.
        make_plain(start, 1);
    }
    if let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
    {
        let mapped = quietly(|| pool::first_mapped(&old)).unwrap_or(0..0);
        if mapped.start == old.start && mapped != old && new.len() <= old.len() && flags & !libc::MREMAP_MAYMOVE == 0 {
            // Unmaps the excess after the new length. Only the kernel knows the mappings in handed-over memory, so the
            // library remaps the last page onto itself. SAFETY: the page has the same length afterwards; the caller
            // vouches for the rest.
            let is_cut = unsafe {
                kernel!(libc::SYS_mremap, start, BASE_PAGE, BASE_PAGE, 0) != -1
                    && (new.end == old.end || munmap(new.end as *mut c_void, old.end - new.end) == 0)
            };
            return if is_cut { start } else { libc::MAP_FAILED };
        }
        if mapped != old {
            // Lets the kernel report that the range is not mapped. SAFETY: the caller vouches for the call.
            return unsafe { kernel!(libc::SYS_mremap, NOWHERE, len, new_len, flags, to) as *mut c_void };
        }
        let may_move = flags == libc::MREMAP_MAYMOVE;
        let is_resized = may_move || flags == 0;
        let resized = if is_resized { quietly(|| pool::resize(&old, new.len())) } else { Resized::Plain };
        let is_in_place = is_resized && new.len() <= old.len();
        match resized {
            Resized::InPlace => return start,
            // SAFETY: the caller vouches for the call.
            Resized::ByCopy if may_move => return unsafe { moved(&old, new.len(), None) },
            Resized::ByCopy => return refused(libc::ENOMEM),
            // At another address the library would not recognise inherited memory.
            Resized::Plain
                if !quietly(
                    || if is_in_place { pool::hand_over(&old) } else { pool::make_own(&old, Zeros::Copied) },
                ) =>
            {
                return refused(libc::ENOMEM);
            }
            Resized::Plain => {}
        }
    }
    // SAFETY: the caller vouches for the call.
    let done = unsafe { kernel!(libc::SYS_mremap, start, len, new_len, flags, to) as *mut c_void };
    // Memory that was handed over at different times is several mappings for the kernel, but one for the program.
    if done == libc::MAP_FAILED
        && flags & !libc::MREMAP_FIXED == libc::MREMAP_MAYMOVE
        && errno() == libc::EFAULT
        && let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
        && quietly(|| mappings::is_own(&old).is_ok_and(|(is_own, _)| is_own))
    {
        let to = if flags & libc::MREMAP_FIXED != 0 { Some(to) } else { None };
        // SAFETY: the caller vouches for the call.
        return unsafe { moved(&old, new.len(), to) };
    }
    done
}

/// Moves a mapping by a copy, to `to` or to any address.
///
/// # Safety
/// The caller owns the mapping and does not use it meanwhile. The contents of the target are not needed.
unsafe fn moved(old: &Range<usize>, new_len: usize, to: Option<*mut c_void>) -> *mut c_void {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let fixed = if to.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping.
    let new = unsafe { mmap(to.unwrap_or(std::ptr::null_mut()), new_len, rights, flags | fixed, -1, 0) };
    if new != libc::MAP_FAILED {
        // SAFETY: the caller vouches for the old mapping; the new one is at least as long.
        unsafe {
            std::ptr::copy_nonoverlapping(old.start as *const u8, new.cast::<u8>(), old.len().min(new_len));
            munmap(old.start as *mut c_void, old.len());
        }
    }
    new
}
