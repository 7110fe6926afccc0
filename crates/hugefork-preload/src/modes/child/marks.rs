//! Which of the inherited blocks the helper may work on, and when.
//!
//! The program's threads and the helper agree by two words that each looks at after it has written the other:
//!
//! ```text
//! program   marks blocks as left ── is a session on? wait for its end ── its own call to the kernel
//! fork      says so              ── is a session on? wait for its end ── fork(2) ── says so no more
//! helper    begins a session     ── are blocks marked, or is a fork on? ── works on the others ── ends it
//! ```
//! Nobody waits for anything but the end of a session, which takes a millisecond or two and needs no lock of anybody.
//! So it may be waited for in possession of any lock, and in the handlers of a fork.
//!
//! The marks are set up in the process that has the pool, and each child has its copy: what was left to the kernel
//! before a fork, or privatised, is nothing that was inherited for the children that come after.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::nanosleep;
use rustix::time::Timespec;

use crate::{BASE_PAGE, HUGE_PAGE};

/// The kernel's alone: the program has done something there, or it is privatised.
const LEFT: u16 = 1 << 0;
/// A stream of writes was expected there in vain.
const TRIED: u16 = 1 << 1;
/// Privatised.
const PRIVATISED: u16 = 1 << 2;
/// All of it is inherited, and as it was; or some of it is (noted.rs).
const WHOLE: u16 = 1 << 3;
const ODD: u16 = 1 << 4;
/// From here on: so many pages of it, at its end, are none of the program's.
const BEHIND: u32 = 5;

/// The address of a mark for each block; 0 before there are any.
static MARKS: AtomicUsize = AtomicUsize::new(0);
/// The addresses of the first block and behind the last.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// The addresses of the twins (twins.rs); 0 while there are none.
static TWINS_START: AtomicUsize = AtomicUsize::new(0);
static TWINS_END: AtomicUsize = AtomicUsize::new(0);

/// The address of what the helper knows of each block; 0 before there was one. The next helper goes on with it.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Odd during a session.
static SESSION: AtomicU32 = AtomicU32::new(0);
static IS_FORKING: AtomicBool = AtomicBool::new(false);
static IS_ALL_LEFT: AtomicBool = AtomicBool::new(false);

/// Sets the marks up for all children to come. Without memory for them, no child is helped.
pub(in crate::modes) fn set_up(addresses: &Range<usize>) {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping where the kernel likes.
    let new =
        unsafe { mmap_anonymous(ptr::null_mut(), addresses.len() / HUGE_PAGE * size_of::<AtomicU16>(), rights, flags) };
    if let Ok(new) = new {
        START.store(addresses.start, Ordering::Relaxed);
        END.store(addresses.end, Ordering::Relaxed);
        MARKS.store(new as usize, Ordering::Release);
    }
}

/// The addresses that have marks; none if there are none.
pub(super) fn addresses() -> Range<usize> {
    match MARKS.load(Ordering::Acquire) {
        0 => 0..0,
        _ => START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed),
    }
}

fn mark(block: usize) -> Option<&'static AtomicU16> {
    let addresses = addresses();
    if !addresses.contains(&block) {
        return None;
    }
    // There are marks: only then there are addresses.
    let marks = MARKS.load(Ordering::Acquire);
    // SAFETY: one of the mapping, which has one for each block of the addresses, and stays.
    Some(unsafe { &*(marks as *const AtomicU16).add((block - addresses.start) / HUGE_PAGE) })
}

/// Leaves all blocks to the kernel that a range touches. When this returns, the helper has its hands off them. Where
/// the program takes the place of the twins, it is all blocks.
pub(in crate::modes) fn leave(range: &Range<usize>) {
    let addresses = addresses();
    if range.start < TWINS_END.load(Ordering::Relaxed) && range.end > TWINS_START.load(Ordering::Relaxed) {
        return leave_all();
    }
    let range = range.start.max(addresses.start)..range.end.min(addresses.end);
    let blocks = range.start / HUGE_PAGE * HUGE_PAGE..range.end;
    blocks.step_by(HUGE_PAGE).filter_map(mark).for_each(|mark| _ = mark.fetch_or(LEFT, Ordering::SeqCst));
    wait_for_the_session();
}

/// Notes where twins are.
pub(super) fn note_twins(range: &Range<usize>) {
    TWINS_START.store(range.start, Ordering::Relaxed);
    TWINS_END.store(range.end, Ordering::Relaxed);
}

/// Memory for what the helper knows of each block, `each` bytes: zeros at first. None if there is none.
pub(super) fn known(each: usize) -> Option<usize> {
    let there = KNOWN.load(Ordering::Relaxed);
    if there != 0 {
        return Some(there);
    }
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    let len = addresses().len() / HUGE_PAGE * each;
    // SAFETY: a new mapping where the kernel likes.
    let new = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, flags) }.ok()? as usize;
    KNOWN.store(new, Ordering::Relaxed);
    Some(new)
}

/// The same with all. The helper leaves.
pub(in crate::modes) fn leave_all() {
    IS_ALL_LEFT.store(true, Ordering::SeqCst);
    wait_for_the_session();
}

/// Nothing is in the middle of being privatised from now on, until [`after_fork`] or [`in_child`].
pub(in crate::modes) fn before_fork() {
    IS_FORKING.store(true, Ordering::SeqCst);
    wait_for_the_session();
}

/// In the process that has forked.
pub(in crate::modes) fn after_fork() {
    IS_FORKING.store(false, Ordering::SeqCst);
}

/// In the child, which has no helper yet.
pub(in crate::modes) fn in_child() {
    SESSION.store(0, Ordering::SeqCst);
    IS_FORKING.store(false, Ordering::SeqCst);
}

fn wait_for_the_session() {
    let seen = SESSION.load(Ordering::SeqCst);
    while seen % 2 == 1 && SESSION.load(Ordering::SeqCst) == seen {
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 20_000 });
    }
}

/// Whether a thread of the program forks.
pub(super) fn is_forking() -> bool {
    IS_FORKING.load(Ordering::SeqCst)
}

/// While it is there, no fork copies the process, and nobody changes mappings of blocks that were not left when it
/// began. The helper alone begins sessions, one at a time.
pub(super) struct Session(());

impl Session {
    /// None while somebody forks.
    pub(super) fn begin() -> Option<Session> {
        SESSION.fetch_add(1, Ordering::SeqCst);
        let session = Session(());
        (!is_forking()).then_some(session)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        SESSION.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether all blocks are the kernel's alone.
pub(super) fn is_all_left() -> bool {
    IS_ALL_LEFT.load(Ordering::SeqCst)
}

/// Whether a block is.
pub(super) fn is_left(block: usize) -> bool {
    is_all_left() || mark(block).is_none_or(|mark| mark.load(Ordering::SeqCst) & LEFT != 0)
}

/// Whether a block was privatised.
pub(super) fn is_privatised(block: usize) -> bool {
    mark(block).is_some_and(|mark| mark.load(Ordering::Relaxed) & PRIVATISED != 0)
}

/// Whether all of a block is inherited, and nothing was done about it.
pub(super) fn is_whole(block: usize) -> bool {
    mark(block).is_some_and(|mark| mark.load(Ordering::Relaxed) & (WHOLE | ODD) == WHOLE)
}

/// Whether some of a block is inherited, and something was done about it.
pub(super) fn is_odd(block: usize) -> bool {
    mark(block).is_some_and(|mark| mark.load(Ordering::Relaxed) & ODD != 0)
}

/// Notes that all of a block is inherited, as it was.
pub(super) fn note_whole(block: usize) {
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_or(WHOLE, Ordering::Relaxed));
}

/// Notes that some of a block is.
pub(super) fn note_odd(block: usize) {
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_or(ODD, Ordering::Relaxed));
}

/// Notes that nothing of a block is.
pub(super) fn note_gone(block: usize) {
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_and(!(WHOLE | ODD), Ordering::Relaxed));
}

/// Whether a stream of writes was expected at a block in vain.
pub(super) fn is_tried(block: usize) -> bool {
    mark(block).is_some_and(|mark| mark.load(Ordering::Relaxed) & TRIED != 0)
}

/// Notes that a block was privatised.
pub(super) fn note_privatised(block: usize) {
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_or(PRIVATISED | LEFT, Ordering::SeqCst));
}

/// Notes that nothing came.
pub(super) fn note_tried(block: usize) {
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_or(TRIED, Ordering::SeqCst));
}

/// Notes that nothing is to be done about a block.
pub(super) fn note_left(block: usize) {
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_or(LEFT, Ordering::SeqCst));
}

/// Notes where the program's part of a block ends.
pub(super) fn note_end(end: usize) {
    let (block, pages) = (end / HUGE_PAGE * HUGE_PAGE, (HUGE_PAGE - end % HUGE_PAGE) / BASE_PAGE);
    mark(block).into_iter().for_each(|mark| _ = mark.fetch_or((pages << BEHIND) as u16, Ordering::Relaxed));
}

/// What is none of the program's at the end of a block.
pub(super) fn behind(block: usize) -> Range<usize> {
    let pages = mark(block).map_or(0, |mark| mark.load(Ordering::Relaxed) >> BEHIND);
    block + HUGE_PAGE - usize::from(pages) * BASE_PAGE..block + HUGE_PAGE
}
