//! Memory of a program while the kernel refuses calls. Threads write to it; forked children check
//! their view; other mappings are made and removed beside it; parts are handed over to the kernel.
//! No write may fault or get lost, each child sees one moment, and all blocks are freed in the end.
//!
//! `HUGEFORK_REFUSED_SECONDS=1800` runs for that long, with one process per round.
//! `HUGEFORK_REFUSED_SEED` repeats the seed of a failure: it fixes the operations, not the order of
//! the threads.

#[path = "../../hugefork/tests/common/mod.rs"]
mod common;

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::Over;
use common::alone::alone;
use common::random::Random;
use common::refusals::{KINDS, Kind, Refusals};
use hugefork_program::{Inherited, ProgramMemory, Zeros};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;
const CAPACITY: usize = 64 * BLOCK;
/// Bytes that the threads write to.
const SHARED: usize = 6 * BLOCK;
const WRITERS: usize = 3;
/// Number of words of each writer.
const PLACES: usize = 300;
const ROUNDS: u64 = 8;
const DEEDS: usize = 60;

/// A word that other threads may use too.
fn word(at: usize) -> &'static AtomicU64 {
    // SAFETY: mapped for the duration of the round, and used only as an atomic.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(at)) }
}

/// The addresses of each writer, in the order of its writes.
fn orders(start: usize, random: &mut Random) -> Vec<Vec<usize>> {
    (0..WRITERS)
        .map(|writer| {
            let dense = random.below(SHARED / PAGE - PLACES / 2);
            (0..PLACES)
                .map(|nth| if nth % 2 == 0 { dense + nth / 2 } else { random.below(SHARED / PAGE) })
                .map(|page| start + page * PAGE + 8 * writer)
                .collect::<std::collections::BTreeSet<usize>>()
                .into_iter()
                .collect()
        })
        .collect()
}

fn stamp(writer: usize, nth: usize, count: u64) -> u64 {
    if count == 0 { 0 } else { (writer as u64 + 1) << 56 | (nth as u64) << 40 | count }
}

fn write(writer: usize, order: &[usize], over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        for (nth, &at) in order.iter().enumerate() {
            let there = word(at).load(Ordering::Relaxed);
            assert_eq!(there, stamp(writer, nth, count), "a write of {writer} was lost at {at:#x}");
            word(at).store(stamp(writer, nth, count + 1), Ordering::Release);
        }
        count += 1;
    }
    count
}

/// Checks that a child sees one moment, and that its view does not change: 0 for yes, otherwise the reason. Allocates
/// nothing.
fn look(orders: &[Vec<usize>]) -> i32 {
    let mut sums = [0_u64; 2];
    for (nth, sum) in sums.iter_mut().enumerate() {
        for (writer, order) in orders.iter().enumerate() {
            let (mut first, mut last) = (None, u64::MAX);
            for (place, &at) in order.iter().enumerate() {
                let value = word(at).load(Ordering::Relaxed);
                let count = value & 0xff_ffff_ffff;
                if value != stamp(writer, place, count) {
                    return 10;
                }
                if count > last || first.is_some_and(|first: u64| first > count + 1) {
                    return 11;
                }
                (first, last) = (first.or(Some(count)), count);
                *sum = sum.wrapping_mul(31).wrapping_add(value);
            }
        }
        if nth == 0 {
            // SAFETY: the call only sleeps.
            unsafe { libc::usleep(1500) };
        }
    }
    if sums[0] == sums[1] { 0 } else { 12 }
}

/// A child that checks its view, and its holdings.
struct Child {
    process: i32,
    inherited: Inherited,
    /// A part of the memory could not be given to the child.
    is_blind: bool,
}

struct Owner<'a> {
    memory: &'a mut ProgramMemory,
    orders: &'a [Vec<usize>],
    shared: usize,
    random: Random,
    children: Vec<Child>,
    /// Other mappings, with the first word of their pages.
    others: Vec<(Range<usize>, u64)>,
}

impl Owner<'_> {
    fn fork(&mut self) {
        let unseen = self.memory.counts().unseen;
        let inherited = self.memory.before_fork();
        // SAFETY: the child only reads and exits.
        let process = unsafe { libc::fork() };
        if process == 0 {
            let seen = look(self.orders);
            // SAFETY: ends the child.
            unsafe { libc::_exit(seen) };
        }
        assert!(process > 0);
        self.children.push(Child { process, inherited, is_blind: self.memory.counts().unseen > unseen });
    }

    fn reap(&mut self) {
        if self.children.is_empty() {
            return;
        }
        let Child { process, inherited, is_blind } = self.children.swap_remove(self.random.below(self.children.len()));
        let mut status = 0;
        // SAFETY: waits for this process's own child.
        assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
        assert!(is_blind || status == 0, "a child has seen what it should not: {status:#x}");
        drop(inherited);
    }

    fn map(&mut self) {
        let len = PAGE * (1 + self.random.below(1200));
        let Some(at) = self.memory.map(len) else { return };
        assert!((at..at + len).step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == 0), "it is not zero");
        let value = self.random.next() | 1;
        (at..at + len).step_by(PAGE).for_each(|page| word(page).store(value, Ordering::Relaxed));
        self.others.push((at..at + len, value));
    }

    /// Unmaps all of another mapping, after a check of its contents.
    fn unmap(&mut self) {
        if self.others.is_empty() {
            return;
        }
        let (range, value) = self.others.swap_remove(self.random.below(self.others.len()));
        let is_there = range.clone().step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == value);
        assert!(is_there, "another mapping has changed");
        match self.random.below(3) {
            0 => {
                let middle = range.start + (range.len() / 2).next_multiple_of(PAGE);
                unmap(self.memory, middle..range.end);
                let is_there =
                    (range.start..middle).step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == value);
                assert!(is_there, "what was left of a mapping has changed");
                unmap(self.memory, range.start..middle);
            }
            1 => {
                self.memory.empty(range.clone(), |piece| clear(&piece));
                let is_zero = range.clone().step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == 0);
                assert!(is_zero, "what was emptied is not zero");
                unmap(self.memory, range);
            }
            _ => unmap(self.memory, range),
        }
    }

    fn hand_over(&mut self) {
        let start = self.shared + self.random.below(SHARED / PAGE) * PAGE;
        self.memory.hand_over(start..start + PAGE, Zeros::Copied);
    }

    fn collapse(&mut self) {
        let mut next = Some(0);
        while let Some(from) = next {
            let (full, rest) = self.memory.next_full(from);
            if let Some(full) = full.filter(hugefork_program::Full::collapse) {
                self.memory.note_huge(&full);
            }
            next = rest;
        }
    }

    fn live(&mut self) {
        for _ in 0..DEEDS {
            match self.random.below(16) {
                0..4 => self.fork(),
                4..7 => self.reap(),
                7..9 => self.map(),
                9..11 => self.unmap(),
                11..14 => _ = self.memory.maintain(),
                14 if self.random.one_in(3) => self.hand_over(),
                14 => self.collapse(),
                _ => _ = self.memory.trim(),
            }
            if self.children.len() > 3 {
                self.reap();
            }
        }
    }
}

fn unmap(memory: &mut ProgramMemory, range: Range<usize>) {
    memory.unmap(range, |piece| {
        // SAFETY: the range belongs to the kernel by now, and no code uses it.
        let unmapped = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(piece.start), piece.len()) };
        assert_eq!(unmapped, 0);
    });
}

fn clear(range: &Range<usize>) {
    range.clone().step_by(PAGE).for_each(|page| word(page).store(0, Ordering::Relaxed));
}

fn round(seed: u64, refusals: &Refusals) -> bool {
    let mut random = Random::new(seed);
    let mut memory = match ProgramMemory::new(CAPACITY) {
        Ok(memory) => memory,
        Err(why) => {
            println!("skipped: {why}");
            return false;
        }
    };
    let shared = memory.map(SHARED).expect("there is room");
    let orders = orders(shared, &mut random);
    // These two are refused in some rounds only: after a refused `Look` the engine makes few further calls for long,
    // and most other kinds of call come after a `Hide` that succeeded.
    let all: Vec<Kind> = KINDS.into_iter().filter(|kind| !matches!(kind, Kind::Look | Kind::Hide)).collect();
    let kinds = match random.below(6) {
        0 | 1 => all,
        2 => [&all[..], &[Kind::Hide]].concat(),
        3 => [&all[..], &[Kind::Look]].concat(),
        4 => vec![all[random.below(all.len())], Kind::Look],
        _ => vec![all[random.below(all.len())]],
    };
    let one_in = [2, 3, 6, 20][random.below(4)];
    println!("round of {seed}: one in {one_in} of {kinds:?}");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let writers: Vec<_> = orders
            .iter()
            .enumerate()
            .map(|(writer, order)| {
                let over = &over;
                scope.spawn(move || write(writer, order, over))
            })
            .collect();
        refusals.arm(one_in, &kinds);
        let mut owner =
            Owner { memory: &mut memory, orders: &orders, shared, random, children: Vec::new(), others: Vec::new() };
        owner.live();
        while !owner.children.is_empty() {
            owner.reap();
        }
        refusals.disarm();
        while owner.memory.maintain() {}
        while !owner.others.is_empty() {
            owner.unmap();
        }
        over.store(true, Ordering::Relaxed);
        for (writer, count) in writers.into_iter().map(|writer| writer.join().unwrap()).enumerate() {
            for (nth, &at) in orders[writer].iter().enumerate() {
                assert_eq!(word(at).load(Ordering::Relaxed), stamp(writer, nth, count), "a write was lost at the end");
            }
        }
    });
    while memory.is_shared() {
        memory.maintain();
    }
    println!("  {:?}", memory.counts());
    unmap(&mut memory, shared..shared + SHARED);
    let free = std::iter::from_fn(|| memory.map(BLOCK)).count();
    println!("  {free} of {} blocks are free", CAPACITY / BLOCK);
    assert!(free == CAPACITY / BLOCK || kinds.contains(&Kind::Hide), "{free} blocks are free");
    true
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seed of the short test.
const ORDINARY: u64 = 15;

fn rounds(is_long: bool) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 & 0xffff_ffff;
    let seed = number("HUGEFORK_REFUSED_SEED").unwrap_or_else(|| if is_long { now() } else { ORDINARY });
    println!("seed {seed}");
    let refusals = match Refusals::start(seed) {
        Ok(refusals) => refusals,
        Err(error) => return println!("skipped: no supervised system calls: {error}"),
    };
    for nth in 0..ROUNDS {
        if !round(seed.wrapping_add(nth), &refusals) {
            return;
        }
    }
    println!("{}", refusals.table());
}

#[test]
fn no_write_is_lost_while_calls_are_refused() {
    let seconds = number("HUGEFORK_REFUSED_SECONDS").map(Duration::from_secs);
    let (started, is_long) = (Instant::now(), seconds.is_some());
    loop {
        alone(|| rounds(is_long)).well();
        if seconds.is_none_or(|seconds| started.elapsed() >= seconds) {
            break;
        }
    }
}

/// Whether an address is readable.
fn is_there(at: usize) -> bool {
    let mut byte = 0_u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: 1 };
    // SAFETY: reads one byte of this process into `byte`; an address without access gives an error.
    unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) == 1 }
}

/// Runs a test in a process of its own, with a memory of some blocks and no refused calls yet.
fn with_memory(blocks: usize, test: impl FnOnce(ProgramMemory, &Refusals)) {
    match (ProgramMemory::new(blocks * BLOCK), Refusals::start(1)) {
        (Ok(memory), Ok(refusals)) => test(memory, &refusals),
        (Err(why), _) => println!("skipped: {why}"),
        (_, Err(error)) => println!("skipped: no supervised system calls: {error}"),
    }
}

#[test]
fn a_failed_mapping_leaves_nothing_mapped() {
    alone(|| {
        with_memory(4, |mut memory, refusals| {
            let start = memory.addresses().start;
            assert!(!is_there(start));
            refusals.arm_blocks();
            assert_eq!(memory.map(2 * BLOCK), None);
            refusals.disarm();
            assert_eq!([Kind::Remap, Kind::Look].map(|kind| refusals.refused(kind)), [1, 1]);
            assert!(memory.is_free(start..start + 2 * BLOCK));
            assert!(!is_there(start) && !is_there(start + BLOCK), "something is left there");
            assert!(memory.map(4 * BLOCK).is_some());
        });
    })
    .well();
}

#[test]
fn remains_of_a_failed_mapping_are_unmapped_later() {
    alone(|| {
        with_memory(4, |mut memory, refusals| {
            let first = memory.map(3 * BLOCK).expect("there is room");
            refusals.arm(1, &[Kind::Hide]);
            assert_eq!(memory.map(2 * BLOCK), None, "there is one block");
            refusals.disarm();
            assert_eq!(refusals.refused(Kind::Hide), 1);
            let behind = first + 3 * BLOCK;
            assert!(is_there(behind), "it was refused");
            memory.maintain();
            assert!(!is_there(behind) && memory.is_free(behind..behind + 2 * BLOCK), "it is there still");
            assert_eq!(memory.map(BLOCK), Some(behind));
            word(behind).store(1, Ordering::Relaxed);
        });
    })
    .well();
}
