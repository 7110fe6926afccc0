//! Splits the ranges that a program names: the parts that do not belong to the kernel alone, the
//! parts that must become plain memory first, and the mapped parts.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::BASE_PAGE;
use crate::interposed::kernel::{errno, failed, quietly};
use crate::pool::{self, Zeros};

/// The whole pages of a range; `None` if it is empty or the kernel refuses it.
pub(super) fn pages(start: usize, len: usize) -> Option<Range<usize>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(BASE_PAGE)?;
    (start.is_multiple_of(BASE_PAGE) && end > start).then_some(start..end)
}

/// The pages of a range, if it does not belong to the kernel alone.
pub(crate) fn special(start: *mut c_void, len: usize) -> Option<Range<usize>> {
    let range = pages(start as usize, len)?;
    (!pool::is_plain(range.start, range.len())).then_some(range)
}

/// Turns a range into plain memory, for calls that the pool cannot carry out.
pub(crate) fn make_plain(start: *mut c_void, len: usize) {
    let within = start as usize % BASE_PAGE;
    if let Some(range) = special(start.wrapping_byte_sub(within), len.saturating_add(within)) {
        quietly(|| pool::hand_over(&range));
    }
}

/// Turns a range into anonymous memory, also inherited memory in a child. Returns false if that failed.
pub(crate) fn make_own(start: *mut c_void, len: usize) -> bool {
    let within = start as usize % BASE_PAGE;
    let range = special(start.wrapping_byte_sub(within), len.saturating_add(within));
    range.is_none_or(|range| quietly(|| pool::make_own(&range, Zeros::Copied)))
}

/// The kernel's behaviour for the rest of a range after an unmapped address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtHole {
    Stop,
    GoOn,
}

/// The start of the kernel's own addresses, at which no process has a mapping.
pub(super) const NOWHERE: usize = 0_usize.wrapping_sub(1 << 47);

/// Calls `call` with each mapped part of a range, like the kernel does for a whole range. The kernel alone would also
/// treat the pool's reserved addresses as mapped.
pub(super) fn by_parts(start: usize, len: usize, at_hole: AtHole, call: impl Fn(usize, usize) -> c_int) -> c_int {
    let Some(mut rest) = special(start as *mut c_void, len) else { return call(start, len) };
    let mut has_hole = false;
    while !rest.is_empty() {
        let part = quietly(|| pool::first_mapped(&rest)).unwrap_or(rest.end..rest.end);
        has_hole |= part.start > rest.start;
        if part.is_empty() || has_hole && at_hole == AtHole::Stop {
            break;
        }
        if call(part.start, part.len()) != 0 {
            if at_hole == AtHole::Stop || errno() != libc::ENOMEM {
                return -1;
            }
            has_hole = true;
        }
        rest.start = part.end;
    }
    // Lets the kernel report the unmapped part, or another error.
    if has_hole { call(NOWHERE, BASE_PAGE) } else { 0 }
}

/// Reports a failure as the kernel does.
pub(crate) fn refused(errno: c_int) -> *mut c_void {
    failed::<c_int>(errno);
    libc::MAP_FAILED
}
