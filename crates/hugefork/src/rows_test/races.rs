//! A region writes to a full pool while other threads take and drop snapshots and forks, or look for blocks too.

use std::mem::ManuallyDrop;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::region::reset::reset_all;
use crate::region::state::HeldOperations;
use wait::{asleep, until};

/// Repeats `others` while the region writes to blocks that only they can give up.
fn write_meanwhile<G: Ground>(world: &World<G>, others: impl Fn(&Region<G>) + Sync) {
    let region = &world.written(8);
    let rest = world.fill();
    for _ in 0..40 {
        drop(region.snapshot());
        let start = &Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let taken = region.snapshot();
                start.wait();
                drop(taken);
                others(region);
            });
            start.wait();
            for block in 0..8 {
                let written = region.prepare_write(block * G::BLOCK..(block + 1) * G::BLOCK);
                assert_eq!(written, Ok(()), "of block {block}");
            }
        });
    }
    assert_eq!(region.kept(), vec![0..8 * G::PAGES]);
    drop(rest);
}

#[test]
fn a_write_does_not_fail_since_a_snapshot_is_just_being_taken_or_dropped() {
    fn row<G: Ground>(world: &World<G>) {
        write_meanwhile(world, |region| {
            for _ in 0..4 {
                let snapshot = region.snapshot();
                let _ = snapshot.map(|_| {});
                drop(snapshot.duplicate());
            }
        });
    }
    everywhere!(row, 10);
}

#[test]
fn a_write_does_not_fail_since_a_fork_is_just_being_made_or_dropped() {
    fn row<G: Ground>(world: &World<G>) {
        write_meanwhile(world, |region| {
            for _ in 0..4 {
                let _ = RegionCore::of_snapshot(&region.snapshot(), RegionOptions::new());
            }
        });
    }
    everywhere!(row, 10);
}

/// One thread visits the holders and waits for a window. Another wants to become a holder and waits for this visit. The
/// thread that has the window locked must not wait for either.
#[test]
fn a_revocation_does_not_wait_for_who_waits_for_its_window() {
    fn row<G: Ground + 'static>(world: &World<G>) {
        let region = Arc::new(world.written(1));
        // If the test fails, these are not dropped, because the drop would wait for the threads as well.
        let fork = ManuallyDrop::new(region.fork(RegionOptions::new()));
        let ((entered, has_entered), (go, may_go), (done, is_done)) = (channel(), channel(), channel());
        let held = region.table.lock(EntryIndex(0));
        let (visited, pool, tell) = (Arc::clone(&region), world.pool.clone(), done.clone());
        let mut threads = vec![std::thread::spawn(move || {
            let visit = pool.holders.visit();
            entered.send(()).unwrap();
            may_go.recv().unwrap();
            drop(visited.table.lock(EntryIndex(0)));
            drop(visit);
            tell.send("visit").unwrap();
        })];
        has_entered.recv_timeout(PATIENCE).unwrap();
        let (pool, tell) = (world.pool.clone(), done.clone());
        let (name, named) = channel();
        let naming = name.clone();
        threads.push(std::thread::spawn(move || {
            naming.send(this_thread()).unwrap();
            drop(RegionCore::zeros(&pool, G::BLOCK, RegionOptions::new()).unwrap());
            tell.send("new holder").unwrap();
        }));
        let visit = until_it_waits(named.recv().unwrap());
        let owner = Arc::clone(&region);
        threads.push(std::thread::spawn(move || {
            name.send(this_thread()).unwrap();
            assert!(owner.revoke_from_others(EntryIndex(0)));
            done.send("revocation").unwrap();
        }));
        let revoking = named.recv().unwrap();
        until_it_waits(revoking);
        drop(held);
        wait::until("a wait for the visit", || until_it_waits(revoking) == visit);
        go.send(()).unwrap();
        for _ in 0..3 {
            is_done.recv_timeout(PATIENCE).expect("all three wait for each other");
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(fork.entry(0), Entry::Revoked);
        drop(ManuallyDrop::into_inner(fork));
    }
    everywhere!(row, 4);
}

#[test]
fn what_is_lazily_freed_while_its_other_holder_goes_is_all_accounted_for() {
    fn row<G: Ground>(world: &World<G>) {
        let region = &world.written(2);
        for _ in 0..400 {
            (0..2).for_each(|block| G::store(region, block * G::BLOCK, 1));
            let start = &Barrier::new(2);
            let snapshot = region.snapshot();
            let freed = std::thread::scope(|scope| {
                scope.spawn(move || {
                    start.wait();
                    drop(snapshot);
                });
                start.wait();
                region.lazy_free(0..2 * G::BLOCK).unwrap()
            });
            assert_eq!(freed.freed + freed.shared, 2 * G::BLOCK, "{freed:?}");
        }
    }
    everywhere!(row, 10);
}

/// Gives the region operations while `cut` of it waits for its turn, and enters an operation then, which writes to two
/// blocks.
fn given_operations_while_it_waits<G: Ground>(region: &Region<G>, cut: impl FnOnce() + Send) {
    let operations = &HeldOperations::new(Duration::MAX);
    let turn = region.captured.freezing.lock();
    let ((tell, told), (tell_giver, told_giver), (go_on, may_go_on)) = (channel(), channel(), channel());
    let is_inside = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cut = scope.spawn(move || {
            tell.send(this_thread()).unwrap();
            cut();
        });
        let cutter = told.recv().unwrap();
        until_it_waits(cutter);
        scope.spawn(move || {
            tell_giver.send(this_thread()).unwrap();
            assert!(region.space.set_operations(operations).is(operations));
            let seat = operations.core().take_seat();
            operations.core().enter(seat);
            region.write(100, 7);
            is_inside.store(true, Ordering::Release);
            let () = may_go_on.recv().unwrap();
            region.write(G::BLOCK + 100, 7);
            assert!(operations.core().leave(seat));
        });
        let giver = told_giver.recv().unwrap();
        let is_inside = || is_inside.load(Ordering::Acquire);
        until("what is given, or a wait for that", || is_inside() || waits(giver));
        drop(turn);
        until("an operation", is_inside);
        until("a cut, or a wait for the operation", || cut.is_finished() || waits(cutter));
        go_on.send(()).unwrap();
    });
}

fn waits(thread: i32) -> bool {
    asleep(thread).is_some_and(|asleep| asleep.call == libc::SYS_futex)
}

/// As soon as a region has operations, every cut contains all writes of an operation or none.
#[test]
fn cuts_that_began_before_a_region_had_operations_have_no_half_of_one() {
    fn row<G: Ground>(world: &World<G>) {
        let at = [100, G::BLOCK + 100];
        let (region, other) = (world.written(2), world.written(2));
        let zeros = [&region, &other].map(|region| region.snapshot());
        let mut snapshot = None;
        given_operations_while_it_waits(&region, || snapshot = Some(region.snapshot()));
        let seen = at.map(|at| read_at(snapshot.as_ref().unwrap(), at).unwrap());
        assert!(seen == [0; 2] || seen == [7; 2], "{seen:?}");
        let region = world.written(2);
        let before = region.snapshot();
        given_operations_while_it_waits(&region, || {
            reset_all(&[(&*region.space, &*before), (&*other.space, &*zeros[1])]).unwrap();
        });
        let seen = at.map(|at| region.read(at).unwrap());
        assert!(seen == [0; 2] || seen == [7; 2], "{seen:?}");
    }
    everywhere!(row, 24);
}

/// When a cut waits for operations, it has already written its pages back. Another snapshot may have its turn
/// meanwhile, and fail.
#[test]
fn what_others_write_protect_and_do_not_write_back_while_a_cut_waits_for_operations_is_in_it() {
    fn row(world: &World<Soft>) {
        world.pool.sys.set_tracking(false);
        let region = &cow_mapping::written_by_choice(world, 2);
        let operations = &HeldOperations::new(Duration::MAX);
        region.space.set_operations(operations);
        let earlier = region.snapshot();
        let seat = operations.core().take_seat();
        operations.core().enter(seat);
        let (tell, told) = channel();
        let later = std::thread::scope(|scope| {
            let cut = scope.spawn(move || {
                tell.send(this_thread()).unwrap();
                region.snapshot()
            });
            until_it_waits(told.recv().unwrap());
            region.write(BASE_PAGE + 100, 7);
            world.pool.sys.fail(Some((Call::Scan, 0)));
            let prepared = region.prepare_snapshot();
            let write_protected = region.table.get(EntryIndex(0));
            assert!(operations.core().leave(seat));
            assert!(matches!(
                (prepared, write_protected),
                (Err(RegionError::System(_)), Entry::CowMapped(_, _, Access::Read))
            ));
            cut.join().unwrap()
        });
        let at = BASE_PAGE + 100;
        assert_eq!((read_at(&earlier, at), read_at(&later, at), region.read(at)), (Ok(0), Ok(7), Some(7)));
        assert!(earlier.id < later.id);
    }
    cow_mapping::run_by_page::<Soft>(8, row);
}
