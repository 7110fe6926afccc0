//! Tests of the design's captured pages: a snapshot holds them over a block that others hold too.

use std::time::Duration;

use super::cow_mapping::{copied, maintain, run_by_page, where_pages_are_copied, written_back, written_by_choice};
use super::*;
use crate::pool::density;
use crate::pool::frames::Wanted;
use crate::pool::lineage::Derived;
use crate::region::cut::{Part, fill, freeze_all};
use crate::region::state::HeldOperations;
use crate::snapshot::changes::{Found, Newer, Precision};
use crate::table::Reserved;

/// The offset of the byte that rows write in a page.
pub(super) fn at(page: usize) -> usize {
    page * BASE_PAGE + 100
}

pub(super) fn slots<G: Ground>(world: &World<G>) -> usize {
    world.pool.slots.counts().0
}

pub(super) type Held<G> = Vec<PinnedBox<SnapshotCore<<G as Ground>::S>>>;

/// A region with snapshots. Before each snapshot but the first, one more page of the first block was written: page n
/// gets the value n.
pub(super) fn history<G: Ground>(world: &World<G>, snapshots: usize) -> (Region<G>, Held<G>) {
    let region = written_by_choice(world, 2);
    let mut held = vec![region.snapshot()];
    for nth in 1..snapshots {
        region.write(at(nth), nth as u8);
        held.push(region.snapshot());
    }
    (region, held)
}

/// The values that a snapshot has for the written pages of a history.
pub(super) fn written<S: Sys>(frozen: &SnapshotCore<S>, pages: usize) -> Vec<u8> {
    (1..pages).map(|page| read_at(frozen, at(page)).unwrap()).collect()
}

#[test]
fn a_snapshot_beside_others_costs_the_pages_that_were_written() {
    fn row<G: Ground>(world: &World<G>) {
        let free = world.free();
        let (region, held) = history(world, 5);
        // The region's two blocks, and one block for all captured pages.
        assert_eq!((world.free(), slots(world), copied(&region)), (free - 3, 4, 0));
        for (nth, frozen) in held.iter().enumerate() {
            let expected: Vec<u8> = (1..5).map(|page| if page <= nth { page as u8 } else { 0 }).collect();
            assert_eq!((written(frozen, 5), kept_by(frozen)), (expected, vec![0..2 * G::PAGES]));
        }
        assert_eq!(region.kept(), vec![0..2 * G::PAGES]);
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn a_page_that_stays_is_held_once_and_goes_with_its_last_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 4);
        assert_eq!(slots(world), 3);
        // No page was written, so the snapshot copies none.
        held.push(region.snapshot());
        assert_eq!(slots(world), 3);
        // The first page is written again, while earlier snapshots still hold its old contents.
        region.write(at(1), 9);
        held.push(region.snapshot());
        assert_eq!(slots(world), 4);
        held.drain(1..4);
        assert_eq!((slots(world), written(&held[1], 4), written(&held[2], 4)), (4, vec![1, 2, 3], vec![9, 2, 3]));
        held.remove(1);
        assert_eq!(slots(world), 3);
        drop(held);
        drop(region);
        assert_eq!((slots(world), world.pool.slots.blocks().len()), (0, 0));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn pages_over_a_block_that_was_taken_away_make_room() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 5);
        region.write(G::BLOCK + at(1), 1);
        let later = region.snapshot();
        let (rest, another) = (world.fill(), world.region(1));
        assert!(!world.pool.make_room() && region.revoke_from_others(EntryIndex(0)));
        assert!(held.iter().all(|frozen| frozen.is_revoked()) && later.is_revoked());
        // The page over the other block stays.
        assert!(!world.pool.make_room());
        assert_eq!((slots(world), read_at(&later, G::BLOCK + at(1))), (1, Ok(1)));
        assert!(region.revoke_from_others(EntryIndex(1)) && world.pool.make_room());
        assert_eq!(slots(world), 0);
        another.prepare_write(0..1).unwrap();
        drop((rest, held));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn pages_that_were_mostly_written_since_the_last_snapshot_are_a_block_of_its_own() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 2);
        let (free, most) = (world.free(), density::mostly_captured_pages(world.pool.block_size));
        (0..=most + 1).for_each(|page| region.write(at(page), 7));
        let later = region.snapshot();
        assert_eq!((world.free(), slots(world)), (free - 1, 1), "what was captured stays the earlier snapshot's");
        assert!((0..=most + 1).all(|page| read_at(&later, at(page)) == Ok(7)));
        assert_eq!((written(&held[1], 3), written(&held[0], 3)), (vec![1, 0], vec![0, 0]));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn a_block_whose_pages_were_mostly_captured_is_copied_behind_the_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 2);
        let most = density::mostly_captured_pages(world.pool.block_size);
        (0..=most / 2).for_each(|page| region.write(at(page), 7));
        drop(region.snapshot());
        (most / 2 + 1..=most).for_each(|page| region.write(at(page), 7));
        held.push(region.snapshot());
        let (free, copies) = (world.free(), copied(&region));
        assert_eq!(slots(world), most + 2, "the first page was captured twice");
        maintain(&region);
        assert_eq!((world.free(), copied(&region)), (free - 1, copies), "no snapshot or writer has copied the block");
        region.write(at(2), 8);
        held.push(region.snapshot());
        assert_eq!(slots(world), most + 2, "the last snapshot has a block without pages over it");
        let of = |frozen: &SnapshotCore<G::S>| [1, 2, most].map(|page| read_at(frozen, at(page)).unwrap());
        let expected = [[0; 3], [1, 0, 0], [7; 3], [7, 8, 7]];
        assert_eq!(held.iter().map(|frozen| of(frozen)).collect::<Vec<_>>(), expected);
        // The block below is the earlier snapshots' by now. The last of them needs no pages of its own.
        held.remove(0);
        world.pool.drop_unheld();
        assert_eq!(slots(world), most + 2, "two snapshots have the block");
        held.remove(0);
        world.pool.drop_unheld();
        assert_eq!((slots(world), of(&held[0]), of(&held[1])), (0, expected[2], expected[3]));
        region.reset_to(&held[0]).unwrap();
        assert_eq!([1, 2, most].map(|page| region.read(at(page)).unwrap()), expected[2]);
    }
    where_pages_are_copied!(row, 8);
}

/// A write to the first page of a block may begin a stream, for which the engine copies blocks. A history would keep
/// each of those blocks.
#[test]
fn a_write_to_the_first_page_of_a_block_costs_a_history_one_page() {
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, 3);
        let mut held = vec![region.snapshot()];
        region.write(at(0), 1);
        assert_eq!(copied(&region), 1, "with one snapshot");
        held.push(region.snapshot());
        let free = world.free();
        for value in 2..6 {
            region.write(G::BLOCK + at(0), value);
            region.write(2 * G::BLOCK + G::BLOCK - 1, value);
            held.push(region.snapshot());
        }
        assert_eq!((copied(&region), slots(world), world.free()), (1, 8, free - 1));
        let first: Vec<_> = held.iter().map(|frozen| read_at(frozen, G::BLOCK + at(0)).unwrap()).collect();
        assert_eq!(first, [0, 0, 2, 3, 4, 5]);
    }
    where_pages_are_copied!(row, 12);
}

/// A fork keeps its reservation while pages are captured, and uses a reserved block where no other is left for the
/// pages.
#[test]
fn a_fork_with_a_reservation_captures_pages_and_keeps_what_is_reserved() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(RegionOptions::new().reserve(Reserve::Full).copy_grain(CopyGrain::Page));
        let mut held = vec![fork.snapshot()];
        for value in 1..4 {
            fork.write(at(1), value);
            held.push(fork.snapshot());
        }
        assert_eq!((slots(world), copied(&fork), world.reserved()), (3, 0, 2));
        // From here on there is neither a free block nor a free slot.
        let others = world.pool.take_slots(G::PAGES - 3);
        let rest = world.fill();
        fork.write(at(1), 9);
        fork.write(G::BLOCK + at(2), 8);
        held.push(fork.snapshot());
        let of_first: Vec<_> = held.iter().map(|frozen| read_at(frozen, at(1)).unwrap()).collect();
        assert_eq!((of_first, read_at(&held[4], G::BLOCK + at(2))), (vec![0, 1, 2, 3, 9], Ok(8)));
        assert_eq!((fork.read(at(1)), fork.read(G::BLOCK + at(2)), world.reserved()), (Some(9), Some(8), 0));
        assert_eq!((region.read(at(1)), region.kept()), (Some(0), vec![0..2 * G::PAGES]));
        world.pool.give_up_slots(others.into_iter());
        drop((rest, held));
    }
    where_pages_are_copied!(row, 8);
}

/// A fork captures the written pages of blocks that snapshots hold too, as a snapshot does.
#[test]
fn a_fork_beside_snapshots_takes_pages() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 4);
        region.write(at(4), 4);
        let before = (world.free(), slots(world));
        let made = RegionCore::of_snapshot(&region.freeze_for_fork().unwrap(), RegionOptions::new());
        let fork = Region::<G>::new(made.unwrap());
        // The fork captured the page, and the next snapshot will share it.
        assert_eq!((world.free(), slots(world), copied(&region)), (before.0, before.1 + 1, 0));
        fork.write(at(1), 8);
        region.write(at(2), 9);
        assert_eq!((1..6).map(|page| fork.read(at(page)).unwrap()).collect::<Vec<_>>(), [8, 2, 3, 4, 0]);
        assert_eq!((1..6).map(|page| region.read(at(page)).unwrap()).collect::<Vec<_>>(), [1, 9, 3, 4, 0]);
        assert_eq!(written(&held[3], 6), [1, 2, 3, 0, 0]);
        drop((held, fork, region));
        assert_eq!(slots(world), 0);
    }
    where_pages_are_copied!(row, 8);
}

/// A fork of a snapshot takes over its pages, and shows the blocks below.
#[test]
fn a_fork_of_a_snapshot_takes_its_pages() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 5);
        let _view = held[3].map(|_| {}).unwrap();
        let before = (world.free(), slots(world));
        let options = RegionOptions::new();
        let fork = Region::<G>::new(RegionCore::of_snapshot(&held[3].duplicate().unwrap(), options).unwrap());
        assert_eq!((world.free(), slots(world)), before);
        fork.write(at(2), 9);
        assert_eq!([1, 2, 3, 4].map(|page| fork.read(at(page))), [Some(1), Some(9), Some(3), Some(0)]);
        let of_fork = fork.snapshot();
        fork.reset_to(&held[4]).unwrap();
        assert_eq!([1, 2, 3, 4].map(|page| fork.read(at(page))), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!((written(&of_fork, 5), written(&held[3], 5)), (vec![1, 9, 3, 0], vec![1, 2, 3, 0]));
        assert_eq!([1, 2, 3, 4].map(|page| region.read(at(page))), [Some(1), Some(2), Some(3), Some(4)]);
        drop((of_fork, fork));
        // A fork with a reservation gets whole blocks.
        let options = RegionOptions::new().reserve(Reserve::Full);
        let full = Region::<G>::new(RegionCore::of_snapshot(&held[3].duplicate().unwrap(), options).unwrap());
        assert_eq!([1, 2, 3, 4].map(|page| full.read(at(page))), [Some(1), Some(2), Some(3), Some(0)]);
        assert!(world.pool.frames.reserved() > 0);
        drop(full);
        assert_eq!(world.pool.frames.reserved(), 0);
        drop((held, region));
        assert_eq!(slots(world), 0);
    }
    where_pages_are_copied!(row, 8);
}

/// A view copies the pages that are read, and takes no memory for all others.
#[test]
fn a_view_copies_the_pages_that_are_read() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 5);
        let (pool, frozen) = (&world.pool, held.pop().unwrap());
        let copies = || pool.pages_in_views.load(Ordering::Relaxed);
        let base = frozen.map(|_| {}).unwrap();
        let load = |offset| G::load(pool, base + offset);
        // The second block has no pages over it.
        assert_eq!((load(at(1)), load(G::BLOCK + at(1)).is_some(), copies()), (None, true, 0));
        assert_eq!((frozen.show_more(G::BLOCK + at(1)), frozen.show_more(at(1))), (Ok(false), Ok(true)));
        // The first fault shows a 32nd part of the block, or one page; the second shows all of it.
        let first = (G::PAGES / 32).max(1);
        assert_eq!((load(at(1)), load(at(G::PAGES - 1))), (Some(1), None));
        assert_eq!(copies(), if first == 1 { 1 } else { 4 });
        assert_eq!(frozen.show_more(at(G::PAGES - 1)), Ok(true));
        assert_eq!((1..5).map(|page| load(at(page))).collect::<Vec<_>>(), [1, 2, 3, 4].map(Some));
        assert_eq!((load(at(G::PAGES - 1)), copies()), (Some(0), 4));
        assert_eq!((frozen.show_more(at(1)), frozen.show_all(), copies()), (Ok(true), Ok(()), 4));
        drop((held, region, frozen));
        assert_eq!((copies(), slots(world)), (0, 0));
    }
    where_pages_are_copied!(row, 8);
}

/// A failed call shows nothing; the next read shows the pages.
#[test]
fn a_view_of_which_a_call_fails_shows_nothing_wrong() {
    run_by_page::<Soft>(8, |world| {
        let (_region, held) = history(world, 3);
        let base = held[2].map(|_| {}).unwrap();
        for call in [Call::CowMapping, Call::Protect, Call::BringPages] {
            world.pool.sys.fail(Some((call, 0)));
            assert!(held[2].show_more(at(2)).is_err(), "{call:?}");
            assert_eq!(Soft::load(&world.pool, base + at(2)), None, "{call:?}");
        }
        assert_eq!((held[2].show_more(at(2)), Soft::load(&world.pool, base + at(2))), (Ok(true), Some(2)));
        world.pool.sys.fail(Some((Call::ClaimStaging, 0)));
        assert!(held[1].map(|_| panic!("it has no address")).is_err());
        assert!(held[1].map(|_| {}).is_ok());
    });
}

#[test]
fn whoever_wants_the_block_whole_is_given_one() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 4);
        let views = [1, 3].map(|nth| held[nth].map(|_| {}).unwrap());
        [1, 3].into_iter().for_each(|nth| held[nth].show_all().unwrap());
        assert_eq!(
            views.map(|view| (1..4).map(|page| G::load(&world.pool, view + at(page)).unwrap()).collect::<Vec<_>>()),
            [vec![1, 0, 0], vec![1, 2, 3]]
        );
        let fork =
            Region::<G>::new(RegionCore::of_snapshot(&held[2].duplicate().unwrap(), RegionOptions::new()).unwrap());
        assert_eq!([1, 2, 3].map(|page| fork.read(at(page))), [Some(1), Some(2), Some(0)]);
        for (nth, frozen) in held.iter().enumerate() {
            assert_eq!(written(frozen, 4).iter().filter(|value| **value > 0).count(), nth);
        }
        assert_eq!(region.kept(), vec![0..2 * G::PAGES]);
    }
    where_pages_are_copied!(row, 16);
}

/// The bytes that other processes read of an export: those that its extents name.
fn exported<S: Sys>(frozen: &SnapshotCore<S>) -> Vec<u8> {
    let mut bytes = vec![0; frozen.len()];
    for extent in frozen.extents(BASE_PAGE).iter() {
        // SAFETY: the direct map spans the extent, which nobody writes while the snapshot keeps its blocks.
        let named =
            unsafe { std::slice::from_raw_parts(frozen.pool().sys.direct().add(extent.file_offset), extent.len) };
        bytes[extent.offset..extent.offset + extent.len].copy_from_slice(named);
    }
    bytes
}

/// In a full pool, an export takes no block, and keeps its pages after all other snapshots have dropped them.
#[test]
fn an_export_names_the_pages_where_they_are() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, mut held) = history(world, 5);
        let rest = world.fill();
        let before = (world.free(), slots(world));
        let kept = held[3].keep().unwrap();
        assert_eq!((world.free(), slots(world)), before);
        let mut bytes = vec![0; kept.len()];
        held[3].read(0, &mut bytes, Destination::Elsewhere).unwrap();
        assert!(exported(&kept) == bytes);
        let places: Vec<_> = kept.extents(BASE_PAGE).iter().map(|extent| (extent.offset, extent.len)).collect();
        assert_eq!(places[..2], [(0, BASE_PAGE), (BASE_PAGE, 3 * BASE_PAGE)], "three slots that lie beside each other");
        held.clear();
        drop(rest);
        (0..G::PAGES).for_each(|page| region.write(at(page), 99));
        let later = [region.snapshot(), region.snapshot()];
        drop(world.fill());
        assert!(exported(&kept) == bytes && written(&kept, 6) == [1, 2, 3, 0, 0]);
        drop((later, region));
        assert_eq!(slots(world), 3);
        drop(kept);
        assert_eq!(slots(world), 0);
    }
    where_pages_are_copied!(row, 8);
}

/// Other processes read the pages of an export where its list says, so they stay there, also after the export alone has
/// the block below.
#[test]
fn an_export_that_alone_has_a_block_keeps_its_pages_where_they_are() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 4);
        let kept = held[2].keep().unwrap();
        let places: Vec<_> = kept.extents(BASE_PAGE).iter().map(|extent| (extent.file_offset, extent.len)).collect();
        drop((held, region));
        world.pool.drop_unheld();
        let now: Vec<_> = kept.extents(BASE_PAGE).iter().map(|extent| (extent.file_offset, extent.len)).collect();
        assert_eq!((now, slots(world), written(&kept, 4)), (places, 2, vec![1, 2, 0]));
    }
    where_pages_are_copied!(row, 8);
}

/// The numbers of the pages that differ.
fn differing<S: Sys, N: Newer<S>>(newer: &N, older: &SnapshotCore<S>) -> Vec<usize> {
    let found = Found::new(newer, older, Precision::Page);
    found.flat_map(|range| range.unwrap().step_by(BASE_PAGE)).map(|at| at / BASE_PAGE).collect()
}

#[test]
fn changes_are_told_from_the_pages_and_take_no_block() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, held) = history(world, 5);
        let taken: Vec<BlockId> =
            std::iter::from_fn(|| world.pool.frames.take(BlockId(0), 0, 0, Wanted::Any, Reserved::No))
                .map(|taken| taken.first)
                .collect();
        for (newer, older) in (0..5).flat_map(|newer| (0..5).map(move |older| (newer, older))) {
            let expected: Vec<usize> = (newer.min(older) + 1..=newer.max(older)).collect();
            assert_eq!(differing(&*held[newer], &held[older]), expected, "{newer} and {older}");
        }
        region.write(at(6), 7);
        for (older, frozen) in held.iter().enumerate() {
            let expected: Vec<usize> = (older + 1..5).chain([6]).collect();
            assert_eq!(differing(&*region.space, frozen), expected, "of {older}");
        }
        for block in taken {
            world.pool.release(block);
        }
    }
    where_pages_are_copied!(row, 8);
}

/// Without a block for captured pages, or for a copy that a caller needs, no page is lost.
#[test]
fn a_full_pool_loses_no_page() {
    run_by_page::<Soft>(3, |world| {
        let region = written_by_choice(world, 2);
        let first = region.snapshot();
        region.write(at(1), 1);
        let second = region.snapshot();
        region.write(at(2), 2);
        assert_eq!((world.free(), slots(world)), (0, 1));
        let fork = |frozen: &SnapshotCore<SoftMmu>| {
            let options = RegionOptions::new().copy_grain(CopyGrain::Block);
            frozen.duplicate().and_then(|it| RegionCore::of_snapshot(&it, options)).map(drop)
        };
        let view = second.map(|_| {}).unwrap();
        assert_eq!((Soft::load(&world.pool, view + at(1)), second.show_all()), (None, Ok(())));
        assert_eq!([1, 2].map(|page| Soft::load(&world.pool, view + at(page))), [Some(1), Some(0)]);
        let full = fork(&second);
        assert!(matches!(full, Err(RegionError::PoolFull { .. })), "{full:?}");
        assert_eq!(written(&second, 3), [1, 0]);
        assert_eq!((written(&first, 3), region.read(at(1)), region.read(at(2))), (vec![0, 0], Some(1), Some(2)));
        drop(first);
        // There is a free slot by now.
        let third = region.snapshot();
        assert_eq!((written(&third, 3), written(&second, 3)), (vec![1, 2], vec![1, 0]));
    });
}

/// A write that finds no block looks again then: the thread with the turn may have taken the blocks that came back.
#[test]
fn while_a_thread_has_a_turn_there_may_be_sets_that_no_snapshot_has() {
    run_by_page::<Soft>(4, |world| {
        let region = written_by_choice(world, 2);
        let unheld = &world.pool.unheld;
        world.pool.drop_unheld();
        assert!(!unheld.may_be_any());
        let turn = region.captured.take_turn(&world.pool);
        assert!(unheld.may_be_any());
        world.pool.drop_unheld();
        assert!(unheld.may_be_any(), "this region's sets cannot be dropped now");
        drop(turn);
        world.pool.drop_unheld();
        assert!(!unheld.may_be_any());
    });
}

/// The pause of a cut of several regions keeps no writer off, and yet the cut shows one moment: the other thread writes
/// to one region and then to the other.
#[test]
fn a_cut_of_several_is_one_moment_for_writers_whom_nobody_keeps_off() {
    run_by_page::<Soft>(20, |world| {
        let regions = [written_by_choice(world, 2), written_by_choice(world, 2)];
        let cut = || freeze_all(&[&*regions[0].space, &*regions[1].space]).unwrap();
        let mut held = vec![cut()];
        for value in 1..3 {
            regions.iter().for_each(|region| region.write(at(1), value));
            held.push(cut());
        }
        assert!(regions.iter().all(|region| region.entry(0).is_writable_cow_mapping()));
        let stores = |values: [u8; 2]| [0, 1].map(|of| (regions[of].addresses.base() + at(1), values[of]));
        world.pool.sys.store_when_looked(stores([7, 8]));
        held.push(cut());
        // The first cut copied the blocks. From now on the engine knows that they are written by page.
        regions.iter().for_each(|region| region.write(at(1), 9));
        let before = (slots(world), [0, 1].map(|of| written_back(&regions[of])));
        world.pool.sys.store_when_looked(stores([10, 11]));
        held.push(cut());
        assert_eq!((slots(world), [0, 1].map(|of| written_back(&regions[of]))), (before.0 + 2, before.1));
        let seen: Vec<_> = held.iter().map(|cut| [0, 1].map(|of| read_at(&*cut[of], at(1)).unwrap())).collect();
        assert_eq!(seen, [[0, 0], [1, 1], [2, 2], [7, 8], [10, 11]]);
        drop((held, regions));
        assert_eq!(slots(world), 0);
    });
}

/// The pool has too few slots for all pages that count as written, but enough for those that differ. By the time the
/// snapshot finds this out, it has marked all of them as unwritten.
#[test]
fn what_was_marked_in_vain_counts_as_written() {
    run_by_page::<Soft>(3, |world| {
        let region = written_by_choice(world, 2);
        let mut held = vec![region.snapshot()];
        for value in 1..16 {
            region.write(at(1), value);
            held.push(region.snapshot());
        }
        assert_eq!((world.free(), slots(world)), (0, Soft::PAGES - 1));
        region.write(at(1), 99);
        [2, 3].into_iter().for_each(|page| region.write(at(page), 0));
        held.push(region.snapshot());
        let first: Vec<_> = held.iter().map(|frozen| written(frozen, 4)).map(|pages| (pages[0], pages[2])).collect();
        let expected: Vec<_> = (0..16).chain([99]).map(|value| (value, 0)).collect();
        assert_eq!((first, slots(world)), (expected, Soft::PAGES));
    });
}

/// A page that is written between its capture and the pause is in the snapshot as it is in the pause. Without such a
/// write, the snapshot has the captured page.
#[test]
fn a_write_between_the_look_and_the_pause_is_in_the_snapshot() {
    for is_written in [true, false] {
        run_by_page::<Soft>(8, |world| {
            world.pool.sys.set_tracking(false);
            let (region, held) = history(world, 2);
            region.write(at(2), 2);
            region.prepare_snapshot().unwrap();
            let free = world.free();
            let frozen =
                SnapshotCore::empty(&world.pool, region.table.len(), Derived::of(&region.accounts.cow), None, None);
            frozen.make_room_for_pages();
            if is_written {
                region.write(at(3), 3);
            }
            let parts = [Part::new(&region, frozen, None)];
            fill(&parts, None, || {}).unwrap();
            let expected = vec![1, 2, if is_written { 3 } else { 0 }];
            assert_eq!((written(&parts[0].frozen, 4), written(&held[1], 4)), (expected, vec![1, 0, 0]));
            assert_eq!((free - world.free(), slots(world)), (0, if is_written { 3 } else { 2 }));
        });
    }
}

/// The snapshot keeps no writer off, and copies only the pages written since the preparation. A block in which writes
/// are prepared is left to the snapshot.
#[test]
fn what_is_captured_beforehand_is_not_captured_again() {
    run_by_page::<Soft>(8, |world| {
        let (region, mut held) = history(world, 3);
        [at(1), Soft::BLOCK + at(1)].into_iter().for_each(|page| region.write(page, 9));
        region.prepare_snapshot().unwrap();
        assert_eq!(slots(world), 4);
        held.push(region.snapshot());
        assert_eq!(slots(world), 4);
        [at(1), at(3), Soft::BLOCK + at(2)].into_iter().for_each(|page| region.write(page, 8));
        region.prepare_write(Soft::BLOCK..2 * Soft::BLOCK).unwrap();
        region.prepare_snapshot().unwrap();
        assert_eq!(slots(world), 6);
        region.write(Soft::BLOCK + at(1), 7);
        held.push(region.snapshot());
        let of = |frozen: &SnapshotCore<SoftMmu>, block: usize| {
            (1..4).map(|page| read_at(frozen, block * Soft::BLOCK + at(page)).unwrap()).collect::<Vec<_>>()
        };
        let all = |block: usize| held.iter().map(|frozen| of(frozen, block)).collect::<Vec<_>>();
        assert_eq!(all(0), [[0, 0, 0], [1, 0, 0], [1, 2, 0], [9, 2, 0], [8, 2, 8]]);
        assert_eq!(all(1), [[0, 0, 0], [0, 0, 0], [0, 0, 0], [9, 0, 0], [7, 8, 0]]);
    });
}

/// A block to which nobody can have written keeps the last snapshot's set, and none of its pages is read.
#[test]
fn what_stays_write_protected_is_not_looked_at() {
    run_by_page::<Soft>(8, |world| {
        world.pool.sys.set_tracking(false);
        let (region, held) = history(world, 3);
        let set = |frozen: &SnapshotCore<SoftMmu>| frozen.pages_at(EntryIndex(0)).unwrap();
        let later = region.snapshot();
        assert!(set(&later).is(&set(&held[2])));
        region.write(at(1), 1);
        let again = region.snapshot();
        assert!(set(&again).is(&set(&held[2])), "compared, and the same");
        // A reset writes to private pages itself, but makes them writable for nobody.
        region.reset_to(&held[1]).unwrap();
        let back = region.snapshot();
        assert_eq!((written(&back, 3), written(&later, 3)), (vec![1, 0], vec![1, 2]));
    });
}

/// Where writes are tracked, all threads keep the right to write during a snapshot. A write takes the mark of its page
/// away, and so the snapshot finds the written pages.
#[test]
fn nobody_is_kept_off_where_writes_are_tracked() {
    fn row(world: &World<Soft>) {
        let (region, mut held) = history(world, 3);
        let is_writable = || region.entry(0).is_writable_cow_mapping();
        let protections = || world.pool.sys.calls(Call::Protect);
        // Writes without a fault.
        let store = |page, value| assert_eq!(world.pool.sys.store(region.addresses.base() + at(page), value), Ok(()));
        region.write(at(3), 3);
        let before = protections();
        held.push(region.snapshot());
        for nth in 4..7 {
            assert!(is_writable(), "{nth}");
            store(nth, nth as u8);
            store(1, nth as u8);
            held.push(region.snapshot());
        }
        assert_eq!(protections(), before);
        let set = |frozen: &SnapshotCore<SoftMmu>| frozen.pages_at(EntryIndex(0)).unwrap();
        held.push(region.snapshot());
        assert!(set(&held[7]).is(&set(&held[6])), "nothing was written");
        world.pool.sys.set_tracking(false);
        store(7, 7);
        held.push(region.snapshot());
        assert!(!is_writable());
        region.write(at(8), 8);
        held.push(region.snapshot());
        let expected: [&[u8]; 5] = [
            &[1, 2, 3, 0, 0, 0, 0, 0],
            &[4, 2, 3, 4, 0, 0, 0, 0],
            &[5, 2, 3, 4, 5, 0, 0, 0],
            &[6, 2, 3, 4, 5, 6, 0, 0],
            &[6, 2, 3, 4, 5, 6, 0, 0],
        ];
        assert_eq!(held[3..8].iter().map(|frozen| written(frozen, 9)).collect::<Vec<_>>(), expected);
        assert_eq!(written(&held[8], 9), [6, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(written(&held[9], 9), [6, 2, 3, 4, 5, 6, 7, 8]);
        drop((held, region));
        assert_eq!(slots(world), 0);
    }
    run_by_page::<Soft>(16, row);
}

#[test]
fn what_is_written_after_it_was_marked_is_in_the_snapshot() {
    run_by_page::<Soft>(16, |world| {
        let (region, mut held) = history(world, 3);
        region.write(at(3), 3);
        held.push(region.snapshot());
        region.write(at(4), 4);
        world.pool.sys.store_when_taken([(region.addresses.base() + at(1), 9)]);
        held.push(region.snapshot());
        assert_eq!((written(&held[3], 5), written(&held[4], 5)), (vec![1, 2, 3, 0], vec![9, 2, 3, 4]));
        // Later snapshots capture as before.
        held.push(region.snapshot());
        region.write(at(5), 5);
        held.push(region.snapshot());
        assert!(region.entry(0).is_writable_cow_mapping());
        assert_eq!(written(&held[6], 6), [9, 2, 3, 4, 5]);
    });
}

/// The pause scans for pages written since their capture only if other threads have had page faults since, and scans
/// again only if they had some meanwhile.
#[test]
fn the_pause_does_not_look_if_nobody_can_have_written() {
    run_by_page::<Soft>(16, |world| {
        let (region, mut held) = history(world, 3);
        let looks_of = |held: &mut Held<Soft>| {
            let before = world.pool.sys.calls(Call::Scan);
            held.push(region.snapshot());
            world.pool.sys.calls(Call::Scan) - before
        };
        region.write(at(3), 3);
        let _ = looks_of(&mut held);
        region.write(at(4), 4);
        let quiet = looks_of(&mut held);
        region.write(at(5), 5);
        world.pool.sys.store_when_taken([(region.addresses.base() + at(1), 9)]);
        assert!(looks_of(&mut held) > quiet);
        let seen: Vec<_> = held[3..].iter().map(|frozen| written(frozen, 6)).collect();
        assert_eq!(seen, [[1, 2, 3, 0, 0], [1, 2, 3, 4, 0], [9, 2, 3, 4, 5]]);
        region.write(at(6), 6);
        assert!(looks_of(&mut held) <= quiet);
        assert_eq!(written(held.last().unwrap(), 7), [9, 2, 3, 4, 5, 6]);
    });
}

/// The snapshot copies pages written after its scan behind the pause, so a thread that writes elsewhere goes on
/// meanwhile.
#[test]
fn what_is_written_after_the_look_is_captured_behind_the_pause() {
    // The last block lies in another window than the first.
    const BLOCKS: usize = 40;
    run_by_page::<Soft>(BLOCKS + 4, |world| {
        let region = written_by_choice(world, BLOCKS);
        let mut held = vec![region.snapshot()];
        for value in [1, 2] {
            [at(1), (BLOCKS - 1) * Soft::BLOCK + at(1)].into_iter().for_each(|page| region.write(page, value));
            held.push(region.snapshot());
        }
        let others = world.pool.take_slots(Soft::PAGES - slots(world));
        let (region, mmu, other) = (&region, &world.pool.sys, (BLOCKS - 1) * Soft::BLOCK + at(2));
        mmu.store_when_looked([(region.addresses.base() + at(1), 99)]);
        mmu.stop_at(Call::Obtain);
        let later = std::thread::scope(|scope| {
            let later = scope.spawn(|| region.snapshot());
            mmu.until_it_stops();
            region.write(other, 7);
            assert!(region.table.try_lock(EntryIndex(0)).is_none(), "a writer there waits");
            mmu.go_on();
            later.join().unwrap()
        });
        assert_eq!((read_at(&later, at(1)), read_at(&later, other)), (Ok(99), Ok(0)));
        assert_eq!((region.read(at(1)), region.read(other)), (Some(99), Some(7)));
        assert!(region.table.try_lock(EntryIndex(0)).is_some());
        world.pool.give_up_slots(others.into_iter());
        assert_eq!(slots(world), 5);
    });
}

/// The failed snapshot has marked pages without capturing them, so the next one must not rely on these marks.
#[test]
fn what_a_snapshot_could_not_capture_behind_its_pause_is_in_the_next() {
    const BLOCKS: usize = 40;
    run_by_page::<Soft>(BLOCKS + 4, |world| {
        let region = written_by_choice(world, BLOCKS);
        let mut held = vec![region.snapshot()];
        let places = [at(1), (BLOCKS - 1) * Soft::BLOCK + at(1)];
        for value in [1, 2] {
            places.into_iter().for_each(|page| region.write(page, value));
            held.push(region.snapshot());
        }
        let others = world.pool.take_slots(Soft::PAGES - slots(world));
        let filler = world.fill();
        let kept: Vec<_> = held.iter().map(|frozen| frozen.keep().unwrap()).collect();
        let base = region.addresses.base();
        world.pool.sys.store_when_looked(places.map(|page| (base + page, 9)));
        let refused = region.freeze();
        assert!(matches!(refused, Err(RegionError::PoolFull { .. })));
        world.pool.give_up_slots(others.into_iter());
        drop(filler);
        let later = region.snapshot();
        assert_eq!(places.map(|page| read_at(&later, page).unwrap()), [9; 2]);
        assert_eq!(places.map(|page| read_at(&kept[2], page).unwrap()), [2; 2]);
    });
}

/// A snapshot that finds no block for pages written after its scan is given up, and nothing of the region is lost.
#[test]
fn a_snapshot_that_cannot_capture_behind_its_pause_is_given_up() {
    run_by_page::<Soft>(8, |world| {
        let (region, held) = history(world, 3);
        let others = world.pool.take_slots(Soft::PAGES - slots(world));
        let frozen =
            SnapshotCore::empty(&world.pool, region.table.len(), Derived::of(&region.accounts.cow), None, None);
        frozen.make_room_for_pages();
        region.write(at(3), 77);
        let filler = world.fill();
        let before = [0, 1].map(|block| world.pool.frames.references(region.entry(block).block().unwrap()));
        let parts = [Part::new(&region, frozen, None)];
        let mut is_resumed = false;
        let failed = fill(&parts, None, || is_resumed = true);
        assert!(matches!(failed, Err(RegionError::PoolFull { .. })), "{failed:?}");
        assert!(is_resumed && parts[0].frozen.entries.iter().all(|entry| entry == Entry::Zero));
        let after = [0, 1].map(|block| world.pool.frames.references(region.entry(block).block().unwrap()));
        assert_eq!((after, region.read(at(3)), read_at(&held[1], at(3))), (before, Some(77), Ok(0)));
        region.write(at(3), 78);
        world.pool.give_up_slots(others.into_iter());
        drop(filler);
        let later = region.snapshot();
        assert_eq!((read_at(&later, at(3)), region.read(at(3))), (Ok(78), Some(78)));
    });
}

/// A cut captures the pages that operations in progress write before its pause, and keeps no writer off for that.
#[test]
fn a_cut_between_operations_captures_what_was_written_until_they_were_over() {
    run_by_page::<Soft>(16, |world| {
        let region = written_by_choice(world, 2);
        region.space.set_operations(&HeldOperations::new(Duration::MAX));
        let mut held = vec![region.snapshot()];
        region.write(at(1), 1);
        // The first snapshot begins the block's set.
        held.push(region.snapshot());
        region.write(at(2), 2);
        world.pool.sys.store_when_taken([(region.addresses.base() + at(3), 3)]);
        held.push(region.snapshot());
        assert!(region.entry(0).is_writable_cow_mapping(), "{:?}", region.entry(0));
        let seen: Vec<_> = held.iter().map(|frozen| written(frozen, 4)).collect();
        assert_eq!((seen, slots(world)), (vec![vec![0, 0, 0], vec![1, 0, 0], vec![1, 2, 3]], 3));
        region.write(at(3), 4);
        assert_eq!(written(&held[2], 4), [1, 2, 3]);
    });
}

/// Two snapshots of a history, and a third one, which waits for an operation. Page 2 was captured for it when
/// `meanwhile` is called. At the end, the snapshots have `held_pages` copies of pages.
fn beside_a_cut_that_waits(held_pages: usize, meanwhile: impl FnOnce(&World<Soft>)) {
    run_by_page::<Soft>(16, |world| {
        let (region, held) = history(world, 2);
        let operations = HeldOperations::new(Duration::MAX);
        region.space.set_operations(&operations);
        region.write(at(2), 2);
        let seat = operations.core().take_seat();
        operations.core().enter(seat);
        let later = std::thread::scope(|scope| {
            let later = scope.spawn(|| region.snapshot());
            let waits =
                || region.captured.waiting_cuts.load(Ordering::Relaxed) > 0 && !region.captured.freezing.is_taken();
            while !waits() {
                std::thread::yield_now();
            }
            meanwhile(world);
            operations.core().leave(seat);
            later.join().unwrap()
        });
        operations.core().vacate(seat);
        assert_eq!((slots(world), written(&held[1], 3), written(&later, 3)), (held_pages, vec![1, 0], vec![1, 2]));
    });
}

/// While a cut waits for operations, blocks become short, and the pool drops page sets that are in no snapshot.
#[test]
fn pages_that_were_captured_for_a_cut_that_waits_stay() {
    beside_a_cut_that_waits(2, |world| {
        world.pool.drop_unheld();
        assert_eq!(slots(world), 2);
    });
}

/// The write may be one that the operation needs for its end, and would fail. The cut captures the pages anew.
#[test]
fn a_write_that_finds_no_block_comes_before_the_pages_of_a_cut_that_waits() {
    beside_a_cut_that_waits(3, |world| {
        world.pool.drop_unheld();
        let _short = world.pool.note_writer_short_of_blocks();
        world.pool.drop_unheld();
        assert_eq!(slots(world), 1);
    });
}

/// The first pages that are captured beside a snapshot are found by their lost marks, as all later ones, and no writer
/// is kept off.
#[test]
fn nobody_is_kept_off_the_first_pages_that_are_captured() {
    run_by_page::<Soft>(8, |world| {
        let region = written_by_choice(world, 2);
        let earlier = region.snapshot();
        region.write(at(1), 1);
        let later = region.snapshot();
        assert!(region.entry(0).is_writable_cow_mapping(), "{:?}", region.entry(0));
        assert_eq!((written(&earlier, 2), written(&later, 2), slots(world)), (vec![0], vec![1], 1));
    });
}

/// While the pause scans for written pages, another thread writes here and then there: a snapshot with the second write
/// has the first.
#[test]
fn a_snapshot_is_one_moment_for_writers_whom_nobody_keeps_off() {
    run_by_page::<Soft>(16, |world| {
        let (region, block) = (written_by_choice(world, 3), world.pool.block_size.bytes());
        let (here, there) = (at(1), 2 * block + at(1));
        let mut held = vec![region.snapshot()];
        // The scan skips the discarded block in between.
        region.discard(block..2 * block).unwrap();
        for value in 1..3 {
            [here, there].into_iter().for_each(|at| region.write(at, value));
            held.push(region.snapshot());
        }
        let store = |at: usize, value: u8| (region.addresses.base() + at, value);
        world.pool.sys.store_when_looked([store(here, 7), store(there, 8)]);
        held.push(region.snapshot());
        let seen = |frozen: &SnapshotCore<SoftMmu>| [here, there].map(|at| read_at(frozen, at).unwrap());
        assert_eq!(held.iter().map(|frozen| seen(frozen)).collect::<Vec<_>>(), [[0, 0], [1, 1], [2, 2], [7, 8]]);
        // The first snapshots copied the blocks. From now on the engine captures their pages in the pause.
        [here, there].into_iter().for_each(|at| region.write(at, 9));
        held.push(region.snapshot());
        let free = (world.free(), slots(world));
        world.pool.sys.store_when_looked([store(here, 10), store(there, 11)]);
        held.push(region.snapshot());
        assert_eq!((world.free(), slots(world)), (free.0, free.1 + 2));
        region.write(here, 12);
        held.push(region.snapshot());
        assert_eq!([4, 5, 6].map(|nth| seen(&held[nth])), [[9, 9], [10, 11], [12, 11]]);
        drop((held, region));
        assert_eq!(slots(world), 0);
    });
}
