//! Forks and snapshots of a region that threads write to are consistent cuts: a cut that holds a write also holds every
//! write that happened before it.
//!
//! ```text
//!   writer w   counts in one slot of every block, in an order of its own: b0 := n, b1 := n, … bk := n, then n + 1
//!              a cut shows   n n n … n n-1 n-1 …   along that order, whatever the order of addresses
//!   relay      the thread with the token writes its number to a slot of its own and hands number + 1 on
//!              a cut shows   as many successive numbers as there are writers
//! ```

mod several;

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::alone::alone;
use crate::common::pool;
use crate::common::random::Random;
use hugefork::{Backing, BlockSize, Pool, Region, Snapshot};

const WRITERS: usize = 3;
const CUTTERS: usize = 2;
/// Number of blocks of the region that writers write to.
const MARKED: usize = 4;
/// Number of cuts that a cutter keeps while it makes more.
const KEPT: usize = 2;
/// The memory for all copies, in regions: the region itself, and for each cutter the cuts that it keeps, one fork, and
/// one fork of that.
const COPIES: usize = 1 + CUTTERS * (KEPT + 2);

/// Least number of cuts for each kind of pool.
const CUTS: usize = 12;
const TIME: Duration = Duration::from_millis(600);

/// The places of the counters.
#[derive(Clone, Copy)]
struct Layout {
    block: usize,
    len: usize,
}

impl Layout {
    fn new(block_size: BlockSize) -> Layout {
        let block = block_size.bytes();
        // With small blocks, the region has more than one window of 2 MiB.
        Layout { block, len: (MARKED * block).max(4 << 20) }
    }

    /// The offset of block number `nth` of those that writers write to.
    fn marked(self, nth: usize) -> usize {
        let blocks = self.len / self.block;
        nth * (blocks - 1) / (MARKED - 1) * self.block
    }

    /// The counters of `writer` in the order in which it writes them: ascending, descending, or from the middle.
    fn counters(self, writer: usize) -> [usize; MARKED] {
        let order = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]][writer];
        order.map(|nth| self.slots(nth) + writer * 8)
    }

    /// The slot of `writer` in the relay. Each writer's slot is in another block.
    fn relay(self, writer: usize) -> usize {
        self.slots([2, 0, 3][writer]) + 32
    }

    /// The offset of 64 bytes at the start or at the end of a block.
    fn slots(self, nth: usize) -> usize {
        self.marked(nth) + if nth.is_multiple_of(2) { 0 } else { self.block - 64 }
    }

    /// Checks that a cut is consistent, and returns what it shows. `read` reads the counter at an offset.
    fn check(self, read: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut seen = Vec::new();
        for writer in 0..WRITERS {
            let counts = self.counters(writer).map(&read);
            let in_order = counts.is_sorted_by(|earlier, later| earlier >= later);
            assert!(in_order && counts[0] - counts[MARKED - 1] <= 1, "writer {writer}: {counts:?}");
            seen.extend(counts);
        }
        let mut relay: Vec<u64> = (0..WRITERS).map(|writer| read(self.relay(writer))).collect();
        seen.extend(&relay);
        relay.sort_unstable();
        assert!(relay.windows(2).all(|pair| pair[0] + 1 == pair[1]), "relay: {relay:?}");
        seen
    }
}

/// A counter of the region, for threads that write beside each other.
fn counter(region: &Region, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= region.len() && at.is_multiple_of(8));
    // SAFETY: it is inside the region, which the reference borrows, and aligned. It is used only as an atomic while
    // other threads may write.
    unsafe { AtomicU64::from_ptr(region.as_mut_ptr().add(at).cast()) }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

/// Counts, and takes part in the relay, until the test is over. Returns the last count.
fn write(region: &Region, layout: Layout, writer: usize, token: &AtomicU64, over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        for at in layout.counters(writer) {
            let counter = counter(region, at);
            assert_eq!(counter.load(Ordering::Relaxed), count, "a write was lost");
            counter.store(count + 1, Ordering::Release);
            let turn = token.load(Ordering::Acquire);
            if turn % WRITERS as u64 == writer as u64 {
                self::counter(region, layout.relay(writer)).store(turn, Ordering::Release);
                token.store(turn + 1, Ordering::Release);
                std::thread::yield_now();
            }
        }
        count += 1;
    }
    count
}

enum Cut {
    Snapshot(Snapshot),
    Fork(Region),
}

/// A cut, and what it showed first and must still show.
struct Kept {
    cut: Cut,
    seen: Vec<u64>,
    /// The value that its owner wrote to a fork, beside the counters.
    scribbled: u8,
}

impl Kept {
    fn take(region: &Region, layout: Layout, random: &mut Random) -> Kept {
        let (cut, seen) = if random.below(2) == 0 {
            let snapshot = region.snapshot().unwrap();
            let seen = layout.check(|at| {
                let mut bytes = [0; 8];
                snapshot.read_at(at, &mut bytes).unwrap();
                number(&bytes)
            });
            (Cut::Snapshot(snapshot), seen)
        } else {
            let mut fork = region.fork().unwrap();
            let bytes = fork.as_mut_slice();
            let seen = layout.check(|at| number(&bytes[at..]));
            (Cut::Fork(fork), seen)
        };
        Kept { cut, seen, scribbled: 0 }
    }

    /// Checks the cut again, a copy of it, and the bytes between the counters.
    fn check(&mut self, layout: Layout, random: &mut Random) {
        let nth = random.below(MARKED);
        let (at, between) = (layout.marked(nth), layout.block - 64);
        let between = if nth.is_multiple_of(2) { at + 64..at + 64 + between } else { at..at + between };
        let mut expected = vec![0; between.len()];
        let mut copy = match &mut self.cut {
            Cut::Snapshot(snapshot) => {
                assert_eq!(layout.check(|at| number(&snapshot[at..])), self.seen);
                assert!(snapshot[between.clone()] == expected);
                snapshot.fork().unwrap()
            }
            Cut::Fork(fork) => {
                let bytes = fork.as_mut_slice();
                assert_eq!(layout.check(|at| number(&bytes[at..])), self.seen);
                for nth in 0..MARKED {
                    bytes[layout.marked(nth) + 100] = self.scribbled + 1;
                }
                self.scribbled += 1;
                let first = fork.fork().unwrap();
                fork.as_mut_slice()[at + 100] = self.scribbled;
                first
            }
        };
        let bytes = copy.as_mut_slice();
        assert_eq!(layout.check(|at| number(&bytes[at..])), self.seen);
        expected[at + 100 - between.start] = self.scribbled;
        assert!(bytes[between] == expected);
        bytes[at..at + 64].fill(0xff);
    }
}

/// Makes cuts and drops them in random order until the test is over. Counts them.
fn cut(region: &Region, layout: Layout, mut random: Random, cuts: &AtomicUsize, over: &AtomicBool) {
    let mut kept: Vec<Kept> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(random.below(500) as u64));
        if kept.len() == KEPT {
            kept.swap_remove(random.below(KEPT));
        }
        kept.push(Kept::take(region, layout, &mut random));
        let again = random.below(kept.len());
        kept[again].check(layout, &mut random);
        cuts.fetch_add(1, Ordering::Relaxed);
    }
}

fn check_cuts_are_consistent(pool: &Pool) {
    let layout = Layout::new(pool.block_size());
    let region = pool.region(layout.len).unwrap();
    // The relay starts as if every writer had had its turn.
    for writer in 0..WRITERS {
        counter(&region, layout.relay(writer)).store(writer as u64, Ordering::Relaxed);
    }
    let (token, cuts, over) = (AtomicU64::new(WRITERS as u64), AtomicUsize::new(0), AtomicBool::new(false));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let (region, token, cuts, over) = (&region, &token, &cuts, &over);
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(region, layout, writer, token, over))).collect();
        let cutters: Vec<_> = (0..CUTTERS)
            .map(|cutter| scope.spawn(move || cut(region, layout, Random::new(77 + cutter as u64), cuts, over)))
            .collect();
        let is_enough = || started.elapsed() >= TIME && cuts.load(Ordering::Relaxed) >= CUTS;
        while !is_enough() && !cutters.iter().any(|cutter| cutter.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        cutters.into_iter().for_each(|cutter| cutter.join().unwrap());
        for (writer, count) in writers.into_iter().map(|writer| writer.join().unwrap()).enumerate() {
            for at in layout.counters(writer) {
                assert_eq!(counter(region, at).load(Ordering::Relaxed), count, "a write of {writer} was lost");
            }
        }
        let last = token.load(Ordering::Relaxed);
        let seen = layout.check(|at| counter(region, at).load(Ordering::Relaxed));
        assert_eq!(seen[seen.len() - WRITERS..].iter().max(), Some(&(last - 1)), "a relay was lost");
        println!(
            "{} of {}: {cuts:?} cuts, {last} relays, {:?}",
            pool.backing(),
            pool.block_size(),
            region.stats().faults
        );
    });
    drop(region);
    let stats = pool.stats();
    assert_eq!((stats.blocks_free, stats.blocks_leaked, stats.regions), (stats.blocks, 0, 0));
    assert_eq!(stats.faults.failed, 0);
}

#[test]
fn a_cut_holds_with_a_write_every_write_that_happened_before_it() {
    // In a process of its own, because a writer that waits for ever would be a bug of the engine too.
    alone(|| {
        for (backing, block_size) in [
            (Backing::ShmemHuge, BlockSize::MIB_2),
            (Backing::Hugetlb, BlockSize::MIB_2),
            (Backing::ShmemBase, BlockSize::MIB_2),
            (Backing::ShmemHuge, BlockSize::KIB_64),
            (Backing::ShmemBase, BlockSize::KIB_64),
            (Backing::ShmemHuge, BlockSize::KIB_4),
            (Backing::ShmemBase, BlockSize::KIB_4),
        ] {
            let capacity = COPIES * Layout::new(block_size).len;
            // Few machines allow huge pages for small blocks.
            let Some(pool) = pool(backing, capacity, block_size) else { continue };
            check_cuts_are_consistent(&pool);
        }
    })
    .well();
}
