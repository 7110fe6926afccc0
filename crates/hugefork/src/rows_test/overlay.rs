//! What the design says of page grain: of blocks that others hold too, the kernel copies the pages that are written.

use std::sync::mpsc::channel;

use super::*;
use crate::Observer;
use crate::pool::holders::OverlayHolder;
use crate::pool::lineage::Derived;
use crate::region::cut::{Part, fill, freeze_all};
use crate::region::density::Density;
use crate::region::lazy_free::LazyFreed;
use crate::region::unresolved::Unresolved;
use crate::stats::counters;
use crate::terms::options::OnLimit;

/// Runs a row where single pages can be copied.
fn run_by_page<G: Ground>(blocks: usize, row: impl FnOnce(&World<G>)) {
    run::<G>(blocks, |world| {
        if world.pool.sys.has_overlays() {
            row(world);
        } else {
            println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        }
    });
}

/// Runs a row on every ground where single pages can be copied.
macro_rules! where_pages_are_copied {
    ($row:ident, $blocks:expr) => {
        run_by_page::<Soft>($blocks, $row);
        run_by_page::<Base>($blocks, $row);
        run_by_page::<Huge>($blocks, $row);
    };
}

fn by_page() -> RegionOptions {
    RegionOptions::new().copy_grain(CopyGrain::Page)
}

/// A region that chooses by what it sees, with the pattern in all pages.
fn written_by_choice<G: Ground>(world: &World<G>, blocks: usize) -> Region<G> {
    let region = RegionCore::zeros(&world.pool, blocks * G::BLOCK, RegionOptions::new()).unwrap();
    world.with_pattern(Region::new(region))
}

/// How often pages were put back into blocks, and how many there were.
fn folded<G: Ground>(region: &Region<G>) -> (u64, u64) {
    let counters = &region.counters;
    (counters.blocks_folded.load(Ordering::Relaxed), counters.pages_folded.load(Ordering::Relaxed))
}

fn copied<G: Ground>(region: &Region<G>) -> u64 {
    region.counters.blocks_copied.load(Ordering::Relaxed)
}

/// Whether the kernel copies pages over a block that the region wrote itself.
fn is_overlaid<G: Ground>(region: &Region<G>, block: usize) -> bool {
    matches!(region.entry(block), Entry::Overlaid(..)) && region.entry(block).is_owner()
}

/// Whether the kernel copies pages over a block of the parent.
fn is_overlaid_and_borrowed<G: Ground>(region: &Region<G>, block: usize) -> bool {
    matches!(region.entry(block), Entry::Overlaid(..)) && !region.entry(block).is_owner()
}

#[test]
fn private_pages_are_counted_once_however_many_runs_there_are() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, RegionOptions::new().copy_grain(CopyGrain::Page));
        let _older = region.snapshot();
        // Fewer than are asked for at once and could be, and more than Linux takes in one step.
        (0..2 * G::PAGES - 1).for_each(|nth| region.write(2 * nth * BASE_PAGE, 7));
        assert_eq!(region.private_page_count().unwrap(), 2 * G::PAGES - 1);
    }
    where_pages_are_copied!(row, 16);
}

#[test]
fn a_write_by_page_leaves_the_snapshot_as_it_was_and_takes_no_block() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, by_page());
        let (free, before) = (world.free(), [0, 1, 2, 3].map(|at| region.block(at)));
        let snapshot = region.snapshot();
        let written = [100, 3 * G::BLOCK + 2 * BASE_PAGE + 100, 4 * G::BLOCK - 100];
        written.iter().for_each(|&at| region.write(at, 7));
        assert_eq!((world.free(), copied(&region)), (free, 0));
        assert_eq!([0, 1, 2, 3].map(|at| region.block(at)), before, "the snapshot's, shown through private pages");
        assert!(is_overlaid(&region, 0) && is_overlaid(&region, 3));
        assert_eq!(written.map(|at| region.read(at)), [Some(7); 3]);
        assert_eq!(written.map(|at| read_at(&snapshot, at).unwrap()), [0; 3]);
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..4 * G::PAGES], vec![0..4 * G::PAGES]));
    }
    where_pages_are_copied!(row, 4);
}

#[test]
fn blocks_are_shown_by_page_from_the_snapshot_on_and_no_write_faults() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, by_page());
        let snapshot = region.snapshot();
        let faults = || counters::read(&region.counters).faults();
        let before = faults();
        (0..4 * G::PAGES).for_each(|page| region.write(page * BASE_PAGE + 100, 7));
        assert_eq!((faults(), kept_by(&snapshot)), (before, vec![0..4 * G::PAGES]));
        assert!((0..4 * G::PAGES).all(|page| region.read(page * BASE_PAGE + 100) == Some(7)));
    }
    where_pages_are_copied!(row, 4);
}

#[test]
fn a_later_snapshot_has_what_was_written_since_the_earlier() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(3, by_page());
        let at = G::BLOCK + BASE_PAGE + 100;
        let snapshots: Vec<_> = (1..=4)
            .map(|value| {
                let snapshot = region.snapshot();
                region.write(at, value);
                region.write(at + BASE_PAGE, 10 + value);
                snapshot
            })
            .collect();
        for (value, snapshot) in (0..).zip(&snapshots) {
            let expected = if value == 0 { (0, 0) } else { (value, 10 + value) };
            assert_eq!((read_at(snapshot, at), read_at(snapshot, at + BASE_PAGE)), (Ok(expected.0), Ok(expected.1)));
            assert_eq!(kept_by(snapshot), vec![0..3 * G::PAGES]);
        }
        assert_eq!((region.read(at), region.read(at + BASE_PAGE)), (Some(4), Some(14)));
        assert_eq!(region.kept(), vec![0..3 * G::PAGES]);
        // The last pages are still private.
        assert_eq!((folded(&region), world.free()), ((3, 6), 10 - 3 - 3));
    }
    where_pages_are_copied!(row, 10);
}

#[test]
fn pages_go_back_into_their_block_if_nobody_else_holds_it() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        let written = [100, 2 * BASE_PAGE + 100, 3 * BASE_PAGE + 100];
        written.iter().for_each(|&at| region.write(at, 7));
        let (block, rest) = (region.block(0), world.fill());
        drop(snapshot);
        let later = region.snapshot();
        assert_eq!((region.block(0), world.free(), folded(&region), copied(&region)), (block, 0, (1, 3), 0));
        assert_eq!(written.map(|at| read_at(&later, at).unwrap()), [7; 3]);
        region.write(100, 8);
        assert_eq!((region.read(100), read_at(&later, 100)), (Some(8), Ok(7)));
        assert_eq!((region.kept(), kept_by(&later)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        drop(rest);
    }
    where_pages_are_copied!(row, 4);
}

/// So that the next write finds the whole region in one state, and gets it back at once.
#[test]
fn overlays_stay_where_their_pages_went_into_blocks_for_a_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, 4);
        let snapshot = region.snapshot();
        let written = [G::BLOCK + BASE_PAGE + 100, 3 * G::BLOCK + 2 * BASE_PAGE + 100];
        written.iter().for_each(|&at| region.write(at, 7));
        drop(snapshot);
        let later = region.snapshot();
        assert!((0..4).all(|block| matches!(region.entry(block), Entry::Sealed(..))));
        assert_eq!((folded(&region).1, region.private_page_count()), (2, Ok(0)));
        region.write(written[0], 8);
        assert!((0..4).all(|block| is_overlaid(&region, block)), "with one fault");
        assert_eq!(written.map(|at| (region.read(at), read_at(&later, at))), [(Some(8), Ok(7)), (Some(7), Ok(7))]);
        assert_eq!((region.kept(), kept_by(&later)), (vec![0..4 * G::PAGES], vec![0..4 * G::PAGES]));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn overlays_that_are_dense_all_over_are_left_to_writers_and_copied_beside_them() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, BLOCKS);
        let snapshot = region.snapshot();
        let at = |block: usize, page: usize| block * G::BLOCK + page * BASE_PAGE + 100;
        let pages = 1..1 + Density::everywhere(world.pool.block_size);
        region.write(at(0, 1), 7);
        assert!(region.are_alike(0) && is_overlaid(&region, BLOCKS - 1), "sparse");
        assert!(!region.are_alike(1), "more faults than the pages of most: somebody has to look");
        (0..BLOCKS).for_each(|block| pages.clone().for_each(|page| region.write(at(block, page), 7)));
        assert!(!region.are_alike(0));
        assert!((0..BLOCKS).all(|block| matches!(region.entry(block), Entry::Sealed(..))));
        region.write(at(5, 1), 8);
        assert_eq!((copied(&region), matches!(region.entry(5), Entry::Private(_))), (1, true));
        let mut from = Some(0);
        while let Some(start) = from {
            from = region.tend(start);
        }
        assert_eq!((0..BLOCKS).find(|&block| !matches!(region.entry(block), Entry::Private(_))), None);
        assert_eq!(copied(&region), BLOCKS as u64);
        let seen = |block: usize| pages.clone().map(move |page| (block, page));
        assert!((0..BLOCKS).flat_map(seen).all(|(block, page)| {
            let now = if (block, page) == (5, 1) { 8 } else { 7 };
            (region.read(at(block, page)), read_at(&snapshot, at(block, page))) == (Some(now), Ok(0))
        }));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..BLOCKS * G::PAGES], vec![0..BLOCKS * G::PAGES]));
    }
    where_pages_are_copied!(row, 2 * BLOCKS + 16);
}

/// A region whose first block is written to by page so often that it is to be promoted, and its snapshot.
fn soon_promoted(world: &World<Soft>) -> (Region<Soft>, Fixed<SnapshotCore<SoftMmu>>) {
    let region = written_by_choice(world, 2);
    let snapshot = region.snapshot();
    let pages = 1..1 + Density::soon_enough(world.pool.block_size);
    pages.for_each(|page| region.write(page * BASE_PAGE + 100, 7));
    assert!(is_overlaid(&region, 0));
    (region, snapshot)
}

fn promoted(region: &Region<Soft>) -> u64 {
    region.counters.blocks_promoted.load(Ordering::Relaxed)
}

#[test]
fn a_block_that_is_promoted_has_what_was_written_by_page() {
    run_by_page::<Soft>(8, |world| {
        let (region, snapshot) = soon_promoted(world);
        let (written, before) = (1..1 + Density::soon_enough(world.pool.block_size), region.block(0));
        assert_eq!(region.tend(0), None);
        assert_eq!((promoted(&region), matches!(region.entry(0), Entry::Private(_))), (1, true));
        assert_ne!(region.block(0), before);
        let seen = |page: usize| region.read(page * BASE_PAGE + 100);
        assert!((0..Soft::PAGES).all(|page| seen(page) == Some(if written.contains(&page) { 7 } else { 0 })));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..2 * Soft::PAGES], vec![0..2 * Soft::PAGES]));
        assert_eq!(read_at(&snapshot, BASE_PAGE + 100), Ok(0));
    });
}

/// The software MMU lets nobody copy pages that are written to meanwhile.
#[test]
fn the_thread_keeps_writers_off_what_it_folds() {
    run_by_page::<Soft>(4, |world| {
        let region = written_by_choice(world, 2);
        let snapshot = region.snapshot();
        region.write(BASE_PAGE + 100, 7);
        let before = [region.block(0), region.block(1)];
        drop(snapshot);
        assert_eq!(region.tend(0), None);
        assert!((0..2).all(|block| matches!(region.entry(block), Entry::Private(_))));
        assert_eq!(([region.block(0), region.block(1)], folded(&region).1), (before, 1));
        assert_eq!((region.read(BASE_PAGE + 100), region.kept()), (Some(7), vec![0..2 * Soft::PAGES]));
    });
}

/// While the block is copied others go on, and another block may come to lie below.
#[test]
fn a_promotion_looks_again_at_what_it_has_copied() {
    run_by_page::<Soft>(8, |world| {
        let (region, _snapshot) = soon_promoted(world);
        let (region, mmu, before) = (&region, &world.pool.sys, region.block(0));
        mmu.stop_at(Call::Obtain);
        let _later = std::thread::scope(|scope| {
            scope.spawn(|| region.tend(0));
            mmu.until_it_stops();
            region.write(100, 8);
            // The pages go into a copy, which is below from then on.
            let later = region.snapshot();
            region.write(5 * BASE_PAGE + 100, 9);
            assert!(is_overlaid(region, 0) && region.block(0) != before);
            mmu.go_on();
            later
        });
        assert_eq!(promoted(region), 0);
        assert_eq!([100, 5 * BASE_PAGE + 100].map(|at| region.read(at)), [Some(8), Some(9)]);
        assert_eq!(region.kept(), vec![0..2 * Soft::PAGES]);
    });
}

/// As soon as a region is shown by page, its writers go on, without a fault that would wait.
#[test]
fn no_writer_of_a_cut_goes_on_before_those_of_all_regions_are_kept_off() {
    run_by_page::<Soft>(8, |world| {
        let regions = [world.written_with(2, by_page()), world.written_with(2, by_page())];
        let (mmu, cores) = (&world.pool.sys, regions.each_ref().map(|region| &*region.space));
        mmu.stop_at(Call::Overlay);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| freeze_all(&cores).map(drop));
            mmu.until_it_stops();
            let are_held = cores.map(|core| mmu.is_held(core.addresses.base()));
            mmu.go_on();
            taken.join().unwrap().unwrap();
            assert_eq!(are_held, [true; 2]);
        });
        assert!(regions.iter().all(|region| region.kept() == vec![0..2 * Soft::PAGES]));
    });
}

/// What becomes private after the look ahead is folded in the pause.
#[test]
fn pages_that_are_folded_in_the_pause_leave_the_earlier_snapshot_as_it_was() {
    run_by_page::<Soft>(8, |world| {
        let region = written_by_choice(world, 2);
        let earlier = region.snapshot();
        region.write(BASE_PAGE + 100, 7);
        let sealed = region.books.sealed.load(Ordering::Relaxed);
        let frozen = SnapshotCore::empty(&world.pool, region.table.len(), Derived::of(&region.books.cow), None);
        let parts = [Part { region: &region, frozen, sealed }];
        fill(&parts).unwrap();
        let seen = |snapshot: &SnapshotCore<SoftMmu>| read_at(snapshot, BASE_PAGE + 100);
        assert_eq!((seen(&earlier), seen(&parts[0].frozen), region.read(BASE_PAGE + 100)), (Ok(0), Ok(7), Some(7)));
        assert_eq!(
            (kept_by(&earlier), kept_by(&parts[0].frozen)),
            (vec![0..2 * Soft::PAGES], vec![0..2 * Soft::PAGES])
        );
    });
}

/// It would not look at what is sealed after its own look, and would miss what was written there since.
#[test]
fn no_snapshot_begins_while_all_overlays_are_left_to_writers() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = &written_by_choice(world, BLOCKS);
        let snapshot = region.snapshot();
        let at = |block: usize, page: usize| block * G::BLOCK + page * BASE_PAGE + 100;
        let pages = 1..1 + Density::everywhere(world.pool.block_size);
        (0..BLOCKS).for_each(|block| pages.clone().for_each(|page| region.write(at(block, page), 7)));
        let last = region.table.lock(EntryIndex(BLOCKS - 1));
        let (tell, told) = channel();
        let later = std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(this_thread()).unwrap();
                assert!(!region.are_alike(0));
            });
            until_it_waits(told.recv().unwrap());
            assert!(region.freezing.try_lock().is_none(), "a snapshot may begin");
            region.write(at(BLOCKS - 1, 0), 8);
            drop(last);
            region.snapshot()
        });
        assert_eq!((read_at(&later, at(BLOCKS - 1, 0)), read_at(&snapshot, at(BLOCKS - 1, 0))), (Ok(8), Ok(0)));
    }
    where_pages_are_copied!(row, 2 * BLOCKS + 16);
}

#[test]
fn pages_go_into_a_copy_of_their_block_if_others_hold_it() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        region.write(100, 7);
        let (before, free) = ([region.block(0), region.block(1)], world.free());
        let later = region.snapshot();
        assert_ne!(region.block(0), before[0]);
        assert_eq!((region.block(1), world.free(), folded(&region)), (before[1], free - 1, (1, 1)));
        assert_eq!((read_at(&snapshot, 100), read_at(&later, 100), region.read(100)), (Ok(0), Ok(7), Some(7)));
        assert_eq!((kept_by(&snapshot), kept_by(&later)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        drop(snapshot);
        assert_eq!(world.free(), free, "the block that only it had");
    }
    where_pages_are_copied!(row, 4);
}

/// If no block is left for the copy, an earlier snapshot loses its own, as at any other write.
#[test]
fn a_snapshot_that_finds_no_block_for_pages_takes_the_earlier_ones() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        region.write(100, 7);
        let rest = world.fill();
        let later = region.snapshot();
        assert_eq!(
            (read_at(&snapshot, 0), read_at(&snapshot, G::BLOCK)),
            (Err(RegionError::Revoked), Ok(pattern(G::PAGES)))
        );
        assert_eq!(
            (read_at(&later, 100), kept_by(&later), region.kept()),
            (Ok(7), vec![0..2 * G::PAGES], vec![0..2 * G::PAGES])
        );
        drop(rest);
    }
    where_pages_are_copied!(row, 4);
}

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
        // A part of a block: the rest of its private pages stays.
        region.discard(G::BLOCK..G::BLOCK + BASE_PAGE).unwrap();
        let seen = [G::BLOCK + 100, G::BLOCK + BASE_PAGE + 100].map(|at| region.read(at));
        assert_eq!((seen, region.kept()), ([Some(0), Some(7)], vec![G::PAGES + 1..3 * G::PAGES]));
        assert_eq!((kept_by(&snapshot), read_at(&snapshot, G::BLOCK + 100)), (vec![0..3 * G::PAGES], Ok(0)));
        drop(snapshot);
        // The third block is held alone now, and goes back.
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
        assert_eq!((folded(&region), copied(&region)), ((3, 3), 0));
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
        assert_eq!((region.cancel_lazy_free(0..2 * G::BLOCK), folded(&region)), (Ok(0), (0, 0)));
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
        assert_eq!((region.block(1), folded(&region)), (before[1], (2, 2)), "in place");
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
        assert_eq!((folded(&region), world.free()), ((0, 0), free), "there is memory for all of it");
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
        assert_eq!((is_overlaid_and_borrowed(&fork, 0), world.free()), (true, free));
        let grandchild = fork.fork(by_page());
        assert_eq!((world.free(), fork.block(1)), (free - 1, region.block(1)), "a copy for what both have now");
        grandchild.write(100, 8);
        fork.write(200, 9);
        assert!(is_overlaid(&fork, 0) && is_overlaid_and_borrowed(&grandchild, 0));
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
        let fork = region.fork(reserved().copy_grain(CopyGrain::Page));
        fork.write(100, 7);
        let rest = world.fill();
        assert_eq!((world.reserved(), is_overlaid_and_borrowed(&fork, 0)), (2, true));
        region.write(200, 9);
        assert_eq!((world.reserved(), matches!(fork.entry(0), Entry::Private(_))), (1, true));
        assert_eq!((fork.read(100), fork.read(200), region.read(100)), (Some(7), Some(0), Some(0)));
        fork.write(G::BLOCK + 100, 8);
        assert_eq!(world.reserved(), 1, "private pages take no block");
        let snapshot = fork.snapshot();
        assert_eq!((world.reserved(), read_at(&snapshot, G::BLOCK + 100)), (0, Ok(8)));
        assert_eq!((region.kept(), fork.kept()), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        drop(rest);
    }
    where_pages_are_copied!(row, 6);
}

#[test]
fn each_block_that_is_shown_by_page_counts_towards_the_limit() {
    fn row<G: Ground>(world: &World<G>) {
        let limited = by_page().max_cow_bytes(2 * G::BLOCK, OnLimit::Fail);
        let region = world.written_with(4, limited);
        let snapshot = region.snapshot();
        assert_eq!(region.books.cost(), 0, "nothing before the first write");
        region.write(100, 7);
        region.write(G::BLOCK + 100, 7);
        assert_eq!((region.books.cost(), is_overlaid(&region, 2)), (2, false));
        assert_eq!(region.resolve(2 * G::BLOCK), Err(Unresolved::CowLimit(OnLimit::Fail)));
        region.write(200, 8);
        // What has become a copy costs what it did before.
        region.prepare_write(0..2 * G::BLOCK).unwrap();
        assert_eq!((region.books.cost(), region.resolve(2 * G::BLOCK)), (2, Err(Unresolved::CowLimit(OnLimit::Fail))));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..4 * G::PAGES], vec![0..4 * G::PAGES]));
        drop(snapshot);
        assert_eq!(region.books.cost(), 0);
        let later = region.snapshot();
        region.write(2 * G::BLOCK + 100, 9);
        assert_eq!((region.read(2 * G::BLOCK + 100), read_at(&later, 2 * G::BLOCK + 100)), (Some(9), Ok(0)));
        assert!(region.books.cost() <= 2);
    }
    where_pages_are_copied!(row, 10);
}

/// Is told, and does nothing.
struct Deaf;

impl Observer for Deaf {
    fn invalidate_start(&self, _: Range<usize>) {}
    fn invalidate_end(&self, _: Range<usize>) {}
}

/// The kernel tells nobody which pages it copies.
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
        assert!(is_overlaid_and_borrowed(&fork, 0));
    }
    where_pages_are_copied!(row, 8);
}

/// Real memory cannot be made to fail here.
#[test]
fn pages_that_cannot_be_put_back_stay_private_and_nothing_is_lost() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>, refused: Option<Call>, failing: [Call; 2]) {
        world.pool.sys.fail(refused.map(|call| (call, 0)));
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        region.write(100, 7);
        let free = world.free();
        // Once with a part of the call carried out, and once with nothing.
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
    run_by_page::<Soft>(6, |world| row(world, Some(Call::SetAside), [Call::Scan, Call::Protect]));
}

#[test]
fn where_nobody_can_be_held_writers_are_kept_off_by_protection() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let sys = &world.pool.sys;
        let region = world.written_with(2, by_page());
        let snapshots: Vec<_> = (1..6)
            .map(|round| {
                region.write(100, round);
                // At the fold, which is ahead of the snapshot, and in the pause.
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

/// What lies aside has the right to write that it had before.
#[test]
fn what_cannot_be_shown_by_page_in_the_pause_cannot_be_written_either() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let sys = &world.pool.sys;
        let region = world.written_with(2, by_page());
        // Once with a call that was carried out all the same, and once with one that did nothing.
        for round in 1..5 {
            region.prepare_write(0..2 * G::BLOCK).unwrap();
            sys.fail(Some((Call::Overlay, 0)));
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

/// A second try would take the region lock twice, and wait for ever if a snapshot had asked for it in between.
#[test]
fn a_write_that_may_not_unseal_fails_at_once_and_the_next_one_does_it() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = written_by_choice(world, 2);
        let snapshot = region.snapshot();
        region.write(2 * BASE_PAGE + 100, 1);
        // The neighbour is shown by page too and has no private pages, so it is sealed.
        let later = region.snapshot();
        assert!(matches!(region.entry(1), Entry::Sealed(..)), "{:?}", region.entry(1));
        world.pool.sys.fail(Some((Call::Protect, 0)));
        let at = G::BLOCK + 2 * BASE_PAGE + 100;
        let refused = region.resolve(at);
        assert!(matches!(refused, Err(Unresolved::Unmappable(_))), "{refused:?}");
        region.write(at, 2);
        assert_eq!((region.read(at), read_at(&snapshot, at), read_at(&later, at)), (Some(2), Ok(0), Ok(0)));
    }
    run_by_page::<Soft>(8, row);
}

/// The kernel shows the blocks by page, and then refuses to make all of that writable. What somebody has written to a
/// part that is would be lost if the blocks were shown again.
#[test]
fn a_write_to_what_is_just_being_shown_by_page_is_not_lost_if_the_right_to_write_is_refused() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = written_by_choice(world, 2);
        let (snapshot, sys) = (region.snapshot(), &world.pool.sys);
        let (at, other) = (G::BLOCK + BASE_PAGE + 100, BASE_PAGE + 100);
        sys.fail(Some((Call::Protect, 0)));
        sys.write_after_failure(region.address_of(0) + other, 8);
        assert!(matches!(region.resolve(at), Err(Unresolved::Unmappable(_))));
        assert!(sys.has_written() && region.read(other) == Some(8), "it is lost");
        region.write(at, 9);
        assert_eq!((region.read(other), region.read(at)), (Some(8), Some(9)));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        let later = region.snapshot();
        assert_eq!((read_at(&later, other), read_at(&snapshot, other)), (Ok(8), Ok(0)));
    }
    run_by_page::<Soft>(6, row);
}
