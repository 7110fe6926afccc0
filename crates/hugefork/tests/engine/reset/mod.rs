//! Resets on real memory: a region has the bytes of a snapshot again, both alone in its process and beside threads that
//! write.

mod several;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;

use crate::common::alone::{alone, with_one_thread};
use crate::common::random::Random;
use crate::common::{Over, pool};
use hugefork::{Backing, BlockSize, CopyGrain, Pool, Region, RegionOptions, Snapshot};

const PAGE: usize = 4096;
const SIZES: [BlockSize; 3] = [BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::KIB_4];
const GRAINS: [CopyGrain; 3] = [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block];

/// Pools of `len` bytes, of all kinds that this machine has.
fn pools(len: usize) -> impl Iterator<Item = Pool> {
    let shmem = [Backing::ShmemHuge, Backing::ShmemBase].into_iter().flat_map(|it| SIZES.map(|size| (it, size)));
    shmem.chain([(Backing::Hugetlb, BlockSize::MIB_2)]).filter_map(move |(backing, size)| pool(backing, len, size))
}

fn grained(grain: CopyGrain) -> RegionOptions {
    RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)
}

/// The page faults of this thread; the pool's threads may have some of their own.
fn faults() -> u64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for the answer, and all zeroes is a valid one.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    usage.ru_minflt as u64
}

/// Writes to some pages and resets, again and again: from the second round on no write takes a fault.
fn check_quiet_rounds() {
    const LEN: usize = 64 << 20;
    // Blocks of one page have no smaller unit to copy.
    let by_page = |pool: &Pool| pool.has_page_grain() && pool.block_size() > BlockSize::KIB_4;
    for pool in pools(2 * LEN).filter(by_page) {
        let mut region = pool.region(LEN).unwrap();
        region.as_mut_slice().fill(1);
        let snapshot = region.snapshot().unwrap();
        let mut round = |value: u8| {
            let mut random = Random::new(99);
            for _ in 0..44 {
                region.as_mut_slice()[random.below(LEN) / PAGE * PAGE + PAGE / 2] = value;
            }
            region.reset_to(&snapshot).unwrap();
        };
        // The pool's threads may still be busy with the first rounds.
        (2..20).for_each(&mut round);
        let mut quiet = 0;
        for value in 20..120 {
            let before = faults();
            round(value);
            quiet += usize::from(faults() == before);
        }
        let stats = region.stats();
        assert!(quiet > 50, "of 100 rounds, {quiet} took no fault: {stats:?}");
        assert_eq!((stats.faults.pages_put_back % 44, stats.pages_private), (0, 44));
        assert!(*region.as_mut_slice() == snapshot[..], "it is as it was");
    }
}

#[test]
fn alone_the_second_round_takes_no_fault_and_no_signal() {
    alone(|| with_one_thread(check_quiet_rounds)).well();
}

#[test]
fn beside_another_thread_the_second_round_takes_no_fault_and_no_signal() {
    alone(|| {
        std::thread::spawn(std::thread::park);
        check_quiet_rounds();
    })
    .well();
}

/// A region, and the bytes that it must have.
struct Model {
    region: Region,
    bytes: Vec<u8>,
    snapshots: Vec<(Snapshot, Vec<u8>)>,
    random: Random,
}

impl Model {
    fn step(&mut self) {
        let (len, block) = (self.bytes.len(), self.region.pool().block_size().bytes());
        let start = self.random.below(len - 1) / PAGE * PAGE;
        let range = start..len.min(start + 1 + self.random.below(3 * block));
        match self.random.below(12) {
            0 | 1 => self.snapshots.push((self.region.snapshot().unwrap(), self.bytes.clone())),
            2..6 if !self.snapshots.is_empty() => {
                let at = self.random.below(self.snapshots.len());
                self.region.reset_to(&self.snapshots[at].0).unwrap();
                self.bytes.clone_from(&self.snapshots[at].1);
            }
            6 => {
                self.region.discard(range.clone()).unwrap();
                self.bytes[range].fill(0);
            }
            7 => self.region.prepare_write(range).unwrap(),
            8 => drop(self.region.lazy_free(range).unwrap()),
            9 if !self.snapshots.is_empty() => {
                let at = self.random.below(self.snapshots.len());
                let mut pin = Some(self.region.pin(range.clone()).unwrap());
                self.region.reset_to(&self.snapshots[at].0).unwrap();
                self.bytes.clone_from(&self.snapshots[at].1);
                // SAFETY: pinned, and nobody else uses it.
                let pinned = unsafe { core::slice::from_raw_parts(pin.as_ref().unwrap().as_mut_ptr(), range.len()) };
                assert!(pinned == &self.bytes[range]);
                pin.take();
            }
            10 => {
                let mut fork = self.region.fork().unwrap();
                fork.as_mut_slice()[range].fill(0xee);
                if let Some((snapshot, bytes)) = self.snapshots.last() {
                    fork.reset_to(snapshot).unwrap();
                    assert!(fork.as_mut_slice() == bytes);
                }
            }
            _ => {}
        }
        for _ in 0..self.random.below(6) {
            let (at, value) = (self.random.below(len), self.random.below(256) as u8);
            // SAFETY: inside the region, which nobody else uses.
            unsafe { self.region.as_mut_ptr().add(at).write_volatile(value) };
            self.bytes[at] = value;
        }
        while self.snapshots.len() > 3 {
            let at = self.random.below(4);
            self.snapshots.swap_remove(at);
        }
    }

    fn check(&mut self) {
        assert!(self.region.as_mut_slice() == self.bytes);
        assert!(self.snapshots.iter().all(|(snapshot, bytes)| snapshot[..] == bytes[..]));
    }
}

fn check_against_a_vector(steps: usize) {
    for pool in pools(64 << 20) {
        let block = pool.block_size().bytes();
        for (seed, grain) in (1..).zip(GRAINS) {
            let len = (6 * block).max(8 * PAGE);
            let region = pool.region_with(len, grained(grain)).unwrap();
            let mut model =
                Model { region, bytes: vec![0; len], snapshots: Vec::new(), random: Random::new(seed * 7919) };
            for step in 0..steps {
                model.step();
                if step % 8 == 0 {
                    model.check();
                }
            }
            model.check();
            assert_eq!(pool.stats().faults.failed, 0);
        }
        let stats = pool.stats();
        assert_eq!((stats.blocks_free, stats.blocks_leaked), (stats.blocks, 0));
    }
}

#[test]
fn alone_a_region_behaves_like_a_vector_that_is_put_back() {
    alone(|| with_one_thread(|| check_against_a_vector(300))).well();
}

#[test]
fn beside_other_threads_a_region_behaves_like_a_vector_that_is_put_back() {
    alone(|| {
        check_against_a_vector(300);
    })
    .well();
}

/// A system call can write to a prepared range, whatever the pool's thread does meanwhile.
#[test]
fn system_calls_write_to_what_was_prepared() {
    use std::os::fd::AsRawFd;
    alone(|| {
        const LEN: usize = 16 << 20;
        let zeros = File::open("/dev/zero").unwrap();
        for pool in pools(3 * LEN) {
            let mut region = pool.region(LEN).unwrap();
            region.as_mut_slice().fill(1);
            let mut snapshot = Some(region.snapshot().unwrap());
            region.prepare_write(0..LEN).unwrap();
            for round in 0..200 {
                let at = round * 77_777 % (LEN - 70_000);
                // SAFETY: inside the region, which nobody else uses.
                let read = unsafe { libc::read(zeros.as_raw_fd(), region.as_mut_ptr().add(at).cast(), 70_000) };
                assert_eq!(read, 70_000, "{}", std::io::Error::last_os_error());
                if round == 100 {
                    // From now on the pool's thread could write the blocks back.
                    snapshot = None;
                }
            }
            drop(snapshot);
        }
    })
    .well();
}

/// The numbers of the changed pages.
fn pages_of(changed: hugefork::Changes<'_>) -> Vec<usize> {
    let ranges: Vec<_> = changed.pages().collect::<Result<_, _>>().unwrap();
    ranges.into_iter().flat_map(|range| range.start / PAGE..range.end / PAGE).collect()
}

#[test]
fn what_has_changed_is_exact_after_a_reset() {
    alone(|| {
        for pool in pools(64 << 20) {
            for grain in GRAINS {
                let len = (6 * pool.block_size().bytes()).max(16 * PAGE);
                let mut region = pool.region_with(len, grained(grain)).unwrap();
                region.as_mut_slice().fill(1);
                let first = region.snapshot().unwrap();
                region.as_mut_slice()[5 * PAGE] = 2;
                let second = region.snapshot().unwrap();
                for round in 3..9 {
                    let (to, other) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
                    region.as_mut_slice()[7 * PAGE + 1] = round;
                    region.reset_to(to).unwrap();
                    assert_eq!(region.origin(), Some(to.id()));
                    assert_eq!(pages_of(region.changed_since(to).unwrap()), [0; 0]);
                    assert_eq!(pages_of(region.changed_since(other).unwrap()), [5]);
                    region.as_mut_slice()[9 * PAGE] = round;
                    assert_eq!(pages_of(region.changed_since(to).unwrap()), [9]);
                    let third = region.snapshot().unwrap();
                    assert_eq!((third.parent(), region.origin()), (Some(to.id()), Some(third.id())));
                    assert_eq!(pages_of(third.changed_since(to).unwrap()), [9]);
                }
            }
        }
    })
    .well();
}

const WRITERS: usize = 3;

/// Checks what a reset undoes and keeps. Each writer has two counters, far apart, and writes the first before the
/// second. So if the first write survives a reset, so does the second; without a reset in between, both are there.
fn check_cuts(pool: &Pool, grain: CopyGrain, resets: u64) {
    let block = pool.block_size().bytes();
    let len = (block * 5).max(40 * PAGE);
    let region = pool.region_with(len, grained(grain)).unwrap();
    // SAFETY: inside the region, which nobody else uses yet.
    unsafe { region.as_mut_ptr().write_bytes(0, len) };
    let snapshot = region.snapshot().unwrap();
    let (over, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (region, over, writes, begun, ended) = (&region, &over, &writes, &begun, &ended);
            scope.spawn(move || {
                let _over = Over(over);
                let words = region.as_atomic_u64s();
                let (first, second) = (&words[writer], &words[words.len() - 1 - writer]);
                let (mut random, mut count) = (Random::new(99 + writer as u64), 0);
                while !over.load(Ordering::Relaxed) {
                    let before = (ended.load(Ordering::SeqCst), begun.load(Ordering::SeqCst));
                    count += 1;
                    first.store(count, Ordering::SeqCst);
                    let at = WRITERS + random.below(words.len() / WRITERS - 2) * WRITERS + writer;
                    words[at.min(words.len() - 2 * WRITERS)].store(count, Ordering::SeqCst);
                    second.store(count, Ordering::SeqCst);
                    // Beside a reset, a thread may read some pages that are put back and others that are not yet.
                    let (one, two) = loop {
                        let until = ended.load(Ordering::SeqCst);
                        let (one, two) = (first.load(Ordering::SeqCst), second.load(Ordering::SeqCst));
                        assert!(
                            [0, count].contains(&two) && [0, count].contains(&one),
                            "writer {writer}: {one}, {two} and not {count} or 0"
                        );
                        if begun.load(Ordering::SeqCst) == until {
                            break (one, two);
                        }
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::yield_now();
                    };
                    assert!(two != 0 || one == 0, "writer {writer}: the second write is gone, and the first is not");
                    let nothing_came = before.0 == before.1 && begun.load(Ordering::SeqCst) == before.1;
                    assert!(!nothing_came || (one, two) == (count, count), "a write of after the reset is gone");
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = Over(&over);
        for nth in 0..resets {
            let enough = writes.load(Ordering::Relaxed) + 30;
            while writes.load(Ordering::Relaxed) < enough && !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            begun.store(nth + 1, Ordering::SeqCst);
            region.reset_to(&snapshot).unwrap();
            ended.store(nth + 1, Ordering::SeqCst);
            if nth % 5 == 0 {
                // A snapshot right after the reset: everything in it that differs from the reset's snapshot was written
                // since.
                let after = region.snapshot().unwrap();
                let word = |at: usize| {
                    let mut bytes = [0; 8];
                    after.read_at(at * 8, &mut bytes).unwrap();
                    u64::from_ne_bytes(bytes)
                };
                for writer in 0..WRITERS {
                    let (one, two) = (word(writer), word(len / 8 - 1 - writer));
                    assert!(one == two || one == two + 1 || one == 0 || two == 0, "writer {writer}: {one}, {two}");
                }
            }
        }
    });
    let mut all = vec![1; len];
    snapshot.read_at(0, &mut all).unwrap();
    assert!(all == vec![0; len], "the snapshot has changed");
}

#[test]
fn a_write_beside_a_reset_comes_before_it_or_after_it() {
    alone(|| {
        for pool in pools(64 << 20) {
            for grain in GRAINS {
                println!("{} of {}, {grain:?}", pool.backing(), pool.block_size());
                check_cuts(&pool, grain, 60);
            }
            let stats = pool.stats();
            assert_eq!((stats.blocks_free, stats.faults.failed), (stats.blocks, 0));
        }
    })
    .well();
}

/// As [`a_write_beside_a_reset_comes_before_it_or_after_it`] for longer: `HUGEFORK_RESET_SECONDS` on each kind of
/// memory that this machine has, or a minute.
#[test]
#[ignore = "takes minutes; see docs/safety.md"]
fn for_a_minute_writes_beside_resets_come_before_or_after_them() {
    let seconds = std::env::var("HUGEFORK_RESET_SECONDS").map_or(60, |seconds| seconds.parse().unwrap());
    let most = std::time::Duration::from_secs(seconds);
    let gigantic = (Backing::Hugetlb, BlockSize::GIB_1);
    let shmem = [Backing::ShmemHuge, Backing::ShmemBase].into_iter().flat_map(|it| SIZES.map(|size| (it, size)));
    for (backing, size) in shmem.chain([(Backing::Hugetlb, BlockSize::MIB_2), gigantic]) {
        let Some(pool) = pool(backing, (12 * size.bytes()).max(64 << 20), size) else { continue };
        let (started, mut rounds) = (std::time::Instant::now(), 0);
        while started.elapsed() < most {
            check_cuts(&pool, GRAINS[rounds % GRAINS.len()], 60);
            rounds += 1;
        }
        println!("{backing} of {size}: {} resets in {seconds} s", 60 * rounds);
    }
}

/// Each thread resets a region of its own, and all regions are forks of one image.
#[test]
fn threads_reset_their_own_forks_of_one_image() {
    alone(|| {
        for pool in pools(96 << 20) {
            let mut region = pool.region(8 << 20).unwrap();
            region.as_mut_slice().fill(5);
            let image = &region.snapshot().unwrap();
            std::thread::scope(|scope| {
                for thread in 0..WRITERS {
                    scope.spawn(move || {
                        let mut instance = image.fork().unwrap();
                        let mut random = Random::new(7 + thread as u64);
                        for round in 0..60 {
                            for _ in 0..40 {
                                instance.as_mut_slice()[random.below(8 << 20)] = round;
                            }
                            instance.reset_to(image).unwrap();
                        }
                        assert!(instance.as_mut_slice() == vec![5; 8 << 20]);
                    });
                }
            });
        }
    })
    .well();
}
