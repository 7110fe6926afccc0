//! A program holds many snapshots and reads them. Some tests have a single thread beside the engine's own, others have
//! threads that write meanwhile.
//!
//! The process with a single thread is made by `fork(2)`, since the test harness has another thread. Its pool is its
//! first one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::Over;
use crate::common::alone::alone;
use crate::common::forked::in_fork;
use crate::common::random::Random;
use crate::common::seccomp::{every, refuse};
use hugefork::{BlockSize, Pool, Region, Snapshot};

const BLOCK: usize = 2 << 20;
const LEN: usize = 4 * BLOCK;
const PAGE: usize = 4096;
const HELD: usize = 40;

/// Whether the first byte of each page has the value written there last.
fn has(snapshot: &Snapshot, expected: &[u8]) -> bool {
    let mut byte = [0];
    expected.iter().enumerate().all(|(page, value)| {
        snapshot.read_at(page * PAGE, &mut byte).unwrap();
        byte[0] == *value
    })
}

/// Runs in the child: writes, snapshots, resets and drops, and compares each snapshot with a vector.
fn live() -> i32 {
    let pool = Pool::builder().capacity(200 * BLOCK).build().unwrap();
    let mut region = pool.region(LEN).unwrap();
    let mut now = vec![1_u8; LEN / PAGE];
    region.as_mut_slice().fill(1);
    let (mut numbers, mut held) = (Random::new(12345), Vec::new());
    for round in 0..300_usize {
        for _ in 0..numbers.below(30) {
            // Half of the writes go to the same few pages again and again.
            let page = if numbers.below(2) == 0 { 3 + numbers.below(40) } else { numbers.below(now.len()) };
            now[page] = round as u8;
            region.as_mut_slice()[page * PAGE] = now[page];
        }
        held.push((region.snapshot().unwrap(), now.clone()));
        if held.len() > HELD {
            held.swap_remove(numbers.below(HELD));
        }
        match numbers.below(20) {
            0 => {
                let (snapshot, then) = &held[numbers.below(held.len())];
                region.reset_to(snapshot).unwrap();
                now.clone_from(then);
            }
            1 => {
                let first = numbers.below(now.len() - 8);
                region.discard(first * PAGE..(first + 8) * PAGE).unwrap();
                now[first..first + 8].fill(0);
            }
            _ => {}
        }
        let (snapshot, then) = &held[numbers.below(held.len())];
        if !has(snapshot, then) {
            eprintln!("round {round}: a snapshot has other bytes than the region had");
            return 1;
        }
    }
    if !held.iter().all(|(snapshot, then)| has(snapshot, then)) {
        eprintln!("at the end a snapshot has other bytes than the region had");
        return 1;
    }
    drop((held, region));
    i32::from(pool.stats().blocks_free != pool.stats().blocks)
}

#[test]
fn who_is_alone_finds_in_each_snapshot_what_was_there() {
    alone(|| assert_eq!(in_fork(live).code(), Some(0))).well();
}

/// Writes and resets the region to its only snapshot, over and over again.
fn go_back() {
    let pool = Pool::builder().capacity(200 * BLOCK).build().unwrap();
    let mut region = pool.region(LEN).unwrap();
    region.as_mut_slice().fill(1);
    let (first, mut numbers) = (region.snapshot().unwrap(), Random::new(54321));
    for round in 2..100 {
        for _ in 0..numbers.below(5) {
            let page = numbers.below(LEN / PAGE);
            region.as_mut_slice()[page * PAGE] = round;
        }
        region.reset_to(&first).unwrap();
        assert!(region.as_mut_slice().iter().step_by(PAGE).all(|byte| *byte == 1), "round {round}");
    }
}

/// The count of page faults tells the engine which scans it can skip. If a filter refuses to count them, the engine
/// scans everything.
#[test]
fn so_does_who_is_not_told_of_page_faults() {
    alone(|| {
        let lives = || {
            refuse(every(libc::SYS_getrusage, libc::EPERM));
            go_back();
            live()
        };
        assert_eq!(in_fork(lives).code(), Some(0));
    })
    .well();
}

/// The number of words that each writer writes in turn, over and over again.
const WORDS: usize = 64;
const HELD_BESIDE_WRITERS: usize = 40;
/// Only a few of the words lie in each block, so snapshots hold pages.
const WIDE: usize = 32 * BLOCK;

/// The region, of small blocks, is reset to one after another of a few snapshots whose pages lie over the same blocks.
#[test]
fn a_region_that_goes_back_and_forth_has_what_each_snapshot_has() {
    alone(|| {
        const SMALL: usize = 64 << 10;
        for seed in 1..9 {
            let mut numbers = Random::new((seed * 0x9e37_79b9) | 1);
            let pool = Pool::builder().capacity(80 * SMALL).block_size(BlockSize::KIB_64).build().unwrap();
            let mut region = pool.region(2 * SMALL).unwrap();
            let (pages, mut now) = (2 * SMALL / PAGE, vec![0; 2 * SMALL / PAGE]);
            let mut held = Vec::new();
            for value in 1..5 {
                for _ in 0..3 {
                    let page = numbers.below(pages);
                    region.as_mut_slice()[page * PAGE] = value;
                    now[page] = value;
                }
                held.push((region.snapshot().unwrap(), now.clone()));
            }
            for nth in 0..400 {
                for _ in 0..[0, 1, 3, 9][numbers.below(4)] {
                    region.as_mut_slice()[numbers.below(pages) * PAGE] = 0xdd;
                }
                let (snapshot, expected) = &held[numbers.below(held.len())];
                region.reset_to(snapshot).unwrap();
                let seen: Vec<u8> = region.as_mut_slice().iter().step_by(PAGE).copied().collect();
                assert_eq!(&seen, expected, "reset {nth} of {seed}");
            }
        }
    })
    .well();
}

/// The offset of a writer's `nth` write; the offsets are spread over the whole region.
fn place(writer: usize, nth: u64) -> usize {
    let word = nth as usize % WORDS;
    (word * 1237 + writer * 101) % (WIDE / PAGE) * PAGE + 64 * writer
}

/// A word of the region, for threads that write beside each other.
fn word(region: &Region, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= region.len() && at.is_multiple_of(8));
    // SAFETY: it is inside the region, which the reference borrows, and aligned. It is used only as an atomic while
    // other threads may write.
    unsafe { AtomicU64::from_ptr(region.as_mut_ptr().add(at).cast()) }
}

/// For each writer, the last number that a snapshot has. Panics unless it has all writes up to that number, and none
/// after it.
fn seen(snapshot: &Snapshot, writers: usize) -> Vec<u64> {
    let mut all = Vec::new();
    for writer in 0..writers {
        let read = |nth| {
            let mut bytes = [0; 8];
            snapshot.read_at(place(writer, nth), &mut bytes).unwrap();
            u64::from_ne_bytes(bytes)
        };
        let words: Vec<u64> = (0..WORDS as u64).map(read).collect();
        let last = *words.iter().max().unwrap();
        for (nth, found) in (0..).zip(&words) {
            // The last number up to `last` that goes to this word; 0, which nobody writes, if there is none.
            let expected = (last + WORDS as u64 - nth) / WORDS as u64 * WORDS as u64 + nth;
            let expected = expected.saturating_sub(WORDS as u64);
            assert_eq!(*found, expected, "writer {writer} has written {last}, and word {nth} is another");
        }
        all.extend(words);
    }
    all
}

#[test]
fn a_snapshot_beside_writers_has_what_each_had_written_before_it() {
    alone(|| assert_eq!(beside(2, 400), 0)).well();
}

/// The writer's page faults tell the engine whether it has written.
#[test]
fn a_snapshot_beside_one_writer_has_what_it_had_written_before() {
    alone(|| assert_eq!(in_fork(|| beside(1, 1500)).code(), Some(0))).well();
}

#[test]
fn a_snapshot_beside_a_writer_of_whose_page_faults_nobody_tells_has_what_it_had_written_before() {
    alone(|| {
        let writes = || {
            refuse(every(libc::SYS_getrusage, libc::EPERM));
            beside(1, 400)
        };
        assert_eq!(in_fork(writes).code(), Some(0));
    })
    .well();
}

/// Takes `rounds` snapshots beside `writers` writers. There is no other thread, except one that drops snapshots if
/// there are several writers. Returns 0.
fn beside(writers: usize, rounds: usize) -> i32 {
    let pool = Pool::builder().capacity(400 * BLOCK).build().unwrap();
    let mut region = pool.region(WIDE).unwrap();
    region.as_mut_slice().fill(0);
    let (region, is_over) = (&region, &AtomicBool::new(false));
    let mut pages_held = 0;
    std::thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                let numbers = (1..).take_while(|_| !is_over.load(Ordering::Relaxed));
                for number in numbers {
                    word(region, place(writer, number)).store(number, Ordering::Release);
                    // At times after every write, at times never.
                    if number / 1000 % 2 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let over = Over(is_over);
        // So blocks become the region's alone while a snapshot is taken.
        let (dropped, to_drop) = std::sync::mpsc::sync_channel(0);
        let let_go = |snapshot: Snapshot| {
            if writers > 1 {
                dropped.send(snapshot).unwrap();
            }
        };
        if writers > 1 {
            scope.spawn(move || to_drop.into_iter().for_each(|snapshot: Snapshot| drop(snapshot)));
        }
        let (mut numbers, mut held) = (Random::new(777), Vec::new());
        for round in 0..rounds {
            let snapshot = region.snapshot().unwrap();
            let first = seen(&snapshot, writers);
            held.push((snapshot, first));
            if held.len() > HELD_BESIDE_WRITERS {
                let (snapshot, first) = held.swap_remove(numbers.below(HELD_BESIDE_WRITERS));
                assert_eq!(seen(&snapshot, writers), first, "round {round}");
                let_go(snapshot);
            }
            if round % 5 == 4 && round > 200 {
                held.drain(..).for_each(|(snapshot, _)| let_go(snapshot));
            }
            pages_held = pool.stats().pages_held.max(pages_held);
        }
        drop((over, dropped));
        for (snapshot, first) in held {
            assert_eq!(seen(&snapshot, writers), first, "at the end");
        }
    });
    assert!(pages_held > 0);
    0
}
