//! Tests of comparisons, in each state of an entry, and of snapshots kept for other processes.

use super::captured::{at, history};
use super::cow_mapping::{run_by_page, where_pages_are_copied};
use super::*;
use crate::snapshot::changes::{Found, Newer, Precision};
use crate::types::snapshot_id::SnapshotId;

/// The runs of pages that differ.
fn pages<S: Sys>(newer: &dyn Newer<S>, older: &SnapshotCore<S>) -> Vec<Range<usize>> {
    pages_by(Precision::Page, newer, older)
}

fn pages_by<S: Sys>(precision: Precision, newer: &dyn Newer<S>, older: &SnapshotCore<S>) -> Vec<Range<usize>> {
    let ranges = Found::new(newer, older, precision).map(Result::unwrap);
    ranges.map(|range| range.start / BASE_PAGE..range.end / BASE_PAGE).collect()
}

fn blocks<G: Ground>(newer: &dyn Newer<G::S>, older: &SnapshotCore<G::S>) -> Vec<Range<usize>> {
    let ranges = Found::new(newer, older, Precision::Block).map(Result::unwrap);
    ranges.map(|range| range.start / G::BLOCK..range.end / G::BLOCK).collect()
}

fn lists<G: Ground>(newer: &dyn Newer<G::S>, older: &SnapshotCore<G::S>) -> [Vec<Range<usize>>; 2] {
    [blocks::<G>(newer, older), pages(newer, older)]
}

#[test]
fn blocks_that_were_written_discarded_or_left_alone() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(5);
        let older = region.snapshot();
        let held: Vec<u32> = (0..5).map(|at| world.pool.frames.references(BlockId(region.block(at) as u32))).collect();
        assert_eq!(lists::<G>(&*region, &older), [vec![], vec![]]);
        region.write(G::BLOCK + 5 * BASE_PAGE, 7);
        region.discard(2 * G::BLOCK..3 * G::BLOCK).unwrap();
        // The byte that is there already.
        region.write(4 * G::BLOCK, pattern(4 * G::PAGES));
        let differ = vec![G::PAGES + 5..G::PAGES + 6, 2 * G::PAGES..3 * G::PAGES];
        assert_eq!(lists::<G>(&*region, &older), [vec![1..3, 4..5], differ.clone()]);
        let newer = region.snapshot();
        for (one, other) in [(&newer, &older), (&older, &newer)] {
            assert_eq!(lists::<G>(&**one, other), [vec![1..3, 4..5], differ.clone()]);
        }
        assert_eq!(lists::<G>(&*region, &newer), [vec![], vec![]]);
        drop(newer);
        let now: Vec<u32> = [0, 3].map(|at| world.pool.frames.references(BlockId(region.block(at) as u32))).to_vec();
        assert_eq!(now, [held[0], held[3]], "whoever compares holds a block only meanwhile");
    }
    everywhere!(row, 16);
}

#[test]
fn pages_of_a_split_block() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(1);
        let empty = world.region(1);
        let older = empty.snapshot();
        assert_eq!(pages(&*region, &older), vec![0..G::PAGES]);
        region.lazy_free(4 * BASE_PAGE..8 * BASE_PAGE).unwrap();
        assert_eq!(pages(&*region, &older), vec![0..G::PAGES], "not dropped yet");
        world.reclaim_all();
        assert_eq!(pages(&*region, &older), vec![0..4, 8..G::PAGES]);
        assert_eq!(region.lazy(), 0);
        let newer = region.snapshot();
        assert_eq!(lists::<G>(&*region, &newer), [vec![], vec![]]);
        assert_eq!(pages(&*newer, &older), vec![0..4, 8..G::PAGES]);
    }
    where_blocks_split!(row, 4);
}

#[test]
fn private_pages_over_the_snapshots_block_and_over_another() {
    fn row<G: Ground>(world: &World<G>) {
        if !world.pool.sys.has_cow_mappings() {
            return println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        }
        let region = world.written_with(2, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true));
        let older = region.snapshot();
        assert!(region.entry(0).is_cow_mapping());
        assert_eq!(lists::<G>(&*region, &older), [vec![], vec![]]);
        [1, 6, 9].into_iter().for_each(|page| region.write(page * BASE_PAGE + 9, 7));
        // A private page with the bytes of the block.
        region.write(3 * BASE_PAGE, pattern(3));
        assert_eq!(lists::<G>(&*region, &older), [vec![0..1], vec![1..2, 6..7, 9..10]]);
        let newer = region.snapshot();
        [4, 6, 12].into_iter().for_each(|page| region.write(page * BASE_PAGE + 10, 8));
        region.write(9 * BASE_PAGE + 9, 0);
        assert!(region.entry(0).is_cow_mapping());
        assert_eq!(lists::<G>(&*region, &newer), [vec![0..1], vec![4..5, 6..7, 9..10, 12..13]]);
        assert_eq!(lists::<G>(&*region, &older), [vec![0..1], vec![1..2, 4..5, 6..7, 12..13]]);
        assert_eq!(pages(&*newer, &older), vec![1..2, 6..7, 9..10]);
    }
    run::<Soft>(8, row);
    run::<Base>(8, row);
    run::<Huge>(8, row);
}

/// Captured pages lie over the block of each snapshot, and only those written since are compared.
#[test]
fn what_was_written_since_a_snapshot_with_pages_is_found_by_marks_and_sets() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 4);
        assert_eq!(lists::<G>(&*region, &held[3])[1], vec![]);
        [2, 7].into_iter().for_each(|page| region.write(at(page), 9));
        // The byte that the page has already.
        region.write(at(3), 3);
        for (nth, differ) in [(3, vec![2..3, 7..8]), (2, vec![2..4, 7..8]), (0, vec![1..4, 7..8])] {
            assert_eq!(lists::<G>(&*region, &held[nth]), [vec![0..1], differ], "since {nth}");
        }
        assert_eq!(pages(&*held[3], &held[1]), vec![2..4]);
        let written = pages_by(Precision::Written, &*region, &held[3]);
        match region.captured.are_tracked() {
            true => assert_eq!(written, vec![2..4, 7..8]),
            false => assert_eq!(written, vec![1..4, 7..8]),
        }
        // The thread compares and writes nothing, so a cut that waits for operations need not scan again because of its
        // turn.
        let turn = || region.captured.take_turn(&world.pool).number;
        let before = turn();
        assert_eq!((pages(&*region, &held[3]), turn()), (vec![2..3, 7..8], before.wrapping_add(1)));
        // A snapshot or a reset of another thread is under way: meanwhile a comparison cannot use marks and sets.
        let turn = region.captured.freezing.lock();
        assert_eq!(pages(&*region, &held[3]), vec![2..3, 7..8]);
        drop(turn);
        region.reset_to(&held[2]).unwrap();
        assert_eq!(pages(&*region, &held[3]), vec![3..4]);
        assert_eq!(lists::<G>(&*region, &held[2])[1], vec![]);
    }
    where_pages_are_copied!(row, 12);
}

#[test]
fn a_snapshot_copies_no_shared_block_between_those_with_private_pages() {
    fn row<G: Ground>(world: &World<G>) {
        if !world.pool.sys.has_cow_mappings() {
            return println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        }
        let region = world.written_with(6, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true));
        let older = region.snapshot();
        let free = world.free();
        [0, 4].into_iter().for_each(|block| region.write(block * G::BLOCK + 9, 7));
        let newer = region.snapshot();
        let written = vec![0..1, 4 * G::PAGES..4 * G::PAGES + 1];
        assert_eq!(lists::<G>(&*newer, &older), [vec![0..1, 4..5], written]);
        assert_eq!(world.free(), free - 2);
    }
    run::<Soft>(16, row);
    run::<Base>(16, row);
    run::<Huge>(16, row);
}

/// On the software MMU only: real memory cannot be made to fail here.
#[test]
fn a_kernel_that_does_not_say_which_pages_are_private_has_all_of_them_compared() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = world.written_with(2, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true));
        let (older, free) = (region.snapshot(), world.free());
        region.write(BASE_PAGE, 99);
        for (after, changed) in [(0, vec![0..2]), (1, vec![0..1])] {
            world.pool.sys.fail(Some((Call::Scan, after)));
            let found = blocks::<G>(&*region, &older);
            assert!(found == changed, "{found:?}");
            world.pool.sys.fail(Some((Call::Scan, after)));
            assert_eq!(pages(&*region, &older), vec![1..2]);
            world.pool.sys.fail(None);
        }
        assert_eq!(world.free(), free);
    }
    run::<Soft>(8, row);
}

#[test]
fn what_is_kept_is_not_asked_for_and_others_lose_nothing_in_vain() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let snapshot = region.snapshot();
        let fork = region.fork(RegionOptions::new());
        let kept = snapshot.keep().unwrap();
        let rest = world.fill();
        region.prepare_write(0..1).unwrap_err();
        // The fork's block comes from its parent, so the fork cannot take it back from the export either.
        fork.prepare_write(0..1).unwrap_err();
        assert!(!snapshot.is_revoked() && !kept.is_revoked() && fork.read(0) == Some(pattern(0)));
        assert_eq!(kept_by(&kept), vec![0..2 * G::PAGES]);
        drop(kept);
        region.prepare_write(0..1).unwrap();
        assert!(snapshot.is_revoked() && fork.read(0).is_none());
        drop(rest);
    }
    everywhere!(row, 6);
}

#[test]
fn a_region_is_at_the_snapshot_that_was_taken_last_or_that_it_came_from() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = world.written(2);
        let at = |region: &Region<G>| region.accounts.origin.get();
        let first = region.snapshot();
        assert_eq!((first.from.get(), at(&region)), (None, first.id));
        // A snapshot that fails changes nothing.
        region.write(0, 9);
        world.pool.sys.fail(Some((Call::Protect, 0)));
        region.freeze().map(drop).unwrap_err();
        assert_eq!(at(&region), first.id);
        let begun = region.freeze_for_fork().unwrap();
        assert_eq!((begun.id, begun.from.get(), at(&region)), (None, first.id, first.id));
        let fork = Region::<G>::new(RegionCore::of_snapshot(&begun, RegionOptions::new()).unwrap());
        let second = region.snapshot();
        assert_eq!((second.from.get(), at(&fork), at(&region)), (first.id, first.id, second.id));
        assert!(first.id < second.id);
        // The program does not get the snapshot, as if its options could not be met.
        region.forget(&second);
        assert_eq!(at(&region), first.id);
        region.forget(&second);
        assert_eq!(at(&region), first.id, "it is elsewhere");
        let copy = second.duplicate().unwrap();
        let branch = Region::<G>::new(RegionCore::of_snapshot(&copy, RegionOptions::new()).unwrap());
        assert_eq!(at(&branch), second.id);
        let later: Option<SnapshotId> = branch.snapshot().id;
        assert!(later > second.id);
    }
    run::<Soft>(16, row);
}
