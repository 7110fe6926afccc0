//! Tests of the design's lent zeros: where a snapshot has no block but its region writes after every reset, the two
//! share a block of zeros, and a reset costs only the written pages.

use super::cow_mapping::{run_alone_by_page, run_by_page, where_pages_are_copied};
use super::*;

const BLOCKS: usize = 3;

/// Writes a page in each block, where the snapshot has none, and resets.
fn round<G: Ground>(region: &Region<G>, goal: &SnapshotCore<G::S>, value: u8) {
    for block in 0..BLOCKS {
        region.write(block * G::BLOCK + 3 * BASE_PAGE + 9, value);
    }
    region.reset_to(goal).unwrap();
    let bytes = (0..BLOCKS * G::PAGES).map(|page| region.read(page * BASE_PAGE + 9));
    assert!(bytes.into_iter().all(|byte| byte == Some(0)), "all of it has zeros again");
}

fn fresh<G: Ground>(world: &World<G>, options: RegionOptions) -> Region<G> {
    Region::new(RegionCore::zeros(&world.pool, BLOCKS * G::BLOCK, options).unwrap())
}

fn blocks_of<S: Sys>(frozen: &SnapshotCore<S>) -> usize {
    frozen.entries.iter().filter(|entry| entry.block().is_some()).count()
}

#[test]
fn blocks_that_a_snapshot_has_not_are_written_by_page_if_they_are_again_and_again() {
    fn row<G: Ground>(world: &World<G>) {
        let free = world.free();
        let region = fresh(world, RegionOptions::new());
        let older = region.snapshot();
        let goal = region.snapshot();
        (1..5).for_each(|value| round(&region, &goal, value));
        // For each entry one block of zeros, which both hold.
        assert_eq!((blocks_of(&goal), blocks_of(&older), free - world.free()), (BLOCKS, 0, BLOCKS));
        assert!((0..BLOCKS).all(|block| region.entry(block).is_cow_mapping()));
        let before = region.counters.pages_put_back.load(Ordering::Relaxed);
        (5..9).for_each(|value| round(&region, &goal, value));
        assert_eq!(region.counters.pages_put_back.load(Ordering::Relaxed) - before, 4 * BLOCKS as u64);
        region.write(5, 7);
        let newer = region.snapshot();
        region.write(5, 8);
        assert_eq!([&older, &goal, &newer].map(|frozen| read_at(frozen, 5).unwrap()), [0, 0, 7]);
        region.reset_to(&older).unwrap();
        assert_eq!((region.read(5), region.read(G::BLOCK + 5)), (Some(0), Some(0)));
        region.reset_to(&newer).unwrap();
        assert_eq!(region.read(5), Some(7));
        drop(region);
        assert_eq!(read_at(&goal, 5).unwrap(), 0);
        drop((older, goal, newer));
        assert_eq!(world.free(), free, "and all goes with its holders");
    }
    where_pages_are_copied!(row, 4 * BLOCKS);
    run_alone_by_page(4 * BLOCKS, row);
}

/// The snapshot takes none if the region has a limit or a reservation, because blocks that copies will need are counted
/// then; nor if it is irrevocable or mapped, or another region's.
#[test]
fn a_snapshot_takes_no_zeros_where_copies_are_reserved_it_is_irrevocable_or_it_is_shown() {
    fn row<G: Ground>(world: &World<G>) {
        let takes = |options: RegionOptions, is_irrevocable: bool| {
            let region = fresh(world, options);
            let goal = region.snapshot();
            if is_irrevocable {
                goal.make_irrevocable().unwrap();
            }
            (1..5).for_each(|value| round(&region, &goal, value));
            blocks_of(&goal)
        };
        let plain = RegionOptions::new;
        assert_eq!(takes(plain(), false), BLOCKS);
        assert_eq!(takes(reserved(), false), 0);
        assert_eq!(takes(plain(), true), 0);
        assert_eq!(takes(plain().max_cow_bytes(8 * G::BLOCK), false), 0);
        assert_eq!(takes(plain().copy_grain(CopyGrain::Block), false), 0);
        let (region, other) = (fresh(world, plain()), fresh(world, plain()));
        let (goal, of_other) = (region.snapshot(), other.snapshot());
        goal.map(|_| {}).unwrap();
        (1..5).for_each(|value| round(&region, &goal, value));
        assert_eq!(blocks_of(&goal), 0, "shown as zeros");
        (1..5).for_each(|value| round(&region, &of_other, value));
        assert_eq!(blocks_of(&of_other), 0, "another region's");
    }
    where_pages_are_copied!(row, 8 * BLOCKS);
}

/// A thread that needs a block gets blocks of zeros that only the snapshot holds; a search for such blocks finds them.
#[test]
fn zeros_that_the_region_has_left_are_free_for_others() {
    fn row<G: Ground>(world: &World<G>) {
        let free = world.free();
        let region = fresh(world, RegionOptions::new());
        let (older, goal) = (region.snapshot(), region.snapshot());
        let lend = |goal: &SnapshotCore<G::S>| {
            (1..5).for_each(|value| round(&region, goal, value));
            assert_eq!(read_at(goal, 9), Ok(0));
        };
        lend(&goal);
        assert_eq!((blocks_of(&goal), world.free()), (BLOCKS, free - BLOCKS));
        assert_eq!((world.pool.drop_zeros(), blocks_of(&goal)), (0, BLOCKS), "the region shows them");
        let rest = world.fill();
        region.discard(0..BLOCKS * G::BLOCK).unwrap();
        region.write(9, 1);
        assert_eq!((region.read(9), read_at(&goal, 9), goal.is_revoked()), (Some(1), Ok(0), false));
        drop(rest);
        // An entry takes a block of zeros only once, so this snapshot takes none again.
        lend(&goal);
        assert_eq!(blocks_of(&goal), 0);
        lend(&older);
        assert_eq!(blocks_of(&older), BLOCKS);
        let last = region.snapshot();
        region.discard(0..BLOCKS * G::BLOCK).unwrap();
        drop(last);
        older.map(|_| {}).unwrap();
        world.pool.maintain_all(0);
        assert_eq!((blocks_of(&older), world.free(), region.accounts.cow.blocks()), (0, free, 0));
        assert_eq!((read_at(&older, 9), G::load(&world.pool, older.view().unwrap() + 9)), (Ok(0), Some(0)));
        drop((region, older, goal));
        assert_eq!(world.free(), free);
    }
    where_pages_are_copied!(row, 3 * BLOCKS);
    run_alone_by_page(3 * BLOCKS, row);
}

/// Whatever call fails, all bytes are zeros after the next reset, and no block is lost.
#[test]
fn a_call_that_fails_leaves_zeros_to_the_region_or_to_both() {
    let failing = [Call::Protect, Call::CowMapping, Call::Map];
    for (call, after) in failing.into_iter().flat_map(|call| (0..8).map(move |after| (call, after))) {
        for alone in [false, true] {
            run_by_page::<Soft>(4 * BLOCKS, |world| {
                world.pool.sys.set_alone(alone);
                let free = world.free();
                let region = fresh(world, RegionOptions::new());
                let goal = region.snapshot();
                (0..BLOCKS).for_each(|block| region.write(block * Soft::BLOCK + 9, 3));
                world.pool.sys.fail(Some((call, after)));
                let _ = region.reset_to(&goal);
                world.pool.sys.fail(None);
                assert_eq!(read_at(&goal, 9).unwrap(), 0);
                (4..8).for_each(|value| round(&region, &goal, value));
                assert_eq!(read_at(&goal, 3 * BASE_PAGE + 9).unwrap(), 0);
                drop((region, goal));
                assert_eq!(world.free(), free, "{call:?} after {after}");
            });
        }
    }
}
