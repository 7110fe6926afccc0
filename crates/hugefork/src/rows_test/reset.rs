//! Tests of the design's resets: the region has the bytes of the snapshot again, and the cost depends on the writes
//! since.

use super::*;
use crate::pool::holders::CowMappingHolder;
use crate::region::reset::{Pair, reset_all};
use crate::stats::counters::FaultStats;
use crate::types::error::ResetError;

/// Runs a row both beside other threads, which a reset has to hold, and alone. On real memory, a test always has other
/// threads.
fn in_both_ways<G: Ground<S = SoftMmu>>(blocks: usize, row: impl Fn(&World<G>)) {
    for alone in [false, true] {
        run::<G>(blocks, |world| {
            world.pool.sys.set_alone(alone);
            row(world);
        });
    }
}

/// Runs a row on every ground.
macro_rules! wherever {
    ($row:ident, $blocks:expr) => {
        in_both_ways::<Soft>($blocks, $row);
        in_both_ways::<SoftHugetlb>($blocks, $row);
        run::<Base>($blocks, $row);
        run::<Huge>($blocks, $row);
        run::<Hugetlb>($blocks, $row);
    };
}

/// Runs a row on every ground that can copy single pages.
macro_rules! where_pages_are_copied {
    ($row:ident, $blocks:expr) => {
        in_both_ways::<Soft>($blocks, $row);
        if Base::pool(1).is_some_and(|pool| pool.sys.has_cow_mappings()) {
            run::<Base>($blocks, $row);
            run::<Huge>($blocks, $row);
        } else {
            println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        }
    };
}

fn by_page() -> RegionOptions {
    RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)
}

fn maintain<G: Ground>(region: &Region<G>) {
    let _signals = SignalsBlocked::new();
    assert_eq!(CowMappingHolder::maintain(&**region, 0), None, "all of it is looked at");
}

fn stats<G: Ground>(region: &Region<G>) -> FaultStats {
    region.counters.read()
}

#[test]
fn a_region_has_the_bytes_of_the_snapshot_again_whatever_was_done_to_it() {
    fn row<G: Ground>(world: &World<G>) {
        for options in [RegionOptions::new(), by_page()] {
            let region = world.written_with(5, options);
            region.discard(4 * G::BLOCK..5 * G::BLOCK).unwrap();
            let (snapshot, free) = (region.snapshot(), world.free());
            for _ in 0..4 {
                // One block is written in part, one discarded, one written in full, and one written for the first time.
                region.write(100, 7);
                region.discard(G::BLOCK..2 * G::BLOCK).unwrap();
                (0..G::PAGES).for_each(|page| region.write(2 * G::BLOCK + page * BASE_PAGE, 8));
                region.write(4 * G::BLOCK + 100, 9);
                region.reset_to(&snapshot).unwrap();
                assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..4 * G::PAGES], vec![0..4 * G::PAGES]));
                assert_eq!([100, 4 * G::BLOCK + 100].map(|at| region.read(at)), [Some(0); 2]);
                assert_eq!(stats(&region).failed, 0);
            }
            // A block that was written after every reset may stay the region's own, but not for ever.
            (0..6).for_each(|_| region.reset_to(&snapshot).unwrap());
            // A block of zeros stays the snapshot's (lent_zeros.rs).
            let lent = usize::from(snapshot.entries.get(EntryIndex(4)).block().is_some());
            assert_eq!((world.free() + lent, region.kept()), (free, vec![0..4 * G::PAGES]));
            drop(snapshot);
            region.write(100, 7);
            assert_eq!((region.read(100), region.kept()), (Some(7), vec![0..4 * G::PAGES]));
        }
    }
    wherever!(row, 14);
}

#[test]
fn a_region_goes_to_any_snapshot_of_its_length_and_pool() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let first = region.snapshot();
        region.write(100, 1);
        let second = region.snapshot();
        region.write(100, 2);
        region.write(G::BLOCK + 100, 2);
        let fork = region.fork(by_page());
        fork.write(100, 3);
        let third = fork.snapshot();
        fork.write(100, 4);
        let of = |it: &Region<G>| [100, G::BLOCK + 100].map(|at| it.read(at).unwrap());
        for (snapshot, expected) in [(&first, [0, 0]), (&third, [3, 2]), (&second, [1, 0]), (&third, [3, 2])] {
            for it in [&region, &fork] {
                it.reset_to(snapshot).unwrap();
                assert_eq!((of(it), it.kept()), (expected, vec![0..2 * G::PAGES]));
                it.write(100, 9);
            }
        }
        let other = world.region(1);
        let refused = other.reset_to(&first).unwrap_err();
        let lengths = RegionError::AnotherLength { len: G::BLOCK, other: 2 * G::BLOCK };
        assert_eq!(refused, ResetError { done: 0, reason: lengths });
        if let Some(pool) = G::pool(2) {
            let stranger = Region::<G>::new(RegionCore::zeros(&pool, 2 * G::BLOCK, by_page()).unwrap());
            let refused = stranger.reset_to(&first).unwrap_err();
            assert!(matches!(refused.reason, RegionError::AnotherPool { .. }), "{refused}");
        }
    }
    wherever!(row, 12);
}

#[test]
fn a_fork_goes_back_to_the_snapshot_that_it_was_made_of() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let snapshot = region.snapshot();
        let of = |frozen: &SnapshotCore<G::S>| {
            Region::<G>::new(RegionCore::of_snapshot(&frozen.duplicate().unwrap(), RegionOptions::new()).unwrap())
        };
        let fork = of(&snapshot);
        for value in 1..4 {
            fork.write(100, value);
            region.write(100, 9);
            fork.reset_to(&snapshot).unwrap();
            assert_eq!((fork.read(100), fork.kept()), (Some(0), vec![0..2 * G::PAGES]));
        }
    }
    wherever!(row, 8);
}

/// The second write to a page takes no fault, neither in hugefork nor in the kernel.
#[test]
fn written_pages_stay_private_and_few_are_looked_at() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, by_page());
        let snapshot = region.snapshot();
        let written = [100, 3 * BASE_PAGE + 5, G::BLOCK + 100, 3 * G::BLOCK + 7];
        let round = |value: u8| {
            written.iter().for_each(|&at| region.write(at, value));
            region.reset_to(&snapshot).unwrap();
            assert_eq!(region.kept(), vec![0..4 * G::PAGES]);
        };
        round(1);
        let (before, private) = (stats(&region), region.private_page_count().unwrap());
        assert_eq!(private, 4);
        round(2);
        let scans = G::calls(&world.pool, Call::Scan);
        round(3);
        if world.pool.sys.is_alone() {
            assert_eq!(G::calls(&world.pool, Call::Scan), scans, "no fault has come in between");
        }
        let after = stats(&region);
        assert_eq!(after.faults(), before.faults());
        assert_eq!((after.resets - before.resets, after.blocks_exchanged), (2, 0));
        assert_eq!((after.pages_put_back - before.pages_put_back, region.private_page_count()), (8, Ok(4)));
        // A page that is not written any more goes back to the kernel.
        (0..20).for_each(|_| {
            region.write(100, 9);
            region.reset_to(&snapshot).unwrap();
        });
        assert_eq!((region.private_page_count(), region.kept()), (Ok(1), vec![0..4 * G::PAGES]));
    }
    where_pages_are_copied!(row, 6);
}

/// In each round writes to four pages, none of which was written in the last ten rounds, and resets.
fn write_others<G: Ground>(region: &Region<G>, snapshot: &SnapshotCore<G::S>, rounds: Range<usize>) {
    for round in rounds {
        let pages = (0..4).map(|by| (4 * round + by) % (4 * G::PAGES));
        pages.for_each(|page| region.write(page * BASE_PAGE + 100, 9));
        region.reset_to(snapshot).unwrap();
        assert_eq!(region.kept(), vec![0..4 * G::PAGES]);
    }
}

/// Most of these resets do not scan which pages were written.
#[test]
fn pages_that_are_others_each_time_are_dropped_at_one_moment() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, by_page());
        let snapshot = region.snapshot();
        write_others(&region, &snapshot, 0..40);
        let scans = G::calls(&world.pool, Call::Scan);
        write_others(&region, &snapshot, 40..60);
        assert!(G::calls(&world.pool, Call::Scan) < scans.map(|scans| scans + 20) || scans.is_none());
        assert_eq!((stats(&region).blocks_exchanged, stats(&region).failed), (0, 0));
        // If the same pages are written each time, the resets soon keep them again.
        (0..80).for_each(|_| {
            [100, G::BLOCK + 100].iter().for_each(|&at| region.write(at, 9));
            region.reset_to(&snapshot).unwrap();
        });
        assert_eq!((region.private_page_count(), region.kept()), (Ok(2), vec![0..4 * G::PAGES]));
    }
    where_pages_are_copied!(row, 6);
}

/// If more pages were written than the list has room for, the reset drops them, and the list has room the next time.
#[test]
fn more_pages_than_the_list_has_room_for_are_kept_the_next_time() {
    fn row<G: Ground>(world: &World<G>) {
        let blocks = 600 / G::PAGES + 1;
        let region = world.written_with(blocks, by_page());
        let snapshot = region.snapshot();
        let counts = [0; 3].map(|_| {
            (0..600).for_each(|page| region.write(page * BASE_PAGE + 100, 9));
            region.reset_to(&snapshot).unwrap();
            assert_eq!(region.kept(), vec![0..blocks * G::PAGES]);
            region.private_page_count().unwrap()
        });
        assert_eq!(counts, [0, 600, 600]);
    }
    in_both_ways::<Soft>(2 * (600 / Soft::PAGES + 1), row);
    if Base::pool(1).is_some_and(|pool| pool.sys.has_cow_mappings()) {
        run::<Huge>(6, row);
    }
}

#[test]
fn pages_that_the_kernel_does_not_put_back_are_dropped_and_else_shown_anew() {
    for calls in [vec![Call::WriteThrough], vec![Call::WriteThrough, Call::DropPrivate]] {
        run::<Soft>(6, |world| {
            // Pages that are parked stay writable, so there is no parking here.
            world.pool.sys.fail(Some((Call::ClaimParking, 0)));
            let region = world.written_with(3, by_page());
            assert!(!region.addresses.can_hold());
            let snapshot = region.snapshot();
            // There is no staging either.
            world.pool.sys.fail(Some((Call::ClaimStaging, 0)));
            region.write(100, 7);
            region.reset_to(&snapshot).unwrap();
            [100, BASE_PAGE + 100, G_BLOCK + 100].iter().for_each(|&at| region.write(at, 7));
            // One failure at a time: the second is armed when the first has happened.
            world.pool.sys.fail(Some((calls[0], 1)));
            if calls.len() > 1 {
                world.pool.sys.fail_next(calls[1]);
            }
            region.reset_to(&snapshot).unwrap();
            assert!(!world.pool.sys.failure_pending());
            assert_eq!((region.kept(), region.read(100)), (vec![0..3 * Soft::PAGES], Some(0)));
            region.write(100, 8);
            assert_eq!((region.read(100), kept_by(&snapshot)), (Some(8), vec![0..3 * Soft::PAGES]));
        });
    }
}

const G_BLOCK: usize = Soft::BLOCK;

#[test]
fn a_pinned_block_stays_where_it_is_and_gets_the_bytes() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        region.discard(2 * G::BLOCK..3 * G::BLOCK).unwrap();
        let snapshot = region.snapshot();
        region.pin(0..1).unwrap();
        region.pin(2 * G::BLOCK..2 * G::BLOCK + 1).unwrap();
        let before = [region.entry(0), region.entry(2)];
        [100, G::BLOCK + 100, 2 * G::BLOCK + 100].iter().for_each(|&at| region.write(at, 7));
        region.reset_to(&snapshot).unwrap();
        assert_eq!([region.entry(0), region.entry(2)], before);
        assert_eq!((region.kept(), region.read(2 * G::BLOCK + 100)), (vec![0..2 * G::PAGES], Some(0)));
        region.write(100, 8);
        assert_eq!((region.read(100), read_at(&snapshot, 100)), (Some(8), Ok(0)));
        region.unpin(&(0..1));
        region.unpin(&(2 * G::BLOCK..2 * G::BLOCK + 1));
    }
    wherever!(row, 8);
}

#[test]
fn what_was_lazily_freed_is_taken_back() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        region.lazy_free(0..G::BLOCK).unwrap();
        region.lazy_free(G::BLOCK..G::BLOCK + 2 * BASE_PAGE).unwrap();
        let snapshot = region.snapshot();
        region.write(2 * G::BLOCK + 100, 7);
        region.lazy_free(2 * G::BLOCK..3 * G::BLOCK).unwrap();
        region.reset_to(&snapshot).unwrap();
        assert_eq!(region.lazy(), 0);
        drop(snapshot);
        world.reclaim_all();
        assert_eq!(region.kept(), vec![0..3 * G::PAGES], "nothing may be dropped");
    }
    wherever!(row, 8);
}

#[test]
fn a_reset_to_a_snapshot_that_has_lost_a_block_changes_nothing() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let snapshot = region.snapshot();
        let rest = world.fill();
        region.write(100, 7);
        assert!(snapshot.is_revoked());
        region.write(G::BLOCK + 5, 8);
        let before = [region.entry(0), region.entry(1)];
        let refused = region.reset_to(&snapshot).unwrap_err();
        assert_eq!(refused, ResetError { done: 0, reason: RegionError::Revoked });
        assert_eq!(([region.entry(0), region.entry(1)], region.read(100)), (before, Some(7)));
        drop(rest);
    }
    wherever!(row, 4);
}

#[test]
fn a_fork_that_has_lost_a_block_has_it_again() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let snapshot = region.snapshot();
        // The snapshot keeps another block.
        region.prepare_blocks(0..G::BLOCK).unwrap();
        region.write(100, 5);
        let (fork, rest) = (region.fork(RegionOptions::new()), world.fill());
        region.prepare_blocks(0..G::BLOCK).unwrap();
        region.write(100, 7);
        assert_eq!(fork.entry(0), Entry::Revoked);
        fork.reset_to(&snapshot).unwrap();
        assert_eq!((fork.kept(), fork.accounts.revoked.load(Ordering::Relaxed)), (vec![0..2 * G::PAGES], 0));
        drop(rest);
        fork.write(100, 8);
        assert_eq!((fork.read(100), read_at(&snapshot, 100)), (Some(8), Ok(0)));
    }
    wherever!(row, 5);
}

#[test]
fn a_fork_with_a_reservation_has_it_again() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let snapshot = region.snapshot();
        let fork = region.fork(reserved());
        assert_eq!(world.reserved(), 2);
        for value in 1..8 {
            let rest = world.fill();
            (0..2).for_each(|block| fork.write(block * G::BLOCK + 100, value));
            assert_eq!(world.reserved(), 0, "they are used");
            fork.reset_to(&snapshot).unwrap();
            let own = [0, 1].iter().filter(|&&at| matches!(fork.entry(at), Entry::Private(_))).count();
            let shared = (0..2).filter(|&at| matches!(fork.entry(at), Entry::Shared(_, Origin::Parent))).count();
            assert_eq!(world.reserved(), shared, "{own} stay its own");
            assert_eq!(fork.kept(), vec![0..2 * G::PAGES]);
            drop(rest);
        }
        assert!(!fork.is_revoked_at(0) && !snapshot.is_revoked());
    }
    wherever!(row, 8);
}

/// The account goes down by the blocks that the region shares again.
#[test]
fn what_forks_and_snapshots_cost_goes_down_with_a_reset() {
    fn row<G: Ground>(world: &World<G>) {
        let limit = RegionOptions::new().max_cow_bytes(2 * G::BLOCK);
        let region = world.written_with(3, limit);
        let snapshot = region.snapshot();
        for round in 0..12 {
            // Two of the three blocks, others in each round.
            (0..2).for_each(|by| region.write((round + by) % 3 * G::BLOCK + 100, 7));
            assert!(region.accounts.cow.blocks() <= 2);
            region.reset_to(&snapshot).unwrap();
            // A block that stays the region's own still costs.
            let own = (0..3).filter(|&at| region.entry(at).block() != snapshot.entries.get(EntryIndex(at)).block());
            assert_eq!(region.accounts.cow.blocks(), own.count());
            (0..8).for_each(|_| region.reset_to(&snapshot).unwrap());
            assert_eq!(region.accounts.cow.blocks(), 0);
        }
        drop(snapshot);
        assert_eq!(region.kept(), vec![0..3 * G::PAGES]);
    }
    wherever!(row, 8);
}

/// After a failure each block is as before or as in the snapshot, and another reset completes the work.
#[test]
fn a_call_that_fails_leaves_each_block_whole_and_another_reset_goes_on() {
    let failing = [Call::Map, Call::MapZeros, Call::Protect, Call::Scan, Call::CowMapping, Call::DropPrivate];
    for (call, after) in failing.into_iter().flat_map(|call| (0..4).map(move |after| (call, after))) {
        in_both_ways::<Soft>(16, |world| {
            let region = world.written_with(8, by_page());
            (0..2).for_each(|at| region.discard((2 + 3 * at) * G_BLOCK..(3 + 3 * at) * G_BLOCK).unwrap());
            let snapshot = region.snapshot();
            let written = |block: usize| [100, (Soft::PAGES - 1) * BASE_PAGE + 100].map(|at| block * G_BLOCK + at);
            (0..8).step_by(2).flat_map(written).for_each(|at| region.write(at, 7));
            (0..2).for_each(|at| region.discard((1 + 6 * at) * G_BLOCK..(2 + 6 * at) * G_BLOCK).unwrap());
            let before: Vec<_> = (0..8).map(|block| written(block).map(|at| region.read(at))).collect();
            world.pool.sys.fail(Some((call, after)));
            let came = region.reset_to(&snapshot);
            world.pool.sys.fail(None);
            let done = came.map_or_else(|error| error.done, |()| region.len()) / G_BLOCK;
            for (block, before) in before.into_iter().enumerate() {
                let now = written(block).map(|at| region.read(at));
                assert!(now == [Some(0); 2] || block >= done && now == before, "{call:?} after {after}: block {block}");
            }
            region.reset_to(&snapshot).unwrap();
            assert_eq!(kept_by(&snapshot), region.kept());
            assert!((0..8).flat_map(written).all(|at| region.read(at) == Some(0)));
        });
    }
}

/// A region of four blocks that can hold threads off its addresses, or cannot.
fn written_by_page(world: &World<Soft>, holds: bool) -> Region<Soft> {
    world.pool.sys.fail((!holds).then_some((Call::ClaimParking, 0)));
    let region = world.written_with(4, by_page());
    assert_eq!(region.addresses.can_hold(), holds);
    region
}

/// The copy grain does not decide whether threads are held.
#[test]
fn nobody_is_held_unless_calls_are_to_wait() {
    for waits in [false, true] {
        run::<Soft>(12, |world| {
            let region = world.written_with(4, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(waits));
            for value in 1..4 {
                let snapshot = region.snapshot();
                region.write(BASE_PAGE + 100, value);
                let later = region.snapshot();
                region.write(2 * BASE_PAGE + 100, value);
                drop(later);
                region.reset_to(&snapshot).unwrap();
                assert_eq!(region.read(BASE_PAGE + 100), Some(0));
            }
            assert_eq!((region.addresses.can_hold(), world.pool.sys.calls(Call::Hold) > 0), (waits, waits));
        });
    }
}

/// After the first call, the region shows the snapshot. So no later failure makes the reset fail.
#[test]
fn beside_others_a_reset_at_one_moment_succeeds_whatever_fails_after_it() {
    let failing =
        [Call::ClaimStaging, Call::TakePages, Call::Scan, Call::Protect, Call::Hold, Call::BringPages, Call::Hide];
    let all = failing.into_iter().flat_map(|call| (0..3).map(move |after| (call, after)));
    for ((call, after), holds) in all.flat_map(|fails| [false, true].map(|holds| (fails, holds))) {
        run::<Soft>(12, |world| {
            let region = written_by_page(world, holds);
            let snapshot = region.snapshot();
            let written = [BASE_PAGE + 100, 2 * BASE_PAGE + 100, 2 * G_BLOCK + BASE_PAGE + 7];
            let round = |value: u8| {
                written.iter().for_each(|&at| region.write(at, value));
                region.reset_to(&snapshot)
            };
            round(1).unwrap();
            let taken = world.pool.sys.calls(Call::TakePages);
            round(2).unwrap();
            assert_eq!(world.pool.sys.calls(Call::TakePages), taken + 1, "nothing else differs");
            world.pool.sys.fail(Some((call, after)));
            let came = round(3);
            world.pool.sys.fail(None);
            came.unwrap();
            assert!(written.iter().all(|&at| region.read(at) == Some(0)) && !world.pool.sys.holds_anything());
            for value in 4..8 {
                round(value).unwrap();
                assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..4 * Soft::PAGES], vec![0..4 * Soft::PAGES]));
            }
            assert_eq!(region.private_page_count(), Ok(3), "they are there for the next writes");
        });
    }
}

/// After the moment in which a reset drops all pages, writes of other threads stay.
#[test]
fn beside_others_what_is_written_after_pages_are_dropped_stays() {
    for (waits, holds) in [(true, false), (true, true), (false, false)] {
        run::<Soft>(12, |world| {
            let page_grain = || RegionOptions::new().copy_grain(CopyGrain::Page);
            let region = if waits { written_by_page(world, holds) } else { world.written_with(4, page_grain()) };
            let snapshot = region.snapshot();
            write_others(&region, &snapshot, 0..40);
            let (scans, after) = (world.pool.sys.calls(Call::Scan), [2 * BASE_PAGE + 100, BASE_PAGE + 101]);
            region.write(BASE_PAGE + 100, 1);
            let stores = after.map(|at| (region.addresses.base() + at, 2));
            // A new mapping would not be writable for a moment, so where calls are to wait, the pages are taken away.
            if waits {
                world.pool.sys.store_when_taken(stores)
            } else {
                world.pool.sys.store_when_shown(stores)
            }
            region.reset_to(&snapshot).unwrap();
            assert_eq!((region.read(BASE_PAGE + 100), after.map(|at| region.read(at))), (Some(0), [Some(2); 2]));
            assert_eq!(world.pool.sys.calls(Call::Scan), scans, "there was no look");
            region.reset_to(&snapshot).unwrap();
            assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..4 * Soft::PAGES], vec![0..4 * Soft::PAGES]));
        });
    }
}

/// A drop that shows a new mapping resets the region whichever call fails, and the next write gets its right.
#[test]
fn a_drop_by_a_new_mapping_that_fails_is_a_reset_all_the_same() {
    for call in [Call::CowMapping, Call::Protect, Call::TakePages] {
        for after in 0..3 {
            run::<Soft>(12, |world| {
                let region = world.written_with(4, RegionOptions::new().copy_grain(CopyGrain::Page));
                let snapshot = region.snapshot();
                write_others(&region, &snapshot, 0..40);
                let written = [100, 3 * BASE_PAGE, Soft::BLOCK + 100];
                written.iter().for_each(|&at| region.write(at, 1));
                world.pool.sys.fail(Some((call, after)));
                let came = region.reset_to(&snapshot);
                world.pool.sys.fail(None);
                if came.is_err() {
                    region.reset_to(&snapshot).unwrap();
                }
                assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..4 * Soft::PAGES], vec![0..4 * Soft::PAGES]));
                written.iter().for_each(|&at| region.write(at, 2));
                assert!(written.iter().all(|&at| region.read(at) == Some(2)));
                region.reset_to(&snapshot).unwrap();
                assert_eq!(region.kept(), vec![0..4 * Soft::PAGES]);
            });
        }
    }
}

/// Writes of other threads stay while the reset puts pages back in the staging.
#[test]
fn beside_others_what_is_written_after_the_moment_stays() {
    for holds in [false, true] {
        run::<Soft>(12, |world| {
            let region = written_by_page(world, holds);
            let snapshot = region.snapshot();
            let (before, after) = (BASE_PAGE + 100, [2 * BASE_PAGE + 100, BASE_PAGE + 101]);
            for value in 1..5 {
                region.write(before, value);
                if value > 1 {
                    // The store is made when the region shows the snapshot already.
                    let (address, base) = (region.addresses.base(), after);
                    world.pool.sys.store_when_taken(base.map(|at| (address + at, value)));
                }
                region.reset_to(&snapshot).unwrap();
                let kept = if value > 1 { Some(value) } else { Some(0) };
                assert_eq!((region.read(before), after.map(|at| region.read(at))), (Some(0), [kept; 2]));
            }
            drop(snapshot);
            assert_eq!(region.read(after[0]), Some(4));
        });
    }
}

#[test]
fn a_prepared_range_is_not_copied_and_takes_writes_until_the_next_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, by_page());
        let (snapshot, free) = (region.snapshot(), world.free());
        region.prepare_write(0..3 * G::BLOCK).unwrap();
        assert_eq!((world.free(), stats(&region).blocks_copied), (free, 0));
        let before = stats(&region).faults();
        (0..3 * G::PAGES).for_each(|page| region.write(page * BASE_PAGE + 100, 7));
        assert_eq!((stats(&region).faults(), kept_by(&snapshot)), (before, vec![0..4 * G::PAGES]));
        // The pool's thread neither write-protects the block nor writes it back.
        drop(snapshot);
        maintain(&region);
        assert!((0..3).all(|at| region.entry(at).is_writable_cow_mapping()));
        let later = region.snapshot();
        drop(later);
        maintain(&region);
        let entries = [0, 1, 2, 3].map(|at| region.entry(at));
        assert!(entries.iter().all(|entry| !entry.is_cow_mapping()), "the promise is over: {entries:?}");
        assert_eq!((region.kept(), region.read(100)), (vec![0..4 * G::PAGES], Some(7)));
    }
    where_pages_are_copied!(row, 10);
}

#[test]
fn an_irrevocable_snapshot_loses_nothing_to_a_region_that_has_gone_back_to_it() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(1);
        let snapshot = region.snapshot();
        snapshot.make_irrevocable().unwrap();
        for value in 7..10 {
            region.write(100, value);
            assert_eq!((read_at(&snapshot, 100), region.read(100)), (Ok(0), Some(value)));
            region.reset_to(&snapshot).unwrap();
            assert_eq!((region.kept(), region.read(100)), (vec![0..G::PAGES], Some(0)));
        }
        assert_eq!((kept_by(&snapshot), snapshot.is_revoked()), (vec![0..G::PAGES], false));
    }
    in_both_ways::<Soft>(3, row);
    run::<Base>(3, row);
}

/// A region, and a snapshot of it.
type Kept<G> = (Region<G>, PinnedBox<SnapshotCore<<G as Ground>::S>>);

/// Three regions with their snapshots: the first differs from its snapshot in blocks, the others in pages.
fn three<G: Ground>(world: &World<G>) -> Vec<Kept<G>> {
    let regions = [RegionOptions::new(), by_page(), by_page()].map(|options| world.written_with(3, options));
    regions.into_iter().map(|region| (region.snapshot(), region)).map(|(snapshot, region)| (region, snapshot)).collect()
}

/// In the order in which a program might name them: neither by age nor by address.
fn in_some_order<G: Ground>(all: &[Kept<G>]) -> [Pair<'_, G::S>; 3] {
    [1, 2, 0].map(|nth| (&*all[nth].0.space, &*all[nth].1))
}

#[test]
fn several_regions_have_the_bytes_of_their_snapshots_again() {
    fn row<G: Ground>(world: &World<G>) {
        let all = three(world);
        let written = [100, G::BLOCK + BASE_PAGE + 100, 2 * G::BLOCK + 7];
        for value in 1..6 {
            for (region, _) in &all {
                written.iter().for_each(|&at| region.write(at, value));
            }
            if value == 3 {
                all[0].0.discard(G::BLOCK..2 * G::BLOCK).unwrap();
            }
            reset_all(&in_some_order(&all)).unwrap();
            for (region, snapshot) in &all {
                assert_eq!((region.kept(), kept_by(snapshot)), (vec![0..3 * G::PAGES], vec![0..3 * G::PAGES]));
                assert!(written.iter().all(|&at| [Some(0), Some(pattern(at / BASE_PAGE))].contains(&region.read(at))));
                assert_eq!((region.accounts.origin.get(), stats(region).resets), (snapshot.id, value.into()));
            }
        }
        assert_eq!(reset_all::<G::S>(&[]), Ok(()));
    }
    wherever!(row, 24);
}

#[test]
fn several_regions_go_back_to_the_same_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let (fork, snapshot) = (region.fork(by_page()), region.snapshot());
        for value in 1..4 {
            [&region, &fork].iter().for_each(|it| it.write(100, value));
            reset_all(&[(&*fork.space, &*snapshot), (&*region.space, &*snapshot)]).unwrap();
            assert_eq!(
                [&region, &fork].map(|it| (it.read(100), it.kept())),
                [0; 2].map(|_| (Some(0), vec![0..2 * G::PAGES]))
            );
        }
    }
    wherever!(row, 10);
}

/// If one of the regions cannot be reset, none changes.
#[test]
fn several_regions_go_back_or_none_where_a_snapshot_does_not_fit() {
    fn row<G: Ground>(world: &World<G>) {
        let (one, other) = (world.written(2), world.written(1));
        let (of_one, of_other) = (one.snapshot(), other.snapshot());
        one.write(100, 7);
        let lengths = RegionError::AnotherLength { len: G::BLOCK, other: 2 * G::BLOCK };
        let refused = reset_all(&[(&*one.space, &*of_one), (&*other.space, &*of_one)]);
        assert_eq!((refused, one.read(100)), (Err(ResetError { done: 0, reason: lengths }), Some(7)));
        let rest = world.fill();
        other.write(100, 8);
        assert!(of_other.is_revoked());
        let refused = reset_all(&[(&*one.space, &*of_one), (&*other.space, &*of_other)]);
        let revoked = ResetError { done: 0, reason: RegionError::Revoked };
        assert_eq!((refused, one.read(100), other.read(100)), (Err(revoked), Some(7), Some(8)));
        drop(rest);
    }
    wherever!(row, 6);
}

/// After a failure, each block of each region is as before or as in the snapshot, the blocks that count as done are as
/// in the snapshot, and another call completes the work.
#[test]
fn a_call_that_fails_leaves_each_region_whole_and_another_reset_of_all_goes_on() {
    let failing = [
        Call::Map,
        Call::MapZeros,
        Call::Protect,
        Call::Scan,
        Call::CowMapping,
        Call::DropPrivate,
        Call::ClaimStaging,
        Call::TakePages,
        Call::BringPages,
        Call::Hold,
        Call::Hide,
        Call::WriteThrough,
    ];
    let all = failing.into_iter().flat_map(|call| (0..5).map(move |after| (call, after)));
    for ((call, after), holds) in all.flat_map(|fails| [false, true].map(|holds| (fails, holds))) {
        in_both_ways::<Soft>(24, |world| {
            // The first and the second region can hold threads off their addresses, or cannot.
            world.pool.sys.fail((!holds).then_some((Call::ClaimParking, 0)));
            let all = three(world);
            world.pool.sys.fail(None);
            let written = |block: usize| [100, (Soft::PAGES - 1) * BASE_PAGE + 100].map(|at| block * G_BLOCK + at);
            let write = |value: u8| {
                all.iter().for_each(|(region, _)| written(1).iter().for_each(|&at| region.write(at, value)));
            };
            let bytes = |region: &Region<Soft>| [0, 1, 2].map(|block| written(block).map(|at| region.read(at)));
            let then: Vec<_> = all.iter().map(|(region, _)| bytes(region)).collect();
            write(1);
            reset_all(&in_some_order(&all)).unwrap();
            write(2);
            all[0].0.discard(2 * G_BLOCK..3 * G_BLOCK).unwrap();
            let before: Vec<_> = all.iter().map(|(region, _)| bytes(region)).collect();
            world.pool.sys.fail(Some((call, after)));
            let came = reset_all(&in_some_order(&all));
            world.pool.sys.fail(None);
            let mut done = came.as_ref().map_or_else(|error| error.done, |()| 9 * G_BLOCK) / G_BLOCK;
            for nth in [1, 2, 0] {
                let now = bytes(&all[nth].0);
                for block in 0..3 {
                    let (is_done, now) = (block < done, now[block]);
                    let is_one = now == then[nth][block] || !is_done && now == before[nth][block];
                    assert!(is_one, "{call:?} after {after}: region {nth}, block {block}: {came:?}");
                }
                done = done.saturating_sub(3);
            }
            assert!(!world.pool.sys.holds_anything());
            for value in 3..6 {
                reset_all(&in_some_order(&all)).unwrap();
                for (region, snapshot) in &all {
                    assert_eq!(
                        (region.kept(), kept_by(snapshot)),
                        (vec![0..3 * Soft::PAGES], vec![0..3 * Soft::PAGES])
                    );
                }
                write(value);
            }
        });
    }
}

/// Another thread's write to one region, after that region's reset but before that of all, is undone too.
#[test]
fn beside_others_what_is_written_before_all_regions_are_held_is_gone() {
    for holds in [false, true] {
        run::<Soft>(16, |world| {
            let regions = [(); 2].map(|()| written_by_page(world, holds));
            let snapshots = regions.each_ref().map(|region| region.snapshot());
            let (before, after) = (BASE_PAGE + 100, [2 * BASE_PAGE + 100, BASE_PAGE + 101]);
            for value in 1..5 {
                regions.iter().for_each(|region| region.write(before, value));
                if value > 1 {
                    // The store is made when the first region shows its snapshot already, and the second does not yet.
                    world.pool.sys.store_when_taken(after.map(|at| (regions[0].addresses.base() + at, value)));
                }
                reset_all(&[(&*regions[0].space, &*snapshots[0]), (&*regions[1].space, &*snapshots[1])]).unwrap();
                for (region, snapshot) in regions.iter().zip(&snapshots) {
                    assert_eq!((region.read(before), after.map(|at| region.read(at))), (Some(0), [Some(0); 2]));
                    assert_eq!(
                        (region.kept(), kept_by(snapshot)),
                        (vec![0..4 * Soft::PAGES], vec![0..4 * Soft::PAGES])
                    );
                }
                assert!(!world.pool.sys.holds_anything());
            }
            assert!(world.pool.sys.calls(Call::TakePages) >= 6, "they went back at one moment each");
        });
    }
}

/// As soon as a region is reset and released, its writers go on.
#[test]
fn no_writer_goes_on_before_all_regions_are_set_back() {
    run::<Soft>(12, |world| {
        let regions = [(); 2].map(|()| written_by_page(world, true));
        let snapshots = regions.each_ref().map(|region| region.snapshot());
        regions.iter().for_each(|region| region.discard(G_BLOCK..2 * G_BLOCK).unwrap());
        let pairs = [(&*regions[0].space, &*snapshots[0]), (&*regions[1].space, &*snapshots[1])];
        let mmu = &world.pool.sys;
        mmu.stop_at(Call::CowMapping);
        std::thread::scope(|scope| {
            let reset = scope.spawn(|| reset_all(&pairs));
            // The reset exchanges the block of the first region, and then that of the second.
            let are_held = [true, false].map(|comes_again| {
                mmu.until_it_stops();
                let are_held = regions.each_ref().map(|region| mmu.is_held(region.addresses.base()));
                if comes_again {
                    mmu.stop_at(Call::CowMapping);
                }
                mmu.go_on();
                are_held
            });
            reset.join().unwrap().unwrap();
            assert_eq!(are_held, [[true; 2]; 2]);
        });
        assert!(regions.iter().all(|region| region.kept() == vec![0..4 * Soft::PAGES]));
    });
}
