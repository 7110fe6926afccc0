//! The steps at which threads of a test may take turns. `rows_test::orders` runs engine threads as tasks of a checker
//! (shuttle): one task at a time, and at each step the checker decides which goes on. In all other tests, steps do
//! nothing.
//!
//! | step | where |
//! |---|---|
//! | each use of a word of a lock, an entry, a block's count or the free list | [`AtomicU32`] and its like |
//! | each call of the software MMU, each load and store | [`step`] |
//! | each sleep on a word, and each wake | [`wait`], [`wake`]: so the checker finds tasks that all sleep |
//!
//! One task runs at a time and sees all writes of the others, so these tests say nothing about memory orders;
//! `tests/locks.rs` does.

use core::cell::Cell;
use core::sync::atomic;
use core::sync::atomic::Ordering;
use core::time::Duration;

use shuttle::sync::atomic::AtomicBool;
use shuttle::sync::{Condvar, Mutex};

use crate::sys::linux::futex;

thread_local! {
    static IS_CHECKED: Cell<bool> = const { Cell::new(false) };
}

shuttle::lazy_static! {
    /// The lock of the kernel's futex bucket: a sleeper compares the word under it, and a waker takes it after it has
    /// changed the word.
    static ref BUCKET: Mutex<()> = Mutex::new(());
    static ref WAKES: Condvar = Condvar::new();
    /// A load of this is a step and has no other effect.
    static ref NOTHING: AtomicBool = AtomicBool::new(false);
}

/// Runs `run`, which starts tasks of the checker and waits for them. All tasks run on this thread.
pub(crate) fn checked<T>(run: impl FnOnce() -> T) -> T {
    IS_CHECKED.set(true);
    let result = run();
    IS_CHECKED.set(false);
    result
}

/// Lets the checker switch to another task.
#[inline]
pub(crate) fn step() {
    if IS_CHECKED.get() {
        NOTHING.load(Ordering::SeqCst);
    }
}

/// Sleeps while `word` holds `seen`. It may wake for no reason.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    if !IS_CHECKED.get() {
        return futex::wait(&word.0, seen);
    }
    let held = BUCKET.lock().expect("nobody panics with it");
    if word.0.load(Ordering::SeqCst) == seen {
        drop(WAKES.wait(held));
    }
}

/// As [`wait`], for at most `time`. The checker has no clock: a short time ends once other tasks have gone on, and a
/// longer one never ends.
pub(crate) fn wait_at_most(word: &AtomicU32, seen: u32, time: Duration) {
    match (IS_CHECKED.get(), time < Duration::from_secs(1)) {
        (true, true) => shuttle::thread::yield_now(),
        (true, false) => wait(word, seen),
        (false, _) => futex::wait_at_most(&word.0, seen, time),
    }
}

/// Wakes up to `count` sleepers of `word`. Among tasks it wakes all, and each checks its word again.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    if !IS_CHECKED.get() {
        return futex::wake(&word.0, count);
    }
    let _held = BUCKET.lock();
    WAKES.notify_all();
}

/// An atomic number with a step before each use.
macro_rules! stepped {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code)] // Not all of each are used.
        impl $name {
            pub(crate) const fn new(value: $value) -> $name {
                $name(atomic::$name::new(value))
            }

            #[inline]
            fn stepped(&self) -> &atomic::$name {
                step();
                &self.0
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.stepped().load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.stepped().store(value, order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.stepped().swap(value, order)
            }

            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.stepped().fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.stepped().fetch_sub(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.stepped().fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.stepped().fetch_and(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                done: Ordering,
                not_done: Ordering,
            ) -> Result<$value, $value> {
                self.stepped().compare_exchange(seen, new, done, not_done)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                done: Ordering,
                not_done: Ordering,
            ) -> Result<$value, $value> {
                self.stepped().compare_exchange_weak(seen, new, done, not_done)
            }

            pub(crate) fn fetch_update(
                &self,
                done: Ordering,
                looked: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.stepped().fetch_update(done, looked, change)
            }
        }
    };
}

stepped!(AtomicU32, u32);
stepped!(AtomicU64, u64);
stepped!(AtomicUsize, usize);
