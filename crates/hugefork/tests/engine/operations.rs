//! Cuts of regions to which threads write in operations of several writes: a cut has all of an operation or nothing of
//! it.

use std::cell::RefCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::seccomp::{every, refuse};
use crate::common::wait::{this_thread, until, until_it_waits};
use crate::common::{Over, pool};
use hugefork::{Backing, BlockSize, ErrorCode, Operation, Operations, Pool, Region, RegionError};

const BLOCK: usize = 2 << 20;
const WRITERS: usize = 2;

fn a_pool(blocks: usize) -> Pool {
    pool(Backing::Auto, blocks * BLOCK, BlockSize::MIB_2).unwrap()
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(bytes[index * 8..][..8].try_into().unwrap())
}

/// The words that each operation sets to one number: at the beginning and the end of each region.
fn words_of(region: &Region) -> [&AtomicU64; 2] {
    let words = region.as_atomic_u64s();
    [&words[0], &words[words.len() - 1]]
}

/// Whether the snapshots have only a part of an operation of `writer`.
fn is_torn(snapshots: &[impl std::ops::Deref<Target = [u8]>], writer: usize) -> bool {
    let seen: Vec<u64> = snapshots
        .iter()
        .flat_map(|snapshot| [word(snapshot, writer), word(snapshot, snapshot.len() / 8 - 1 - writer)])
        .collect();
    seen.iter().any(|&number| number != seen[0])
}

/// Runs `cuts` beside writers that number all of their words again and again, in operations. `cuts` begins once each
/// writer has written.
fn beside_writers(regions: &[Region], operations: Option<&Operations>, cuts: impl FnOnce()) {
    let (is_over, have_begun) = (AtomicBool::new(false), Barrier::new(WRITERS + 1));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (is_over, have_begun) = (&is_over, &have_begun);
            scope.spawn(move || {
                for number in 1.. {
                    let operation = operations.map(Operations::enter);
                    for region in regions {
                        let words = region.as_atomic_u64s();
                        words[writer].store(number, Ordering::Relaxed);
                        words[words.len() - 1 - writer].store(number, Ordering::Relaxed);
                    }
                    drop(operation);
                    if number == 1 {
                        have_begun.wait();
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let _over = Over(&is_over);
        have_begun.wait();
        cuts();
    });
}

#[test]
fn no_operation_is_cut_in_half() {
    alone(|| {
        let pool = a_pool(64);
        let regions = [pool.region(4 * BLOCK).unwrap(), pool.region(2 * BLOCK).unwrap()];
        let operations = Operations::new();
        regions.iter().for_each(|region| region.set_operations(&operations).unwrap());
        let whole = |cut: &[hugefork::Snapshot]| assert!((0..WRITERS).all(|writer| !is_torn(cut, writer)));
        beside_writers(&regions, Some(&operations), || {
            for _ in 0..100 {
                let cut = Region::snapshot_all(&[&regions[0], &regions[1]]).unwrap();
                whole(&cut);
                whole(&[regions[0].snapshot().unwrap()]);
                let mut fork = regions[1].fork().unwrap();
                let bytes: &[u8] = fork.as_mut_slice();
                assert!((0..WRITERS).all(|writer| !is_torn(&[bytes], writer)));
            }
        });
    })
    .well();
}

#[test]
fn no_operation_survives_a_reset_in_half() {
    alone(|| {
        let pool = a_pool(64);
        let regions = [pool.region(4 * BLOCK).unwrap(), pool.region(2 * BLOCK).unwrap()];
        let operations = Operations::new();
        regions.iter().for_each(|region| region.set_operations(&operations).unwrap());
        let zeros = Region::snapshot_all(&[&regions[0], &regions[1]]).unwrap();
        beside_writers(&regions, Some(&operations), || {
            for round in 0..100 {
                Region::reset_all(&[(&regions[0], &zeros[0]), (&regions[1], &zeros[1])]).unwrap();
                let cut = Region::snapshot_all(&[&regions[0], &regions[1]]).unwrap();
                assert!((0..WRITERS).all(|writer| !is_torn(&cut, writer)), "{round}");
            }
            for round in 0..100 {
                regions[0].reset_to(&zeros[0]).unwrap();
                let cut = regions[0].snapshot().unwrap();
                assert!((0..WRITERS).all(|writer| !is_torn(&[&*cut], writer)), "{round}");
            }
        });
    })
    .well();
}

/// Shows what operations prevent. The loop ends, since a writer is in the middle of its words most of the time.
#[test]
fn without_operations_some_are_cut_in_half() {
    alone(|| {
        let regions = [a_pool(32).region(4 * BLOCK).unwrap()];
        beside_writers(&regions, None, || while !is_torn(&[regions[0].snapshot().unwrap()], 0) {});
    })
    .well();
}

#[test]
fn a_cut_waits_for_an_operation_and_others_wait_for_the_cut() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::new();
        region.set_operations(&operations).unwrap();
        let words = words_of(&region);
        std::thread::scope(|scope| {
            let (go_on, wait) = channel();
            let (say, hear) = channel();
            scope.spawn(|| {
                let (say, wait) = (say, wait);
                let operation = operations.enter();
                words[0].store(1, Ordering::Relaxed);
                say.send(()).unwrap();
                let () = wait.recv().unwrap();
                let nested = operations.enter();
                drop(operation);
                // The thread is still inside, by the other guard.
                words[1].store(1, Ordering::Relaxed);
                drop(nested);
            });
            hear.recv().unwrap();
            let cut = scope.spawn(|| region.snapshot().unwrap());
            go_on.send(()).unwrap();
            let cut = cut.join().unwrap();
            assert_eq!((word(&cut, 0), word(&cut, BLOCK / 8 - 1)), (1, 1));
        });
    })
    .well();
}

#[test]
fn a_cut_inside_of_an_operation_is_an_error() {
    let pool = a_pool(16);
    let (region, other, free) = (pool.region(BLOCK).unwrap(), pool.region(BLOCK).unwrap(), pool.region(BLOCK).unwrap());
    let (operations, others) = (Operations::new(), Operations::new());
    region.set_operations(&operations).unwrap();
    other.set_operations(&others).unwrap();
    let snapshot = region.snapshot().unwrap();
    let fork = snapshot.fork().unwrap();
    fork.set_operations(&operations).unwrap();
    let inside = operations.enter();
    assert_eq!(region.snapshot().unwrap_err(), RegionError::InsideOperation);
    assert_eq!(region.fork().unwrap_err(), RegionError::InsideOperation);
    assert_eq!(region.prepare_snapshot(), Err(RegionError::InsideOperation));
    free.prepare_snapshot().unwrap();
    assert_eq!(Region::snapshot_all(&[&free, &region]).unwrap_err(), RegionError::InsideOperation);
    for refused in [region.reset_to(&snapshot), fork.reset_to(&snapshot), Region::reset_all(&[(&region, &snapshot)])] {
        assert_eq!(refused.map_err(|error| (error.done, error.reason)), Err((0, RegionError::InsideOperation)));
    }
    // Two threads inside of different operations could wait for each other.
    assert_eq!(other.snapshot().unwrap_err(), RegionError::InsideOperation);
    free.snapshot().unwrap();
    std::thread::scope(|scope| scope.spawn(|| other.snapshot().unwrap()).join().unwrap());
    drop(inside);
    region.snapshot().unwrap();
    region.reset_to(&snapshot).unwrap();
    fork.reset_to(&snapshot).unwrap();
}

#[test]
fn who_is_inside_may_cut_a_region_without_operations_though_a_cut_of_it_waits() {
    alone(|| {
        let pool = a_pool(32);
        let regions = [pool.region(BLOCK).unwrap(), pool.region(BLOCK).unwrap()];
        let [region, free] = regions.each_ref();
        let operations = Operations::with_patience(Duration::MAX);
        region.set_operations(&operations).unwrap();
        let zeros = Region::snapshot_all(&[region, free]).unwrap();
        let cut = || drop(Region::snapshot_all(&[free, region]).unwrap());
        let reset = || Region::reset_all(&[(free, &zeros[1]), (region, &zeros[0])]).unwrap();
        let both: [&(dyn Fn() + Sync); 2] = [&cut, &reset];
        for waits in both {
            let inside = operations.enter();
            std::thread::scope(|scope| {
                let (say, hear) = channel();
                scope.spawn(move || {
                    say.send(this_thread()).unwrap();
                    waits();
                });
                until_it_waits(hear.recv().unwrap());
                let snapshot = free.snapshot().unwrap();
                drop(free.fork().unwrap());
                free.prepare_snapshot().unwrap();
                free.reset_to(&snapshot).unwrap();
                let another = pool.region(BLOCK).unwrap();
                another.set_operations(&operations).unwrap();
                drop(inside);
            });
        }
    })
    .well();
}

#[test]
fn regions_of_one_cut_have_the_same_operations_or_none() {
    let pool = a_pool(16);
    let regions = [(); 3].map(|()| pool.region(BLOCK).unwrap());
    let operations = Operations::new();
    regions[0].set_operations(&operations).unwrap();
    regions[0].set_operations(&operations.clone()).unwrap();
    assert_eq!(regions[0].set_operations(&Operations::new()), Err(RegionError::AnotherOperations));
    Region::snapshot_all(&[&regions[0], &regions[1]]).unwrap();
    regions[1].set_operations(&Operations::new()).unwrap();
    let refused = Region::snapshot_all(&[&regions[0], &regions[2], &regions[1]]);
    assert_eq!(refused.unwrap_err(), RegionError::AnotherOperations);
    let snapshots = [regions[0].snapshot().unwrap(), regions[1].snapshot().unwrap()];
    let refused = Region::reset_all(&[(&regions[0], &snapshots[0]), (&regions[1], &snapshots[1])]).unwrap_err();
    assert_eq!((refused.done, refused.reason), (0, RegionError::AnotherOperations));
}

#[test]
fn a_cut_gives_up_on_an_operation_that_goes_on_and_all_go_on() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::with_patience(Duration::from_millis(2));
        region.set_operations(&operations).unwrap();
        std::thread::scope(|scope| {
            let (end, wait) = channel::<()>();
            let (say, hear) = channel();
            scope.spawn(|| {
                let (say, wait) = (say, wait);
                let _operation = operations.enter();
                // SAFETY: only asks for the thread's number.
                say.send(unsafe { libc::gettid() }).unwrap();
                let _ = wait.recv();
            });
            let blocked = hear.recv().unwrap();
            for _ in 0..2 {
                let error = region.snapshot().unwrap_err();
                let RegionError::OperationGoesOn { thread, patience, .. } = error else { panic!("{error}") };
                assert_eq!((thread as i32, patience), (blocked, Duration::from_millis(2)));
                // Nobody is kept out any more.
                drop(operations.enter());
            }
            drop(end);
        });
        region.snapshot().unwrap();
    })
    .well();
}

#[test]
fn who_panics_inside_has_left() {
    let region = a_pool(16).region(BLOCK).unwrap();
    let operations = Operations::new();
    region.set_operations(&operations).unwrap();
    let halfway = || {
        let _operation = operations.enter();
        region.as_atomic_u64s()[0].store(1, Ordering::Relaxed);
        std::panic::resume_unwind(Box::new("halfway"));
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(halfway)).unwrap_err();
    assert_eq!(word(&region.snapshot().unwrap(), 0), 1);
}

#[test]
fn a_thread_that_ends_has_left_whatever_it_forgot() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::with_patience(Duration::from_millis(2));
        region.set_operations(&operations).unwrap();
        // Joined explicitly: a scope does not wait for the very end of its threads.
        let forgets = || {
            let operations = operations.clone();
            std::thread::spawn(move || std::mem::forget((operations.enter(), operations.enter()))).join().unwrap();
            region.snapshot().unwrap();
        };
        (0..3).for_each(|_| forgets());
        std::mem::forget(operations.enter());
        assert_eq!(region.snapshot().unwrap_err(), RegionError::InsideOperation);
        let of_another = std::thread::scope(|scope| scope.spawn(|| region.snapshot().unwrap_err()).join().unwrap());
        assert_eq!(of_another.code(), ErrorCode::OperationGoesOn);
        assert!(operations.leave());
        assert!(!operations.leave());
        region.snapshot().unwrap();
    })
    .well();
}

/// The thread ends by the system call, as threads of other runtimes may: none of its thread-local values is dropped.
#[test]
fn a_thread_that_ends_without_its_locals_has_left_also_where_a_cut_waits_for_it_already() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::with_patience(Duration::MAX);
        region.set_operations(&operations).unwrap();
        for waits_first in [false, true] {
            std::thread::scope(|scope| {
                let (say, hear) = channel();
                let ends = Box::into_raw(Box::new(Ends { operations: operations.clone(), has_entered: say }));
                let mut thread = std::mem::MaybeUninit::uninit();
                // SAFETY: `end_inside` expects this argument.
                let made =
                    unsafe { libc::pthread_create(thread.as_mut_ptr(), std::ptr::null(), end_inside, ends.cast()) };
                assert_eq!(made, 0);
                let (number, go) = hear.recv().unwrap();
                let cut = waits_first.then(|| {
                    let (say, hear) = channel();
                    let cut = scope.spawn(|| {
                        let say = say;
                        say.send(this_thread()).unwrap();
                        region.snapshot().unwrap()
                    });
                    until_it_waits(hear.recv().unwrap());
                    cut
                });
                go.send(()).unwrap();
                // Not every C library can join a thread that has ended like this.
                let task = format!("/proc/self/task/{number}");
                until("the thread's end", || !std::path::Path::new(&task).exists());
                region.snapshot().unwrap();
                cut.into_iter().for_each(|cut| drop(cut.join().unwrap()));
            });
        }
    })
    .well();
}

/// The argument of a thread that ends inside of operations.
struct Ends {
    operations: Operations,
    /// Takes the thread's number, and a channel through which the thread is told to end.
    has_entered: Sender<(i32, Sender<()>)>,
}

extern "C" fn end_inside(given: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: it was made for this thread.
    let Ends { operations, has_entered } = *unsafe { Box::from_raw(given.cast::<Ends>()) };
    std::mem::forget((operations.enter(), operations.enter()));
    let (go, wait) = channel();
    has_entered.send((this_thread(), go)).unwrap();
    wait.recv().unwrap();
    // SAFETY: nobody uses the stack or the locals of this thread.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}

/// The number of the first thread is that of the process, and stays until all threads have ended.
#[test]
fn a_first_thread_that_ends_inside_has_left_while_others_go_on() {
    alone(|| {
        // SAFETY: the child has one thread, and uses no lock of another one.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs ends with SIGALRM.
            unsafe { libc::alarm(300) };
            let region = a_pool(16).region(BLOCK).unwrap();
            let operations = Operations::with_patience(Duration::MAX);
            region.set_operations(&operations).unwrap();
            std::mem::forget(operations.enter());
            std::thread::spawn(move || {
                let is_cut = region.snapshot().is_ok();
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!is_cut)) };
            });
            // SAFETY: nobody uses the stack or the locals of this thread.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let mut status = 0;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    })
    .well();
}

#[test]
fn a_guard_that_outlives_the_locals_of_its_thread_does_no_harm() {
    alone(|| {
        static OPERATIONS: std::sync::OnceLock<Operations> = std::sync::OnceLock::new();
        thread_local! {
            static KEPT: RefCell<Option<Operation<'static>>> = const { RefCell::new(None) };
        }
        let operations = OPERATIONS.get_or_init(Operations::new);
        let region = a_pool(16).region(BLOCK).unwrap();
        region.set_operations(operations).unwrap();
        // Either of the two thread-local values may be dropped first.
        for is_kept_first in [true, false] {
            let keeps = move || {
                if is_kept_first {
                    KEPT.with(|_| ());
                }
                let guard = operations.enter();
                KEPT.with(|kept| *kept.borrow_mut() = Some(guard));
            };
            std::thread::spawn(keeps).join().unwrap();
            region.snapshot().unwrap();
        }
    })
    .well();
}

#[test]
fn many_operations_and_many_threads_find_their_own_seats() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::new();
        region.set_operations(&operations).unwrap();
        for _ in 0..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let _operation = operations.enter();
                        for _ in 0..10 {
                            let other = Operations::new();
                            let (_one, _again) = (other.enter(), operations.enter());
                        }
                    });
                }
            });
        }
        assert!(!operations.leave());
        region.snapshot().unwrap();
    })
    .well();
}

#[test]
fn without_membarrier_no_operation_is_cut_in_half_either() {
    alone(|| {
        refuse(every(libc::SYS_membarrier, libc::ENOSYS));
        assert!(format!("{:?}", Operations::new()).contains("Full"));
        no_operation_is_cut_in_half();
    })
    .well();
}

#[test]
fn a_membarrier_that_is_refused_later_is_an_error_of_the_cut() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::new();
        region.set_operations(&operations).unwrap();
        if format!("{operations:?}").contains("Full") {
            return println!("skipped: this machine has no membarrier");
        }
        refuse(every(libc::SYS_membarrier, libc::ENOSYS));
        assert_eq!(region.snapshot().unwrap_err().code(), ErrorCode::System);
        drop(operations.enter());
    })
    .well();
}

#[test]
fn a_child_of_fork_enters_without_waiting() {
    alone(|| {
        let region = a_pool(16).region(BLOCK).unwrap();
        let operations = Operations::new();
        region.set_operations(&operations).unwrap();
        drop(operations.enter());
        // If the child is forked while a cut waits for this thread, the child's gate stays closed for good.
        let inside = operations.enter();
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| region.snapshot().unwrap());
            let is_closed = || {
                let probe = scope.spawn(|| drop(operations.enter()));
                std::thread::yield_now();
                !probe.is_finished()
            };
            while !is_closed() {}
            // SAFETY: the child uses no lock of another thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a child that hangs ends with SIGALRM.
                unsafe { libc::alarm(300) };
                drop(inside);
                drop(operations.enter());
                let others = Operations::new();
                drop(others.enter());
                let refused = region.set_operations(&operations) == Err(RegionError::ForkedChild);
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!refused)) };
            }
            let mut status = 0;
            // SAFETY: writes the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            drop(inside);
            cut.join().unwrap();
        });
    })
    .well();
}
