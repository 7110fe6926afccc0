//! Tests of the design's table of lazy free, one row each, and of bugs that other implementations had there.

use super::*;
use crate::LazyFreed;
use crate::pool::shortage::{Found, LOOKED_AT_ENTRIES};
use crate::units::HUGE_PAGE;

/// The result of a call that freed everything.
fn freed(bytes: usize) -> LazyFreed {
    LazyFreed { freed: bytes, ..LazyFreed::default() }
}

#[test]
fn blocks_held_once_are_freed_as_one_batch_with_one_system_call() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(6);
        let calls = G::calls(&world.pool, Call::Protect);
        assert_eq!(region.lazy_free(G::BLOCK..5 * G::BLOCK), Ok(freed(4 * G::BLOCK)));
        assert_eq!(G::calls(&world.pool, Call::Protect), calls.map(|calls| calls + 1));
        assert_eq!((region.lazy(), region.accounts.lazy_blocks.load(Ordering::Relaxed)), (4 * G::BLOCK, 4));
        let calls = G::calls(&world.pool, Call::MapZeros);
        assert_eq!(world.reclaim_all(), Dropped { blocks: 4, bytes: 4 * G::BLOCK });
        assert_eq!(G::calls(&world.pool, Call::MapZeros), calls.map(|calls| calls + 1));
        assert_eq!((region.kept(), region.lazy()), (vec![0..G::PAGES, 5 * G::PAGES..6 * G::PAGES], 0));
    }
    everywhere!(row, 8);
}

#[test]
fn a_block_partly_inside_is_split_and_only_its_pages_are_freed() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, free) = (world.written(3), world.free());
        let range = G::BLOCK - 2 * BASE_PAGE..2 * G::BLOCK + 3 * BASE_PAGE;
        assert_eq!(region.lazy_free(range.clone()), Ok(freed(range.len())));
        assert!(matches!(region.entry(0), Entry::Split(_)) && matches!(region.entry(2), Entry::Split(_)));
        assert!(matches!(region.entry(1), Entry::Lazy(_)));
        assert_eq!(world.reclaim_all(), Dropped { blocks: 1, bytes: range.len() });
        assert_eq!(region.kept(), [0..G::PAGES - 2, 2 * G::PAGES + 3..3 * G::PAGES]);
        assert_eq!(world.free(), free + 1, "what is split keeps its block");
        // Two pages inside one block.
        let middle = 6 * BASE_PAGE..8 * BASE_PAGE;
        assert_eq!(region.lazy_free(middle.clone()), Ok(freed(middle.len())));
        assert_eq!(world.reclaim_all().bytes, middle.len());
        assert_eq!(region.kept(), [0..6, 8..G::PAGES - 2, 2 * G::PAGES + 3..3 * G::PAGES]);
    }
    where_blocks_split!(row, 8);
}

#[test]
fn a_block_that_is_freed_in_parts_goes_as_a_whole_when_the_last_part_is() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, free) = (world.written(2), world.free());
        let half = G::BLOCK / 2;
        assert_eq!(region.lazy_free(0..half), Ok(freed(half)));
        assert_eq!(world.reclaim_all(), Dropped { blocks: 0, bytes: half });
        assert_eq!(region.lazy_free(half..G::BLOCK), Ok(freed(half)));
        assert_eq!(world.reclaim_all(), Dropped { blocks: 1, bytes: half });
        assert_eq!((region.kept(), world.free()), (vec![G::PAGES..2 * G::PAGES], free + 1));
        assert_eq!(region.entry(0), Entry::Zero);
        // The block went back with holes. Its next holder must see zeros, with memory behind them.
        let (next, rest) = (world.region(1), world.fill());
        drop(rest);
        next.populate(0..next.len()).unwrap();
        assert_eq!(next.kept(), []);
        (0..G::PAGES).for_each(|page| next.write(page * BASE_PAGE + 9, 1));
    }
    where_blocks_split!(row, 4);
}

#[test]
fn where_splitting_is_impossible_the_block_is_skipped_and_the_next_is_taken() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        let range = G::BLOCK - BASE_PAGE..2 * G::BLOCK + 2 * BASE_PAGE;
        let done = LazyFreed { freed: G::BLOCK, indivisible: 3 * BASE_PAGE, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(range), Ok(done));
        assert_eq!(world.reclaim_all(), Dropped { blocks: 1, bytes: G::BLOCK });
        assert_eq!(region.kept(), [0..G::PAGES, 2 * G::PAGES..3 * G::PAGES]);
    }
    where_blocks_do_not_split!(row, 4);
}

#[test]
fn a_pinned_block_is_not_split_and_the_next_is_taken() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        let pinned = G::BLOCK - 1..G::BLOCK;
        region.pin(pinned.clone()).unwrap();
        let done = LazyFreed { freed: 2 * G::BLOCK, pinned: BASE_PAGE, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(G::BLOCK - BASE_PAGE..3 * G::BLOCK), Ok(done));
        assert!(matches!(region.entry(0), Entry::Private(_)));
        assert_eq!(world.reclaim_all().blocks, 2);
        assert_eq!(region.kept(), vec![0..G::PAGES]);
        region.unpin(&pinned);
    }
    everywhere!(row, 4);
}

#[test]
fn a_shared_block_is_skipped_and_the_next_is_taken() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(4);
        let snapshot = region.snapshot();
        region.write(G::BLOCK + 100, 7);
        let done = LazyFreed { freed: G::BLOCK, shared: 3 * G::BLOCK, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..4 * G::BLOCK), Ok(done));
        assert_eq!(world.reclaim_all(), Dropped { blocks: 1, bytes: G::BLOCK });
        assert_eq!(region.kept(), [0..G::PAGES, 2 * G::PAGES..4 * G::PAGES]);
        assert_eq!(kept_by(&snapshot), vec![0..4 * G::PAGES]);
        // A part of a shared block is skipped as well.
        let done = LazyFreed { shared: BASE_PAGE, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..BASE_PAGE), Ok(done));
        drop(snapshot);
        let done = LazyFreed { freed: 3 * G::BLOCK, already: G::BLOCK, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..4 * G::BLOCK), Ok(done), "now it is the only holder");
    }
    everywhere!(row, 8);
}

#[test]
fn nothing_is_to_be_done_for_what_was_never_touched_or_is_lazily_freed_already() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.region(4);
        let nothing = |bytes| LazyFreed { already: bytes, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..4 * G::BLOCK), Ok(nothing(4 * G::BLOCK)));
        region.prepare_write(0..4 * G::BLOCK).unwrap();
        region.lazy_free(0..4 * G::BLOCK).unwrap();
        let calls = G::calls(&world.pool, Call::Protect);
        assert_eq!(region.lazy_free(0..4 * G::BLOCK), Ok(nothing(4 * G::BLOCK)));
        assert_eq!(region.lazy_free(BASE_PAGE..2 * BASE_PAGE), Ok(nothing(BASE_PAGE)), "not split for that either");
        assert_eq!(G::calls(&world.pool, Call::Protect), calls, "no system call");
        assert_eq!((region.lazy(), world.reclaim_all().blocks), (4 * G::BLOCK, 4), "counted once");
    }
    everywhere!(row, 8);
}

#[test]
fn a_write_cancels_for_the_block_written_and_is_not_lost() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(4);
        region.lazy_free(0..4 * G::BLOCK).unwrap();
        region.write(2 * G::BLOCK + 100, 7);
        assert_eq!(region.lazy(), 3 * G::BLOCK);
        assert_eq!(world.reclaim_all().blocks, 3);
        assert_eq!(region.kept(), vec![2 * G::PAGES..3 * G::PAGES], "the whole block keeps its data");
        assert_eq!(region.read(2 * G::BLOCK + 100), Some(7));
        assert_eq!(world.reclaim_all().blocks, 0, "and it stays cancelled");
    }
    everywhere!(row, 8);
}

#[test]
fn a_write_to_a_split_block_cancels_for_the_page_written_and_is_not_lost() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(1);
        region.lazy_free(0..8 * BASE_PAGE).unwrap();
        region.write(3 * BASE_PAGE + 100, 7);
        region.write(10 * BASE_PAGE + 100, 8);
        assert_eq!(region.lazy(), 7 * BASE_PAGE);
        assert_eq!(world.reclaim_all(), Dropped { blocks: 0, bytes: 7 * BASE_PAGE });
        assert_eq!(region.kept(), [3..4, 8..G::PAGES]);
        // A page that was dropped starts again at zero.
        region.write(5 * BASE_PAGE + 100, 9);
        let written = [3, 10, 5].map(|page| region.read(page * BASE_PAGE + 100));
        assert_eq!(written, [Some(7), Some(8), Some(9)]);
        assert_eq!((region.kept(), world.reclaim_all().bytes), (vec![3..4, 8..G::PAGES], 0));
    }
    where_blocks_split!(row, 2);
}

#[test]
fn a_read_before_reclaim_sees_old_data_and_does_not_cancel() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        region.lazy_free(0..G::BLOCK).unwrap();
        assert_eq!(region.kept(), vec![0..2 * G::PAGES]);
        assert_eq!((region.lazy(), world.reclaim_all().blocks), (G::BLOCK, 1));
    }
    everywhere!(row, 4);
}

#[test]
fn after_reclaim_it_reads_as_zeros_and_can_be_written_to_again() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        region.lazy_free(0..2 * G::BLOCK).unwrap();
        world.reclaim_all();
        assert_eq!(region.kept(), []);
        region.write(100, 7);
        assert_eq!((region.read(100), region.kept()), (Some(7), vec![]), "nothing of the old comes back");
    }
    everywhere!(row, 2);
}

#[test]
fn what_is_taken_back_is_kept() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(4);
        region.lazy_free(0..4 * G::BLOCK).unwrap();
        assert_eq!(region.cancel_lazy_free(G::BLOCK..2 * G::BLOCK + 1), Ok(2 * G::BLOCK), "whole blocks");
        assert_eq!(region.cancel_lazy_free(G::BLOCK..2 * G::BLOCK), Ok(0), "once");
        assert_eq!((region.lazy(), world.reclaim_all().blocks), (2 * G::BLOCK, 2));
        assert_eq!(region.kept(), vec![G::PAGES..3 * G::PAGES]);
    }
    everywhere!(row, 4);
}

#[test]
fn a_pinned_block_is_skipped_stays_writable_and_the_next_is_taken() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(4);
        region.pin(G::BLOCK..G::BLOCK + 1).unwrap();
        let done = LazyFreed { freed: 3 * G::BLOCK, pinned: G::BLOCK, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..4 * G::BLOCK), Ok(done));
        assert!(matches!(region.entry(1), Entry::Private(_)));
        assert_eq!(world.reclaim_all(), Dropped { blocks: 3, bytes: 3 * G::BLOCK });
        assert_eq!((region.kept(), region.lazy()), (vec![G::PAGES..2 * G::PAGES], 0));
        region.unpin(&(G::BLOCK..G::BLOCK + 1));
        assert_eq!(region.lazy_free(0..4 * G::BLOCK).unwrap().freed, G::BLOCK, "like any other again");
    }
    everywhere!(row, 4);
}

#[test]
fn reclaim_keeps_a_newly_shared_block_which_stays_lazily_freed_and_goes_after_the_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        region.lazy_free(0..G::BLOCK).unwrap();
        let snapshot = region.snapshot();
        assert_eq!(world.reclaim_all(), Dropped::default());
        assert_eq!((region.kept(), region.lazy()), (vec![0..2 * G::PAGES], G::BLOCK));
        assert_eq!(kept_by(&snapshot), vec![0..2 * G::PAGES]);
        drop(snapshot);
        assert_eq!(world.reclaim_all().blocks, 1);
        assert_eq!(region.kept(), vec![G::PAGES..2 * G::PAGES]);
    }
    everywhere!(row, 4);
}

#[test]
fn reclaim_keeps_newly_shared_pages_which_stay_lazily_freed_and_go_after_the_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(1);
        region.lazy_free(0..2 * BASE_PAGE).unwrap();
        let snapshot = region.snapshot();
        assert_eq!((world.reclaim_all(), region.lazy()), (Dropped::default(), 2 * BASE_PAGE));
        assert_eq!(kept_by(&snapshot), vec![0..G::PAGES]);
        drop(snapshot);
        assert_eq!(world.reclaim_all().bytes, 2 * BASE_PAGE);
        assert_eq!(region.kept(), vec![2..G::PAGES]);
    }
    where_blocks_split!(row, 2);
}

#[test]
fn what_was_freed_first_is_dropped_first() {
    fn row<G: Ground>(world: &World<G>) {
        let regions = [world.written(2), world.written(2), world.written(2)];
        for nth in [1, 2, 0] {
            regions[nth].lazy_free(0..2 * G::BLOCK).unwrap();
        }
        // A second call does not move a region to the end of the line.
        regions[1].lazy_free(0..2 * G::BLOCK).unwrap();
        for nth in [1, 2, 0] {
            assert_eq!(world.reclaim(2 * G::BLOCK), Dropped { blocks: 2, bytes: 2 * G::BLOCK });
            assert_eq!((regions[nth].lazy(), regions[nth].kept()), (0, vec![]), "of region {nth}");
        }
    }
    everywhere!(row, 8);
}

#[test]
fn of_one_region_too_what_was_freed_first_is_dropped_first() {
    fn row<G: Ground>(world: &World<G>) {
        let window = HUGE_PAGE / G::BLOCK;
        let region = world.written(3 * window);
        for nth in [1, 2, 0] {
            region.lazy_free((nth * window * G::BLOCK)..(nth + 1) * window * G::BLOCK).unwrap();
        }
        for left in [vec![0, 2], vec![0], vec![]] {
            assert_eq!(world.reclaim(HUGE_PAGE).blocks, window);
            (0..3).for_each(|nth| assert_eq!(region.entry(nth * window) != Entry::Zero, left.contains(&nth), "{nth}"));
        }
    }
    // 32 blocks of 64 KiB share a window.
    run::<Soft>(100, row);
    run::<Base>(100, row);
    run::<Huge>(4, row);
    run::<Hugetlb>(4, row);
}

#[test]
fn a_batch_never_runs_past_the_region_or_its_range() {
    fn row<G: Ground>(world: &World<G>) {
        // The regions are neighbours in the pool, and the first has more than one window of 64 KiB blocks.
        let regions = [world.written(40), world.written(2)];
        assert_eq!(regions[0].block(39) + 1, regions[1].block(0));
        let inside = 30 * G::BLOCK..36 * G::BLOCK;
        assert_eq!(regions[0].lazy_free(inside.clone()), Ok(freed(inside.len())));
        assert_eq!(world.reclaim_all().blocks, 6);
        assert_eq!(regions[0].kept(), [0..30 * G::PAGES, 36 * G::PAGES..40 * G::PAGES]);
        assert_eq!(regions[0].lazy_free(36 * G::BLOCK..40 * G::BLOCK), Ok(freed(4 * G::BLOCK)));
        assert_eq!(world.reclaim_all().blocks, 4);
        assert_eq!((regions[0].kept(), regions[1].kept()), (vec![0..30 * G::PAGES], vec![0..2 * G::PAGES]));
        let beyond = regions[0].lazy_free(39 * G::BLOCK..41 * G::BLOCK);
        assert!(matches!(beyond, Err(RegionError::OutOfRange { .. })), "{beyond:?}");
    }
    everywhere!(row, 44);
}

/// If a whole batch got the state of its first entry, blocks of others would become writable or be dropped.
#[test]
fn a_batch_does_to_each_entry_what_its_own_state_says() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(8);
        let len = 8 * G::BLOCK;
        region.lazy_free(6 * G::BLOCK..7 * G::BLOCK).unwrap();
        let snapshot = region.snapshot();
        [0, 3, 5].iter().for_each(|block| region.write(block * G::BLOCK + 100, 7));
        region.discard(4 * G::BLOCK..5 * G::BLOCK).unwrap();
        region.pin(5 * G::BLOCK..5 * G::BLOCK + 1).unwrap();
        // Private, shared, shared, private, zero, pinned, lazily freed and shared, shared.
        let (freed, already, shared, pinned) = (2 * G::BLOCK, 2 * G::BLOCK, 3 * G::BLOCK, G::BLOCK);
        let done = LazyFreed { freed, already, shared, pinned, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..len), Ok(done));
        let is_lazy = [0, 1, 2, 3, 4, 5, 6, 7].map(|block| matches!(region.entry(block), Entry::Lazy(_)));
        assert_eq!(is_lazy, [true, false, false, true, false, false, true, false]);
        assert_eq!(world.reclaim_all().blocks, 2, "not the one that was shared since");
        assert_eq!(region.kept(), [G::PAGES..3 * G::PAGES, 5 * G::PAGES..8 * G::PAGES]);
        // The next write must not reach another holder's block.
        region.cancel_lazy_free(0..len).unwrap();
        (0..8).for_each(|block| region.write(block * G::BLOCK + 100, 9));
        assert_eq!(kept_by(&snapshot), vec![0..8 * G::PAGES]);
        (0..8).for_each(|block| assert_eq!(read_at(&snapshot, block * G::BLOCK + 100), Ok(0)));
        region.unpin(&(5 * G::BLOCK..5 * G::BLOCK + 1));
    }
    everywhere!(row, 20);
}

#[test]
fn unaligned_ends_are_rounded_inward_and_every_byte_is_accounted_for() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        let done = LazyFreed { freed: G::BLOCK, unaligned: 2, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(G::BLOCK - 1..2 * G::BLOCK + 1), Ok(done));
        let nothing = |bytes| LazyFreed { unaligned: bytes, ..LazyFreed::default() };
        for range in [0..1, 5..BASE_PAGE, 1..2 * BASE_PAGE - 1, BASE_PAGE - 1..BASE_PAGE + 1] {
            assert_eq!(region.lazy_free(range.clone()), Ok(nothing(range.len())), "{range:?}");
        }
        for range in [7..2 * BASE_PAGE + 5, 9..3 * G::BLOCK - 9, G::BLOCK / 2 + 1..G::BLOCK + 1, 0..0, 5..5] {
            let done = region.lazy_free(range.clone()).unwrap();
            assert_eq!(done.freed + done.already + done.skipped(), range.len(), "{range:?}: {done:?}");
        }
        world.reclaim_all();
        // The pages at the two ends were never wholly inside the range.
        let pages = if world.pool.sys.merging() == Merging::Merge { 1 } else { G::PAGES };
        assert_eq!(region.kept(), [0..pages, 3 * G::PAGES - pages..3 * G::PAGES]);
    }
    everywhere!(row, 4);
}

/// A count that is not reset would carry over from one batch, or one call, to the next.
#[test]
fn counts_of_one_call_are_not_those_of_the_call_before() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(40);
        for start in [0, 10, 20, 30] {
            let done = region.lazy_free(start * G::BLOCK..(start + 10) * G::BLOCK);
            assert_eq!(done, Ok(freed(10 * G::BLOCK)), "from {start}");
        }
        for (wanted, dropped) in [(1, 1), (3, 3), (32, 32), (9, 4)] {
            assert_eq!(world.reclaim(wanted * G::BLOCK), Dropped { blocks: dropped, bytes: dropped * G::BLOCK });
        }
        assert_eq!((region.lazy(), region.kept()), (0, vec![]));
    }
    everywhere!(row, 44);
}

/// A bug elsewhere: direct I/O into lazily freed memory lost the bytes that it had read when that memory was dropped.
#[test]
fn what_a_device_writes_into_lazily_freed_memory_is_not_lost() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let device_writes = |offset: usize, value: u8| {
            let block = region.entry(offset / G::BLOCK).block().unwrap();
            // SAFETY: it is within the block, which is pinned and which nobody else uses.
            unsafe { world.pool.direct(block).add(offset % G::BLOCK).write_volatile(value) };
        };
        // One block is pinned after it was lazily freed, the other before.
        region.lazy_free(0..G::BLOCK).unwrap();
        region.pin(0..2 * G::BLOCK).unwrap();
        region.lazy_free(G::BLOCK..2 * G::BLOCK).unwrap();
        device_writes(100, 7);
        device_writes(G::BLOCK + 100, 8);
        world.reclaim_all();
        region.unpin(&(0..2 * G::BLOCK));
        world.reclaim_all();
        assert_eq!([100, G::BLOCK + 100].map(|offset| region.read(offset)), [Some(7), Some(8)]);
        assert_eq!(region.kept(), vec![0..2 * G::PAGES]);
    }
    everywhere!(row, 4);
}

/// One call frees each window, and a snapshot holds all of them. A fault visits each window only once.
#[test]
fn what_cannot_be_dropped_is_not_looked_at_again_before_something_changes() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(40);
        for block in 0..40 {
            region.lazy_free(block * G::BLOCK..(block + 1) * G::BLOCK).unwrap();
        }
        let snapshot = region.snapshot();
        let find = || {
            let _signals = SignalsBlocked::new();
            let mut look = LOOKED_AT_ENTRIES;
            let found = world.pool.look_for_lazy(&mut look);
            (found, LOOKED_AT_ENTRIES - look)
        };
        // The windows wait in line, and once more after another call of `lazy_free`. Each visit asks the region once
        // more; it does not ask snapshots, which have nothing lazy.
        assert_eq!(find(), (Found::None, 2 * (40 + 1)));
        assert_eq!(find(), (Found::None, 0), "nothing has changed");
        drop(snapshot);
        // After one more call, a fault visits windows again, but no more than it needs.
        assert_eq!(find().0, Found::Some);
        assert_eq!(region.lazy() + world.free() * G::BLOCK, 41 * G::BLOCK);
        world.reclaim_all();
        assert_eq!((find(), region.kept()), ((Found::None, 0), vec![]));
    }
    everywhere!(row, 41);
}

/// A fault does not visit all windows before it lets signals be delivered.
#[test]
fn a_fault_looks_at_so_much_and_the_next_goes_on_where_it_was() {
    fn row<G: Ground>(world: &World<G>) {
        // There are three windows, and a fault visits one and a quarter of them.
        let (window, look) = (HUGE_PAGE / G::BLOCK, HUGE_PAGE / G::BLOCK * 5 / 4);
        let region = world.written(3 * window);
        (0..3).for_each(|at| _ = region.lazy_free(at * HUGE_PAGE..(at + 1) * HUGE_PAGE).unwrap());
        let snapshot = region.snapshot();
        let _signals = SignalsBlocked::new();
        let found: Vec<_> = (0..6).map(|_| world.pool.look_for_lazy(&mut { look })).collect();
        assert_eq!((found[0], found[1]), (Found::LookAgain, Found::LookAgain));
        assert_eq!(found[5], Found::None, "{found:?}");
        drop(snapshot);
    }
    run::<Soft>(96, row);
}

#[test]
fn pages_whose_memory_the_kernel_keeps_are_zero_all_the_same_when_they_are_written_to_again() {
    run::<Soft>(2, |world| {
        let region = world.written(1);
        region.lazy_free(0..BASE_PAGE).unwrap();
        world.pool.sys.fail(Some((Call::Punch, 0)));
        assert_eq!(world.reclaim_all().bytes, BASE_PAGE);
        assert!(!world.pool.sys.failure_pending());
        region.write(100, 7);
        assert_eq!([0, 100, BASE_PAGE - 1].map(|at| region.read(at)), [Some(0), Some(7), Some(0)]);
    });
}
