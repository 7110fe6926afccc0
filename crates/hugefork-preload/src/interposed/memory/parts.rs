//! Ranges that a program names, as the functions of this folder look at them: which is not the kernel's alone, which
//! is plain memory first, and what of it is mapped.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::BASE_PAGE;
use crate::interposed::kernel::{errno, failed, quietly};
use crate::pool::{self, Zeros};

/// Whole pages of a range; none if it is empty, or the kernel is to refuse it.
pub(super) fn pages(start: usize, len: usize) -> Option<Range<usize>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(BASE_PAGE)?;
    (start.is_multiple_of(BASE_PAGE) && end > start).then_some(start..end)
}

/// The pages of a range that is not the kernel's alone.
pub(crate) fn special(start: *mut c_void, len: usize) -> Option<Range<usize>> {
    let range = pages(start as usize, len)?;
    (!pool::is_plain(range.start, range.len())).then_some(range)
}

/// Has memory that the program wants more of than the mode can do be plain memory first.
pub(crate) fn make_plain(start: *mut c_void, len: usize) {
    let within = start as usize % BASE_PAGE;
    if let Some(range) = special(start.wrapping_byte_sub(within), len.saturating_add(within)) {
        quietly(|| pool::hand_over(&range));
    }
}

/// The same for what would do harm where a child has inherited the memory: false if it is not plain even now.
pub(crate) fn make_own(start: *mut c_void, len: usize) -> bool {
    let within = start as usize % BASE_PAGE;
    let range = special(start.wrapping_byte_sub(within), len.saturating_add(within));
    range.is_none_or(|range| quietly(|| pool::make_own(&range, Zeros::Copied)))
}

/// What the kernel does about what is left of a range when it comes to addresses at which nothing is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtHole {
    Stop,
    GoOn,
}

/// Where addresses begin at which no process has anything: the kernel's own.
pub(super) const NOWHERE: usize = 0_usize.wrapping_sub(1 << 47);

/// Does `call` with each part of a range at which the program has mapped something, as the kernel would do it with the
/// range: that sees the addresses mapped, too, that are kept for later.
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
    // The kernel says it there, or what else is wrong.
    if has_hole { call(NOWHERE, BASE_PAGE) } else { 0 }
}

/// As the kernel refuses.
pub(crate) fn refused(errno: c_int) -> *mut c_void {
    failed::<c_int>(errno);
    libc::MAP_FAILED
}
