//! The puts of a thread: which slots, in which order, how late each was, and what must be there afterwards.
//!
//! A thread has the slots whose number leaves its own number over, divided by the number of threads. The lists lie in
//! memory that children of `fork(2)` share (`list.rs`), so that a child knows what had been put when it looks.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cases::list::List;
use crate::error::BenchError;
use crate::measure::random::Random;

/// Bytes of a slot.
pub(super) const SLOT: usize = 64;

/// The area holds `p[i] = i + BIAS` at first.
pub(super) const BIAS: u64 = 1;

/// In words that were put; the number of the put is in the bits below it.
const PUT: u64 = 1 << 63;

/// What the words of a slot hold after put `nth`.
pub(super) fn value(nth: usize) -> u64 {
    PUT | nth as u64
}

/// Between which puts a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// So many puts were done before the call.
    pub(super) before: usize,
    /// So many had been begun when it returned.
    pub(super) until: usize,
}

/// Places in the list of notes.
const DONE: usize = 0;
const STOP: usize = 1;
const CUT_BEFORE: usize = 2;
const CUT_UNTIL: usize = 3;
const FIRST_CUT: usize = 4;
const ASKED: usize = 5;
const NOTES: usize = 6;

/// The puts of a thread.
pub(super) struct Puts {
    /// The offset of each.
    offsets: List<usize>,
    /// Nanoseconds from when each was due.
    latencies: List<u32>,
    notes: List<usize>,
}

/// What a thread that puts has of them.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    offsets: *const usize,
    latencies: *mut u32,
    count: usize,
    notes: *mut usize,
}

// SAFETY: the lists live as long as the thread, which alone writes latencies; notes are atomics.
unsafe impl Send for Shared {}

impl Puts {
    /// Room for `count` puts.
    pub(super) fn new(count: usize) -> Result<Puts, BenchError> {
        Ok(Puts { offsets: List::new(count)?, latencies: List::new(count)?, notes: List::new(NOTES)? })
    }

    /// Draws slots of an area of `size` bytes, `keys` different ones if that is given, for thread `nth` of `threads`.
    pub(super) fn draw(&mut self, nth: usize, threads: usize, size: usize, keys: Option<usize>, targets: &mut Random) {
        let slots = size / SLOT / threads;
        let mut slot = || (targets.below(slots) * threads + nth) * SLOT;
        match keys {
            None => self.offsets.as_mut_slice().fill_with(slot),
            Some(keys) => {
                let keys: Vec<usize> = (0..keys).map(|_| slot()).collect();
                self.offsets.as_mut_slice().fill_with(|| keys[targets.below(keys.len())]);
            }
        }
        self.notes.as_mut_slice().fill(0);
    }

    /// For the thread. Only one may have it at a time, and not for longer than `self` lives.
    pub(super) fn shared(&self) -> Shared {
        let offsets = self.offsets.as_slice();
        Shared {
            offsets: offsets.as_ptr(),
            latencies: self.latencies.as_ptr(),
            count: offsets.len(),
            notes: self.notes.as_ptr(),
        }
    }

    fn note(&self, place: usize) -> &AtomicUsize {
        // SAFETY: the list has `NOTES` numbers, aligned, and is accessed by atomics alone while threads or children
        // live.
        unsafe { AtomicUsize::from_ptr(self.notes.as_ptr().add(place)) }
    }

    /// How many puts are done.
    pub(super) fn done(&self) -> usize {
        self.note(DONE).load(Ordering::Acquire)
    }

    /// Has the thread end.
    pub(super) fn stop(&self) {
        self.note(STOP).store(1, Ordering::Relaxed);
    }

    /// Has children that end look at what they hold.
    pub(super) fn ask(&self) {
        self.note(ASKED).store(1, Ordering::Release);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.note(ASKED).load(Ordering::Acquire) != 0
    }

    /// Notes that a snapshot was taken, which may be the first.
    pub(super) fn cut(&self, cut: Cut, is_first: bool) {
        self.note(CUT_BEFORE).store(cut.before, Ordering::Relaxed);
        self.note(CUT_UNTIL).store(cut.until, Ordering::Release);
        if is_first {
            self.note(FIRST_CUT).store(cut.before, Ordering::Relaxed);
        }
    }

    /// How late the puts were that were done since the first snapshot was asked for.
    pub(super) fn latencies(&self) -> &[u32] {
        &self.latencies.as_slice()[self.note(FIRST_CUT).load(Ordering::Relaxed)..self.done()]
    }

    /// The number of the first put that [`Puts::latencies`] has.
    pub(super) fn first(&self) -> usize {
        self.note(FIRST_CUT).load(Ordering::Relaxed)
    }

    /// Checks that the last snapshot, which `read` reads at an offset, holds what had been put when it was taken. It
    /// allocates nothing: forked children call it.
    pub(super) fn check_kept(&self, read: impl Fn(usize) -> u64) -> Result<(), BenchError> {
        let cut = Cut {
            before: self.note(CUT_BEFORE).load(Ordering::Relaxed),
            until: self.note(CUT_UNTIL).load(Ordering::Acquire),
        };
        for (nth, &offset) in self.offsets.as_slice()[..self.done()].iter().enumerate() {
            // Not older than this put, if that was done before the cut, and nothing that was begun after it.
            let oldest = if nth < cut.before { nth + 1 } else { 0 };
            check_slot(offset, &read, oldest, cut.until)?;
        }
        Ok(())
    }

    /// Checks that the area holds what was put.
    pub(super) fn check_written(&self, read: impl Fn(usize) -> u64) -> Result<(), BenchError> {
        let done = self.done();
        for (nth, &offset) in self.offsets.as_slice()[..done].iter().enumerate() {
            check_slot(offset, &read, nth + 1, done)?;
        }
        Ok(())
    }
}

/// Checks that the words of a slot are of puts from number `oldest` (0: from before all puts) to number `latest`, and
/// of ever older ones: words are put in order, and a cut may go through a put.
fn check_slot(offset: usize, read: impl Fn(usize) -> u64, oldest: usize, latest: usize) -> Result<(), BenchError> {
    let mut latest = latest;
    for at in (offset..offset + SLOT).step_by(8) {
        let found = read(at);
        let first = (at / 8) as u64 + BIAS;
        let put = if found == first { 0 } else { found.wrapping_sub(PUT) as usize };
        if !(oldest..=latest).contains(&put) {
            let expected = if latest == 0 { first } else { value(latest) };
            return Err(BenchError::WrongContents { offset: at, found, expected });
        }
        latest = put;
    }
    Ok(())
}

impl Shared {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The offset of put `nth`.
    ///
    /// # Safety
    /// The [`Puts`] live, and `nth` is below the count.
    pub(super) unsafe fn offset(&self, nth: usize) -> usize {
        // SAFETY: by contract; nobody writes offsets while threads put.
        unsafe { *self.offsets.add(nth) }
    }

    /// Notes how late put `nth` was, and that it is done.
    ///
    /// # Safety
    /// As [`Shared::offset`]; only one thread does this.
    pub(super) unsafe fn done(&self, nth: usize, latency: u64) {
        // SAFETY: by contract, within the list, which only this thread writes.
        unsafe {
            *self.latencies.add(nth) = latency.min(u32::MAX.into()) as u32;
            AtomicUsize::from_ptr(self.notes.add(DONE)).store(nth + 1, Ordering::Release);
        }
    }

    /// Whether a snapshot was taken.
    ///
    /// # Safety
    /// As [`Shared::offset`].
    pub(super) unsafe fn is_cut(&self) -> bool {
        // SAFETY: by contract.
        unsafe { AtomicUsize::from_ptr(self.notes.add(CUT_UNTIL)) }.load(Ordering::Acquire) != 0
    }

    /// Whether to end.
    ///
    /// # Safety
    /// As [`Shared::offset`].
    pub(super) unsafe fn is_stopped(&self) -> bool {
        // SAFETY: by contract.
        unsafe { AtomicUsize::from_ptr(self.notes.add(STOP)) }.load(Ordering::Relaxed) != 0
    }
}
