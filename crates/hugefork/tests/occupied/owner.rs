//! An owner of pages: its operations, and its checks that nobody else has changed the pages.

use core::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hugefork::{Pinned, Region, RegionError, RegionOptions, Snapshot};

use crate::common::random::Random;
use crate::common::wait::PATIENCE;
use crate::{DONE, OWNERS, PAGE, World, more};

/// The words of a page that the owner writes. All others stay zero.
const WORDS: [usize; 4] = [0, 137, 300, 511];

/// A page and what its owner last wrote there.
#[derive(Clone, Copy)]
struct Page {
    number: usize,
    /// The value of each of [`WORDS`].
    value: u64,
    /// Whether zeros may have replaced the value.
    is_lazy: bool,
    /// Whether a write to the page always finds a block.
    is_promised: bool,
}

/// A word of a region; the region lives for as long as the owners do.
fn word(base: *mut u8, page: usize, word: usize) -> &'static AtomicU64 {
    // SAFETY: it is inside a region or fork that the caller keeps; its words are used only as atomics.
    unsafe { AtomicU64::from_ptr(base.add(page * PAGE + word * 8).cast()) }
}

/// Reads a word that may have been taken away. The kernel reads it, so that no thread dies of a fault.
fn peek(base: *const u8, page: usize, word: usize) -> Option<u64> {
    let mut value = 0u64;
    let to = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
    let from = libc::iovec { iov_base: base.wrapping_add(page * PAGE + word * 8).cast_mut().cast(), iov_len: 8 };
    // SAFETY: writes to `value`; addresses without access are an error.
    (unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) } == 8).then_some(value)
}

/// Waits until `is_so`, for a moment: a block is taken away first, and marked as revoked afterwards.
fn soon(is_so: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() && started.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    is_so()
}

/// A snapshot, and the words of it that were read.
struct Held {
    snapshot: Snapshot,
    seen: Vec<(usize, usize, u64)>,
}

/// The owner of some pages, run by one thread, with what it knows of them.
pub(crate) struct Owner<'a> {
    id: usize,
    world: &'a World,
    region: &'a Region,
    random: Random,
    pages: Vec<Page>,
    /// Runs of neighbouring pages, by their positions in `pages`.
    runs: Vec<Range<usize>>,
    /// The pages that are whole blocks of its own, by their positions in `pages`.
    blocks: Range<usize>,
    sequence: u64,
    held: Vec<Held>,
    pin: Option<(Pinned<'a>, Range<usize>)>,
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        // The other threads need not go on when one has found an error.
        self.world.over.store(true, Ordering::Relaxed);
        self.now(DONE);
    }
}

impl<'a> Owner<'a> {
    pub(crate) fn new(
        world: &'a World,
        id: usize,
        region: &'a Region,
        numbers: Vec<usize>,
        promised: bool,
    ) -> Owner<'a> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for at in 0..numbers.len() {
            match runs.last_mut().filter(|_| at > 0 && numbers[at - 1] + 1 == numbers[at]) {
                Some(run) => run.end = at + 1,
                None => runs.push(at..at + 1),
            }
        }
        let blocks = runs.last().unwrap().clone();
        let page = |number| Page { number, value: 0, is_lazy: false, is_promised: promised };
        let pages = numbers.into_iter().map(page).collect();
        let random = Random::new(id as u64);
        Owner { id, world, region, random, pages, runs, blocks, sequence: 0, held: Vec::new(), pin: None }
    }

    fn now(&self, doing: &'static str) {
        let progress = &self.world.progress[self.id];
        progress.steps.fetch_add(1, Ordering::Relaxed);
        *progress.doing.lock().unwrap() = doing;
    }

    fn bytes_of(&self, run: &Range<usize>) -> Range<usize> {
        self.pages[run.start].number * PAGE..(self.pages[run.end - 1].number + 1) * PAGE
    }

    /// A random part of its own blocks or of one of its stripes.
    fn part(&mut self) -> Range<usize> {
        let stripe = self.random.below(self.runs.len());
        let run = if self.random.one_in(2) { self.blocks.clone() } else { self.runs[stripe].clone() };
        let start = run.start + self.random.below(run.len());
        let longest = (run.end - start).min(1 << self.random.below(11));
        start..start + 1 + self.random.below(longest)
    }

    /// Some of its whole blocks.
    fn some_blocks(&mut self) -> Range<usize> {
        let each = (self.world.pool.block_size().bytes() / PAGE).max(1);
        let count = self.blocks.len() / each;
        let start = self.random.below(count);
        let len = 1 + self.random.below(count - start);
        self.blocks.start + start * each..self.blocks.start + (start + len) * each
    }

    pub(crate) fn step(&mut self) {
        self.fill_up();
        match self.random.below(100) {
            0..45 => self.write(),
            45..60 => self.check_some(),
            60..72 => self.lazy_free(),
            72..75 => self.cancel(),
            75..78 => self.discard(),
            78..83 => self.take_snapshot(),
            83..89 => self.look_again(),
            89..93 => self.fork(),
            93..96 => self.pin(),
            _ => self.reclaim(),
        }
    }

    fn write(&mut self) {
        self.now("write");
        for at in self.part().take(16) {
            let page = self.pages[at];
            if !page.is_promised {
                let range = page.number * PAGE..(page.number + 1) * PAGE;
                if let Err(error) = self.region.prepare_write(range) {
                    assert!(matches!(error, RegionError::PoolFull { .. }), "{error}");
                    more(&self.world.counts.full);
                    continue;
                }
            }
            self.sequence += 1;
            let value = (self.id as u64 + 1) << 56 | (page.number as u64) << 32 | self.sequence;
            for place in WORDS {
                word(self.region.as_mut_ptr(), page.number, place).store(value, Ordering::Relaxed);
            }
            self.pages[at] = Page { value, is_lazy: false, ..page };
        }
    }

    /// Checks that a page has the last written value or, if the page may have been dropped, zeros.
    fn check(&mut self, at: usize) {
        let page = self.pages[at];
        let read = |place| word(self.region.as_mut_ptr(), page.number, place).load(Ordering::Relaxed);
        let found = WORDS.map(read);
        if page.is_lazy && found.contains(&0) {
            assert!(found.iter().all(|&value| value == 0 || value == page.value), "{found:x?}, not {:x}", page.value);
            assert_eq!(WORDS.map(read), [0; 4], "page {}: dropped in part", page.number);
            self.pages[at] = Page { value: 0, is_lazy: false, ..page };
        } else {
            assert_eq!(found, [page.value; 4], "page {} of owner {}", page.number, self.id);
        }
        if self.random.one_in(16) {
            for place in (0..PAGE / 8).filter(|place| !WORDS.contains(place)) {
                assert_eq!(read(place), 0, "word {place} of page {}, which nobody writes", page.number);
            }
        }
    }

    fn check_some(&mut self) {
        self.now("check");
        self.part().for_each(|at| self.check(at));
    }

    fn lazy_free(&mut self) {
        self.now("lazily free");
        let part = if self.random.one_in(3) { self.some_blocks() } else { self.part() };
        let bytes = self.bytes_of(&part);
        let done = self.region.lazy_free(bytes.clone()).unwrap();
        assert_eq!(done.freed + done.already + done.skipped(), bytes.len(), "{done:?}");
        self.pages[part].iter_mut().for_each(|page| page.is_lazy = true);
    }

    fn cancel(&mut self) {
        self.now("cancel");
        let part = self.part();
        self.region.cancel_lazy_free(self.bytes_of(&part)).unwrap();
        self.look_what_is_there(part);
    }

    fn discard(&mut self) {
        if self.pin.is_some() {
            return;
        }
        self.now("discard");
        let part = if self.random.one_in(2) { self.some_blocks() } else { self.part() };
        match self.region.discard(self.bytes_of(&part)) {
            Ok(()) => self.pages[part.clone()].iter_mut().for_each(|page| page.value = 0),
            Err(RegionError::NotReservable { .. } | RegionError::PoolFull { .. }) => {
                // Some of it is zero, and its whole blocks may have lost their reservation.
                self.pages[part.clone()].iter_mut().for_each(|page| page.is_promised = false);
                more(&self.world.counts.refused);
            }
            Err(error) => panic!("{error}"),
        }
        self.look_what_is_there(part);
    }

    /// After a call that may have come too late, finds out the contents, which can no longer be dropped.
    fn look_what_is_there(&mut self, part: Range<usize>) {
        for at in part {
            self.pages[at].is_lazy = true;
            self.check(at);
            self.pages[at].is_lazy = false;
        }
    }

    fn take_snapshot(&mut self) {
        self.now("snapshot");
        if self.held.len() == 3 {
            let at = self.random.below(3);
            self.held.swap_remove(at);
        }
        let snapshot = match self.region.snapshot() {
            Ok(snapshot) => snapshot,
            // Copies of pinned blocks need blocks.
            Err(RegionError::PoolFull { .. }) => return more(&self.world.counts.refused),
            Err(error) => panic!("{error}"),
        };
        more(&self.world.counts.snapshots);
        let mut held = Held { snapshot, seen: Vec::new() };
        for at in self.part() {
            let page = self.pages[at];
            for place in WORDS {
                let Some(value) = self.look(&held, page.number, place) else { continue };
                let is_dropped = page.is_lazy && value == 0;
                assert!(
                    is_dropped || value == page.value,
                    "{value:x} in a snapshot of page {}, {:x}",
                    page.number,
                    page.value
                );
                held.seen.push((page.number, place, value));
            }
        }
        for _ in 0..64 {
            let (number, place) = (self.random.below(self.region.len() / PAGE), WORDS[self.random.below(4)]);
            let Some(value) = self.look(&held, number, place) else { continue };
            let (by, of) = ((value >> 56) as usize, (value >> 32) as usize & 0xff_ffff);
            assert!(
                value == 0 || ((1..=OWNERS).contains(&by) && of == number),
                "{value:x} in page {number} of a snapshot"
            );
            held.seen.push((number, place, value));
        }
        self.held.push(held);
    }

    /// One word of a snapshot, read by `read_at` or through the mapping; `None` if it was taken away.
    fn look(&mut self, held: &Held, page: usize, place: usize) -> Option<u64> {
        let taken_away = || {
            assert!(soon(|| held.snapshot.is_revoked()), "lost, and not revoked");
            more(&self.world.counts.revoked);
        };
        if self.random.one_in(2) {
            let mut bytes = [0; 8];
            return match held.snapshot.read_at(page * PAGE + place * 8, &mut bytes) {
                Ok(()) => Some(u64::from_ne_bytes(bytes)),
                Err(RegionError::Revoked) => {
                    taken_away();
                    None
                }
                Err(error) => panic!("{error}"),
            };
        }
        let mapped = match held.snapshot.map() {
            Ok(mapped) => mapped,
            Err(RegionError::Revoked) => {
                taken_away();
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let value = peek(mapped.as_ptr(), page, place);
        // If the word was read, its block was not taken away, or only just now.
        if value.is_none() || held.snapshot.is_revoked() {
            taken_away();
            return None;
        }
        value
    }

    /// Checks that a snapshot still shows the same words, except for revoked blocks.
    fn look_again(&mut self) {
        self.now("look again");
        if self.held.is_empty() {
            return;
        }
        let at = self.random.below(self.held.len());
        let held = self.held.swap_remove(at);
        for &(page, place, before) in &held.seen {
            if let Some(value) = self.look(&held, page, place) {
                assert_eq!(value, before, "word {place} of page {page} changed in a snapshot");
            }
        }
        if !self.random.one_in(3) {
            self.held.push(held);
        }
    }

    fn fork(&mut self) {
        self.now("fork");
        let fork = match self.region.fork_with(
            RegionOptions::new().copy_grain(self.world.grain).calls_wait(self.world.grain == hugefork::CopyGrain::Page),
        ) {
            Ok(fork) => fork,
            Err(RegionError::PoolFull { .. }) => return more(&self.world.counts.refused),
            Err(RegionError::Revoked) => return more(&self.world.counts.revoked),
            Err(error) => panic!("{error}"),
        };
        more(&self.world.counts.forks);
        for at in self.part() {
            let page = self.pages[at];
            let found = WORDS.map(|place| peek(fork.as_ptr(), page.number, place));
            let is_there = found.iter().all(|&value| value == Some(page.value) || page.is_lazy && value == Some(0));
            let is_excused = || soon(|| fork.is_revoked());
            assert!(is_there || is_excused(), "{found:x?} in a fork, not {:x}", page.value);
            // A page prepared by page still shares its block, and a full pool may take this block away at any time.
            if let Err(error) = fork.prepare_write(page.number * PAGE..(page.number + 1) * PAGE) {
                assert!(matches!(error, RegionError::PoolFull { .. } | RegionError::Revoked), "{error}");
                more(if error == RegionError::Revoked { &self.world.counts.revoked } else { &self.world.counts.full });
            }
        }
    }

    fn pin(&mut self) {
        self.now("pin");
        if let Some((pin, part)) = self.pin.take() {
            part.for_each(|at| self.check(at));
            drop(pin);
            return;
        }
        let part = self.part();
        match self.region.pin(self.bytes_of(&part)) {
            Ok(pin) => {
                self.look_what_is_there(part.clone());
                self.pin = Some((pin, part));
            }
            Err(RegionError::PoolFull { .. }) if part.clone().any(|at| !self.pages[at].is_promised) => {
                more(&self.world.counts.full);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn reclaim(&mut self) {
        self.now("reclaim");
        let bytes = self.world.pool.block_size().bytes() * (1 + self.random.below(16));
        self.world.pool.reclaim(bytes).unwrap();
        if self.random.one_in(4) {
            self.world.pool.trim().unwrap();
        }
    }

    /// Takes every free block, as the filler.
    fn fill_up(&self) {
        if self.world.is_at_ease() {
            return;
        }
        self.now("fill up");
        match self.world.filler.populate() {
            Ok(()) => {}
            Err(RegionError::PoolFull { .. }) => more(&self.world.counts.full),
            Err(error) => panic!("{error}"),
        }
    }

    /// One step of the filler, which at times lazily frees what it has taken.
    pub(crate) fn fill(&mut self) {
        self.fill_up();
        match self.random.below(8) {
            0 => self.lazy_free(),
            1 => self.discard(),
            2 if self.world.is_at_ease() => self.discard(),
            2..5 => self.write(),
            _ => self.check_some(),
        }
    }

    /// Makes steps until the test is over, and then checks everything once more.
    pub(crate) fn run(mut self, step: fn(&mut Self)) {
        while !self.world.over.load(Ordering::Relaxed) {
            step(&mut self);
        }
        self.pin = None;
        (0..self.pages.len()).for_each(|at| self.check(at));
        while !self.held.is_empty() {
            self.look_again();
        }
    }
}
