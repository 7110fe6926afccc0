//! Tests of operations on CoW-mapped blocks, whose pages the kernel copies (cow_mapping.rs): discard, free, pin,
//! another fork, revocation, reservation and limit. They also check the state after the kernel refuses one of the
//! calls.

use super::cow_mapping::{
    by_page, copied, is_cow_mapped, is_cow_mapped_and_inherited, run_by_page, where_pages_are_copied, written_back,
    written_by_choice,
};
use super::*;
use crate::Observer;
use crate::region::free::LazyFreed;
use crate::region::state::Unresolved;
use crate::region::write::Resolution;

#[test]
fn a_discard_drops_private_pages_and_shows_zeros() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(3, by_page());
        let snapshot = region.snapshot();
        [100, G::BLOCK + 100, G::BLOCK + BASE_PAGE + 100].iter().for_each(|&at| region.write(at, 7));
        let free = world.free();
        region.discard(0..G::BLOCK).unwrap();
        assert_eq!((region.entry(0), region.read(100), world.free()), (Entry::Zero, Some(0), free));
        region.write(100, 8);
        assert_eq!((region.read(100), region.kept()), (Some(8), vec![G::PAGES..3 * G::PAGES]), "nothing comes back");
        // A discard of a part of a block keeps the block's other private pages.
        region.discard(G::BLOCK..G::BLOCK + BASE_PAGE).unwrap();
        let seen = [G::BLOCK + 100, G::BLOCK + BASE_PAGE + 100].map(|at| region.read(at));
        assert_eq!((seen, region.kept()), ([Some(0), Some(7)], vec![G::PAGES + 1..3 * G::PAGES]));
        assert_eq!((kept_by(&snapshot), read_at(&snapshot, G::BLOCK + 100)), (vec![0..3 * G::PAGES], Ok(0)));
        drop(snapshot);
        // The region alone holds the third block now, so a discard gives it back.
        let free = world.free();
        region.write(2 * G::BLOCK + 100, 9);
        region.discard(2 * G::BLOCK..3 * G::BLOCK).unwrap();
        assert_eq!((world.free(), region.read(2 * G::BLOCK + 100)), (free + 1, Some(0)));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn lazy_free_puts_pages_back_into_blocks_held_alone_and_frees_those() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(3, by_page());
        let snapshot = region.snapshot();
        (0..3).for_each(|block| region.write(block * G::BLOCK + 100, 7));
        drop(snapshot);
        let rest = world.fill();
        let freed = |bytes| LazyFreed { freed: bytes, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..2 * G::BLOCK), Ok(freed(2 * G::BLOCK)));
        assert_eq!(region.lazy_free(2 * G::BLOCK..2 * G::BLOCK + BASE_PAGE), Ok(freed(BASE_PAGE)), "a part");
        assert_eq!((written_back(&region), copied(&region)), ((3, 3), 0));
        assert_eq!([0, 1, 2].map(|block| region.read(block * G::BLOCK + 100)), [Some(7); 3]);
        region.write(G::BLOCK + 200, 8);
        assert_eq!(world.reclaim_all(), Dropped { blocks: 1, bytes: G::BLOCK + BASE_PAGE });
        let seen = [100, G::BLOCK + 100, G::BLOCK + 200, 2 * G::BLOCK + 100].map(|at| region.read(at));
        assert_eq!(seen, [Some(0), Some(7), Some(8), Some(0)]);
        assert_eq!(region.kept(), [G::PAGES..2 * G::PAGES, 2 * G::PAGES + 1..3 * G::PAGES]);
        drop(rest);
    }
    where_pages_are_copied!(row, 5);
}

#[test]
fn lazy_free_skips_what_is_shown_by_page_and_held_by_others_as_shared() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        region.write(100, 7);
        let shared = |bytes| LazyFreed { shared: bytes, ..LazyFreed::default() };
        assert_eq!(region.lazy_free(0..2 * G::BLOCK), Ok(shared(2 * G::BLOCK)));
        assert_eq!(region.lazy_free(0..BASE_PAGE), Ok(shared(BASE_PAGE)));
        assert_eq!((region.lazy(), world.reclaim_all(), region.read(100)), (0, Dropped::default(), Some(7)));
        assert_eq!((region.cancel_lazy_free(0..2 * G::BLOCK), written_back(&region)), (Ok(0), (0, 0)));
        region.write(200, 8);
        assert_eq!((region.read(200), kept_by(&snapshot)), (Some(8), vec![0..2 * G::PAGES]));
    }
    where_pages_are_copied!(row, 4);
}

#[test]
fn a_pin_puts_pages_back_and_the_block_stays_where_it_is_then() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let (snapshot, free) = (region.snapshot(), world.free());
        region.write(100, 7);
        region.write(G::BLOCK + 100, 8);
        let before = [region.block(0), region.block(1)];
        region.pin(0..1).unwrap();
        let pinned = region.block(0);
        assert_eq!((pinned == before[0], world.free()), (false, free - 1), "others hold the block itself");
        drop(snapshot);
        region.pin(G::BLOCK..G::BLOCK + 1).unwrap();
        assert_eq!((region.block(1), written_back(&region)), (before[1], (2, 2)), "in place");
        assert!((0..2).all(|block| matches!(region.entry(block), Entry::Private(_))));
        let later = region.snapshot();
        assert_eq!([region.block(0), region.block(1)], [pinned, before[1]]);
        for at in [100, G::BLOCK + 100] {
            let block = region.entry(at / G::BLOCK).block().unwrap();
            // SAFETY: it is within the block, which is pinned and which nobody else uses.
            unsafe { world.pool.direct(block).add(at % G::BLOCK).write_volatile(9) };
        }
        assert_eq!(
            [100, G::BLOCK + 100].map(|at| (region.read(at), read_at(&later, at))),
            [(Some(9), Ok(7)), (Some(9), Ok(8))]
        );
        assert_eq!((region.kept(), kept_by(&later)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        region.unpin(&(0..2 * G::BLOCK));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn a_prepared_write_puts_pages_back() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let (snapshot, free) = (region.snapshot(), world.free());
        region.write(100, 7);
        region.populate(0..2 * G::BLOCK).unwrap();
        assert_eq!((written_back(&region), world.free()), ((0, 0), free), "there is memory for all of it");
        region.prepare_blocks(0..2 * G::BLOCK).unwrap();
        assert!((0..2).all(|block| matches!(region.entry(block), Entry::Private(_))));
        assert_eq!((world.free(), region.read(100), read_at(&snapshot, 100)), (free - 2, Some(7), Ok(0)));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
    }
    where_pages_are_copied!(row, 4);
}

#[test]
fn a_fork_of_a_fork_is_by_page_too() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, free) = (world.written(2), world.free());
        let fork = region.fork(by_page());
        fork.write(100, 7);
        assert_eq!((is_cow_mapped_and_inherited(&fork, 0), world.free()), (true, free));
        let grandchild = fork.fork(by_page());
        assert_eq!((world.free(), fork.block(1)), (free - 1, region.block(1)), "a copy for what both have now");
        grandchild.write(100, 8);
        fork.write(200, 9);
        assert!(is_cow_mapped(&fork, 0) && is_cow_mapped_and_inherited(&grandchild, 0));
        assert_eq!(world.free(), free - 1);
        let seen = |at| [&region, &fork, &grandchild].map(|space| space.read(at));
        assert_eq!(seen(100), [Some(0), Some(7), Some(8)]);
        assert_eq!(seen(200), [Some(0), Some(9), Some(0)]);
        [&region, &fork, &grandchild].iter().for_each(|space| assert_eq!(space.kept(), vec![0..2 * G::PAGES]));
        drop((region, fork));
        assert_eq!((grandchild.read(100), grandchild.kept()), (Some(8), vec![0..2 * G::PAGES]));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn a_block_that_a_fork_shows_by_page_can_be_taken_away() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(by_page());
        fork.write(100, 7);
        fork.write(G::BLOCK + 100, 8);
        let rest = world.fill();
        region.write(200, 9);
        assert_eq!((fork.entry(0), fork.read(100), fork.read(0)), (Entry::Revoked, None, None));
        assert_eq!(fork.resolve(100), Err(Unresolved::Revoked));
        assert_eq!((region.read(200), region.kept()), (Some(9), vec![0..2 * G::PAGES]));
        fork.write(G::BLOCK + 200, 9);
        assert_eq!([100, 200].map(|at| fork.read(G::BLOCK + at)), [Some(8), Some(9)], "it has lost nothing else");
        assert_eq!(fork.freeze().map(drop), Err(RegionError::Revoked));
        drop(rest);
        fork.discard(0..G::BLOCK).unwrap();
        let kept_by_fork = fork.kept();
        assert_eq!((fork.read(100), kept_by_fork), (Some(0), vec![G::PAGES..2 * G::PAGES]));
    }
    where_pages_are_copied!(row, 4);
}

#[test]
fn what_is_reserved_for_a_fork_pays_for_the_block_that_it_shows_by_page() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(reserved().copy_grain(CopyGrain::Page).calls_wait(true));
        fork.write(100, 7);
        let rest = world.fill();
        assert_eq!((world.reserved(), is_cow_mapped_and_inherited(&fork, 0)), (2, true));
        assert!(region.resolve(200).is_err(), "what the fork keeps is not written to");
        assert_eq!((fork.read(100), fork.read(200), region.read(100)), (Some(7), Some(0), Some(0)));
        fork.write(G::BLOCK + 100, 8);
        assert_eq!(world.reserved(), 2, "private pages take no block");
        let snapshot = fork.snapshot();
        let read = [100, G::BLOCK + 100].map(|at| read_at(&snapshot, at));
        assert_eq!((world.reserved(), read), (0, [Ok(7), Ok(8)]));
        assert_eq!((region.kept(), fork.kept()), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        drop(rest);
    }
    where_pages_are_copied!(row, 6);
}

#[test]
fn each_block_that_is_shown_by_page_counts_towards_the_limit() {
    fn row<G: Ground>(world: &World<G>) {
        let limited = by_page().max_cow_bytes(2 * G::BLOCK);
        let region = world.written_with(4, limited);
        let snapshot = region.snapshot();
        assert_eq!(region.accounts.cost(), 0, "nothing before the first write");
        region.write(100, 7);
        region.write(G::BLOCK + 100, 7);
        assert_eq!((region.accounts.cost(), is_cow_mapped(&region, 2)), (2, false));
        region.write(200, 8);
        // A block of its own costs the region the same as the CoW mapping before.
        region.prepare_write(0..2 * G::BLOCK).unwrap();
        assert_eq!((region.accounts.cost(), snapshot.is_revoked()), (2, false));
        region.write(2 * G::BLOCK, 9);
        assert_eq!((region.accounts.cost(), snapshot.is_revoked()), (2, true));
        assert_eq!(read_at(&snapshot, 2 * G::BLOCK), Err(RegionError::Revoked));
        drop(snapshot);
        assert_eq!(region.accounts.cost(), 0);
        let later = region.snapshot();
        region.write(2 * G::BLOCK + 100, 9);
        assert_eq!((region.read(2 * G::BLOCK + 100), read_at(&later, 2 * G::BLOCK + 100)), (Some(9), Ok(0)));
        assert!(region.accounts.cost() <= 2);
    }
    where_pages_are_copied!(row, 10);
}

/// An observer that does nothing.
struct Deaf;

impl Observer for Deaf {
    fn invalidate_start(&self, _: Range<usize>) {}
    fn invalidate_end(&self, _: Range<usize>) {}
}

/// The kernel reports no page copies to an observer, so such a region does not use them.
#[test]
fn a_region_with_an_observer_copies_blocks() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        assert!(region.observer.set(Arc::new(Deaf)).is_ok());
        let (snapshot, free, before) = (region.snapshot(), world.free(), region.block(0));
        region.write(100, 7);
        assert_eq!((region.entry(0) == Entry::Private(region.entry(0).block().unwrap()), copied(&region)), (true, 1));
        assert_eq!((world.free(), region.block(0) != before), (free - 1, true));
        assert_eq!((region.read(100), read_at(&snapshot, 100)), (Some(7), Ok(0)));
        // A fork has no observer.
        let fork = region.fork(by_page());
        fork.write(200, 8);
        assert!(is_cow_mapped_and_inherited(&fork, 0));
    }
    where_pages_are_copied!(row, 8);
}

/// On the software MMU only: real memory cannot be made to fail here.
#[test]
fn pages_that_cannot_be_put_back_stay_private_and_nothing_is_lost() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>, refused: Option<Call>, failing: [Call; 2]) {
        world.pool.sys.fail(refused.map(|call| (call, 0)));
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        region.write(100, 7);
        let free = world.free();
        // One failure carries out a part of the call, the next carries out nothing.
        for call in failing.into_iter().flat_map(|call| [call, call]) {
            world.pool.sys.fail(Some((call, 0)));
            region.freeze().map(drop).unwrap_err();
            assert!(!world.pool.sys.failure_pending());
            assert_eq!(
                (region.read(100), region.kept(), world.free()),
                (Some(7), vec![0..2 * G::PAGES], free),
                "{call:?}"
            );
        }
        region.write(200, 8);
        let later = region.snapshot();
        assert_eq!(
            [100, 200].map(|at| (read_at(&snapshot, at), read_at(&later, at))),
            [(Ok(0), Ok(7)), (Ok(0), Ok(8))]
        );
    }
    run_by_page::<Soft>(6, |world| row(world, None, [Call::Scan, Call::Scan]));
    run_by_page::<Soft>(6, |world| row(world, Some(Call::ClaimParking), [Call::Scan, Call::Protect]));
}

#[test]
fn where_nobody_can_be_held_writers_are_kept_off_by_protection() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let sys = &world.pool.sys;
        let region = world.written_with(2, by_page());
        let snapshots: Vec<_> = (1..6)
            .map(|round| {
                region.write(100, round);
                // In turn, the kernel refuses the hold of the write-back ahead of the snapshot, and the hold of the one
                // in the pause.
                sys.fail((round > 2).then_some((Call::Hold, round as usize % 2)));
                let protected = sys.calls(Call::Protect);
                let snapshot = region.snapshot();
                assert!(!sys.failure_pending());
                assert!(round < 3 || sys.calls(Call::Protect) > protected);
                snapshot
            })
            .collect();
        for (round, snapshot) in (1..6).zip(&snapshots) {
            assert_eq!(read_at(snapshot, 100), Ok(round));
        }
        assert!(!sys.holds_anything());
    }
    run_by_page::<Soft>(12, row);
}

/// Parked memory keeps the right to write that it had before.
#[test]
fn what_cannot_be_shown_by_page_in_the_pause_cannot_be_written_either() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let sys = &world.pool.sys;
        let region = world.written_with(2, by_page());
        // One failure carries out the call all the same, the next carries out nothing.
        for round in 1..5 {
            region.prepare_write(0..2 * G::BLOCK).unwrap();
            sys.fail(Some((Call::CowMapping, 0)));
            let snapshot = region.snapshot();
            assert!(!sys.failure_pending());
            region.write(100, round);
            let (written, kept) = (region.read(100), read_at(&snapshot, 100));
            assert_eq!((written, kept), (Some(round), Ok(round - 1)), "the cut has changed");
        }
        assert!(!sys.holds_anything());
    }
    run_by_page::<Soft>(6, row);
}

/// A second try under the region lock would take this lock twice, and wait for ever if a snapshot had asked for it in
/// between.
#[test]
fn a_write_that_may_not_allow_writes_goes_by_block() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        world.pool.sys.set_tracking(false);
        let region = written_by_choice(world, 2);
        let snapshot = region.snapshot();
        region.write(2 * BASE_PAGE + 100, 1);
        // The neighbour is CoW-mapped too and has no private pages, so it is write-protected.
        let later = region.snapshot();
        assert!(matches!(region.entry(1), Entry::CowMapped(_, _, Access::Read)), "{:?}", region.entry(1));
        world.pool.sys.fail(Some((Call::Protect, 0)));
        let at = G::BLOCK + 2 * BASE_PAGE + 100;
        assert_eq!(region.resolve(at), Ok(Resolution::Copied));
        region.write(at, 2);
        assert_eq!((region.read(at), read_at(&snapshot, at), read_at(&later, at)), (Some(2), Ok(0), Ok(0)));
    }
    run_by_page::<Soft>(8, row);
}

/// The kernel shows the blocks through a private mapping, and then refuses to make all of it writable. If the engine
/// showed the blocks again, it would lose what another thread has written to a part that was writable.
#[test]
fn a_write_to_what_is_just_being_shown_by_page_is_not_lost_if_the_right_to_write_is_refused() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = written_by_choice(world, 2);
        let (snapshot, sys) = (region.snapshot(), &world.pool.sys);
        let (at, other) = (G::BLOCK + BASE_PAGE + 100, BASE_PAGE + 100);
        sys.fail(Some((Call::Protect, 0)));
        sys.write_after_failure(region.address_of(0) + other, 8);
        assert_eq!(region.resolve(at), Ok(Resolution::Copied));
        assert!(sys.has_written() && region.read(other) == Some(8), "it is lost");
        region.write(at, 9);
        assert_eq!((region.read(other), region.read(at)), (Some(8), Some(9)));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        let later = region.snapshot();
        assert_eq!((read_at(&later, other), read_at(&snapshot, other)), (Ok(8), Ok(0)));
    }
    run_by_page::<Soft>(6, row);
}
