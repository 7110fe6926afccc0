//! The locks under real threads. `tests/locks.rs` checks all interleavings of a few steps.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Fences, Gate, RegionLock, Seat, WordLock};

struct Counter {
    lock: WordLock,
    value: UnsafeCell<u64>,
}
// SAFETY: `value` is touched only under `lock`.
unsafe impl Sync for Counter {}

impl Counter {
    fn value(&self) -> &UnsafeCell<u64> {
        &self.value
    }
}

#[test]
fn trying_for_a_lock_that_is_held_leaves_it_held() {
    let lock = WordLock::default();
    let held = lock.lock();
    assert!(lock.try_lock().is_none());
    assert!(lock.try_lock().is_none(), "the first try has not released it");
    drop(held);
    assert!(lock.try_lock().is_some());
    assert!(lock.try_lock().is_some());
}

#[test]
fn counts_of_many_threads_are_not_lost() {
    let counter = &Counter { lock: WordLock::default(), value: UnsafeCell::new(0) };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..5_000 {
                    let _held = counter.lock.lock();
                    // SAFETY: the lock is held.
                    unsafe { *counter.value().get() += 1 };
                    if turn % 1000 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    // SAFETY: all threads have ended.
    assert_eq!(unsafe { *counter.value().get() }, 20_000);
    assert!(counter.lock.try_lock().is_some());
}

#[test]
fn a_snapshot_sees_no_fault_half_done() {
    let lock = RegionLock::default();
    let (left, right) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..3_000 {
                    let _inside = lock.shared();
                    left.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                    right.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    let _alone = lock.exclusive();
                    assert_eq!(left.load(Ordering::Relaxed), right.load(Ordering::Relaxed));
                }
            });
        }
    });
    drop(lock.exclusive());
}

#[test]
fn a_cut_has_all_of_each_operation_or_nothing_of_it() {
    for fences in [Fences::Asymmetric, Fences::Full] {
        let (gate, seats) = (Gate::new(fences), [(); 3].map(|()| Seat::default()));
        let (left, right) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seat in &seats {
                let (gate, left, right) = (&gate, &left, &right);
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        gate.enter(seat);
                        left.fetch_add(1, Ordering::Relaxed);
                        gate.enter(seat);
                        if turn % 100 == 0 {
                            std::thread::yield_now();
                        }
                        right.fetch_add(1, Ordering::Relaxed);
                        assert!(gate.leave(seat) && gate.leave(seat));
                    }
                });
            }
            for _ in 0..500 {
                let sleep = |_: &_, word: &_, seen| {
                    super::wait(word, seen);
                    true
                };
                gate.close(seats.iter(), sleep).unwrap();
                assert_eq!(left.load(Ordering::Relaxed), right.load(Ordering::Relaxed), "{fences:?}");
                gate.open();
            }
        });
        assert_eq!(right.load(Ordering::Relaxed), 60_000);
    }
}
