//! A lock for fork handlers, program threads and the worker: it is a few words, allocates nothing
//! and uses no thread-local data.
//!
//! A signal handler of the program may fork in a thread that holds the lock. So the lock knows its
//! holder, and a second attempt by the same thread fails instead of waiting for itself.
//!
//! A thread that holds the lock across a fork waits for other threads meanwhile, because handlers
//! of allocators take their locks. So the holder can *pin* the lock. Threads that must not wait
//! that long then give up, even if they wait already.
//!
//! ```text
//! FREE ─take─▶ TAKEN ─pin──▶ PINNED      a waiter changes TAKEN to WAITED_FOR, and PINNED to PINNED_WAITED_FOR
//!   ◀─give_back─┘  ◀─unpin─┘
//! ```

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{futex, gettid, nanosleep};
use rustix::time::Timespec;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Locked, and a thread sleeps until it is free.
const WAITED_FOR: u32 = 2;
/// Locked and pinned.
const PINNED: u32 = 3;
/// Locked and pinned, and a thread sleeps.
const PINNED_WAITED_FOR: u32 = 4;

/// The result of an attempt to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// This thread has the lock now.
    Now,
    /// This thread had the lock before, further up its call stack.
    Before,
    /// Another thread has pinned the lock.
    Pinned,
}

/// The result of work that needs a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried<R> {
    Done(R),
    /// This thread had the lock before, so the work was not done.
    Within,
    /// Another thread has pinned the lock, so the work was not done.
    Pinned,
}

/// How long an attempt may wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Endless,
    UnlessPinned,
}

/// A value that one thread at a time may use.
pub(crate) struct Guarded<T> {
    state: AtomicU32,
    /// The thread that has the lock; 0 for none.
    holder: AtomicU32,
    /// Number of threads that read the value while it is pinned.
    readers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the lock's holder changes the value, and other threads read it only while it is pinned, when the holder
// does not change it.
unsafe impl<T: Send + Sync> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Guarded<T> {
        let [state, holder, readers] = [AtomicU32::new(FREE), AtomicU32::new(0), AtomicU32::new(0)];
        Guarded { state, holder, readers, value: UnsafeCell::new(value) }
    }

    /// Runs `work` with the lock held. `None` if this thread has it already; then `work` is not run.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self.try_with(Patience::Endless, work) {
            Tried::Done(done) => Some(done),
            Tried::Within | Tried::Pinned => None,
        }
    }

    /// Like [`Guarded::with`], and may not wait for a thread that has pinned the lock.
    pub(crate) fn try_with<R>(&self, patience: Patience, work: impl FnOnce(&mut T) -> R) -> Tried<R> {
        match self.take_or(patience) {
            Taken::Now => {}
            Taken::Before => return Tried::Within,
            Taken::Pinned => return Tried::Pinned,
        }
        // SAFETY: this thread has just taken the lock.
        let done = work(unsafe { self.held() });
        self.give_back();
        Tried::Done(done)
    }

    /// Takes the lock; another function releases it with [`Guarded::give_back`].
    pub(crate) fn take(&self) -> Taken {
        self.take_or(Patience::Endless)
    }

    fn take_or(&self, patience: Patience) -> Taken {
        let this = gettid().as_raw_nonzero().get().cast_unsigned();
        if self.holder.load(Ordering::Relaxed) == this {
            return Taken::Before;
        }
        let mut taken = TAKEN;
        loop {
            let found = match self.state.compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(found) => found,
            };
            let waited_for = match found {
                PINNED | PINNED_WAITED_FOR if patience == Patience::UnlessPinned => return Taken::Pinned,
                PINNED | PINNED_WAITED_FOR => PINNED_WAITED_FOR,
                _ => WAITED_FOR,
            };
            let is_said = found == waited_for
                || self.state.compare_exchange(found, waited_for, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if found != FREE && is_said {
                // Woken, interrupted or too late: the loop checks the state again.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, waited_for, None);
                // Other threads may sleep without this thread's knowledge.
                taken = WAITED_FOR;
            }
        }
        self.holder.store(this, Ordering::Relaxed);
        Taken::Now
    }

    /// Pins the lock, which the calling thread holds: impatient waiters give up.
    pub(crate) fn pin(&self) {
        if self.state.swap(PINNED, Ordering::SeqCst) == WAITED_FOR {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
        }
    }

    /// Reads the value while another thread has the lock pinned; that thread does not change the value while it is
    /// pinned. `None` if the lock is not pinned. `work` must be short, since the holder waits for it.
    pub(crate) fn peek<R>(&self, work: impl FnOnce(&T) -> R) -> Option<R> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        let is_pinned = matches!(self.state.load(Ordering::SeqCst), PINNED | PINNED_WAITED_FOR);
        // SAFETY: no thread changes the value as long as this thread is counted.
        let seen = is_pinned.then(|| work(unsafe { &*self.value.get() }));
        self.readers.fetch_sub(1, Ordering::SeqCst);
        seen
    }

    /// Unpins the lock, which remains locked.
    pub(crate) fn unpin(&self) {
        // `give_back` wakes the sleepers one by one later.
        self.state.swap(WAITED_FOR, Ordering::SeqCst);
        while self.readers.load(Ordering::SeqCst) > 0 {
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 10_000 });
        }
    }

    /// The value.
    ///
    /// # Safety
    /// The calling thread has the lock, and no other reference to the value.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller vouches for it.
        unsafe { &mut *self.value.get() }
    }

    /// Releases the lock.
    pub(crate) fn give_back(&self) {
        self.holder.store(0, Ordering::Relaxed);
        if matches!(self.state.swap(FREE, Ordering::Release), WAITED_FOR | PINNED_WAITED_FOR) {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    /// Releases the lock in the child of a fork: the waiting threads do not exist there, and the thread that took the
    /// lock has another number.
    pub(crate) fn reset(&self) {
        self.holder.store(0, Ordering::Relaxed);
        self.readers.store(0, Ordering::Relaxed);
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
    fn a_second_attempt_by_the_holder_fails() {
        let lock = Guarded::new(1);
        assert_eq!(lock.take(), Taken::Now);
        assert_eq!(lock.take(), Taken::Before);
        assert_eq!(lock.with(|_| ()), None);
        lock.give_back();
        assert_eq!(lock.with(|value| *value), Some(1));
    }

    #[test]
    fn impatient_waiters_give_up_when_the_lock_is_pinned() {
        static LOCK: Guarded<u64> = Guarded::new(0);
        assert_eq!(LOCK.take(), Taken::Now);
        std::thread::scope(|scope| {
            let (patient, hasty): (Vec<_>, Vec<_>) = (0..4)
                .map(|_| {
                    let patient = scope.spawn(|| LOCK.with(|count| *count += 1));
                    (patient, scope.spawn(|| LOCK.try_with(Patience::UnlessPinned, |count| *count += 1)))
                })
                .unzip();
            while LOCK.state.load(Ordering::Relaxed) != WAITED_FOR {
                std::thread::yield_now();
            }
            assert_eq!(LOCK.peek(|count| *count), None);
            LOCK.pin();
            assert_eq!(LOCK.peek(|count| *count), Some(0));
            // The lock is released only after they have given up.
            hasty.into_iter().for_each(|hasty| assert_eq!(hasty.join().unwrap(), Tried::Pinned));
            LOCK.unpin();
            assert_eq!(LOCK.peek(|count| *count), None);
            LOCK.give_back();
            patient.into_iter().for_each(|patient| assert_eq!(patient.join().unwrap(), Some(())));
        });
        assert_eq!(LOCK.try_with(Patience::UnlessPinned, |count| *count), Tried::Done(4));
        assert_eq!(LOCK.with(|_| LOCK.try_with(Patience::UnlessPinned, |_| ())), Some(Tried::Within));
    }
}
