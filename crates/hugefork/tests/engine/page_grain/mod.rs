//! Writes for which the kernel copies single pages, on real memory: no byte is lost, and none appears in a wrong place,
//! whatever else is done to the region.

mod calls;
mod lacks;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;
use std::io::{Write, pipe};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::alone::alone;
use crate::common::forked::{check_fork_dies_of_access_to, pool_mappings};
use crate::common::random::Random;
use crate::common::{Over, by_block, pool};
use hugefork::{Advice, Backing, BlockSize, CopyGrain, Observer, Pool, Region, RegionOptions, Snapshot};
use procfs::process::VmFlags;

const PAGE: usize = 4096;
const GRAINS: [CopyGrain; 3] = [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block];
const SIZES: [BlockSize; 2] = [BlockSize::MIB_2, BlockSize::KIB_64];

fn grained(grain: CopyGrain) -> RegionOptions {
    RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)
}

/// The first kernel that tells which pages of a mapping are private.
const SINCE: (u32, u32) = (6, 7);

/// A pool for which the kernel copies single pages; `None`, with a message, if this kernel cannot.
fn paged(backing: Backing, capacity: usize, size: BlockSize) -> Option<Pool> {
    let pool = pool(backing, capacity, size)?;
    let mut region = pool.region_with(size.bytes(), grained(CopyGrain::Auto)).unwrap();
    region.as_mut_slice()[PAGE] = 1;
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[PAGE] = 2;
    let cow_mapped = region.stats().faults.cow_mapped;
    drop((region, snapshot));
    if cow_mapped > 0 {
        return Some(pool);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    assert!(version < SINCE, "Linux {} copies single pages, but none was copied here", release.trim());
    println!("skipped: Linux {} does not say which pages are private (6.7)", release.trim());
    None
}

/// Pools of all kinds, each with `len` bytes or with one huge page if that is more.
fn pools(len: impl Fn(BlockSize) -> usize) -> impl Iterator<Item = Pool> {
    let kinds = [Backing::ShmemHuge, Backing::ShmemBase].into_iter().flat_map(|it| SIZES.map(|size| (it, size)));
    kinds.filter_map(move |(backing, size)| paged(backing, len(size).max(2 << 20), size))
}

/// Checks that all blocks of the pool are free again.
#[track_caller]
fn check_all_is_back(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!((stats.blocks_free, stats.blocks_leaked, stats.blocks_reserved), (stats.blocks, 0, 0));
    assert_eq!((stats.regions, stats.faults.failed), (0, 0));
}

const WRITERS: usize = 3;
/// More than one run of blocks that become CoW mappings at once.
const LEN: usize = 40 << 20;
const WORDS: usize = LEN / 8;
const CUTS: usize = 12;
const KEPT: usize = 2;

/// The two counters of `writer`, far apart: it writes the first, and later the second.
fn counters(writer: usize) -> [usize; 2] {
    [writer, WORDS - 1 - writer]
}

/// Writes words of its own, and counts before and after each, until the test is over. Returns its last write to each
/// word.
fn write(region: &Region, writer: usize, writes: &AtomicU64, over: &AtomicBool) -> Vec<(usize, u64)> {
    let (words, mut random, mut last) = (region.as_atomic_u64s(), Random::new(99 + writer as u64), Vec::new());
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        count += 1;
        let [first, second] = counters(writer);
        words[first].store(count, Ordering::Release);
        // Some words are near each other, most are not. None is a counter.
        let near = random.below(2) * 1000;
        let at = (1 + near + random.below(WORDS / WRITERS - 2 - near)) * WRITERS + writer;
        words[at].store(count, Ordering::Release);
        last.push((at, count));
        words[second].store(count, Ordering::Release);
        writes.fetch_add(1, Ordering::Relaxed);
    }
    last.extend(counters(writer).map(|at| (at, count)));
    last
}

/// Checks that a cut is consistent, and returns what it shows.
fn check_cut(read: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut seen = Vec::new();
    for writer in 0..WRITERS {
        let [first, second] = counters(writer).map(&read);
        assert!(first >= second && second + 1 >= first, "writer {writer}: {first} and then {second}");
        seen.extend([first, second]);
    }
    seen
}

fn check_snapshot(snapshot: &Snapshot) -> Vec<u64> {
    check_cut(|word| {
        let mut bytes = [0; 8];
        snapshot.read_at(word * 8, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    })
}

fn check_fork(fork: &Region) -> Vec<u64> {
    check_cut(|word| fork.as_atomic_u64s()[word].load(Ordering::Relaxed))
}

fn check_cuts(pool: &Pool, grain: CopyGrain) {
    let region = pool.region_with(LEN, grained(grain)).unwrap();
    let (writes, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (region, writes, over) = (&region, &writes, &over);
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(region, writer, writes, over))).collect();
        {
            let _over = Over(over);
            let (mut random, mut kept) = (Random::new(7), Vec::new());
            for cut in 0..CUTS {
                let enough = writes.load(Ordering::Relaxed) + random.below(500) as u64;
                while writes.load(Ordering::Relaxed) < enough {
                    std::thread::yield_now();
                }
                let snapshot = region.snapshot().unwrap();
                let seen = check_snapshot(&snapshot);
                if cut % 4 == 1 {
                    let fork = region.fork_with(grained(GRAINS[cut / 4 % 3])).unwrap();
                    let of_fork = check_fork(&fork);
                    assert!(seen.iter().zip(&of_fork).all(|(earlier, later)| earlier <= later));
                    let scribbled: Vec<_> = (0..30).map(|_| 3000 + random.below(WORDS - 6000)).collect();
                    scribbled.iter().for_each(|&word| fork.as_atomic_u64s()[word].store(u64::MAX, Ordering::Relaxed));
                    let copy = fork.fork_with(grained(grain)).unwrap();
                    scribbled.iter().for_each(|&word| fork.as_atomic_u64s()[word].store(0, Ordering::Relaxed));
                    assert_eq!((check_fork(&fork), check_fork(&copy)), (of_fork.clone(), of_fork));
                    let is_copied = |&word: &usize| copy.as_atomic_u64s()[word].load(Ordering::Relaxed) == u64::MAX;
                    assert!(scribbled.iter().all(is_copied));
                }
                // Every other cut is dropped at once.
                if cut % 2 == 0 {
                    if kept.len() == KEPT {
                        kept.swap_remove(random.below(KEPT));
                    }
                    kept.push((snapshot, seen));
                }
                kept.iter().for_each(|(snapshot, seen)| assert_eq!(&check_snapshot(snapshot), seen, "it has changed"));
            }
        }
        let mut expected = vec![0; WORDS];
        for (at, value) in writers.into_iter().flat_map(|writer| writer.join().unwrap()) {
            expected[at] = value;
        }
        // SAFETY: all of it can be read, and nobody writes any more.
        let shown = unsafe { std::slice::from_raw_parts(region.as_ptr().cast::<u64>(), WORDS) };
        if shown != expected {
            let wrong = shown.iter().zip(&expected).position(|(word, expected)| word != expected);
            panic!("word {wrong:?} is not what was written");
        }
    });
    let faults = region.stats().faults;
    println!("{} of {}, {grain:?}: {faults:?}", pool.backing(), pool.block_size());
    assert_eq!(faults.cow_mapped + faults.pages_written_back > 0, grain != CopyGrain::Block);
    drop(region);
    check_all_is_back(pool);
}

#[test]
fn cuts_of_a_region_that_threads_write_to_are_consistent_at_every_grain() {
    alone(|| {
        // The region, the kept cuts, a new one, a fork, a fork of that, and blocks in transit.
        for pool in pools(|_| (KEPT + 5) * LEN) {
            GRAINS.iter().for_each(|&grain| check_cuts(&pool, grain));
        }
    })
    .well();
}

/// `read(2)` into a part of the region: the kernel writes to the region's addresses.
fn read_into(region: &Region, fd: BorrowedFd<'_>, range: Range<usize>) -> std::io::Result<usize> {
    assert!(range.end <= region.len());
    // SAFETY: the range lies in the region, which nobody else uses.
    let count = unsafe { libc::read(fd.as_raw_fd(), region.as_mut_ptr().add(range.start).cast(), range.len()) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}

#[test]
fn system_calls_write_right_after_a_snapshot() {
    alone(|| {
        use std::os::fd::AsFd;
        for pool in pools(|size| 16 * size.bytes()) {
            let block = pool.block_size().bytes();
            let mut region = pool.region_with(4 * block, grained(CopyGrain::Page)).unwrap();
            region.as_mut_slice().fill(1);
            let mut expected = vec![1; 4 * block];
            let zeros = File::open("/dev/zero").unwrap();
            for round in 0..4 {
                let (before, snapshot) = (expected.clone(), region.snapshot().unwrap());
                // A range over several pages and blocks, and over a page that is private already.
                let range = round * 100 + block - 5000..2 * block + 5000;
                assert_eq!(read_into(&region, zeros.as_fd(), range.clone()).unwrap(), range.len());
                expected[range].fill(0);
                let (from, mut to) = pipe().unwrap();
                to.write_all(&[7; 9000]).unwrap();
                let range = 3 * block - 4500..3 * block + 4500;
                assert_eq!(read_into(&region, from.as_fd(), range.clone()).unwrap(), range.len());
                expected[range].fill(7);
                region.as_mut_slice()[round * PAGE] = 9;
                expected[round * PAGE] = 9;
                assert!(snapshot[..] == before[..] && region.as_mut_slice() == expected);
            }
            drop(region);
            check_all_is_back(&pool);
        }
    })
    .well();
}

#[test]
fn by_block_system_calls_need_a_block_that_is_prepared() {
    use std::os::fd::AsFd;
    let pool = pool(Backing::Auto, 32 << 20, BlockSize::MIB_2).unwrap();
    let region = pool.region_with(8 << 20, by_block()).unwrap();
    region.populate().unwrap();
    let _snapshot = region.snapshot().unwrap();
    let zeros = File::open("/dev/zero").unwrap();
    let refused = read_into(&region, zeros.as_fd(), 0..PAGE).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    region.prepare_write(0..PAGE).unwrap();
    assert_eq!(read_into(&region, zeros.as_fd(), 0..PAGE).unwrap(), PAGE);
}

/// The region may be written densely, so that the pool's thread would copy its blocks, or hold its blocks alone, so
/// that the thread would write them back. In both cases prepared ranges stay writable.
#[test]
fn by_choice_system_calls_write_wherever_that_was_prepared() {
    alone(|| {
        use std::os::fd::AsFd;
        const BLOCKS: usize = 64;
        let zeros = File::open("/dev/zero").unwrap();
        for pool in pools(|size| 3 * BLOCKS * size.bytes()) {
            let size = pool.block_size().bytes();
            let mut region = pool.region(BLOCKS * size).unwrap();
            region.as_mut_slice().fill(1);
            for round in 0..20 {
                let mut snapshot = Some(region.snapshot().unwrap());
                region.prepare_write(0..BLOCKS * size).unwrap();
                for page in 0..(size / PAGE).min(48) {
                    for block in 0..BLOCKS {
                        let at = block * size + page * PAGE;
                        let read = read_into(&region, zeros.as_fd(), at..at + 100);
                        assert_eq!(read.ok(), Some(100), "round {round}, page {page} of block {block}");
                    }
                    // From then on the region holds its blocks alone.
                    if page == 4 + 2 * round {
                        snapshot = None;
                    }
                }
                drop(snapshot);
            }
        }
    })
    .well();
}

/// The preparing thread writes back pages written before, from a list that it has made earlier.
#[test]
fn by_choice_system_calls_write_wherever_that_was_prepared_beside_a_thread_that_prepares_snapshots() {
    alone(|| {
        use std::os::fd::AsFd;
        const BLOCKS: usize = 64;
        let zeros = File::open("/dev/zero").unwrap();
        for pool in pools(|size| 4 * BLOCKS * size.bytes()) {
            let size = pool.block_size().bytes();
            let region = pool.region(BLOCKS * size).unwrap();
            region.populate().unwrap();
            let words = region.as_atomic_u64s();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        region.prepare_snapshot().unwrap();
                    }
                });
                for round in 0..60 {
                    let snapshot = region.snapshot().unwrap();
                    for word in (0..words.len()).step_by(size / 8).flat_map(|block| [block + 512, block + 5 * 512]) {
                        words[word].store(1, Ordering::Relaxed);
                    }
                    region.prepare_write(0..BLOCKS * size).unwrap();
                    for at in (0..BLOCKS * size).step_by(size).cycle().take(4 * BLOCKS) {
                        let read = read_into(&region, zeros.as_fd(), at..at + 2 * PAGE);
                        if !read.as_ref().is_ok_and(|read| *read == 2 * PAGE) {
                            over.store(true, Ordering::Relaxed);
                            panic!("round {round}, block {}: {read:?}", at / size);
                        }
                    }
                    drop(snapshot);
                }
                over.store(true, Ordering::Relaxed);
            });
        }
    })
    .well();
}

/// Such a write goes past write-protection, and causes no fault that the engine would see.
#[test]
fn a_debuggers_write_to_what_a_snapshot_has_write_protected_is_kept_and_in_the_next_snapshot() {
    alone(|| {
        for pool in pools(|size| 16 * size.bytes()) {
            let block = pool.block_size().bytes();
            let mut region = pool.region_with(4 * block, grained(CopyGrain::Auto)).unwrap();
            region.as_mut_slice().fill(1);
            let first = region.snapshot().unwrap();
            // CoW-maps all blocks; the next snapshot write-protects them.
            region.as_mut_slice()[5 * PAGE] = 2;
            let second = region.snapshot().unwrap();
            let before = region.stats().faults;
            let memory = File::options().write(true).open("/proc/self/mem").unwrap();
            let at = [6 * PAGE + 7, block + 3 * PAGE];
            let written = at.map(|at| memory.write_at(&[9], region.as_ptr().addr() as u64 + at as u64));
            if written.iter().any(Result::is_err) {
                println!("skipped: /proc/self/mem does not write to read-only memory here: {written:?}");
                return;
            }
            assert_eq!(region.stats().faults.cow_mapped, before.cow_mapped, "a fault came to hugefork");
            assert_eq!(at.map(|at| (first[at], second[at], region.as_mut_slice()[at])), [(1, 1, 9); 2]);
            let third = region.snapshot().unwrap();
            region.as_mut_slice()[6 * PAGE] = 3;
            assert_eq!(at.map(|at| (second[at], third[at], region.as_mut_slice()[at])), [(1, 9, 9); 2]);
            drop((first, second, third));
            drop(region.pin(0..4 * block).unwrap());
            assert_eq!(at.map(|at| region.as_mut_slice()[at]), [9; 2]);
        }
    })
    .well();
}

#[test]
fn children_of_fork_do_not_have_what_is_shown_by_page() {
    alone(|| {
        for pool in pools(|size| 16 * size.bytes()) {
            let block = pool.block_size().bytes();
            let mut region = pool.region_with(3 * block, grained(CopyGrain::Page)).unwrap();
            region.as_mut_slice().fill(1);
            let snapshot = region.snapshot().unwrap();
            region.as_mut_slice()[5] = 2;
            // A private page, a page of the pool in the same block, and a block without private pages.
            for at in [5, 2 * PAGE, 2 * block + 7] {
                check_fork_dies_of_access_to(region.as_mut_ptr().wrapping_add(at));
            }
            assert!(pool_mappings().iter().all(|map| map.extension.vm_flags.contains(VmFlags::DC)));
            assert_eq!((region.as_mut_slice()[5], snapshot[5], region.as_mut_slice()[6]), (2, 1, 1));
            drop((region, snapshot));
            check_all_is_back(&pool);
            drop(pool);
            assert!(pool_mappings().is_empty(), "nothing stays mapped");
        }
    })
    .well();
}

/// A region with the bytes that it must have, and snapshots with theirs.
struct Model {
    region: Region,
    bytes: Vec<u8>,
    snapshots: Vec<(Snapshot, Vec<u8>)>,
    random: Random,
}

impl Model {
    fn range(&mut self) -> Range<usize> {
        let (len, block) = (self.bytes.len(), self.region.pool().block_size().bytes());
        let start = self.random.below(len - 1);
        match self.random.below(4) {
            0 => 0..len,
            1 => start / block * block..(start / block + 1) * block,
            2 => start / PAGE * PAGE..len.min((start / PAGE + 1 + self.random.below(3)) * PAGE),
            _ => start..len.min(start + 1 + self.random.below(block)),
        }
    }

    fn write(&mut self) {
        for _ in 0..1 + self.random.below(8) {
            let (at, value) = (self.random.below(self.bytes.len()), 1 + self.random.below(255) as u8);
            // SAFETY: inside the region, which nobody else uses.
            unsafe { self.region.as_mut_ptr().add(at).write_volatile(value) };
            self.bytes[at] = value;
        }
    }

    fn step(&mut self) {
        let range = self.range();
        match self.random.below(14) {
            0..4 => {}
            4 => self.snapshots.push((self.region.snapshot().unwrap(), self.bytes.clone())),
            5 => {
                let pinned = self.region.pin(range).unwrap();
                let snapshot = self.region.snapshot().unwrap();
                assert!(snapshot[..] == self.bytes[..]);
                drop((pinned, snapshot));
            }
            6 => drop(self.region.lazy_free(range).unwrap()),
            7 => _ = self.region.cancel_lazy_free(range).unwrap(),
            8 => {
                self.region.discard(range.clone()).unwrap();
                self.bytes[range].fill(0);
            }
            9 => self.region.prepare_write(range).unwrap(),
            10 => self.region.populate().unwrap(),
            11 => {
                let file = file();
                self.region.write_to_at(&file, range.clone(), 0).unwrap();
                let mut written = vec![0; range.len()];
                file.read_exact_at(&mut written, 0).unwrap();
                assert!(written == self.bytes[range]);
            }
            12 => {
                let file = file();
                let bytes: Vec<u8> = range.clone().map(|at| (at / 3 + self.snapshots.len()) as u8).collect();
                file.write_all_at(&bytes, 0).unwrap();
                assert_eq!(self.region.read_from_at(&file, range.clone(), 0), Ok(range.len()));
                self.bytes[range].copy_from_slice(&bytes);
            }
            _ => {
                let mut fork = self.region.fork().unwrap();
                assert!(fork.as_mut_slice() == self.bytes);
                fork.as_mut_slice()[range].fill(0xee);
            }
        }
        self.write();
        while self.snapshots.len() > 2 {
            let at = self.random.below(3);
            self.snapshots.swap_remove(at);
        }
        // SAFETY: all of it can be read, and nobody writes meanwhile. Unlike `as_mut_slice`, this cancels no lazy free.
        let shown = unsafe { std::slice::from_raw_parts(self.region.as_ptr(), self.bytes.len()) };
        if shown != self.bytes {
            let wrong = shown.iter().zip(&self.bytes).position(|(shown, expected)| shown != expected);
            panic!("byte {wrong:?} is not what was written");
        }
        self.snapshots
            .iter()
            .for_each(|(snapshot, bytes)| assert!(snapshot[..] == bytes[..], "a snapshot has changed"));
    }
}

/// A file without a name.
fn file() -> File {
    File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
}

#[test]
fn whatever_is_done_to_what_is_shown_by_page_keeps_every_byte() {
    alone(|| {
        for pool in pools(|size| 24 * size.bytes()) {
            for grain in [CopyGrain::Page, CopyGrain::Auto] {
                let len = 3 * pool.block_size().bytes();
                let region = pool.region_with(len, grained(grain)).unwrap();
                let mut model = Model { region, bytes: vec![0; len], snapshots: Vec::new(), random: Random::new(4711) };
                (0..120).for_each(|_| model.step());
                assert!(model.region.stats().faults.pages_written_back > 0, "nothing was copied by page");
                drop(model);
                check_all_is_back(&pool);
            }
        }
    })
    .well();
}

/// An observer that counts its calls.
#[derive(Default)]
struct Counting(AtomicU64);

impl Observer for Counting {
    fn invalidate_start(&self, _: Range<usize>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn invalidate_end(&self, _: Range<usize>) {}
}

/// Each of these writes puts other memory behind a page.
#[test]
fn an_observer_that_comes_after_a_snapshot_is_told_of_every_change_too() {
    alone(|| {
        for pool in pools(|size| 8 * size.bytes()) {
            let block = pool.block_size().bytes();
            let mut region = pool.region_with(2 * block, grained(CopyGrain::Page)).unwrap();
            region.as_mut_slice().fill(1);
            let snapshot = region.snapshot().unwrap();
            region.as_mut_slice()[5] = 2;
            let observer = Arc::new(Counting::default());
            region.observe(observer.clone()).unwrap();
            // The kernel copies no more pages: private pages lie in blocks of the region's own now.
            assert_eq!(region.stats().blocks_cow_mapped, 0);
            assert_ne!(observer.0.load(Ordering::Relaxed), 0, "it was not told of the blocks that took their place");
            region.as_mut_slice()[block + PAGE] = 2;
            assert_eq!((snapshot[block + PAGE], region.as_mut_slice()[5]), (1, 2));
            let (later, told) = (region.snapshot().unwrap(), observer.0.load(Ordering::Relaxed));
            region.as_mut_slice()[block + PAGE] = 3;
            assert_ne!(observer.0.load(Ordering::Relaxed), told, "it was not told of the copy");
            assert_eq!((later[block + PAGE], region.stats().blocks_cow_mapped), (2, 0));
        }
    })
    .well();
}

/// The numbers of blocks copied and CoW-mapped while `write` writes to a region that a snapshot holds.
fn copied_and_cow_mapped(pool: &Pool, advice: Option<Advice>, write: impl Fn(&mut [u8])) -> (u64, u64) {
    let mut region = pool.region(LEN).unwrap();
    region.as_mut_slice().fill(1);
    if let Some(advice) = advice {
        region.advise(advice);
    }
    let snapshot = region.snapshot().unwrap();
    let before = region.stats().faults;
    write(region.as_mut_slice());
    let after = region.stats().faults;
    assert!(snapshot[..] == vec![1; LEN]);
    (after.blocks_copied - before.blocks_copied, after.cow_mapped - before.cow_mapped)
}

#[test]
fn by_default_random_writes_copy_pages() {
    alone(|| {
        for pool in pools(|_| 3 * LEN) {
            let mut random = Random::new(5);
            let places: Vec<usize> = (0..200).map(|_| random.below(LEN / PAGE) * PAGE + 100).collect();
            let (copied, cow_mapped) =
                copied_and_cow_mapped(&pool, None, |bytes| places.iter().for_each(|&at| bytes[at] = 2));
            assert_eq!((copied, cow_mapped > 0), (0, true));
            check_all_is_back(&pool);
        }
    })
    .well();
}

#[test]
fn a_region_that_is_to_be_written_as_a_whole_copies_blocks() {
    alone(|| {
        for pool in pools(|_| 3 * LEN) {
            let blocks = (LEN / pool.block_size().bytes()) as u64;
            let done = copied_and_cow_mapped(&pool, Some(Advice::Whole), |bytes| bytes.fill(2));
            assert_eq!(done, (blocks, 0));
            check_all_is_back(&pool);
        }
    })
    .well();
}

#[test]
fn writes_in_order_copy_blocks_once_they_are_known_to_be_in_order() {
    alone(|| {
        for pool in pools(|_| 3 * LEN) {
            let blocks = (LEN / pool.block_size().bytes()) as u64;
            let (copied, _) = copied_and_cow_mapped(&pool, None, |bytes| bytes.fill(2));
            assert!(copied >= blocks / 2, "{copied} of {blocks} blocks were copied");
            check_all_is_back(&pool);
        }
    })
    .well();
}
