//! How blocks get their memory, at the fault and ahead of it, on the software MMU.

use hugefork_kernels::Kernels;

use super::*;
use std::time::Duration;

use crate::mem::pinned::PinnedBox;
use crate::pool::ahead::Ahead;
use crate::pool::frames::Taken;
use crate::pool::holders::Droppable;
use crate::pool::stock::Stock;
use crate::region::state::RegionCore;
use crate::region::write::Resolution;
use crate::sys::Merging;
use crate::sys::soft::{Call, SoftMmu};
use crate::types::options::RegionOptions;
use crate::units::BlockSize;
use crate::units::{BASE_PAGE, BlockId};

const MIB: usize = 1 << 20;
/// The machine can spare any amount.
const PLENTY: fn() -> usize = || usize::MAX;
/// Memory that nobody uses stays.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// A pool of `pieces` times 2 MiB in blocks of `block` bytes that gets at most `most` bytes ahead.
fn pool(block: usize, pieces: usize, most: usize) -> EngineArc<PoolCore<SoftMmu>> {
    let size = BlockSize::new(block).unwrap();
    let mmu = SoftMmu::new(pieces * HUGE_PAGE, Merging::Merge, 1000);
    let (blocks, kernels) = (size.count(pieces * HUGE_PAGE), Kernels::default_for_this_cpu());
    let core = PoolCore::new(mmu, "test".to_owned(), size, blocks, kernels, Stock::default());
    EngineArc::new(core.with_ahead(Ahead::new(most, size)))
}

fn region(pool: &EngineArc<PoolCore<SoftMmu>>) -> PinnedBox<RegionCore<SoftMmu>> {
    RegionCore::zeros(pool, pool.block_size.len_of(pool.frames.len()), RegionOptions::new()).unwrap()
}

fn write(space: &RegionCore<SoftMmu>, offset: usize) {
    while space.pool().sys.store(space.addresses.base() + offset, 1).is_err() {
        space.resolve(offset).unwrap();
    }
}

/// For each 2 MiB: whether all of it has memory, and whether it is one page.
fn pieces(pool: &PoolCore<SoftMmu>) -> Vec<(bool, bool)> {
    let all = |at: usize| (at..at + HUGE_PAGE).step_by(BASE_PAGE).all(|page| pool.sys.memory_at(page).0);
    let bytes = pool.block_size.len_of(pool.frames.len());
    (0..bytes).step_by(HUGE_PAGE).map(|at| (all(at), pool.sys.memory_at(at).1)).collect()
}

fn contents(pool: &PoolCore<SoftMmu>) -> Vec<Content> {
    (0..pool.frames.len() as u32).map(|block| pool.frames.content(BlockId(block))).collect()
}

const HUGE: (bool, bool) = (true, true);
const BASE: (bool, bool) = (true, false);
const NOTHING: (bool, bool) = (false, false);

#[test]
fn a_stream_gets_a_huge_page_under_each_of_its_blocks() {
    for block in [2 * MIB, 4 * MIB] {
        let pool = pool(block, 16, 0);
        let space = region(&pool);
        // From the third block on they come in runs.
        (0..16 * HUGE_PAGE).step_by(block).for_each(|offset| write(&space, offset));
        assert_eq!(pieces(&pool), [HUGE; 16]);
        assert!(pool.sys.calls(Call::Map) < pool.frames.len());
        assert_eq!(pool.ahead.stats().blocks_late, pool.frames.len() as u64);
    }
}

#[test]
fn copies_of_several_blocks_get_huge_pages_too() {
    let pool = pool(2 * MIB, 40, 0);
    let space = RegionCore::zeros(&pool, 16 * HUGE_PAGE, RegionOptions::new()).unwrap();
    (0..16).for_each(|block| write(&space, block * HUGE_PAGE));
    let snapshot = space.freeze().unwrap();
    (0..16).for_each(|block| write(&space, block * HUGE_PAGE));
    assert_eq!(pieces(&pool).iter().filter(|piece| **piece == HUGE).count(), 32);
    drop(snapshot);
}

#[test]
fn small_blocks_live_in_huge_pages_even_when_only_some_of_them_are_used() {
    for block in [BASE_PAGE, 64 << 10] {
        let pool = pool(block, 4, 0);
        let [_, small] = [0, 1].map(|_| RegionCore::zeros(&pool, 8 * block, RegionOptions::new()).unwrap());
        write(&small, 5 * block);
        assert_eq!(pieces(&pool), [NOTHING, HUGE, NOTHING, NOTHING]);
        assert_eq!((pool.sys.calls(Call::MakeHuge), pool.ahead.stats().blocks_late), (1, 8));
    }
}

#[test]
fn small_blocks_that_are_taken_one_by_one_share_one_huge_page() {
    let pool = pool(64 << 10, 1, 0);
    let one = || pool.frames.take(BlockId(0), 0, 0, crate::pool::frames::Wanted::Zeroed, crate::table::Reserved::No);
    let taken: Vec<Taken> = (0..3).map(|_| one().unwrap()).collect();
    for run in &taken {
        pool.obtain(*run, 0).unwrap();
    }
    assert_eq!((pieces(&pool), pool.sys.calls(Call::MakeHuge)), (vec![HUGE], 1));
    assert_eq!(contents(&pool)[..4], [Content::Clean, Content::Clean, Content::Clean, Content::Fresh]);
    taken.into_iter().for_each(|run| pool.give_back(run));
}

#[test]
fn where_the_kernel_refuses_a_huge_page_base_pages_serve_and_the_write_does_not_notice() {
    for block in [64 << 10, 2 * MIB, 4 * MIB] {
        let pool = pool(block, 8, 0);
        let space = region(&pool);
        pool.sys.fail(Some((Call::MakeHuge, 0)));
        write(&space, 0);
        assert!(!pool.sys.failure_pending());
        assert_eq!(pieces(&pool)[0], BASE);
        (0..8 * HUGE_PAGE).step_by(block).for_each(|offset| write(&space, offset));
        assert_eq!(pieces(&pool)[1..], [HUGE; 7]);
        let read = |offset| pool.sys.load(space.addresses.base() + offset).unwrap();
        assert_eq!([0, 1, 8 * HUGE_PAGE - 1].map(read), [1, 0, 0]);
    }
}

#[test]
fn what_was_obtained_before_a_failure_stays_known() {
    let pool = pool(2 * MIB, 8, 0);
    let taken = pool.frames.take(BlockId(2), 0, 3, crate::pool::frames::Wanted::Zeroed, crate::table::Reserved::No);
    let taken = taken.unwrap();
    pool.sys.fail(Some((Call::Obtain, 2)));
    pool.obtain(taken, 0).unwrap_err();
    pool.give_back(taken);
    use Content::{Clean, Fresh};
    assert_eq!(contents(&pool), [Fresh, Fresh, Clean, Clean, Fresh, Fresh, Fresh, Fresh]);
    assert_eq!((pool.frames.zeroed(), pool.frames.fresh(), pool.frames.available()), (2, 6, 8));
    // The next write takes a block that is ready.
    let calls = pool.sys.calls(Call::Obtain);
    write(&region(&pool), 2 * HUGE_PAGE);
    assert_eq!(pool.sys.calls(Call::Obtain), calls);
}

#[test]
fn a_hole_is_filled_and_the_pages_around_it_keep_what_they_hold() {
    let pool = pool(2 * MIB, 4, 0);
    let space = region(&pool);
    write(&space, 0);
    write(&space, 5 * BASE_PAGE);
    space.lazy_free(BASE_PAGE..4 * BASE_PAGE).unwrap();
    pool.drop_lazy(usize::MAX, Droppable::Everything);
    assert!(!pool.sys.memory_at(BASE_PAGE).0);
    let made = pool.sys.calls(Call::MakeHuge);
    (1..4).for_each(|page| write(&space, page * BASE_PAGE + 7));
    assert!((0..8).all(|page| pool.sys.memory_at(page * BASE_PAGE).0));
    assert_eq!(pool.sys.calls(Call::MakeHuge), made, "what holds something is not made anew");
    let read = |offset| pool.sys.load(space.addresses.base() + offset).unwrap();
    assert_eq!([0, 1, BASE_PAGE, BASE_PAGE + 7, 5 * BASE_PAGE].map(read), [1, 0, 0, 1, 1]);
}

#[test]
fn what_was_trimmed_gets_huge_pages_again() {
    let pool = pool(64 << 10, 2, 0);
    let space = region(&pool);
    (0..2 * HUGE_PAGE).step_by(64 << 10).for_each(|offset| write(&space, offset));
    drop(space);
    assert_eq!(pool.trim(), Ok(2 * HUGE_PAGE));
    assert_eq!(pieces(&pool), [NOTHING; 2]);
    write(&region(&pool), 0);
    assert_eq!(pieces(&pool), [HUGE, NOTHING]);
}

/// Runs the thread's steps until it would sleep. Returns how many blocks got memory.
fn steps(pool: &PoolCore<SoftMmu>) -> usize {
    let mut got = 0;
    while pool.frames.ready() < pool.ahead.wanted() {
        match pool.get_one_ahead(usize::MAX) {
            Got::Blocks(blocks) => got += blocks,
            Got::Nothing => break,
            Got::Refused | Got::HeldBack => panic!("nobody refuses"),
        }
    }
    got
}

#[test]
fn an_unused_pool_gets_nothing_and_then_as_much_as_was_used_up_to_its_limit() {
    let pool = pool(2 * MIB, 64, 40 * MIB);
    assert_eq!((steps(&pool), pool.sys.calls(Call::Obtain)), (0, 0));
    let space = region(&pool);
    write(&space, 0);
    assert_eq!(steps(&pool), 8, "16 MiB at first");
    (1..9).for_each(|block| write(&space, block * HUGE_PAGE + 4096));
    assert_eq!((pool.ahead.stats().blocks_late, pool.frames.zeroed()), (1, 0));
    assert_eq!(steps(&pool), 9);
    (9..18).for_each(|block| write(&space, block * HUGE_PAGE + 4096));
    assert_eq!(steps(&pool), 18);
    (18..36).for_each(|block| write(&space, block * HUGE_PAGE + 4096));
    assert_eq!((steps(&pool), pool.ahead.stats().blocks_late), (20, 1), "40 MiB at most");
    assert_eq!(pieces(&pool)[..56], [HUGE; 56]);
    assert_eq!(pieces(&pool)[56..], [NOTHING; 8]);
}

#[test]
fn memory_comes_where_it_will_be_wanted_and_is_not_got_where_it_is_there() {
    let pool = pool(2 * MIB, 64, 64 * MIB);
    let space = region(&pool);
    let has =
        || pieces(&pool).iter().enumerate().filter(|(_, has)| **has == HUGE).map(|(at, _)| at).collect::<Vec<_>>();
    write(&space, 40 * HUGE_PAGE + 4096);
    steps(&pool);
    assert_eq!(has(), (40..49).collect::<Vec<_>>());
    // Downwards.
    write(&space, 30 * HUGE_PAGE + 4096);
    pool.get_one_ahead(usize::MAX);
    write(&space, 28 * HUGE_PAGE + 4096);
    pool.get_one_ahead(usize::MAX);
    assert_eq!(has(), [27, 28, 29, 30].into_iter().chain(40..49).collect::<Vec<_>>());
    // Blocks that come back have memory, so a program that uses them again needs no more.
    (0..64).for_each(|block| write(&space, block * HUGE_PAGE));
    drop(space);
    let late = pool.ahead.stats().blocks_late;
    write(&region(&pool), 0);
    assert_eq!((steps(&pool), pool.ahead.stats().blocks_late), (0, late));
}

#[test]
fn nothing_is_got_after_a_trim_until_memory_is_used_again() {
    let pool = pool(2 * MIB, 32, 64 * MIB);
    let space = region(&pool);
    (0..4).for_each(|block| write(&space, block * HUGE_PAGE + 4096));
    assert_eq!(steps(&pool), 8);
    assert_eq!(pool.trim(), Ok(8 * HUGE_PAGE));
    assert_eq!((steps(&pool), pool.frames.fresh()), (0, 28));
    write(&space, 5 * HUGE_PAGE + 4096);
    assert_eq!(steps(&pool), 8);
}

#[test]
fn what_nobody_has_used_goes_back_and_what_was_used_stays() {
    for block in [64 << 10, 2 * MIB, 4 * MIB] {
        let pool = pool(block, 64, 128 * MIB);
        let space = region(&pool);
        // 16 MiB are ready behind it.
        write(&space, 4096);
        let got = steps(&pool) * block;
        // Some of that is used, and a block of that is free again: it has contents.
        (0..8).for_each(|at| write(&space, at * HUGE_PAGE + 4096));
        space.discard(4 * HUGE_PAGE..6 * HUGE_PAGE).unwrap();
        let (fresh, used_and_free) = (pool.frames.fresh(), pool.frames.used_and_free());
        assert!(pool.frames.zeroed() > 0 && used_and_free > 0 && got >= 16 * MIB);
        pool.give_back_unused();
        let unused = pool.frames.zeroed();
        assert!(unused * block < HUGE_PAGE, "only what shares a huge page with used blocks stays");
        assert!(pool.frames.fresh() > fresh && pool.frames.used_and_free() == used_and_free);
        assert_eq!(pool.ahead.stats().blocks_given_back as usize, pool.frames.fresh() - fresh);
        assert_eq!(pieces(&pool).iter().filter(|piece| **piece != NOTHING).count(), 8.max(block / HUGE_PAGE * 4));
        let read = |offset| pool.sys.load(space.addresses.base() + offset).unwrap();
        assert_eq!([4096, 7 * HUGE_PAGE + 4096, 4 * HUGE_PAGE + 4096, 20 * HUGE_PAGE].map(read), [1, 1, 0, 0]);
        // It is got again at the next first use.
        write(&space, 20 * HUGE_PAGE);
        assert!(steps(&pool) > 0);
    }
}

#[test]
fn memory_that_the_kernel_does_not_take_back_stays_known() {
    let pool = pool(2 * MIB, 64, 128 * MIB);
    write(&region(&pool), 4096);
    steps(&pool);
    let before = (pool.frames.zeroed(), pool.frames.fresh(), pool.frames.available());
    pool.sys.fail(Some((Call::Punch, 0)));
    pool.give_back_unused();
    assert!(!pool.sys.failure_pending());
    assert_eq!((pool.frames.zeroed(), pool.frames.fresh(), pool.frames.available()), before);
}

#[test]
fn the_thread_gives_back_what_is_ready_when_writes_stop_and_gets_some_at_the_next() {
    let pool = pool(2 * MIB, 64, 128 * MIB);
    let space = region(&pool);
    let _worker = PoolCore::start_ahead(&pool, PLENTY, Duration::from_millis(1)).unwrap().unwrap();
    for round in 0..3 {
        let ahead = pool.ahead.stats().blocks_ahead;
        write(&space, 5 * round * HUGE_PAGE);
        wait_until("memory ahead", || pool.ahead.stats().blocks_ahead > ahead);
        wait_until("all but what was written to to go back", || pool.frames.fresh() == 64 - (round + 1));
        let stats = pool.ahead.stats();
        wait_until("the count", || pool.ahead.stats().blocks_given_back + stats.blocks_late > stats.blocks_ahead);
    }
}

#[test]
fn what_a_program_asked_for_stays() {
    let size = BlockSize::MIB_2;
    let hugetlb = SoftMmu::new(64 * HUGE_PAGE, Merging::Separate, 1000);
    let kernels = || Kernels::default_for_this_cpu();
    let hugetlb = PoolCore::new(hugetlb, "test".to_owned(), size, 64, kernels(), Stock::default());
    assert!(!hugetlb.gives_back(), "hugetlb pages are set aside for the pool");
    let zeroed = Stock::new(Some(crate::ZeroedStock::keep(2 * MIB, 4 * MIB)), size, 64);
    let soft = SoftMmu::new(64 * HUGE_PAGE, Merging::Merge, 1000);
    assert!(!PoolCore::new(soft, "test".to_owned(), size, 64, kernels(), zeroed).gives_back());
    assert!(pool(2 * MIB, 64, 0).gives_back());
}

#[test]
fn a_machine_with_nothing_to_spare_is_left_alone_and_a_refusal_loses_no_block() {
    let pool = pool(64 << 10, 8, 16 * MIB);
    let space = region(&pool);
    write(&space, 0);
    assert_eq!(pool.get_one_ahead(31), Got::Refused, "a piece has 32 blocks");
    assert_eq!(pool.frames.fresh(), 7 * 32);
    for after in 0..2 {
        pool.sys.fail(Some((Call::Obtain, after)));
        while pool.sys.failure_pending() {
            let got = pool.get_one_ahead(usize::MAX);
            assert_eq!(got == Got::Refused, !pool.sys.failure_pending());
        }
    }
    let (fresh, clean) = (pool.frames.fresh(), pool.frames.zeroed());
    assert_eq!((fresh, clean, pool.frames.available()), (6 * 32, 32, 7 * 32));
    (0..8 * HUGE_PAGE).step_by(64 << 10).for_each(|offset| write(&space, offset));
    assert_eq!(pool.frames.available(), 0);
}

#[test]
fn a_block_that_memory_is_coming_for_is_waited_for() {
    let pool = pool(2 * MIB, 8, 16 * MIB);
    let space = region(&pool);
    assert_eq!(pool.frames.take_fresh(3..4), 1);
    assert_eq!((pool.frames.available(), pool.frames.fresh(), pool.frames.ready()), (8, 7, 0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| space.resolve(3 * HUGE_PAGE + 4096));
        // This gives it time to go wrong; the outcome does not depend on it.
        (0..10_000).for_each(|_| std::thread::yield_now());
        assert_eq!(pool.obtain_coming(3..4), Ok(()));
        assert_eq!(writer.join().unwrap(), Ok(Resolution::DemandZero));
    });
    assert_eq!(space.table.get(crate::units::EntryIndex(3)).block(), Some(BlockId(3)), "where it merges");
    assert_eq!(pool.ahead.stats().blocks_late, 0);
    // Nothing has come, so the fault gets the memory itself.
    pool.frames.take_fresh(4..5);
    pool.sys.fail(Some((Call::Obtain, 0)));
    assert_eq!(pool.obtain_coming(4..5), Err(Got::Refused));
    write(&space, 4 * HUGE_PAGE + 4096);
    assert_eq!((pool.ahead.stats().blocks_late, pool.frames.available()), (1, 6));
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(600), "{what} did not come");
        std::thread::yield_now();
    }
}

#[test]
fn the_thread_is_woken_by_writes_keeps_ahead_of_them_and_ends_when_told() {
    let pool = pool(2 * MIB, 64, 128 * MIB);
    let space = region(&pool);
    let others = pool.owners();
    let worker = PoolCore::start_ahead(&pool, PLENTY, NEVER).unwrap().unwrap();
    write(&space, 4096);
    wait_until("16 MiB ahead", || pool.frames.zeroed() >= 8);
    for block in 1..40 {
        wait_until("memory for the next", || pool.frames.zeroed() > 0);
        write(&space, block * HUGE_PAGE + 4096);
    }
    assert_eq!(pool.ahead.stats().blocks_late, 1, "none but the first waited for memory");
    // It is woken when there is less than half of what is wanted, and may have slept at the last writes.
    wait_until("half as much as was used", || pool.frames.zeroed() >= 20);
    drop(worker);
    assert_eq!(pool.owners(), others, "the thread has ended");
    let stats = pool.ahead.stats();
    assert!(stats.running && stats.blocks_ahead as usize == 63 - pool.frames.fresh());
}

#[test]
fn the_thread_stops_where_the_machine_has_nothing_to_spare_and_tries_again_at_the_next_use() {
    let pool = pool(2 * MIB, 64, 128 * MIB);
    let _worker = PoolCore::start_ahead(&pool, || 0, NEVER).unwrap().unwrap();
    let space = region(&pool);
    for block in 0..3 {
        write(&space, block * HUGE_PAGE + 4096);
        wait_until("a stop", || pool.ahead.stats().stopped > block as u64);
        assert_eq!(pool.ahead.wanted(), 0);
    }
    assert_eq!((pool.ahead.stats().blocks_ahead, pool.ahead.stats().blocks_late), (0, 3));
}

#[test]
fn a_large_block_is_got_in_steps_and_is_fresh_again_when_one_fails() {
    let pool = pool(8 * MIB, 16, 64 * MIB);
    write(&region(&pool), 0);
    let calls = pool.sys.calls(Call::Obtain);
    pool.sys.fail(Some((Call::Obtain, 2)));
    assert_eq!((pool.get_one_ahead(usize::MAX), pool.sys.calls(Call::Obtain)), (Got::Refused, calls + 3));
    assert_eq!(contents(&pool), [Content::Used, Content::Fresh, Content::Fresh, Content::Fresh]);
    assert_eq!((pool.get_one_ahead(usize::MAX), contents(&pool)[1]), (Got::Blocks(1), Content::Clean));
    assert_eq!(pieces(&pool)[..8], [HUGE; 8]);
}
