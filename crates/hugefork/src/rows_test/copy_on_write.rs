//! Tests of the design's copy-on-write, pins and observers.

use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::mpsc::channel;

use super::*;
use crate::Observer;
use crate::pool::lineage::Derived;
use crate::region::cut::{Part, fill, freeze_all};
use crate::table::Reserved;
use crate::units::BlockId;

#[test]
fn a_snapshot_adds_a_reference_to_every_block_and_write_protects_in_one_call() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, free) = (world.written(4), world.free());
        let references = || [0, 1, 2, 3].map(|at| world.pool.frames.references(region.entry(at).block().unwrap()));
        let calls = G::calls(&world.pool, Call::Protect);
        let snapshot = region.snapshot();
        assert_eq!(G::calls(&world.pool, Call::Protect), calls.map(|calls| calls + 1));
        assert_eq!((references(), world.free()), ([2; 4], free), "nothing is copied");
        let fork = region.fork(RegionOptions::new());
        assert_eq!((references(), world.free()), ([3; 4], free));
        assert_eq!((kept_by(&snapshot), fork.kept()), (vec![0..4 * G::PAGES], vec![0..4 * G::PAGES]));
    }
    everywhere!(row, 8);
}

#[test]
fn a_snapshot_is_mapped_on_first_use() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let snapshot = region.snapshot();
        assert_eq!(snapshot.view(), None);
        region.write(100, 7);
        let mut entered = None;
        let enter = |base| {
            assert_eq!(snapshot.view(), None, "a fault there would not find the snapshot");
            entered = Some(base);
        };
        let base = snapshot.map(enter).unwrap();
        assert_eq!((entered, snapshot.view()), (Some(base), Some(base)));
        assert_eq!(snapshot.map(|_| panic!("entered once more")), Ok(base));
        let load = |offset| G::load(&world.pool, base + offset).unwrap();
        assert_eq!((kept(snapshot.len(), load), load(100)), (vec![0..2 * G::PAGES], 0));
    }
    everywhere!(row, 4);
}

#[test]
fn a_write_meanwhile_waits_until_the_snapshot_is_taken() {
    fn row<G: Ground>(world: &World<G>) {
        let region = &world.written(1);
        drop(region.snapshot());
        let (done, is_done) = channel();
        std::thread::scope(|scope| {
            // A snapshot holds this lock while it is taken.
            let taking = region.lock.exclusive();
            let (tell, told) = channel();
            scope.spawn(move || {
                tell.send(this_thread()).unwrap();
                region.write(100, 7);
                done.send(()).unwrap();
            });
            until_it_waits(told.recv().unwrap());
            assert!(is_done.try_recv().is_err(), "it did not wait");
            drop(taking);
            is_done.recv_timeout(PATIENCE).unwrap();
        });
        assert_eq!(region.read(100), Some(7));
    }
    everywhere!(row, 2);
}

#[test]
fn a_fault_waits_for_no_fault_of_another_region_or_window() {
    fn row<G: Ground>(world: &World<G>) {
        // Blocks 2 MiB apart have different windows.
        let [one, other] = &[world.region(33), world.region(1)];
        let (done, is_done) = channel();
        let waited = std::thread::scope(|scope| {
            let held = one.table.lock(EntryIndex(0));
            scope.spawn(move || {
                other.write(100, 7);
                one.write(32 * G::BLOCK + 100, 8);
                done.send(()).unwrap();
            });
            let waited = is_done.recv_timeout(PATIENCE).is_err();
            drop(held);
            waited
        });
        assert!(!waited);
        assert_eq!((other.read(100), one.read(32 * G::BLOCK + 100)), (Some(7), Some(8)));
    }
    everywhere!(row, 40);
}

#[test]
fn a_write_to_a_shared_block_copies_it() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, free) = (world.written(3), world.free());
        let (snapshot, fork) = (region.snapshot(), region.fork(RegionOptions::new()));
        let before = [0, 1, 2].map(|at| region.block(at));
        region.write(G::BLOCK + 100, 7);
        assert_eq!(world.free(), free - 1);
        assert_ne!(region.block(1), before[1]);
        assert_eq!([region.block(0), region.block(2)], [before[0], before[2]]);
        fork.write(G::BLOCK + 100, 8);
        fork.write(2 * G::BLOCK + 100, 9);
        let seen = |at| (region.read(at), fork.read(at), read_at(&snapshot, at).unwrap());
        assert_eq!(seen(G::BLOCK + 100), (Some(7), Some(8), 0));
        assert_eq!(seen(2 * G::BLOCK + 100), (Some(0), Some(9), 0));
        let all = vec![0..3 * G::PAGES];
        assert_eq!((region.kept(), fork.kept(), kept_by(&snapshot)), (all.clone(), all.clone(), all));
    }
    everywhere!(row, 8);
}

#[test]
fn a_write_to_a_block_that_nobody_else_holds_reuses_it() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let rest = world.fill();
        drop(region.snapshot());
        let before = [region.block(0), region.block(1)];
        (0..2).for_each(|at| region.write(at * G::BLOCK + 100, 7));
        assert_eq!([region.block(0), region.block(1)], before);
        assert_eq!(region.counters.blocks_copied.load(Ordering::Relaxed), 0);
        assert_eq!((region.kept(), region.read(100)), (vec![0..2 * G::PAGES], Some(7)));
        drop(rest);
    }
    everywhere!(row, 4);
}

#[test]
fn two_racers_take_one_block_of_an_almost_empty_pool() {
    fn row<G: Ground>(world: &World<G>) {
        let region = &world.written(1);
        for round in 1..20 {
            let snapshot = region.snapshot();
            assert_eq!(world.free(), 1);
            let start = &Barrier::new(2);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        start.wait();
                        region.write(100 + thread * G::BLOCK / 2, round);
                    });
                }
            });
            assert_eq!((world.free(), region.counters.failed.load(Ordering::Relaxed)), (0, 0));
            assert!(!snapshot.is_revoked(), "a second block was looked for");
            assert_eq!([100, 100 + G::BLOCK / 2].map(|at| region.read(at)), [Some(round); 2]);
        }
    }
    everywhere!(row, 2);
}

/// Two snapshots hold the block: if there was only one, the first thread's copy would leave the other thread nothing to
/// copy.
#[test]
fn who_waited_for_a_fault_on_the_same_block_does_not_do_it_again() {
    fn row<G: Ground>(world: &World<G>) {
        let region = &world.written(1);
        let _held_by_others = [region.snapshot(), region.snapshot()];
        let free = world.free();
        std::thread::scope(|scope| {
            let held = region.table.lock(EntryIndex(0));
            let (tell, told) = channel();
            for thread in 0..2 {
                let tell = tell.clone();
                scope.spawn(move || {
                    tell.send(this_thread()).unwrap();
                    region.write(100 + thread * G::BLOCK / 2, 7);
                });
            }
            (0..2).for_each(|_| _ = until_it_waits(told.recv().unwrap()));
            drop(held);
        });
        assert_eq!((world.free(), region.counters.copied.load(Ordering::Relaxed)), (free - 1, 1));
        assert_eq!([100, 100 + G::BLOCK / 2].map(|at| region.read(at)), [Some(7); 2]);
    }
    everywhere!(row, 4);
}

/// On the software MMU only: real memory cannot be made to fail here.
#[test]
fn a_copy_that_cannot_be_mapped_gives_its_block_and_its_reservation_back() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let fork = world.written(2).fork(reserved());
        // One failure carries out a part of the call, the next carries out nothing.
        for _ in 0..2 {
            let before = (world.free(), world.reserved(), fork.block(0));
            assert_eq!(before.1, 2);
            let snapshot = fork.snapshot();
            world.pool.sys.fail(Some((Call::Map, 0)));
            fork.resolve(100).unwrap_err();
            assert!(fork.table.is_reserved(EntryIndex(0)));
            assert_eq!((world.free(), world.reserved(), fork.block(0)), before);
            assert_eq!(fork.kept(), vec![0..2 * G::PAGES]);
            drop(snapshot);
        }
        let snapshot = fork.snapshot();
        fork.write(100, 7);
        assert_eq!((world.reserved(), fork.table.set_reserved(EntryIndex(0), Reserved::No)), (1, false));
        assert_eq!((fork.read(100), read_at(&snapshot, 100)), (Some(7), Ok(0)));
    }
    run::<Soft>(8, row);
    run::<SoftHugetlb>(8, row);
}

#[test]
fn a_pinned_block_is_copied_eagerly_when_a_snapshot_is_taken() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, free) = (world.written(3), world.free());
        region.pin(G::BLOCK..G::BLOCK + 1).unwrap();
        let before = [0, 1, 2].map(|at| region.block(at));
        let snapshot = region.snapshot();
        assert_eq!(world.free(), free - 1, "one copy, now");
        assert!(matches!(region.entry(1), Entry::Private(_)) && matches!(region.entry(0), Entry::Shared(..)));
        assert_eq!(kept_by(&snapshot), vec![0..3 * G::PAGES]);
        region.write(G::BLOCK + 100, 7);
        assert_eq!([0, 1, 2].map(|at| region.block(at)), before, "and it was not moved");
        assert_eq!((region.read(G::BLOCK + 100), read_at(&snapshot, G::BLOCK + 100)), (Some(7), Ok(0)));
        region.unpin(&(G::BLOCK..G::BLOCK + 1));
        let later = region.snapshot();
        assert_eq!((world.free(), read_at(&later, G::BLOCK + 100)), (free - 1, Ok(7)), "shared like any other again");
    }
    everywhere!(row, 8);
}

#[test]
fn a_pinned_block_is_neither_moved_nor_dropped_when_the_pool_is_empty() {
    fn row<G: Ground>(world: &World<G>) {
        let (region, other) = (world.written(2), world.region(2));
        region.pin(0..2 * G::BLOCK).unwrap();
        let before = [region.block(0), region.block(1)];
        region.lazy_free(0..2 * G::BLOCK).unwrap();
        assert_eq!(world.free(), 0);
        let full = other.prepare_write(0..1);
        assert!(matches!(full, Err(RegionError::PoolFull { .. })), "{full:?}");
        assert!(matches!(region.freeze(), Err(RegionError::PoolFull { .. })), "it cannot be copied, and is not shared");
        assert_eq!(([region.block(0), region.block(1)], region.kept()), (before, vec![0..2 * G::PAGES]));
        region.unpin(&(0..2 * G::BLOCK));
    }
    everywhere!(row, 2);
}

/// A cut takes all regions or none: if one of them fails, blocks that were shared before are as before.
#[test]
fn a_cut_through_several_regions_is_of_all_or_of_none() {
    fn row<G: Ground>(world: &World<G>) {
        let (first, pinned, last) = (world.written(2), world.written(2), world.written(2));
        pinned.pin(0..2 * G::BLOCK).unwrap();
        let regions = [&*last, &*pinned, &*first];
        assert_eq!(world.free(), 1);
        assert!(matches!(freeze_all(&regions), Err(RegionError::PoolFull { .. })), "two blocks are pinned");
        assert_eq!(world.free(), 1);
        for region in [&first, &pinned, &last] {
            let holders = [0, 1].map(|at| world.pool.frames.references(region.entry(at).block().unwrap()));
            assert_eq!((holders, region.kept()), ([1, 1], vec![0..2 * G::PAGES]));
        }
        let copied = first.counters.blocks_copied.load(Ordering::Relaxed);
        first.write(0, 7);
        assert_eq!(first.counters.blocks_copied.load(Ordering::Relaxed), copied, "nobody else holds it");
        pinned.unpin(&(0..2 * G::BLOCK));
        let made = freeze_all(&regions).unwrap();
        assert_eq!(made.iter().map(|frozen| frozen.len()).collect::<Vec<_>>(), [2 * G::BLOCK; 3]);
        assert!(made[2].id < made[1].id && made[1].id < made[0].id, "ids are given by age");
        let mut byte = [0];
        made[2].read(0, &mut byte, Destination::Region).unwrap();
        assert_eq!(byte, [7], "it is that of the first region");
    }
    everywhere!(row, 7);
}

/// Other threads may see the region as soon as a snapshot has failed, before it is dropped. If blocks were still
/// `Shared`, these threads would take them for write-protected, and copy them during writes.
#[test]
fn a_snapshot_that_fails_has_let_go_of_everything_when_others_may_look() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = world.written(4);
        region.pin(G::BLOCK..G::BLOCK + 1).unwrap();
        let earlier = region.snapshot();
        region.write(3 * G::BLOCK, 9);
        let free = world.free();
        for call in [Call::Protect, Call::Obtain] {
            let frozen =
                SnapshotCore::empty(&world.pool, region.table.len(), Derived::of(&region.accounts.cow), None, None);
            let parts = [Part::new(&region, frozen, None)];
            world.pool.sys.fail(Some((call, 0)));
            fill(&parts, None, || {}).unwrap_err();
            let failing = &parts[0].frozen;
            assert!(!world.pool.sys.failure_pending());
            let holders = [0, 1, 2, 3].map(|at| world.pool.frames.references(region.entry(at).block().unwrap()));
            assert_eq!((holders, world.free()), ([2, 1, 2, 1], free), "after a failed {call:?}");
            assert!(failing.entries.iter().all(|entry| entry == Entry::Zero));
            assert!(matches!(region.entry(1), Entry::Private(_)), "pinned");
        }
        let copied = region.counters.blocks_copied.load(Ordering::Relaxed);
        region.write(3 * G::BLOCK, 10);
        assert_eq!(region.counters.blocks_copied.load(Ordering::Relaxed), copied, "nobody else holds it");
        assert_eq!(kept_by(&earlier), vec![0..4 * G::PAGES]);
        region.unpin(&(G::BLOCK..G::BLOCK + 1));
    }
    run::<Soft>(12, row);
    run::<SoftHugetlb>(12, row);
}

#[test]
fn a_discarded_block_that_is_pinned_becomes_zero_where_it_is() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(5);
        region.pin(2 * G::BLOCK..2 * G::BLOCK + 1).unwrap();
        let (pinned, free) = (region.block(2), world.free());
        region.discard(0..5 * G::BLOCK).unwrap();
        assert_eq!((region.entry(2), world.free()), (Entry::Private(BlockId(pinned as u32)), free + 4));
        assert_eq!(region.kept(), vec![]);
        let rest = world.fill();
        region.discard(BASE_PAGE..5 * G::BLOCK).unwrap();
        assert_eq!((region.block(2), region.kept()), (pinned, vec![]));
        region.unpin(&(2 * G::BLOCK..2 * G::BLOCK + 1));
        drop(rest);
        region.discard(0..5 * G::BLOCK).unwrap();
        assert_eq!(world.free(), free + 5);
    }
    everywhere!(row, 8);
}

#[test]
fn a_block_whose_pin_was_forgotten_is_given_to_nobody_when_its_region_goes() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(3);
        region.pin(G::BLOCK..G::BLOCK + 1).unwrap();
        let free = world.free();
        drop(region);
        assert_eq!((world.free(), world.pool.leaked.load(Ordering::Relaxed)), (free + 2, 1));
        // Gives the leaked block back, because `run` expects all blocks to be free.
        let leaked = (0..world.pool.frames.len() as u32).map(BlockId).find(|id| world.pool.frames.references(*id) > 0);
        world.pool.release(leaked.unwrap());
        world.pool.leaked.store(0, Ordering::Relaxed);
    }
    everywhere!(row, 4);
}

/// System calls may write to pinned pages while a snapshot is taken, so these are never write-protected. The pages
/// beside them are protected where possible, so that they show one moment together with everything else.
#[test]
fn a_pinned_page_is_never_write_protected_and_those_beside_it_are_while_they_are_copied() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = world.written(3);
        let pinned = G::BLOCK + BASE_PAGE..G::BLOCK + 2 * BASE_PAGE;
        region.pin(pinned.start + 5..pinned.end - 7).unwrap();
        let is_divisible = world.pool.sys.merging() == Merging::Merge;
        let block = G::BLOCK..2 * G::BLOCK;
        let beside = [block.start..pinned.start, pinned.end..block.end];
        for (watched, is_beside) in beside.map(|pages| (pages, true)).into_iter().chain([(pinned.clone(), false)]) {
            let base = region.addresses.base();
            world.pool.sys.watch(base + watched.start..base + watched.end);
            let snapshot = region.snapshot();
            assert_eq!(world.pool.sys.was_protected(), is_beside && is_divisible, "{watched:?}");
            world.pool.sys.watch(base + watched.start..base + watched.end);
            region.reset_to(&snapshot).unwrap();
            assert_eq!(world.pool.sys.was_protected(), is_beside && is_divisible, "{watched:?}, in a reset");
            let there = region.read(watched.start).unwrap();
            assert!(world.pool.sys.store(base + watched.start, there).is_ok(), "all are writable afterwards");
            assert_eq!(kept_by(&snapshot), vec![0..3 * G::PAGES]);
            world.pool.sys.watch(base + pinned.start..base + pinned.end);
            region.lazy_free(0..3 * G::BLOCK).unwrap();
            assert!(!world.pool.sys.was_protected(), "not even for a moment");
        }
        region.unpin(&(pinned.start + 5..pinned.end - 7));
    }
    run::<Soft>(6, row);
    run::<SoftHugetlb>(6, row);
}

/// The kernel may refuse to make pages beside pinned ones writable again. The next write there asks again.
#[test]
fn pages_beside_pinned_ones_that_did_not_get_their_right_back_get_it_at_the_next_write_or_pin() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let region = world.written(1);
        region.pin(0..1).unwrap();
        let ways: [fn(&RegionCore<SoftMmu>, usize); 4] = [
            |region, at| G::store(region, at, 9),
            |region, at| region.prepare_write(at..at + 1).unwrap(),
            |region, at| region.prepare_blocks(at..at + 1).unwrap(),
            |region, at| {
                region.pin(at..at + 1).unwrap();
                region.unpin(&(at..at + 1));
            },
        ];
        for way in ways {
            // One call protects the pages beside the pin, and the next two make the block writable again.
            world.pool.sys.fail(Some((Call::Protect, 1)));
            world.pool.sys.fail_next(Call::Protect);
            let snapshot = region.snapshot();
            assert!(!world.pool.sys.failure_pending());
            let last = region.addresses.base() + G::BLOCK - 1;
            assert!(world.pool.sys.store(last, 8).is_err() && region.pins.may_lack_right());
            assert!(world.pool.sys.store(region.addresses.base(), 8).is_ok(), "the pinned page");
            way(&region, G::BLOCK - 1);
            assert!(world.pool.sys.store(last, 9).is_ok());
            assert!(matches!(region.entry(0), Entry::Private(_)));
            drop(snapshot);
        }
        region.unpin(&(0..1));
    }
    run::<Soft>(4, row);
}

/// Records the calls of an observer, and the block in place at that moment. It runs in the fault handler, so it neither
/// allocates nor locks.
struct Recorder<S: Sys> {
    space: AtomicPtr<RegionCore<S>>,
    told: [AtomicUsize; 64],
    count: AtomicUsize,
}

/// One call of an observer: the range of bytes, and the block at its start.
type Told = (Range<usize>, Option<usize>);

impl<S: Sys> Recorder<S> {
    fn of(space: &RegionCore<S>) -> Arc<Recorder<S>> {
        let space = AtomicPtr::new(std::ptr::from_ref(space).cast_mut());
        Arc::new(Recorder { space, told: [const { AtomicUsize::new(0) }; 64], count: AtomicUsize::new(0) })
    }

    fn note(&self, range: Range<usize>) {
        // SAFETY: this is the region that calls the observer.
        let space = unsafe { &*self.space.load(Ordering::Relaxed) };
        let block = space.table.get(EntryIndex(space.pool().block_size.count(range.start))).block();
        let at = self.count.fetch_add(3, Ordering::Relaxed);
        for (by, value) in [range.start, range.end, block.map_or(0, |block| block.index() + 1)].into_iter().enumerate()
        {
            self.told[at + by].store(value, Ordering::Relaxed);
        }
    }

    /// The calls since the last time, as pairs of start and end.
    fn take(&self) -> Vec<[Told; 2]> {
        let told: Vec<_> = self.told.iter().map(|told| told.load(Ordering::Relaxed)).collect();
        let told = &told[..self.count.swap(0, Ordering::Relaxed)];
        let each: Vec<Told> = told.chunks(3).map(|it| (it[0]..it[1], it[2].checked_sub(1))).collect();
        assert_eq!(each.len() % 2, 0, "a start without an end: {each:?}");
        each.chunks(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect()
    }
}

impl<S: Sys> Observer for Recorder<S> {
    fn invalidate_start(&self, range: Range<usize>) {
        assert_eq!(self.count.load(Ordering::Relaxed) / 3 % 2, 0, "a start within another");
        self.note(range);
    }

    fn invalidate_end(&self, range: Range<usize>) {
        assert_eq!(self.count.load(Ordering::Relaxed) / 3 % 2, 1, "an end without a start");
        self.note(range);
    }
}

/// With a region of one block, the range is always that block.
#[test]
fn an_observer_is_told_around_every_change_of_backing() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.region(1);
        let recorder = Recorder::of(&region);
        assert!(region.observer.set(recorder.clone()).is_ok());
        let whole = 0..G::BLOCK;
        let told = |before: Option<usize>, after: Option<usize>| {
            assert_eq!(recorder.take(), [[(whole.clone(), before), (whole.clone(), after)]]);
        };
        region.write(100, 1);
        let first = region.entry(0).block().map(|block| block.index());
        told(None, first);
        let snapshot = region.snapshot();
        assert!(recorder.take().is_empty(), "a snapshot changes nothing by itself");
        region.write(100, 2);
        let second = region.entry(0).block().map(|block| block.index());
        assert_ne!(first, second);
        told(first, second);
        drop(region.snapshot());
        region.write(100, 3);
        region.lazy_free(whole.clone()).unwrap();
        assert!(recorder.take().is_empty(), "the same block, with other rights");
        world.reclaim_all();
        told(second, None);
        region.write(100, 4);
        recorder.take();
        let third = region.entry(0).block().map(|block| block.index());
        region.discard(whole.clone()).unwrap();
        told(third, None);
        drop(snapshot);
    }
    everywhere!(row, 4);
}

#[test]
fn an_observer_of_a_fork_is_told_around_a_revocation() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(2);
        let fork = region.fork(RegionOptions::new());
        let recorder = Recorder::of(&fork);
        assert!(fork.observer.set(recorder.clone()).is_ok());
        let shared = Some(fork.block(1));
        let rest = world.fill();
        region.write(G::BLOCK + 100, 7);
        let range = G::BLOCK..2 * G::BLOCK;
        assert_eq!(recorder.take(), [[(range.clone(), shared), (range, None)]]);
        assert_eq!((fork.entry(0).block().is_some(), fork.entry(1)), (true, Entry::Revoked));
        drop(rest);
    }
    everywhere!(row, 4);
}

#[test]
fn an_observer_is_told_when_pages_of_a_split_block_go_and_come_back() {
    fn row<G: Ground>(world: &World<G>) {
        let region = world.written(1);
        let recorder = Recorder::of(&region);
        assert!(region.observer.set(recorder.clone()).is_ok());
        let same = Some(region.block(0));
        let told = [[(0..G::BLOCK, same), (0..G::BLOCK, same)]];
        region.lazy_free(0..2 * BASE_PAGE).unwrap();
        assert!(recorder.take().is_empty());
        world.reclaim_all();
        assert_eq!(recorder.take(), told);
        region.write(100, 7);
        assert_eq!(recorder.take(), told);
    }
    where_blocks_split!(row, 2);
}

/// Where mappings do not merge, it takes a second call to make a copy writable. If this call fails and the engine
/// showed the old block again, it would lose what another thread has written to the copy by then.
#[test]
fn a_write_to_a_block_that_is_just_being_shown_is_not_lost_if_the_right_to_write_is_refused() {
    fn row<G: Ground<S = SoftMmu>>(world: &World<G>) {
        let (region, sys, other) = (world.written(1), &world.pool.sys, BASE_PAGE + 100);
        let snapshot = region.snapshot();
        sys.fail(Some((Call::Protect, 0)));
        sys.write_after_failure(region.address_of(0) + other, 8);
        assert!(region.resolve(G::BLOCK - BASE_PAGE + 100).is_err());
        assert!(sys.has_written() && region.read(other) == Some(8), "it is lost");
        region.write(G::BLOCK - BASE_PAGE + 100, 9);
        assert_eq!((region.read(other), region.read(G::BLOCK - BASE_PAGE + 100)), (Some(8), Some(9)));
        assert_eq!((region.kept(), kept_by(&snapshot)), (vec![0..G::PAGES], vec![0..G::PAGES]));
        assert_eq!((read_at(&snapshot, other), world.free()), (Ok(0), 0));
    }
    run::<SoftHugetlb>(2, row);
}
