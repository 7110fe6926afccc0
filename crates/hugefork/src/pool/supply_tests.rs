//! How blocks get their memory, at the fault and ahead of cuts, on the software MMU.

use hugefork_kernels::Kernels;

use super::*;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::pool::ahead::Ahead;
use crate::pool::frames::Taken;
use crate::pool::holders::Droppable;
use crate::pool::stock::Stock;
use crate::region::state::RegionCore;
use crate::sys::Merging;
use crate::sys::soft::{Call, SoftMmu};
use crate::types::options::RegionOptions;
use crate::units::BlockSize;
use crate::units::{BASE_PAGE, BlockId};

const MIB: usize = 1 << 20;
/// A machine that can spare any amount.
const PLENTY: fn() -> usize = || usize::MAX;

/// A pool of `pieces` times 2 MiB in blocks of `block` bytes, which allocates at most `most` bytes ahead.
fn pool(block: usize, pieces: usize, most: usize) -> EngineArc<PoolCore<SoftMmu>> {
    let size = BlockSize::new(block).unwrap();
    let mmu = SoftMmu::new(pieces * HUGE_PAGE, Merging::Merge, 1000);
    let (blocks, kernels) = (size.count(pieces * HUGE_PAGE), Kernels::default_for_this_cpu());
    let core = PoolCore::new(mmu, "test".to_owned(), size, blocks, kernels, Stock::default());
    EngineArc::new(PoolCore { ahead: Ahead::new(most, size, PLENTY), ..core })
}

fn region(pool: &EngineArc<PoolCore<SoftMmu>>) -> PinnedBox<RegionCore<SoftMmu>> {
    RegionCore::zeros(pool, pool.block_size.len_of(pool.frames.len()), RegionOptions::new()).unwrap()
}

fn write(space: &RegionCore<SoftMmu>, offset: usize) {
    while space.pool().sys.store(space.addresses.base() + offset, 1).is_err() {
        space.resolve(offset).unwrap();
    }
}

/// For each 2 MiB: whether all of it has memory, and whether it is one huge page.
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
        (0..16 * HUGE_PAGE).step_by(block).for_each(|offset| write(&space, offset));
        assert_eq!(pieces(&pool), [HUGE; 16]);
        assert_eq!(pool.sys.calls(Call::Map), pool.frames.len(), "no write waits for the memory of others");
        assert_eq!(pool.ahead.stats().blocks_late, pool.frames.len() as u64);
        drop(space);
        // From the third block on, blocks with memory are taken in runs.
        let (space, before) = (region(&pool), pool.sys.calls(Call::Map));
        (0..16 * HUGE_PAGE).step_by(block).for_each(|offset| write(&space, offset));
        assert!(pool.sys.calls(Call::Map) - before < pool.frames.len());
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
fn a_write_succeeds_on_base_pages_if_the_kernel_refuses_a_huge_page() {
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
fn memory_obtained_before_a_failure_stays_known() {
    let pool = pool(2 * MIB, 8, 0);
    let taken = pool.frames.take(BlockId(2), 0, 3, crate::pool::frames::Wanted::Zeroed, crate::table::Reserved::No);
    let taken = taken.unwrap();
    pool.sys.fail(Some((Call::Obtain, 2)));
    pool.obtain(taken, 0).unwrap_err();
    pool.give_back(taken);
    use Content::{Clean, Fresh};
    assert_eq!(contents(&pool), [Fresh, Fresh, Clean, Clean, Fresh, Fresh, Fresh, Fresh]);
    assert_eq!((pool.frames.zeroed(), pool.frames.fresh(), pool.frames.available()), (2, 6, 8));
    // The next write takes a block that already has memory.
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
    assert_eq!(pool.sys.calls(Call::MakeHuge), made, "pages with contents are not collapsed");
    let read = |offset| pool.sys.load(space.addresses.base() + offset).unwrap();
    assert_eq!([0, 1, BASE_PAGE, BASE_PAGE + 7, 5 * BASE_PAGE].map(read), [1, 0, 0, 1, 1]);
}

#[test]
fn trimmed_blocks_get_huge_pages_again() {
    let pool = pool(64 << 10, 2, 0);
    let space = region(&pool);
    (0..2 * HUGE_PAGE).step_by(64 << 10).for_each(|offset| write(&space, offset));
    drop(space);
    assert_eq!(pool.trim(usize::MAX), Ok(2 * HUGE_PAGE));
    assert_eq!(pieces(&pool), [NOTHING; 2]);
    write(&region(&pool), 0);
    assert_eq!(pieces(&pool), [HUGE, NOTHING]);
}

/// Allocates ahead for `blocks` blocks, and returns how many the thread has allocated in this call.
fn got(pool: &PoolCore<SoftMmu>, blocks: usize) -> u64 {
    let before = pool.ahead.stats().blocks_ahead;
    pool.get_ahead(blocks);
    pool.ahead.stats().blocks_ahead - before
}

#[test]
fn memory_for_captures_is_ready_at_the_end_of_the_pool_up_to_a_limit() {
    let pool = pool(2 * MIB, 64, 40 * MIB);
    let space = region(&pool);
    write(&space, 0);
    assert_eq!((got(&pool, 0), got(&pool, 8), got(&pool, 8)), (0, 8, 0));
    assert_eq!(
        (pieces(&pool)[0], pieces(&pool)[1..56] == [NOTHING; 55], pieces(&pool)[56..] == [HUGE; 8]),
        (HUGE, true, true)
    );
    assert_eq!(got(&pool, 60), 12, "40 MiB at most");
    // A write that finds a block with memory does not wait, and blocks that come back have memory.
    write(&space, 63 * HUGE_PAGE + 4096);
    assert_eq!((pool.ahead.stats().blocks_late, pool.frames.zeroed()), (1, 19));
    drop(space);
    assert_eq!((pool.frames.ready(), got(&pool, 20)), (21, 0));
}

#[test]
fn nothing_is_allocated_ahead_after_a_trim_until_the_next_cut() {
    let pool = pool(2 * MIB, 32, 64 * MIB);
    assert_eq!(got(&pool, 8), 8);
    assert_eq!(pool.trim(usize::MAX), Ok(8 * HUGE_PAGE));
    assert_eq!((got(&pool, 8), pool.frames.fresh()), (0, 32));
    pool.ahead.rests.store(false, Ordering::Relaxed);
    assert_eq!(got(&pool, 8), 8);
    // While a cut holds its writers, nothing is allocated ahead.
    let held_back = pool.ahead.hold_back();
    assert_eq!(got(&pool, 16), 0);
    drop(held_back);
    assert_eq!(got(&pool, 16), 8);
}

#[test]
fn unused_memory_goes_back_and_used_memory_stays() {
    for block in [64 << 10, 2 * MIB, 4 * MIB] {
        let pool = pool(block, 64, 128 * MIB);
        let space = region(&pool);
        (0..4).for_each(|at| write(&space, (60 + at) * HUGE_PAGE + 4096));
        got(&pool, 16 * MIB / block);
        // Some of that memory is used, and one used block is free again: it has contents.
        (0..4).for_each(|at| write(&space, (56 + at) * HUGE_PAGE + 4096));
        space.discard(56 * HUGE_PAGE..58 * HUGE_PAGE).unwrap();
        let (fresh, used_and_free) = (pool.frames.fresh(), pool.frames.used_and_free());
        assert!(pool.frames.zeroed() > 0 && used_and_free > 0);
        pool.give_back_unused();
        assert!(pool.frames.zeroed() * block < HUGE_PAGE, "only blocks that share a huge page with used blocks stay");
        assert!(pool.frames.fresh() > fresh && pool.frames.used_and_free() == used_and_free);
        assert_eq!(pool.ahead.stats().blocks_given_back as usize, pool.frames.fresh() - fresh);
        assert_eq!(pieces(&pool).iter().filter(|piece| **piece != NOTHING).count(), 8);
        let read = |offset| pool.sys.load(space.addresses.base() + offset).unwrap();
        assert_eq!([60 * HUGE_PAGE + 4096, 56 * HUGE_PAGE + 4096, 20 * HUGE_PAGE].map(read), [1, 0, 0]);
        // Memory is allocated again after the next cut.
        assert_eq!(got(&pool, 1000), 0);
        pool.ahead.rests.store(false, Ordering::Relaxed);
        assert!(got(&pool, 1000) > 0);
    }
}

#[test]
fn memory_that_the_kernel_does_not_take_back_stays_known() {
    let pool = pool(2 * MIB, 64, 128 * MIB);
    assert_eq!(got(&pool, 8), 8);
    let before = (pool.frames.zeroed(), pool.frames.fresh(), pool.frames.available());
    pool.sys.fail(Some((Call::Punch, 0)));
    pool.give_back_unused();
    assert!(!pool.sys.failure_pending());
    assert_eq!((pool.frames.zeroed(), pool.frames.fresh(), pool.frames.available()), before);
}

#[test]
fn memory_that_the_program_asked_for_stays() {
    let (size, kernels) = (BlockSize::MIB_2, Kernels::default_for_this_cpu);
    let zeroed = || Stock::new(Some(crate::ZeroedStock::keep(2 * MIB, 4 * MIB)), size, 64);
    // hugetlb pages are set aside for the pool.
    for (merging, stock, stays) in [
        (Merging::Separate, Stock::default(), true),
        (Merging::Merge, zeroed(), true),
        (Merging::Merge, Stock::default(), false),
    ] {
        let mmu = SoftMmu::new(64 * HUGE_PAGE, merging, 1000);
        let pool = PoolCore::new(mmu, "test".to_owned(), size, 64, kernels(), stock);
        let pool = PoolCore { ahead: Ahead::new(16 * MIB, size, PLENTY), ..pool };
        assert_eq!(got(&pool, 8), 8);
        pool.give_back_unused();
        assert_eq!(pool.frames.zeroed() == 8, stays);
    }
}

#[test]
fn a_machine_without_spare_memory_is_left_alone_and_a_refusal_loses_no_block() {
    let pool = pool(64 << 10, 8, 16 * MIB);
    assert_eq!(pool.get_one_ahead(31), Got::Refused, "a piece has 32 blocks");
    assert_eq!(pool.frames.fresh(), 8 * 32);
    for after in 0..2 {
        pool.sys.fail(Some((Call::Obtain, after)));
        while pool.sys.failure_pending() {
            pool.get_one_ahead(usize::MAX);
        }
        assert_eq!((pool.frames.available(), pool.frames.fresh() + pool.frames.zeroed()), (8 * 32, 8 * 32));
    }
    let space = region(&pool);
    (0..8 * HUGE_PAGE).step_by(64 << 10).for_each(|offset| write(&space, offset));
    assert_eq!(pool.frames.available(), 0);
    // One refusal ends it until the next cut.
    let pool = self::pool(2 * MIB, 8, 16 * MIB);
    pool.sys.fail(Some((Call::Obtain, 0)));
    assert_eq!((got(&pool, 4), got(&pool, 4), pool.ahead.stats().stopped), (0, 0, 1));
    pool.ahead.rests.store(false, Ordering::Relaxed);
    assert_eq!(got(&pool, 4), 4);
}

#[test]
fn a_large_block_is_allocated_in_steps_and_is_fresh_when_one_fails() {
    let pool = pool(8 * MIB, 16, 64 * MIB);
    pool.sys.fail(Some((Call::Obtain, 2)));
    assert_eq!((pool.get_one_ahead(usize::MAX), pool.sys.calls(Call::Obtain)), (Got::Refused, 3));
    assert_eq!(contents(&pool), [Content::Fresh; 4]);
    assert_eq!((pool.get_one_ahead(usize::MAX), contents(&pool)[3]), (Got::Blocks(1), Content::Clean));
    assert_eq!(pieces(&pool)[12..], [HUGE; 4]);
}

/// Writers take blocks whose memory is just being allocated, and a trim takes memory away again.
#[test]
fn a_ready_block_has_memory_whatever_other_threads_do() {
    let pool = pool(64 << 10, 4, 64 * MIB);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..50 {
                let space = region(&pool);
                (2 * HUGE_PAGE..4 * HUGE_PAGE).step_by(64 << 10).for_each(|offset| write(&space, offset));
                drop(space);
                pool.trim(usize::MAX).unwrap();
            }
        });
        while !writer.is_finished() {
            pool.ahead.rests.store(false, Ordering::Relaxed);
            pool.get_ahead(128);
        }
    });
    assert_eq!(pool.frames.available(), 128);
    for (block, content) in contents(&pool).into_iter().enumerate() {
        let has = (0..16).all(|page| pool.sys.memory_at(block * (64 << 10) + page * BASE_PAGE).0);
        assert!(has || content == Content::Fresh, "block {block} is {content:?} without memory");
    }
}
