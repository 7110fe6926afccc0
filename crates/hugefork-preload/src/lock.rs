//! A lock that the handlers of `fork(2)`, program threads and the worker may all take: one word, no allocation, no
//! thread-local data.
//!
//! A signal handler of the program may fork, in the thread and at the moment in which that thread holds the lock. So
//! the lock knows its holder, and who has it already is told so instead of waiting for himself.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{futex, gettid};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody sleeps until it is not.
const WAITED_FOR: u32 = 2;

/// What became of taking a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is this thread's now.
    Now,
    /// It was this thread's before: somewhere below on its stack.
    Before,
}

/// A value that one thread at a time looks at.
pub(crate) struct Guarded<T> {
    state: AtomicU32,
    /// The thread that has the lock; 0 if none has.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time reach the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Guarded<T> {
        Guarded { state: AtomicU32::new(FREE), holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Runs `work` with the lock held. None if this thread has it already: then nothing is done.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.take() == Taken::Before {
            return None;
        }
        // SAFETY: the lock was taken just now.
        let done = work(unsafe { self.held() });
        self.give_back();
        Some(done)
    }

    /// As [`Guarded::with`], but does nothing also if another thread has it.
    pub(crate) fn with_if_free<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        self.holder.store(gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
        // SAFETY: the lock was taken just now.
        let done = work(unsafe { self.held() });
        self.give_back();
        Some(done)
    }

    /// Takes the lock, for one function to give it back that another has taken it for.
    pub(crate) fn take(&self) -> Taken {
        let this = gettid().as_raw_nonzero().get().cast_unsigned();
        if self.holder.load(Ordering::Relaxed) == this {
            return Taken::Before;
        }
        if self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.state.swap(WAITED_FOR, Ordering::Acquire) != FREE {
                // Woken, interrupted or too late: the swap decides.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, WAITED_FOR, None);
            }
        }
        self.holder.store(this, Ordering::Relaxed);
        Taken::Now
    }

    /// The value.
    ///
    /// # Safety
    /// The caller's thread has the lock, and no other reference to the value.
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's.
        unsafe { &mut *self.value.get() }
    }

    /// Gives the lock back.
    pub(crate) fn give_back(&self) {
        self.holder.store(0, Ordering::Relaxed);
        if self.state.swap(FREE, Ordering::Release) == WAITED_FOR {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    /// Gives the lock back in the child of a fork, in which those who waited for it are no more, and the thread that
    /// took it has another number.
    pub(crate) fn reset(&self) {
        self.holder.store(0, Ordering::Relaxed);
        self.state.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static COUNT: Guarded<u64> = Guarded::new(0);
        let add = || (0..10_000).for_each(|_| assert!(COUNT.with(|count| *count += 1).is_some()));
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(add))));
        assert_eq!(COUNT.with(|count| *count), Some(40_000));
    }

    #[test]
    fn who_has_it_is_told_so() {
        let lock = Guarded::new(1);
        assert_eq!(lock.take(), Taken::Now);
        assert_eq!(lock.take(), Taken::Before);
        assert_eq!((lock.with(|_| ()), lock.with_if_free(|_| ())), (None, None));
        lock.give_back();
        assert_eq!(lock.with(|value| *value), Some(1));
        assert_eq!(lock.with_if_free(|value| *value), Some(1));
    }
}
