//! Tests of the design's resets to snapshots that have pages over blocks (region/reset/by_sets.rs).

use super::captured::{at, history, slots, written};
use super::cow_mapping::{by_page, copied, run_alone_by_page, run_by_page, where_pages_are_copied};
use super::*;
use crate::pool::density;
use crate::region::reset::reset_all;
use crate::sys::{PageRun, ScanFor};

/// A reset to a snapshot with pages takes no block, and the pages that it puts back cost the next snapshot nothing.
#[test]
fn a_reset_takes_the_pages_that_differ() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 6);
        region.write(at(7), 7);
        let before = (world.free(), slots(world), copied(&region));
        for (nth, value) in [(2, 8), (5, 9), (0, 1), (3, 2), (3, 3)] {
            region.reset_to(&held[nth]).unwrap();
            let expected: Vec<u8> = (1..8).map(|page| if page <= nth { page as u8 } else { 0 }).collect();
            assert_eq!((1..8).map(|page| region.read(at(page)).unwrap()).collect::<Vec<_>>(), expected, "to {nth}");
            assert_eq!(region.kept(), vec![0..2 * G::PAGES]);
            region.write(at(6), value);
        }
        assert_eq!((world.free(), slots(world), copied(&region)), before);
        region.reset_to(&held[3]).unwrap();
        held.push(region.snapshot());
        assert_eq!((world.free(), slots(world)), (before.0, before.1), "as the snapshot that it went to");
        region.write(at(1), 5);
        held.push(region.snapshot());
        assert_eq!(slots(world), before.1 + 1);
        assert_eq!([6, 7].map(|nth| written(&held[nth], 7)), [[1, 2, 3, 0, 0, 0], [5, 2, 3, 0, 0, 0]]);
        assert_eq!(written(&held[5], 7), [1, 2, 3, 4, 5, 0], "what it was is held");
        drop((held, region));
        assert_eq!(slots(world), 0);
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn a_region_goes_back_to_any_of_them() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 5);
        let seen = || [1, 2, 3, 4].map(|page| region.read(at(page)).unwrap());
        for nth in [2, 4, 0, 3, 3, 1] {
            region.write(at(nth + 1), 99);
            match nth % 2 {
                0 => region.reset_to(&held[nth]).unwrap(),
                _ => reset_all(&[(&*region.space, &*held[nth])]).unwrap(),
            }
            assert_eq!(seen(), [1, 2, 3, 4].map(|page| if page <= nth { page as u8 } else { 0 }), "{nth}");
        }
        let again = region.snapshot();
        assert_eq!((written(&again, 5), kept_by(&again)), (vec![1, 0, 0, 0], vec![0..2 * G::PAGES]));
    }
    where_pages_are_copied!(row, 24);
}

/// Where the kernel never writes for the engine, snapshots get whole blocks, and resets by sets do not happen.
#[test]
fn a_region_goes_back_to_any_of_them_where_the_kernel_does_not_write() {
    fn row(world: &World<Soft>) {
        world.pool.sys.refuse_writes_through();
        let (region, held) = history(world, 5);
        for nth in [2, 4, 0, 3, 3, 1] {
            region.write(at(nth + 1), 99);
            let other = region.fork(by_page());
            other.write(at(2), 98);
            [&region, &other].iter().for_each(|one| one.reset_to(&held[nth]).unwrap());
            let expected = [1, 2, 3, 4].map(|page| if page <= nth { page as u8 } else { 0 });
            for one in [&region, &other] {
                assert_eq!([1, 2, 3, 4].map(|page| one.read(at(page)).unwrap()), expected, "{nth}");
            }
        }
        (0..5).for_each(|nth| assert!(!held[nth].is_revoked()));
    }
    run_by_page::<Soft>(40, row);
    run_alone_by_page(40, row);
}

/// Resets back and forth over a history in which a block was copied take no further block: each shows the block below
/// the snapshot's pages again.
#[test]
fn a_reset_to_pages_over_another_block_takes_no_block() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 4);
        let most = density::mostly_captured_pages(world.pool.block_size);
        (0..=most).for_each(|page| region.write(at(page), 7));
        held.push(region.snapshot());
        region.write(at(1), 8);
        held.push(region.snapshot());
        let below = |nth: usize| held[nth].entries.get(EntryIndex(0)).block();
        assert_ne!(below(3), below(4), "the block was copied");
        let before = (world.free(), slots(world));
        let (first, copied) = ([1, 2, 3, 0], [7; 4]);
        for nth in [3, 5, 2, 4, 1, 5, 3] {
            match nth % 2 {
                0 => region.reset_to(&held[nth]).unwrap(),
                _ => reset_all(&[(&*region.space, &*held[nth])]).unwrap(),
            }
            let mut expected = if nth > 3 { copied } else { first };
            match nth {
                0..4 => expected[nth..].fill(0),
                4 => {}
                _ => expected[0] = 8,
            }
            assert_eq!([1, 2, 3, 4].map(|page| region.read(at(page)).unwrap()), expected, "{nth}");
            assert_eq!(
                (region.kept(), world.free(), slots(world)),
                (vec![0..2 * G::PAGES], before.0, before.1),
                "{nth}"
            );
        }
        region.write(at(4), 9);
        let again = region.snapshot();
        assert_eq!((written(&again, 6), written(&held[3], 6)), (vec![1, 2, 3, 9, 0], vec![1, 2, 3, 0, 0]));
    }
    where_pages_are_copied!(row, 12);
}

/// The reset marks the pages that it writes, so the next reset finds only later writes. A reset to the snapshot of the
/// last reset sets no marks.
#[test]
fn a_reset_to_another_snapshot_marks_what_it_has_put_back() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 6);
        // Pages that were only read have no mark either.
        let unmarked = || {
            let (mut runs, mut private) = ([PageRun::default(); 8], [PageRun::default(); 8]);
            let part = region.addresses.part(&(0..G::BLOCK));
            let count = world.pool.sys.scan(part, ScanFor::Unmarked, &mut runs).unwrap().runs;
            let of = world.pool.sys.scan(part, ScanFor::Private, &mut private).unwrap().runs;
            let is_private = |at: &u64| private[..of].iter().any(|run| (run.start..run.end).contains(at));
            let pages = runs[..count].iter().flat_map(|run| (run.start..run.end).step_by(BASE_PAGE));
            pages.filter(is_private).count()
        };
        if !region.captured.are_tracked() {
            return;
        }
        for nth in [2, 5, 1, 4] {
            region.reset_to(&held[nth]).unwrap();
            assert_eq!(unmarked(), 0, "{nth}");
            region.write(at(3), 90 + nth as u8);
            assert_eq!(unmarked(), 1, "{nth}");
            held.push(region.snapshot());
            assert_eq!(written(&held[held.len() - 1], 4)[2], 90 + nth as u8);
        }
        let goal = held.len() - 1;
        for value in [1, 2, 3] {
            region.reset_to(&held[goal]).unwrap();
            region.write(at(3), value);
            region.reset_to(&held[goal]).unwrap();
            assert_eq!((unmarked(), region.read(at(3))), (1, Some(94)));
        }
    }
    where_pages_are_copied!(row, 12);
}

/// A reset gives pages back to the kernel after they were not written for some resets.
#[test]
fn a_page_that_a_reset_drops_is_not_what_was_captured() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 3);
        held.push(region.snapshot());
        for _ in 0..12 {
            region.reset_to(&held[0]).unwrap();
            region.write(at(5), 5);
        }
        region.reset_to(&held[0]).unwrap();
        held.push(region.snapshot());
        region.write(at(6), 6);
        held.push(region.snapshot());
        assert_eq!((written(&held[4], 7), written(&held[5], 7)), (vec![0; 6], vec![0, 0, 0, 0, 0, 6]));
        assert_eq!(written(&held[3], 7), [1, 2, 0, 0, 0, 0]);
    }
    where_pages_are_copied!(row, 16);
}

/// Of pages that were written once, only the snapshot's own stay private. The reset scans page tables only after a
/// fault.
#[test]
fn resets_to_a_snapshot_with_pages_cost_what_was_written() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 3);
        let round = |page: usize, value: u8| {
            region.write(at(page), value);
            region.reset_to(&held[2]).unwrap();
            assert_eq!((1..8).map(|page| region.read(at(page)).unwrap()).collect::<Vec<_>>(), [1, 2, 0, 0, 0, 0, 0]);
        };
        (1..8).for_each(|page| round(page, 9));
        (0..100).for_each(|nth| {
            round(3, 10 + nth);
            eprint!("{:?} ", region.private_page_count().unwrap());
        });
        // One more may stay beside the page that is written, because the reset keeps half of the two.
        assert!(matches!(region.private_page_count(), Ok(3..=4)), "{:?}", region.private_page_count());
        assert_eq!(region.kept(), vec![0..2 * G::PAGES]);
        let scans = G::calls(&world.pool, Call::Scan);
        round(3, 7);
        if world.pool.sys.is_alone() {
            assert_eq!(G::calls(&world.pool, Call::Scan), scans, "no fault has come in between");
        }
    }
    where_pages_are_copied!(row, 8);
    run_alone_by_page(8, row);
}

/// The list of private pages does not contain the pages of the block's set. If that set is outdated, the reset scans
/// page tables.
#[test]
fn a_reset_looks_anew_where_a_set_no_longer_tells() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 3);
        (0..3).for_each(|_| region.reset_to(&held[2]).unwrap());
        region.captured.outdate(0..2);
        region.reset_to(&held[0]).unwrap();
        assert_eq!([1, 2].map(|page| region.read(at(page))), [Some(0); 2]);
    }
    where_pages_are_copied!(row, 8);
    run_alone_by_page(8, row);
}

/// A captured page with the same bytes as the block's needs no reset and keeps its mark. A reset must still find later
/// writes to it.
#[test]
fn a_reset_finds_what_was_written_to_a_page_with_a_mark_since_the_last() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 2);
        region.write(at(5), 0);
        held.push(region.snapshot());
        for value in 1..4 {
            region.reset_to(&held[0]).unwrap();
            region.reset_to(&held[0]).unwrap();
            region.write(at(5), value);
            region.reset_to(&held[0]).unwrap();
            assert_eq!((region.read(at(1)), region.read(at(5))), (Some(0), Some(0)));
            region.write(at(5), 0);
            held.push(region.snapshot());
        }
    }
    where_pages_are_copied!(row, 8);
    run_alone_by_page(8, row);
}

/// A reset puts the pages of the sets back last. If it fails before, it has put back none of them.
#[test]
fn a_reset_that_fails_does_not_count_pages_that_a_set_tells_of_as_put_back() {
    for (call, after) in Call::ALL.into_iter().flat_map(|call| (0..3).map(move |after| (call, after))) {
        let row = |world: &World<Soft>| {
            let (region, held) = history(world, 3);
            region.discard(Soft::BLOCK..2 * Soft::BLOCK).unwrap();
            world.pool.sys.fail(Some((call, after)));
            let came = region.reset_to(&held[0]);
            world.pool.sys.fail(None);
            let done = came.map_or_else(|error| error.done, |()| region.len());
            let are_back = [1, 2].iter().all(|page| region.read(at(*page)) == Some(0));
            assert!(are_back || done == 0, "{call:?} after {after}: {done} bytes");
            region.reset_to(&held[0]).unwrap();
            assert_eq!([1, 2].map(|page| region.read(at(page))), [Some(0); 2]);
        };
        run_by_page(8, row);
        run_alone_by_page(8, row);
    }
}
