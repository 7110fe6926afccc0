//! The blocks of a pool, taken and given back by one thread and by several.

use super::frames::{Content, Frames, Taken, Wanted};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::table::Reserved;
use crate::units::BlockId;

fn take(frames: &Frames, near: u32) -> Option<u32> {
    frames.take(BlockId(near), 0, 0, Wanted::Any, Reserved::No).map(|taken| {
        assert_eq!((taken.first, taken.count), (taken.wanted, 1));
        taken.first.0
    })
}

#[test]
fn the_wanted_block_comes_if_it_is_free_and_the_next_one_otherwise() {
    let frames = Frames::new(200);
    assert_eq!(take(&frames, 150), Some(150));
    assert_eq!(take(&frames, 150), Some(151));
    assert_eq!(take(&frames, 199), Some(199));
    assert_eq!(take(&frames, 199), Some(0), "wraps around");
    assert_eq!(frames.available(), 196);
}

#[test]
fn every_block_is_given_once_and_then_none() {
    for count in [1, 63, 64, 65, 4096, 5000] {
        let frames = Frames::new(count);
        let mut seen: Vec<_> = (0..count).map(|_| take(&frames, 7 % count as u32).unwrap()).collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..count as u32));
        assert_eq!(take(&frames, 0), None);
        assert!(frames.drop_reference(BlockId(count as u32 - 1), Reserved::No));
        assert_eq!(take(&frames, 0), Some(count as u32 - 1));
    }
}

#[test]
fn a_block_comes_back_with_its_content_when_its_last_holder_goes() {
    let frames = Frames::new(3);
    let block = BlockId(take(&frames, 1).unwrap());
    assert_eq!(frames.content(block), Content::Fresh);
    frames.set_content(block, Content::Used);
    frames.add_reference(block);
    assert_eq!(frames.references(block), 2);
    assert!(!frames.drop_reference(block, Reserved::No));
    assert!(frames.drop_reference(block, Reserved::No));
    assert_eq!(take(&frames, 1), Some(1));
    assert_eq!(frames.content(block), Content::Used);
}

#[test]
fn a_run_stops_at_its_limits_at_taken_blocks_and_at_both_ends() {
    let frames = Frames::new(100);
    take(&frames, 20).unwrap();
    let run = |near, before, after| frames.take(BlockId(near), before, after, Wanted::Any, Reserved::No);
    let taken = |first, wanted, count| {
        Some(Taken { first: BlockId(first), wanted: BlockId(wanted), count, reserved: Reserved::No })
    };
    assert_eq!(run(25, 15, 4), taken(21, 25, 9));
    assert_eq!(run(25, 2, 1), taken(30, 30, 2), "the next free block, with its free neighbours");
    assert_eq!(frames.available(), 100 - 1 - 9 - 2);
    assert_eq!(run(99, 9, 9), taken(90, 99, 10));
    assert_eq!(run(0, 9, 100), taken(0, 0, 20));
    assert_eq!(run(0, 0, 100), taken(32, 32, 58));
    assert_eq!(run(0, 9, 100), None);
}

#[test]
fn zeroed_blocks_are_found_counted_and_given_once() {
    let frames = Frames::new(300);
    let all: Vec<u32> = (0..300).map(|_| take(&frames, 0).unwrap()).collect();
    for &block in &all {
        frames.set_content(BlockId(block), Content::Used);
        frames.drop_reference(BlockId(block), Reserved::No);
    }
    assert_eq!((frames.zeroed(), frames.used_and_free()), (0, 300));
    let block = frames.take_used(77).unwrap();
    assert_eq!(
        (block, frames.available()),
        (BlockId(77), 300),
        "a block that is being cleared still counts as available"
    );
    frames.put_back(block, Content::Clean);
    assert_eq!((frames.zeroed(), frames.used_and_free()), (1, 299));
    let zeroed = || frames.take(BlockId(70), 0, 0, Wanted::Zeroed, Reserved::No).unwrap();
    let taken = zeroed();
    assert_eq!((taken.wanted, frames.content(taken.wanted)), (BlockId(77), Content::Clean));
    assert_eq!(zeroed().wanted, BlockId(70), "none is zeroed any more");
    assert_eq!(frames.zeroed(), 0);
}

#[test]
fn threads_never_share_a_block() {
    let frames = Frames::new(130);
    let holders: Vec<AtomicU32> = (0..130).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (frames, holders) = (&frames, &holders);
            scope.spawn(move || {
                let mut mine = Vec::new();
                for turn in 0..4_000u32 {
                    if turn % 3 == 2 || mine.len() == 40 {
                        let block: BlockId = mine.swap_remove(turn as usize % mine.len());
                        assert_eq!(holders[block.index()].swap(0, Ordering::Relaxed), thread + 1);
                        frames.drop_reference(block, Reserved::No);
                    } else if let Some(block) = take(frames, turn * 31 % 130).map(BlockId) {
                        assert_eq!(holders[block.index()].swap(thread + 1, Ordering::Relaxed), 0);
                        mine.push(block);
                    }
                }
                for block in mine {
                    holders[block.index()].store(0, Ordering::Relaxed);
                    frames.drop_reference(block, Reserved::No);
                }
            });
        }
    });
    assert_eq!(frames.available(), 130);
}

/// Waits until a thread either sleeps, and returns true, or has used 200 ms of CPU time, and returns false.
fn falls_asleep(thread: i32) -> bool {
    loop {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // Ticks of 10 ms in user and kernel mode.
        let ticks: u64 = [11, 12].iter().map(|&field| fields[field].parse::<u64>().unwrap()).sum();
        if fields[0] == "S" || ticks > 20 {
            return fields[0] == "S";
        }
        std::thread::yield_now();
    }
}

/// Runs `take` on a thread that finds nothing until `give` is called, and checks that the thread sleeps and does not
/// spin.
fn check_sleeps_until<T: Send>(take: impl FnOnce() -> T + Send, give: impl FnOnce()) -> T {
    let (say, thread) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let taker = scope.spawn(move || {
            // SAFETY: the call takes no arguments.
            say.send(unsafe { libc::gettid() }).unwrap();
            take()
        });
        let slept = falls_asleep(thread.recv().unwrap());
        give();
        assert!(slept, "it spins");
        taker.join().unwrap()
    })
}

#[test]
fn a_taker_sleeps_while_the_last_block_is_being_cleared() {
    let frames = Frames::new(1);
    assert!(frames.take_exactly(BlockId(0)), "the zeroing thread takes blocks this way");
    let taken = check_sleeps_until(|| take(&frames, 0), || frames.put_back(BlockId(0), Content::Clean));
    assert_eq!((taken, frames.available()), (Some(0), 0));
}

#[test]
fn a_taker_sleeps_while_another_thread_takes_a_run() {
    let frames = Frames::new(4);
    // Pretends that another thread takes a run, has earmarked all blocks, and finds no neighbours.
    frames.runs.fetch_add(1 << 32 | 1, Ordering::SeqCst);
    assert_eq!(frames.earmark(4, 4), Some(4));
    let give = || {
        frames.runs.fetch_sub(1, Ordering::SeqCst);
        frames.given_back.ring();
    };
    assert_eq!(check_sleeps_until(|| take(&frames, 0), give), None, "the other thread has kept all blocks");
}

#[test]
fn only_takers_with_a_reservation_get_reserved_blocks() {
    let frames = Frames::new(10);
    frames.reserve(7).unwrap();
    assert_eq!((frames.available(), frames.reserved(), frames.free()), (3, 7, 10));
    assert_eq!(frames.reserve(4), None);
    (0..3).for_each(|_| assert!(take(&frames, 0).is_some()));
    assert_eq!(take(&frames, 0), None, "the rest is reserved");
    let reserved = frames.take(BlockId(5), 1, 1, Wanted::Any, Reserved::Yes).unwrap();
    assert_eq!((reserved.first, reserved.count, frames.reserved()), (BlockId(4), 3, 4));
    assert!(frames.drop_reference(BlockId(4), Reserved::Yes));
    assert!(frames.drop_reference(BlockId(5), Reserved::No));
    assert_eq!((frames.available(), frames.reserved()), (1, 5));
    frames.unreserve(5);
    assert_eq!((frames.available(), frames.reserved()), (6, 0));
}
