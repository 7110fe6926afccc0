//! Tests of the design's page grain: for a block that others hold too, the kernel copies each page that is written.

use std::sync::mpsc::channel;

use super::*;
use crate::pool::density;
use crate::pool::holders::CowMappingHolder;
use crate::pool::lineage::Derived;
use crate::region::cut::{Part, fill, freeze_all};

/// Runs a row if the ground can copy single pages.
pub(super) fn run_by_page<G: Ground>(blocks: usize, row: impl FnOnce(&World<G>)) {
    run::<G>(blocks, |world| {
        if world.pool.sys.has_cow_mappings() {
            row(world);
        } else {
            println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        }
    });
}

/// As [`run_by_page`] on the software MMU, in a process without other threads.
pub(super) fn run_alone_by_page(blocks: usize, row: impl FnOnce(&World<Soft>)) {
    run_by_page::<Soft>(blocks, |world| {
        world.pool.sys.set_alone(true);
        row(world);
    });
}

/// Runs a row on every ground that can copy single pages.
macro_rules! where_pages_are_copied {
    ($row:ident, $blocks:expr) => {
        run_by_page::<Soft>($blocks, $row);
        run_by_page::<Base>($blocks, $row);
        run_by_page::<Huge>($blocks, $row);
    };
}

pub(super) use where_pages_are_copied;

pub(super) fn by_page() -> RegionOptions {
    RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)
}

/// A region with the default grain, which the engine chooses by the writes that it sees. All pages have the pattern.
pub(super) fn written_by_choice<G: Ground>(world: &World<G>, blocks: usize) -> Region<G> {
    let region = RegionCore::zeros(&world.pool, blocks * G::BLOCK, RegionOptions::new()).unwrap();
    world.with_pattern(Region::new(region))
}

/// The number of blocks that pages were written back into, and the number of these pages.
pub(super) fn written_back<G: Ground>(region: &Region<G>) -> (u64, u64) {
    let counters = &region.counters;
    (counters.blocks_written_back.load(Ordering::Relaxed), counters.pages_written_back.load(Ordering::Relaxed))
}

pub(super) fn copied<G: Ground>(region: &Region<G>) -> u64 {
    region.counters.blocks_copied.load(Ordering::Relaxed)
}

/// Whether the block, which the region wrote itself, is CoW-mapped and writable.
pub(super) fn is_cow_mapped<G: Ground>(region: &Region<G>, block: usize) -> bool {
    region.entry(block).is_writable_cow_mapping() && region.entry(block).is_owner()
}

/// Whether the block, which the parent wrote, is CoW-mapped and writable.
pub(super) fn is_cow_mapped_and_inherited<G: Ground>(region: &Region<G>, block: usize) -> bool {
    region.entry(block).is_writable_cow_mapping() && !region.entry(block).is_owner()
}

/// Maintains a region's CoW mappings as the pool's thread does. The pools of these tests have no thread.
pub(super) fn maintain<G: Ground>(region: &Region<G>) {
    region.pool().maintenance.set_spare(region.pool().frames.available());
    let mut from = Some(0);
    while let Some(start) = from {
        from = region.maintain(start);
    }
}

#[test]
fn private_pages_are_counted_once_however_many_runs_there_are() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(4, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true));
        let _older = region.snapshot();
        // More runs than one scan returns at once, and than Linux handles in one step.
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
        assert!(is_cow_mapped(&region, 0) && is_cow_mapped(&region, 3));
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
        let faults = || region.counters.read().faults();
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
        assert_eq!((written_back(&region), world.free()), ((3, 6), 10 - 3 - 3));
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
        assert_eq!((region.block(0), world.free(), written_back(&region), copied(&region)), (block, 0, (1, 3), 0));
        assert_eq!(written.map(|at| read_at(&later, at).unwrap()), [7; 3]);
        region.write(100, 8);
        assert_eq!((region.read(100), read_at(&later, 100)), (Some(8), Ok(7)));
        assert_eq!((region.kept(), kept_by(&later)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        drop(rest);
    }
    where_pages_are_copied!(row, 4);
}

/// The write-back for a snapshot leaves CoW mappings in place. So the next write finds the whole region in one state,
/// and makes all of it writable at once.
#[test]
fn cow_mappings_stay_where_their_pages_went_into_blocks_for_a_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, 4);
        let snapshot = region.snapshot();
        let written = [G::BLOCK + BASE_PAGE + 100, 3 * G::BLOCK + 2 * BASE_PAGE + 100];
        written.iter().for_each(|&at| region.write(at, 7));
        drop(snapshot);
        let later = region.snapshot();
        assert!((0..4).all(|block| matches!(region.entry(block), Entry::CowMapped(_, _, Access::Read))));
        assert_eq!((written_back(&region).1, region.private_page_count()), (2, Ok(0)));
        region.write(written[0], 8);
        assert!((0..4).all(|block| is_cow_mapped(&region, block)), "with one fault");
        assert_eq!(written.map(|at| (region.read(at), read_at(&later, at))), [(Some(8), Ok(7)), (Some(7), Ok(7))]);
        assert_eq!((region.kept(), kept_by(&later)), (vec![0..4 * G::PAGES], vec![0..4 * G::PAGES]));
    }
    where_pages_are_copied!(row, 8);
}

#[test]
fn cow_mappings_that_are_dense_all_over_are_left_to_writers_and_copied_beside_them() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, BLOCKS);
        world.use_free_blocks();
        let snapshot = region.snapshot();
        let at = |block: usize, page: usize| block * G::BLOCK + page * BASE_PAGE + 100;
        let pages = 1..1 + density::dense_everywhere_pages(world.pool.block_size);
        region.write(at(0, 1), 7);
        assert!(region.are_alike(0) && is_cow_mapped(&region, BLOCKS - 1), "sparse");
        assert!(!region.are_alike(1), "more faults than the pages of most: somebody has to look");
        (0..BLOCKS).for_each(|block| pages.clone().for_each(|page| region.write(at(block, page), 7)));
        let turn = || region.captured.take_turn(&world.pool).number;
        let before = turn();
        assert!(!region.are_alike(0));
        assert_eq!(turn(), before + 2, "a cut that waits for operations is to look again");
        assert!((0..BLOCKS).all(|block| matches!(region.entry(block), Entry::CowMapped(_, _, Access::Read))));
        region.write(at(5, 1), 8);
        assert_eq!((copied(&region), matches!(region.entry(5), Entry::Private(_))), (1, true));
        let mut from = Some(0);
        while let Some(start) = from {
            from = region.maintain(start);
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

/// The kernel clears fresh memory first, which may take far longer than the copy. No writer may wait for that.
#[test]
fn dense_cow_mappings_are_copied_beside_their_writers_where_memory_is_fresh() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, BLOCKS);
        let snapshot = region.snapshot();
        let pages = 1..1 + density::left_to_writer_pages(world.pool.block_size);
        let written = |block: usize| pages.clone().map(move |page| (block, page));
        let at = |(block, page): (usize, usize)| block * G::BLOCK + page * BASE_PAGE + 100;
        (0..BLOCKS).flat_map(written).for_each(|page| region.write(at(page), 7));
        assert!(!region.are_alike(0), "somebody has to look");
        assert!((0..BLOCKS).all(|block| is_cow_mapped(&region, block)), "nothing is left to writers");
        maintain(&region);
        assert!((0..BLOCKS).all(|block| matches!(region.entry(block), Entry::Private(_))));
        let seen = |page| (region.read(at(page)), read_at(&snapshot, at(page)));
        assert!((0..BLOCKS).flat_map(written).all(|page| seen(page) == (Some(7), Ok(0))));
        assert_eq!((copied(&region), kept_by(&snapshot)), (0, vec![0..BLOCKS * G::PAGES]));
    }
    where_pages_are_copied!(row, 2 * BLOCKS + 16);
}

/// A region whose first block has so many pages written one by one that it is due for promotion, and its snapshot.
fn soon_promoted(region: Region<Soft>, world: &World<Soft>) -> (Region<Soft>, PinnedBox<SnapshotCore<SoftMmu>>) {
    let snapshot = region.snapshot();
    let pages = 1..1 + density::promoted_pages(world.pool.block_size);
    pages.for_each(|page| region.write(page * BASE_PAGE + 100, 7));
    assert!(is_cow_mapped(&region, 0));
    (region, snapshot)
}

fn promoted(region: &Region<Soft>) -> u64 {
    region.counters.blocks_promoted.load(Ordering::Relaxed)
}

#[test]
fn a_block_that_is_promoted_has_what_was_written_by_page() {
    run_by_page::<Soft>(8, |world| {
        let (region, snapshot) = soon_promoted(written_by_choice(world, 2), world);
        let (written, before) = (1..1 + density::promoted_pages(world.pool.block_size), region.block(0));
        assert_eq!(region.maintain(0), None);
        assert_eq!((promoted(&region), matches!(region.entry(0), Entry::Private(_))), (1, true));
        assert_ne!(region.block(0), before);
        let seen = |page: usize| region.read(page * BASE_PAGE + 100);
        assert!((0..Soft::PAGES).all(|page| seen(page) == Some(if written.contains(&page) { 7 } else { 0 })));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..2 * Soft::PAGES], vec![0..2 * Soft::PAGES]));
        assert_eq!(read_at(&snapshot, BASE_PAGE + 100), Ok(0));
    });
}

#[test]
fn nothing_is_promoted_into_blocks_that_a_write_has_not_found() {
    run_by_page::<Soft>(8, |world| {
        let (region, _snapshot) = soon_promoted(written_by_choice(world, 2), world);
        let short = world.pool.note_writer_short_of_blocks();
        assert_eq!(region.maintain(0), None);
        assert_eq!((promoted(&region), is_cow_mapped(&region, 0)), (0, true));
        drop(short);
        assert_eq!(region.maintain(0), None);
        assert_eq!(promoted(&region), 1);
    });
}

/// The software MMU panics if pages are copied that another thread can write to meanwhile.
#[test]
fn maintenance_keeps_writers_off_what_it_writes_back() {
    run_by_page::<Soft>(4, |world| {
        let region = written_by_choice(world, 2);
        let snapshot = region.snapshot();
        region.write(BASE_PAGE + 100, 7);
        let before = [region.block(0), region.block(1)];
        drop(snapshot);
        assert_eq!(region.maintain(0), None);
        assert!((0..2).all(|block| matches!(region.entry(block), Entry::Private(_))));
        assert_eq!(([region.block(0), region.block(1)], written_back(&region).1), (before, 1));
        assert_eq!((region.read(BASE_PAGE + 100), region.kept()), (Some(7), vec![0..2 * Soft::PAGES]));
    });
}

/// During the copy other threads go on, and by its end another block may lie below the pages.
#[test]
fn a_promotion_looks_again_at_what_it_has_copied() {
    run_by_page::<Soft>(8, |world| {
        // Where system calls wait, no page is captured.
        let options = RegionOptions::new().calls_wait(true);
        let region = RegionCore::zeros(&world.pool, 2 * Soft::BLOCK, options).unwrap();
        let (region, _snapshot) = soon_promoted(world.with_pattern(Region::new(region)), world);
        let (region, mmu, before) = (&region, &world.pool.sys, region.block(0));
        mmu.stop_at(Call::Obtain);
        let _later = std::thread::scope(|scope| {
            scope.spawn(|| region.maintain(0));
            mmu.until_it_stops();
            region.write(100, 8);
            // The snapshot writes the pages into a copy, which lies below the mapping from then on.
            let later = region.snapshot();
            region.write(5 * BASE_PAGE + 100, 9);
            assert!(is_cow_mapped(region, 0) && region.block(0) != before);
            mmu.go_on();
            later
        });
        assert_eq!(promoted(region), 0);
        assert_eq!([100, 5 * BASE_PAGE + 100].map(|at| region.read(at)), [Some(8), Some(9)]);
        assert_eq!(region.kept(), vec![0..2 * Soft::PAGES]);
    });
}

/// As soon as a region is CoW-mapped, its writers go on without a fault, so nothing would make them wait.
#[test]
fn no_writer_of_a_cut_goes_on_before_those_of_all_regions_are_kept_off() {
    run_by_page::<Soft>(8, |world| {
        let regions = [world.written_with(2, by_page()), world.written_with(2, by_page())];
        let (mmu, cores) = (&world.pool.sys, regions.each_ref().map(|region| &*region.space));
        mmu.stop_at(Call::CowMapping);
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

/// A page that becomes private after the write-back ahead of the snapshot is written back in the pause.
#[test]
fn pages_that_are_written_back_in_the_pause_leave_the_earlier_snapshot_as_it_was() {
    run_by_page::<Soft>(8, |world| {
        let region = written_by_choice(world, 2);
        let earlier = region.snapshot();
        region.write(BASE_PAGE + 100, 7);
        let frozen =
            SnapshotCore::empty(&world.pool, region.table.len(), Derived::of(&region.accounts.cow), None, None);
        let parts = [Part::new(&region, frozen, None)];
        fill(&parts, None, || {}).unwrap();
        let seen = |snapshot: &SnapshotCore<SoftMmu>| read_at(snapshot, BASE_PAGE + 100);
        assert_eq!((seen(&earlier), seen(&parts[0].frozen), region.read(BASE_PAGE + 100)), (Ok(0), Ok(7), Some(7)));
        assert_eq!(
            (kept_by(&earlier), kept_by(&parts[0].frozen)),
            (vec![0..2 * Soft::PAGES], vec![0..2 * Soft::PAGES])
        );
    });
}

/// A copy of a block would make its writer wait, and so would a write-protected block.
#[test]
fn the_writes_of_a_paced_program_go_by_page_and_dense_blocks_are_promoted_beside_them() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, BLOCKS);
        let snapshot = region.snapshot();
        world.pool.maintenance.set_paced(true);
        let at = |block: usize, page: usize| block * G::BLOCK + page * BASE_PAGE + 100;
        region.write(100, 7);
        assert_eq!((copied(&region), is_cow_mapped(&region, 0)), (0, true), "the first page, which may begin a stream");
        let pages = 1..1 + density::dense_everywhere_pages(world.pool.block_size);
        (0..BLOCKS).for_each(|block| pages.clone().for_each(|page| region.write(at(block, page), 7)));
        assert!(!region.are_alike(0), "somebody has to look");
        assert!((0..BLOCKS).all(|block| is_cow_mapped(&region, block)), "nothing is left to writers");
        let more = pages.end..1 + density::promoted_pages(world.pool.block_size);
        (0..BLOCKS).for_each(|block| more.clone().for_each(|page| region.write(at(block, page), 7)));
        maintain(&region);
        assert!((0..BLOCKS).all(|block| matches!(region.entry(block), Entry::Private(_))));
        let kept_before = |block: usize| read_at(&snapshot, at(block, 1));
        assert!((0..BLOCKS).all(|block| kept_before(block) == Ok(0)));
        drop(snapshot);
        // After the next snapshot the blocks are known to be dense: one page is enough for a promotion.
        let later = region.snapshot();
        (0..BLOCKS).for_each(|block| region.write(at(block, 1), 8));
        assert!((0..BLOCKS).all(|block| is_cow_mapped(&region, block)));
        assert!(!region.are_alike(0), "somebody has to look");
        maintain(&region);
        // With each snapshot, a few dense blocks go by page again, to see whether they are still dense.
        let promoted = (0..BLOCKS).filter(|&block| matches!(region.entry(block), Entry::Private(_))).count();
        assert!(promoted >= BLOCKS - BLOCKS.div_ceil(16), "{promoted}");
        let seen = |block: usize| [region.read(at(block, 1)).unwrap(), region.read(at(block, 2)).unwrap()];
        assert!((0..BLOCKS).all(|block| seen(block) == [8, 7]));
        assert!((0..BLOCKS).all(|block| read_at(&later, at(block, 1)) == Ok(7)));
        world.pool.maintenance.set_paced(false);
        region.write(at(0, 3), 9);
        assert_eq!(copied(&region), 0);
        drop(later);
        assert_eq!(kept_by(&region.snapshot()), vec![0..BLOCKS * G::PAGES]);
    }
    where_pages_are_copied!(row, 4 * BLOCKS + 16);
}

/// `prepare_write` guarantees that no write faults: a system call would fail with a fault.
#[test]
fn cow_mappings_of_a_dense_region_in_which_writes_are_prepared_stay_open() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, BLOCKS);
        world.use_free_blocks();
        let snapshot = region.snapshot();
        let at = |block: usize, page: usize| block * G::BLOCK + page * BASE_PAGE + 100;
        region.prepare_write(2 * G::BLOCK..BLOCKS * G::BLOCK).unwrap();
        let pages = 1..1 + density::dense_everywhere_pages(world.pool.block_size);
        (0..BLOCKS).for_each(|block| pages.clone().for_each(|page| region.write(at(block, page), 7)));
        region.are_alike(0);
        maintain(&region);
        let write_protected =
            (0..BLOCKS).filter(|&block| matches!(region.entry(block), Entry::CowMapped(_, _, Access::Read))).count();
        let open = (2..BLOCKS).filter(|&block| region.entry(block).is_writable_cow_mapping()).count();
        assert_eq!((write_protected, open), (0, BLOCKS - 2));
        // Only the blocks that were not prepared are copied as a whole.
        assert!((0..2).all(|block| matches!(region.entry(block), Entry::Private(_))));
        assert_eq!(kept_by(&snapshot), vec![0..BLOCKS * G::PAGES]);
    }
    where_pages_are_copied!(row, 2 * BLOCKS + 16);
}

/// The writer asked for the block before it was prepared, and gets its turn only now.
#[test]
fn a_write_that_comes_late_does_not_write_back_what_was_prepared_since() {
    fn row<G: Ground>(world: &World<G>) {
        let region = written_by_choice(world, 2);
        let snapshot = region.snapshot();
        region.prepare_write(0..2 * G::BLOCK).unwrap();
        drop(snapshot);
        region.resolve(100).unwrap();
        assert_eq!(
            (is_cow_mapped(&region, 0), written_back(&region)),
            (true, (0, 0)),
            "it was write-protected meanwhile"
        );
        // A pin writes the pages back all the same.
        region.pin(0..1).unwrap();
        assert!(matches!(region.entry(0), Entry::Private(_)));
        region.unpin(&(0..1));
    }
    where_pages_are_copied!(row, 6);
}

#[test]
fn what_was_prepared_is_not_written_back_by_the_snapshot() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(3, by_page());
        let earlier = region.snapshot();
        let at = |block: usize| block * G::BLOCK + BASE_PAGE + 100;
        (0..3).for_each(|block| region.write(at(block), 7));
        region.prepare_write(2 * G::BLOCK..3 * G::BLOCK).unwrap();
        region.prepare_snapshot().unwrap();
        assert_eq!([0, 1, 2].map(|block| region.read(at(block))), [Some(7); 3]);
        assert!((0..2).all(|block| matches!(region.entry(block), Entry::Private(_))));
        assert!(is_cow_mapped(&region, 2), "a promise stays");
        assert_eq!(region.private_page_count(), Ok(1));
        let copied_before = copied(&region);
        let later = region.snapshot();
        assert_eq!((region.private_page_count(), copied(&region) - copied_before), (Ok(0), 1));
        assert_eq!([0, 1, 2].map(|block| read_at(&earlier, at(block)).unwrap()), [0; 3]);
        assert_eq!([0, 1, 2].map(|block| read_at(&later, at(block)).unwrap()), [7; 3]);
        region.write(at(0), 8);
        assert_eq!((region.read(at(0)), read_at(&later, at(0))), (Some(8), Ok(7)));
    }
    where_pages_are_copied!(row, 16);
}

#[test]
fn nobody_gives_up_a_block_to_a_snapshot_that_is_only_prepared() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written_with(2, by_page());
        let snapshot = region.snapshot();
        let filler = world.fill();
        filler.lazy_free(0..G::BLOCK).unwrap();
        (0..2).for_each(|block| region.write(block * G::BLOCK + 100, 7));
        let refused = region.prepare_snapshot();
        assert!(matches!(refused, Err(RegionError::PoolFull { .. })), "{refused:?}");
        assert!(!snapshot.is_revoked() && kept_by(&snapshot) == vec![0..2 * G::PAGES]);
        assert_eq!((filler.read(0), region.read(100)), (Some(0), Some(7)));
        assert_eq!(filler.cancel_lazy_free(0..G::BLOCK), Ok(G::BLOCK), "nothing of it was dropped");
        // The snapshot itself does take the block that it needs.
        let later = region.snapshot();
        assert_eq!([0, 1].map(|block| read_at(&later, block * G::BLOCK + 100).unwrap()), [7; 2]);
    }
    where_pages_are_copied!(row, 5);
}

/// A snapshot would not scan the mappings that are write-protected after its own look, and would miss what was written
/// there since.
#[test]
fn no_snapshot_begins_while_all_cow_mappings_are_left_to_writers() {
    const BLOCKS: usize = 36;
    fn row<G: Ground>(world: &World<G>) {
        let region = &written_by_choice(world, BLOCKS);
        world.use_free_blocks();
        let snapshot = region.snapshot();
        let at = |block: usize, page: usize| block * G::BLOCK + page * BASE_PAGE + 100;
        let pages = 1..1 + density::dense_everywhere_pages(world.pool.block_size);
        (0..BLOCKS).for_each(|block| pages.clone().for_each(|page| region.write(at(block, page), 7)));
        let last = region.table.lock(EntryIndex(BLOCKS - 1));
        let (tell, told) = channel();
        let later = std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(this_thread()).unwrap();
                assert!(!region.are_alike(0));
            });
            until_it_waits(told.recv().unwrap());
            assert!(region.captured.freezing.try_lock().is_none(), "a snapshot may begin");
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
        assert_eq!((region.block(1), world.free(), written_back(&region)), (before[1], free - 1, (1, 1)));
        assert_eq!((read_at(&snapshot, 100), read_at(&later, 100), region.read(100)), (Ok(0), Ok(7), Some(7)));
        assert_eq!((kept_by(&snapshot), kept_by(&later)), (vec![0..2 * G::PAGES], vec![0..2 * G::PAGES]));
        drop(snapshot);
        assert_eq!(world.free(), free, "the block that only it had");
    }
    where_pages_are_copied!(row, 4);
}

/// If no block is left for the copy, an earlier snapshot loses its own, as with any other write.
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
