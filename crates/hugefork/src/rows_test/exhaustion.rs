//! Tests of the design's table of reservations and exhaustion, one row each.

use super::*;
use crate::region::state::Unresolved;
use crate::types::error::ResetError;

/// Checks that a write finds the pool full, both by a call and by a fault.
#[track_caller]
fn check_full<S: Sys>(space: &RegionCore<S>, offset: usize) {
    let called = space.prepare_write(offset..offset + 1);
    assert!(matches!(called, Err(RegionError::PoolFull { .. })), "{called:?}");
    assert_eq!(space.resolve(offset), Err(Unresolved::PoolFull));
}

#[test]
fn first_touch_faults_of_a_reserved_region_cannot_fail() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.region_with(3, reserved());
        let rest = world.fill();
        check_full(&*world.region(1), 0);
        (0..3).for_each(|block| region.write(block * G::BLOCK + 100, 7));
        assert_eq!([0, 1, 2].map(|block| region.read(block * G::BLOCK + 100)), [Some(7); 3]);
        // A block that the region discards stays reserved for it.
        region.discard(0..3 * G::BLOCK).unwrap();
        assert_eq!((world.free(), world.reserved()), (0, 3));
        check_full(&*world.region(1), 0);
        (0..3).for_each(|block| region.write(block * G::BLOCK + 100, 8));
        drop(rest);
    }
    everywhere!(row, 6);
}

#[test]
fn what_a_reserved_region_lazily_frees_stays_reserved_for_it() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, reserved());
        let rest = world.fill();
        region.lazy_free(0..2 * G::BLOCK).unwrap();
        check_full(&*world.region(1), 0);
        assert_eq!(world.reclaim_all().blocks, 2);
        assert_eq!((world.free(), world.reserved(), region.kept()), (0, 2, vec![]));
        check_full(&*world.region(1), 0);
        (0..2).for_each(|block| region.write(block * G::BLOCK + 100, 8));
        drop(rest);
    }
    everywhere!(row, 4);
}

#[test]
fn a_reservation_that_does_not_fit_is_an_error_and_reserves_nothing() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        let none = |result: Result<(), RegionError>| {
            assert!(matches!(result, Err(RegionError::NotReservable { available: 1, .. })), "{result:?}");
            assert_eq!((world.free(), world.reserved()), (1, 0));
        };
        none(RegionCore::zeros(&world.pool, 2 * G::BLOCK, reserved()).map(drop));
        none(RegionCore::of_snapshot(&region.snapshot(), reserved()).map(drop));
        assert_eq!(region.kept(), vec![0..3 * G::PAGES]);
    }
    everywhere!(row, 4);
}

#[test]
fn a_fork_or_snapshot_has_no_reservation_unless_asked_for() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, reserved());
        let before = (world.free(), world.reserved());
        assert_eq!(before, (6, 0));
        let (snapshot, fork) = (region.snapshot(), region.fork(RegionOptions::new()));
        assert_eq!((world.free(), world.reserved()), before);
        snapshot.make_irrevocable().unwrap();
        assert_eq!((world.free(), world.reserved()), before, "nobody writes to a snapshot");
        let reserved_fork = fork.fork(reserved());
        assert_eq!((world.free(), world.reserved()), (4, 2));
        let rest = world.fill();
        check_full(&fork, 100);
        (0..2).for_each(|block| reserved_fork.write(block * G::BLOCK + 100, 7));
        assert_eq!((reserved_fork.kept(), world.reserved()), (vec![0..2 * G::PAGES], 0));
        drop(rest);
    }
    everywhere!(row, 8);
}

#[test]
fn an_owners_copy_does_not_use_up_its_first_touch_reservation() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, reserved());
        region.discard(2 * G::BLOCK..4 * G::BLOCK).unwrap();
        let snapshot = region.snapshot();
        let before = (world.free(), world.reserved());
        assert_eq!(before.1, 2, "of the blocks not there");
        region.write(100, 7);
        assert_eq!((world.free(), world.reserved()), (before.0 - 1, 2));
        let rest = world.fill();
        // Without any other block, the snapshot loses its own, and the reservation still stays.
        region.write(G::BLOCK + 100, 7);
        assert_eq!((world.reserved(), snapshot.is_revoked()), (2, true));
        (2..4).for_each(|block| region.write(block * G::BLOCK + 100, 8));
        assert_eq!((region.kept(), read_at(&snapshot, 100)), (vec![0..2 * G::PAGES], Ok(0)));
        drop(rest);
    }
    everywhere!(row, 6);
}

#[test]
fn with_the_pool_empty_lazily_freed_blocks_go_first_then_shared_ones_and_the_owner_goes_on() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, lazy) = (world.written(3), world.written(1));
        let (snapshot, fork) = (region.snapshot(), region.fork(RegionOptions::new()));
        let rest = world.fill();
        lazy.lazy_free(0..G::BLOCK).unwrap();
        region.write(100, 7);
        assert_eq!(
            (lazy.kept(), snapshot.is_revoked(), fork.accounts.revoked.load(Ordering::Relaxed)),
            (vec![], false, 0)
        );
        region.write(G::BLOCK + 100, 8);
        assert_eq!((snapshot.is_revoked(), fork.entry(1)), (true, Entry::Revoked));
        assert_eq!(region.counters.blocks_revoked.load(Ordering::Relaxed), 2);
        assert_eq!(
            (region.kept(), region.read(100), region.read(G::BLOCK + 100)),
            (vec![0..3 * G::PAGES], Some(7), Some(8))
        );
        // The snapshot has lost no other block.
        assert_eq!(
            [0, 2].map(|block| read_at(&snapshot, block * G::BLOCK)),
            [0, 2].map(|block| Ok(pattern(block * G::PAGES)))
        );
        assert_eq!(
            [0, 2].map(|block| fork.read(block * G::BLOCK)),
            [0, 2].map(|block| Some(pattern(block * G::PAGES)))
        );
        assert_eq!(rest.kept(), []);
    }
    everywhere!(row, 6);
}

#[test]
fn a_revoked_holder_fails_loudly_and_never_reads_zeros() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let (mapped, unmapped, fork) = (region.snapshot(), region.snapshot(), region.fork(RegionOptions::new()));
        let base = mapped.map(|_| {}).unwrap();
        let rest = world.fill();
        region.write(100, 7);
        for snapshot in [&mapped, &unmapped] {
            assert_eq!(
                (read_at(snapshot, 0), read_at(snapshot, G::BLOCK - 1)),
                (Err(RegionError::Revoked), Err(RegionError::Revoked))
            );
            let across = snapshot.read(G::BLOCK - 1, &mut [0; 2], Destination::Elsewhere);
            assert_eq!((across, read_at(snapshot, G::BLOCK)), (Err(RegionError::Revoked), Ok(pattern(G::PAGES))));
            assert!(snapshot.is_revoked() && snapshot.is_revoked_at(5) && !snapshot.is_revoked_at(G::BLOCK));
            assert_eq!(snapshot.duplicate().map(drop), Err(RegionError::Revoked));
        }
        assert_eq!(unmapped.map(|_| {}), Err(RegionError::Revoked));
        let load = |address| G::load(&world.pool, address);
        assert_eq!([load(base), load(base + G::BLOCK - 1)], [None; 2], "a plain load of the snapshot");
        assert_eq!(load(base + G::BLOCK), Some(pattern(G::PAGES)));
        assert_eq!([fork.read(0), fork.read(G::BLOCK - 1)], [None; 2], "a plain load of the fork");
        assert_eq!(fork.read(G::BLOCK), Some(pattern(G::PAGES)));
        assert_eq!(fork.resolve(100), Err(Unresolved::Revoked));
        let calls = [fork.prepare_write(0..1), fork.pin(0..1), fork.discard(0..1), fork.freeze().map(drop)];
        calls.into_iter().for_each(|result| assert_eq!(result, Err(RegionError::Revoked)));
        drop(rest);
        assert_eq!(mapped.make_irrevocable(), Err(RegionError::Revoked), "too late");
    }
    everywhere!(row, 4);
}

#[test]
fn what_was_revoked_is_not_shown_again_by_lazy_free_and_is_new_memory_once_discarded() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        let fork = region.fork(RegionOptions::new());
        let rest = world.fill();
        region.write(G::BLOCK + 100, 7);
        drop((region, rest));
        let done = fork.lazy_free(0..3 * G::BLOCK).unwrap();
        assert_eq!((done.freed, done.revoked), (2 * G::BLOCK, G::BLOCK));
        assert_eq!((fork.read(G::BLOCK), world.reclaim_all().blocks), (None, 2));
        assert_eq!((fork.cancel_lazy_free(0..3 * G::BLOCK), fork.read(G::BLOCK)), (Ok(0), None));
        fork.discard(G::BLOCK..2 * G::BLOCK).unwrap();
        assert_eq!((fork.kept(), fork.accounts.revoked.load(Ordering::Relaxed)), (vec![], 0));
        fork.write(G::BLOCK + 100, 8);
        assert!(!fork.snapshot().is_revoked());
    }
    everywhere!(row, 6);
}

#[test]
fn a_write_to_what_one_of_the_others_keeps_finds_the_pool_full_and_nobody_loses_a_block() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        for is_fork in [false, true] {
            let (snapshot, other) = (region.snapshot(), region.snapshot());
            let fork = is_fork.then(|| region.fork(reserved()));
            if !is_fork {
                snapshot.make_irrevocable().unwrap();
            }
            let rest = world.fill();
            check_full(&region, 100);
            let all = vec![0..2 * G::PAGES];
            assert_eq!((region.kept(), kept_by(&snapshot), kept_by(&other)), (all.clone(), all.clone(), all.clone()));
            assert_eq!((snapshot.is_revoked(), other.is_revoked()), (false, false));
            assert_eq!(
                (world.reserved(), region.counters.blocks_revoked.load(Ordering::Relaxed)),
                (2 * usize::from(is_fork), 0)
            );
            if let Some(fork) = &fork {
                (0..2).for_each(|block| fork.write(block * G::BLOCK + 100, 9));
                assert_eq!((world.reserved(), fork.read(100), region.read(100)), (0, Some(9), Some(0)));
            }
            drop((rest, other));
            region.write(100, 7);
            assert_eq!((region.read(100), read_at(&snapshot, 100)), (Some(7), Ok(0)));
            region.write(100, 0);
        }
    }
    everywhere!(row, 8);
}

/// Another snapshot holds what was written since.
#[test]
fn a_reset_of_a_reserved_region_reserves_a_block_or_says_that_there_is_none() {
    fn row<G: Ground>(world: &World<G>) {
        for has_lazy in [false, true] {
            let region = world.region_with(1, reserved());
            let goal = region.snapshot();
            region.write(100, 7);
            let other = region.snapshot();
            let filler = world.fill();
            assert_eq!((world.free(), world.reserved()), (0, 0));
            if has_lazy {
                filler.lazy_free(0..G::BLOCK).unwrap();
                region.reset_to(&goal).unwrap();
                region.write(100, 8);
                assert_eq!((region.read(100), read_at(&other, 100)), (Some(8), Ok(7)));
            } else {
                let ResetError { done, reason } = region.reset_to(&goal).unwrap_err();
                assert!(matches!(reason, RegionError::NotReservable { .. }) && done == region.len(), "{reason}");
                assert_eq!((region.read(100), read_at(&goal, 100), read_at(&other, 100)), (Some(0), Ok(0), Ok(7)));
            }
        }
    }
    everywhere!(row, 4);
}

#[test]
fn a_forks_write_with_the_pool_empty_fails_and_nobody_else_is_disturbed() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let (snapshot, fork) = (region.snapshot(), region.fork(RegionOptions::new()));
        let sibling = fork.fork(RegionOptions::new());
        let rest = world.fill();
        check_full(&fork, 100);
        assert_eq!((snapshot.is_revoked(), sibling.accounts.revoked.load(Ordering::Relaxed)), (false, 0));
        let all = vec![0..2 * G::PAGES];
        assert_eq!(
            (region.kept(), fork.kept(), sibling.kept(), kept_by(&snapshot)),
            (all.clone(), all.clone(), all.clone(), all)
        );
        drop(rest);
        fork.write(100, 7);
        assert_eq!((fork.read(100), sibling.read(100), region.read(100)), (Some(7), Some(0), Some(0)));
    }
    everywhere!(row, 4);
}

/// A fork owns the blocks that it wrote itself.
#[test]
fn a_fork_takes_what_it_wrote_away_from_its_own_snapshots() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(RegionOptions::new());
        fork.write(100, 7);
        let snapshot = fork.snapshot();
        let rest = world.fill();
        fork.write(100, 8);
        assert_eq!((fork.read(100), read_at(&snapshot, 0)), (Some(8), Err(RegionError::Revoked)));
        check_full(&fork, G::BLOCK);
        assert_eq!((region.kept(), read_at(&snapshot, G::BLOCK)), (vec![0..2 * G::PAGES], Ok(pattern(G::PAGES))));
        drop(rest);
    }
    everywhere!(row, 4);
}

/// The fork takes back blocks that it wrote itself, and blocks that its parent has left to it.
#[test]
fn a_fork_takes_blocks_back_from_its_own_snapshots_and_forks_once_nobody_else_has_them() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(RegionOptions::new());
        let snapshot = fork.snapshot();
        let grandchild = fork.fork(RegionOptions::new()).fork(RegionOptions::new());
        let rest = world.fill();
        check_full(&fork, 100);
        assert!(!snapshot.is_revoked(), "it would not help: the region has the block as well");
        drop(region);
        fork.write(100, 7);
        assert_eq!((fork.read(100), read_at(&snapshot, 0)), (Some(7), Err(RegionError::Revoked)));
        assert_eq!((grandchild.entry(0), grandchild.read(G::BLOCK)), (Entry::Revoked, Some(pattern(G::PAGES))));
        // The grandchild cannot take blocks back from the fork.
        check_full(&grandchild, G::BLOCK);
        assert_eq!(fork.read(G::BLOCK), Some(pattern(G::PAGES)));
        drop(rest);
    }
    everywhere!(row, 4);
}

#[test]
fn a_reserved_fork_that_is_left_alone_with_its_blocks_gives_its_reservations_back_as_it_writes() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(reserved());
        assert_eq!((world.free(), world.reserved()), (0, 2));
        drop(region);
        (0..2).for_each(|block| fork.write(block * G::BLOCK + 100, 7));
        assert_eq!((world.free(), world.reserved()), (2, 0));
        assert_eq!((fork.kept(), fork.read(100)), (vec![0..2 * G::PAGES], Some(7)));
    }
    everywhere!(row, 4);
}

/// A block that a fork lazily frees is the fork's own by then, and costs its parent nothing.
#[test]
fn blocks_that_a_fork_lazily_frees_are_not_charged_to_its_parent() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(3, limited::<G>());
        let fork = region.fork(RegionOptions::new());
        region.write(100, 7);
        assert_eq!(region.accounts.cow.blocks(), 1);
        fork.lazy_free(0..3 * G::BLOCK).unwrap();
        assert_eq!(region.accounts.cow.blocks(), 0);
        world.reclaim_all();
        assert_eq!(region.accounts.cow.blocks(), 0);
        region.write(G::BLOCK + 100, 7);
        assert_eq!(region.accounts.cow.blocks(), 1);
        drop(fork);
        assert_eq!(region.accounts.cow.blocks(), 0);
    }
    everywhere!(row, 8);
}

/// If a copy copies neighbours along with its block, each of them is charged.
#[test]
fn a_limit_is_not_passed_by_the_neighbours_of_a_copy() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(8, limited::<G>().reserve(Reserve::Full));
        let snapshot = region.snapshot();
        world.pool.sys.budget().replace(0, world.pool.sys.budget().limit() / 2 + 1);
        // Consecutive writes, while few mappings are left.
        let written =
            (0..8).filter(|block| region.prepare_write(block * G::BLOCK..block * G::BLOCK + 1).is_ok()).count();
        world.pool.sys.budget().replace(world.pool.sys.budget().limit() / 2 + 1, 0);
        assert_eq!((written, region.accounts.cow.blocks()), (8, 1));
        assert_eq!(read_at(&snapshot, 0), Ok(pattern(0)));
        (1..8).for_each(|block| assert_eq!(read_at(&snapshot, block * G::BLOCK), Err(RegionError::Revoked)));
    }
    everywhere!(row, 20);
}

/// A call that frees mappings must not need one.
#[test]
fn without_a_mapping_left_whatever_frees_some_works() {
    fn row<G: Ground>(world: &World<G>) {
        let budget = world.pool.sys.budget();
        for reclaim in [false, true] {
            let region = world.written(6);
            // Either the mappings do not merge, or one mapping has an edge on both sides of the part that goes.
            region.discard(0..G::BLOCK).unwrap();
            region.discard(5 * G::BLOCK..6 * G::BLOCK).unwrap();
            if reclaim {
                region.lazy_free(0..6 * G::BLOCK).unwrap();
            }
            let left = budget.limit() - budget.used();
            budget.replace(0, left);
            match reclaim {
                true => assert_eq!(world.reclaim_all().blocks, 4),
                false => region.discard(G::BLOCK..5 * G::BLOCK).unwrap(),
            }
            assert!(budget.fits(1), "there are some now");
            budget.replace(left, 0);
            assert_eq!((region.kept(), region.addresses.mappings()), (vec![], 1));
        }
    }
    everywhere!(row, 8);
}

/// Options with a limit of one block for copies.
fn limited<G: Ground>() -> RegionOptions {
    RegionOptions::new().max_cow_bytes(G::BLOCK)
}

#[test]
fn beyond_max_cow_bytes_a_write_takes_the_block_away_and_copies_no_more() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(3, limited::<G>());
        let snapshot = region.snapshot();
        let free = world.free();
        (0..3).for_each(|block| region.write(block * G::BLOCK + 100, 7));
        assert_eq!((world.free(), region.accounts.cow.blocks()), (free - 1, 1));
        assert_eq!(read_at(&snapshot, 0), Ok(pattern(0)));
        (1..3).for_each(|block| assert_eq!(read_at(&snapshot, block * G::BLOCK), Err(RegionError::Revoked)));
        drop(snapshot);
        assert_eq!((region.accounts.cow.blocks(), region.kept()), (0, vec![0..3 * G::PAGES]));
        // A holder with a reservation still makes the writer copy.
        let snapshot = region.snapshot();
        snapshot.make_irrevocable().unwrap();
        (0..3).for_each(|block| region.write(block * G::BLOCK + 100, 8));
        assert_eq!((snapshot.is_revoked(), read_at(&snapshot, 2 * G::BLOCK + 100)), (false, Ok(7)));
    }
    everywhere!(row, 12);
}

/// On the software MMU only: real memory cannot be made to fail here.
#[test]
fn a_holder_that_cannot_be_hidden_is_revoked_or_intact_and_nothing_in_between() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        for is_fork in [true, false] {
            let region = world.written(1);
            let (snapshot, fork) = (region.snapshot(), is_fork.then(|| region.fork(RegionOptions::new())));
            let base = if is_fork { fork.as_ref().unwrap().addresses.base() } else { snapshot.map(|_| {}).unwrap() };
            let snapshot = (!is_fork).then_some(snapshot);
            let rest = world.fill();
            let shown = || kept(region.len(), |offset| world.pool.sys.load(base + offset).unwrap());
            // One failure carries out a part of the call, the next carries out nothing.
            for _ in 0..2 {
                world.pool.sys.fail(Some((Call::Hide, 0)));
                assert_eq!(region.resolve(100), Err(Unresolved::PoolFull), "nobody let go");
                assert!(!world.pool.sys.failure_pending());
                assert_eq!(shown(), vec![0..G::PAGES]);
                match (&fork, &snapshot) {
                    (Some(fork), _) => assert!(matches!(fork.entry(0), Entry::Shared(_, Origin::Parent))),
                    (_, Some(snapshot)) => {
                        assert_eq!((snapshot.is_revoked(), kept_by(snapshot)), (false, vec![0..G::PAGES]))
                    }
                    _ => unreachable!(),
                }
                assert_eq!(world.pool.frames.references(region.entry(0).block().unwrap()), 2);
            }
            region.write(100, 7);
            assert_eq!((0..G::PAGES).find_map(|page| world.pool.sys.load(base + page * BASE_PAGE).ok()), None);
            assert!(snapshot.is_none_or(|snapshot| read_at(&snapshot, 0) == Err(RegionError::Revoked)));
            drop(rest);
        }
    }
    run::<Soft>(3, row);
    run::<SoftHugetlb>(3, row);
}
