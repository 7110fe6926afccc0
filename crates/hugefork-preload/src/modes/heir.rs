//! What the child of a program in mode `pool` has inherited, and how the worker helps it to write there.
//!
//! The child has private mappings of the pool's file. Each first write to a page is a fault, which copies 4 KiB: 2 µs,
//! and a millisecond for a block of 2 MiB. Where a child writes in order, the worker goes ahead of it and puts huge
//! pages of the child's own in place of whole blocks, with the same contents: a fifth of a millisecond.
//!
//! ```text
//!   written: | both ends | both ends | one end | nothing | nothing | …      pages that are private, by /proc/self/pagemap
//!                                    └─ from here on, twice as many blocks each time the child has come so far
//!   a block: copied ─▶ held: who comes waits (userfaultfd) ─▶ private pages copied ─▶ the copy is shown ─▶ go on
//! ```
//! It takes as much memory as it goes ahead in vain: at most what was written before, and [`MOST_AHEAD`] blocks.
//! Whatever the child does to a range by other calls than loads and stores ends this help there, before it is done.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use hugefork::ProgramMemory;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap_anonymous, mremap_fixed, munmap,
    userfaultfd,
};

use super::pool::page_faults;
use crate::descriptor::HIGH;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{BASE_PAGE, HUGE_PAGE, own};

/// So many faults are worth a look: two blocks that were written by the page.
const FAULTS: u64 = 2 * (HUGE_PAGE / BASE_PAGE) as u64;

/// So many blocks ahead of a stream, the first time and at most.
const FIRST_AHEAD: usize = 4;
const MOST_AHEAD: usize = 128;

/// So many at once: who comes there waits for the copies of its private pages, and a fork for all of it.
const AT_ONCE: usize = 4;

/// The memory of the process that this one was forked from, as it was then.
pub(super) struct Heritage {
    engine: ManuallyDrop<ProgramMemory>,
    faults: u64,
    ahead: usize,
    /// What is to be replaced next.
    stream: Range<usize>,
}

impl Heritage {
    pub(super) fn of(engine: ProgramMemory) -> Heritage {
        let engine = ManuallyDrop::new(engine);
        Heritage { engine, faults: page_faults(), ahead: FIRST_AHEAD, stream: 0..0 }
    }

    /// In a process that was forked from an heir.
    pub(super) fn begin_anew(&mut self) {
        (self.faults, self.ahead, self.stream) = (page_faults(), FIRST_AHEAD, 0..0);
    }

    /// From now on, a range is the program's and the kernel's alone.
    pub(super) fn leave(&mut self, range: &Range<usize>) {
        self.engine.disinherit(range.clone());
    }

    /// Helps, for a millisecond or so. True if there is more to do.
    pub(super) fn help(&mut self) -> bool {
        if self.stream.is_empty() {
            let faults = page_faults();
            if faults.wrapping_sub(self.faults) < FAULTS {
                return false;
            }
            self.faults = faults;
            match self.find() {
                Ok(Some(stream)) => self.stream = stream,
                Ok(None) | Err(_) => {
                    self.ahead = FIRST_AHEAD;
                    return false;
                }
            }
            self.ahead = (2 * self.ahead).min(MOST_AHEAD);
        }
        let first = self.stream.start;
        let mut end = first;
        while end < self.stream.end && end < first + AT_ONCE * HUGE_PAGE && self.engine.inherited(end) == Some(end) {
            end += HUGE_PAGE;
        }
        self.stream.start = end.max(first + HUGE_PAGE);
        if end > first {
            // Once: after that it is memory as any other, and where it failed it would fail again.
            self.engine.disinherit(first..end);
            match replace(&(first..end)) {
                Ok(()) => stats::add(Word::Replaced, ((end - first) / HUGE_PAGE) as u64),
                Err(_) => self.stream = 0..0,
            }
        }
        !self.stream.is_empty()
    }

    /// Where a stream goes on: after a block that was written at both ends comes one that was not.
    fn find(&self) -> Result<Option<Range<usize>>, Errno> {
        let pagemap = Descriptor::of(open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        let is_private = |at: usize| Ok::<_, Errno>(pages(&pagemap, at, 1, |_| true)? > 0);
        let (mut at, mut behind) = (0, None);
        while let Some(block) = self.engine.inherited(at) {
            let ends = (is_private(block)?, is_private(block + HUGE_PAGE - BASE_PAGE)?);
            if ends != (true, true) && behind == Some(block) {
                return Ok(Some(block..block + self.ahead * HUGE_PAGE));
            }
            at = block + HUGE_PAGE;
            behind = (ends == (true, true)).then_some(at);
        }
        Ok(None)
    }
}

/// Calls `each` with the address of every private page among `count` from `at` on, until that says false. Gives how
/// many it was called with.
fn pages(pagemap: &Descriptor, at: usize, count: usize, mut each: impl FnMut(usize) -> bool) -> Result<usize, Errno> {
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    const OF_A_FILE: u64 = 1 << 61;
    let (mut words, mut found) = ([0; 128 * 8], 0);
    for first in (0..count).step_by(128) {
        let wanted = &mut words[..8 * (count - first).min(128)];
        let got = rustix::io::pread(pagemap.get(), &mut *wanted, ((at / BASE_PAGE + first) * 8) as u64)?;
        if got < wanted.len() {
            return Err(Errno::IO);
        }
        for (nth, word) in wanted.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            if word & PRESENT_OR_SWAPPED != 0 && word & OF_A_FILE == 0 {
                found += 1;
                if !each(at + (first + nth) * BASE_PAGE) {
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
}

/// Puts huge pages of this process in place of inherited blocks, with the same contents.
fn replace(blocks: &Range<usize>) -> Result<(), Errno> {
    let len = blocks.len();
    let pagemap = Descriptor::of(open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: as long as nothing is registered, it does nothing.
    let holder = Descriptor::of(unsafe { userfaultfd(flags) }?);
    let mut api = Api { api: UFFD_API, features: MISSING_SHMEM | MINOR_SHMEM, ioctls: 0 };
    // SAFETY: the argument is the one of this call.
    unsafe { ioctl(holder.get(), Updater::<UFFDIO_API, Api>::new(&mut api)) }?;
    let (copy, aside) = (Room::new(len)?, Room::new(len)?);
    // SAFETY: a part of the room, which nobody else knows.
    unsafe { madvise(pointer(copy.at), len, Advice::LinuxHugepage) }?;
    // SAFETY: the blocks can be read. What is written meanwhile is copied again below.
    unsafe { ptr::copy_nonoverlapping(pointer(blocks.start).cast::<u8>(), pointer(copy.at).cast(), len) };
    let addresses = || Addresses { start: blocks.start as u64, len: len as u64 };
    let mut register = Register { range: addresses(), mode: MODE_MISSING | MODE_MINOR, ioctls: 0 };
    // SAFETY: as above; no contents change.
    unsafe { ioctl(holder.get(), Updater::<UFFDIO_REGISTER, Register>::new(&mut register)) }?;
    // From here on, who comes waits. When the descriptor is closed, all look again what is there.
    shift(blocks.start, aside.at, len)?;
    let copied = pages(&pagemap, aside.at, len / BASE_PAGE, |page| {
        let to = copy.at + (page - aside.at);
        // SAFETY: pages of the two rooms, which nobody writes to.
        unsafe { ptr::copy_nonoverlapping(pointer(page).cast::<u8>(), pointer(to).cast(), BASE_PAGE) };
        true
    });
    let shown = copied.and_then(|_| shift(copy.at, blocks.start, len));
    if shown.is_err() && shift(aside.at, blocks.start, len).is_err() {
        // The program would not see its memory.
        std::process::abort();
    }
    wake(&holder, addresses());
    shown
}

/// Moves pages from one place to another. The first stays mapped, without them: nobody else gets the addresses.
fn shift(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: both are rooms, or blocks that are this module's to replace.
    unsafe { mremap_fixed(pointer(from), len, len, flags, pointer(to)) }.map(drop)
}

fn wake(holder: &Descriptor, mut addresses: Addresses) {
    // If the program has closed it, the kernel has woken all.
    // SAFETY: the argument is the one of this call.
    let _ = unsafe { ioctl(holder.get(), Updater::<UFFDIO_WAKE, Addresses>::new(&mut addresses)) };
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Addresses for some blocks, which go with this.
struct Room {
    whole: usize,
    at: usize,
    len: usize,
}

impl Room {
    fn new(len: usize) -> Result<Room, Errno> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping where the kernel likes.
        let whole = unsafe { mmap_anonymous(ptr::null_mut(), len + HUGE_PAGE, rights, flags) }?.expose_provenance();
        Ok(Room { whole, at: whole.next_multiple_of(HUGE_PAGE), len: len + HUGE_PAGE })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: mapped by this, and what it shows is nobody's.
        let _ = unsafe { munmap(pointer(self.whole), self.len) };
    }
}

/// A descriptor with a number that programs seldom have, and that they cannot close as long as this lives.
struct Descriptor(OwnedFd);

impl Descriptor {
    fn of(low: OwnedFd) -> Descriptor {
        let high = fcntl_dupfd_cloexec(&low, HIGH).unwrap_or(low);
        own::note(high.as_raw_fd());
        Descriptor(high)
    }

    fn get(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        own::forget(self.0.as_raw_fd());
    }
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Addresses {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Addresses,
    mode: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xaa;
const MISSING_SHMEM: u64 = 1 << 5;
const MINOR_SHMEM: u64 = 1 << 10;
const MODE_MISSING: u64 = 1 << 0;
const MODE_MINOR: u64 = 1 << 2;

const UFFDIO_API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0x00);
const UFFDIO_WAKE: Opcode = opcode::read::<Addresses>(0xaa, 0x02);
