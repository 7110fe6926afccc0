//! A lock that the handlers of `fork(2)`, program threads and the worker may all take: a few words, no allocation, no
//! thread-local data.
//!
//! A signal handler of the program may fork, in the thread and at the moment in which that thread holds the lock. So
//! the lock knows its holder, and who has it already is told so instead of waiting for himself.
//!
//! Who holds it across a fork waits for others meanwhile: handlers of allocators take their locks. So it may be *kept*,
//! and then who must not wait that long is sent away, also if he waits already.
//!
//! ```text
//! FREE ─take─▶ TAKEN ─keep─▶ KEPT      who waits makes WAITED_FOR of TAKEN, and KEPT_WAITED_FOR of KEPT
//!   ◀─give_back─┘  ◀─keep_no_longer─┘
//! ```

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{futex, gettid, nanosleep};
use rustix::time::Timespec;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody sleeps until it is not.
const WAITED_FOR: u32 = 2;
/// Taken for as long as others may need.
const KEPT: u32 = 3;
/// Both.
const KEPT_WAITED_FOR: u32 = 4;

/// What became of taking a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is this thread's now.
    Now,
    /// It was this thread's before: somewhere below on its stack.
    Before,
    /// Another thread keeps it.
    Kept,
}

/// What became of work that needs a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried<R> {
    Done(R),
    /// This thread had the lock before.
    Within,
    /// Another thread keeps it.
    Kept,
}

/// How long somebody waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Endless,
    UnlessKept,
}

/// A value that one thread at a time looks at.
pub(crate) struct Guarded<T> {
    state: AtomicU32,
    /// The thread that has the lock; 0 if none has.
    holder: AtomicU32,
    /// So many threads look at the value while it is kept.
    looking: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time change the value, and others look at it only while he does not.
unsafe impl<T: Send + Sync> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Guarded<T> {
        let [state, holder, looking] = [AtomicU32::new(FREE), AtomicU32::new(0), AtomicU32::new(0)];
        Guarded { state, holder, looking, value: UnsafeCell::new(value) }
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

    /// As [`Guarded::with`], but does not wait for a thread that keeps the lock.
    pub(crate) fn with_unless_kept<R>(&self, work: impl FnOnce(&mut T) -> R) -> Tried<R> {
        match self.take_or(Patience::UnlessKept) {
            Taken::Now => {}
            Taken::Before => return Tried::Within,
            Taken::Kept => return Tried::Kept,
        }
        // SAFETY: the lock was taken just now.
        let done = work(unsafe { self.held() });
        self.give_back();
        Tried::Done(done)
    }

    /// Takes the lock, for one function to give it back that another has taken it for.
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
                KEPT | KEPT_WAITED_FOR if patience == Patience::UnlessKept => return Taken::Kept,
                KEPT | KEPT_WAITED_FOR => KEPT_WAITED_FOR,
                _ => WAITED_FOR,
            };
            let is_said = found == waited_for
                || self.state.compare_exchange(found, waited_for, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if found != FREE && is_said {
                // Woken, interrupted or too late: it is looked at again.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, waited_for, None);
                // Others may sleep, of whom this thread does not know.
                taken = WAITED_FOR;
            }
        }
        self.holder.store(this, Ordering::Relaxed);
        Taken::Now
    }

    /// From now on the lock is kept: who waits for it, but not so long, is sent away. The caller's thread has it.
    pub(crate) fn keep(&self) {
        if self.state.swap(KEPT, Ordering::SeqCst) == WAITED_FOR {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
        }
    }

    /// Looks at the value while another thread keeps it, who does not change it until he keeps it no longer. None if
    /// nobody does. Not for long, since he waits for it.
    pub(crate) fn look<R>(&self, work: impl FnOnce(&T) -> R) -> Option<R> {
        self.looking.fetch_add(1, Ordering::SeqCst);
        let is_kept = matches!(self.state.load(Ordering::SeqCst), KEPT | KEPT_WAITED_FOR);
        // SAFETY: nobody changes it as long as this thread is counted.
        let seen = is_kept.then(|| work(unsafe { &*self.value.get() }));
        self.looking.fetch_sub(1, Ordering::SeqCst);
        seen
    }

    /// No longer kept, but still taken.
    pub(crate) fn keep_no_longer(&self) {
        // Those who sleep are woken one by one, from `give_back` on.
        self.state.swap(WAITED_FOR, Ordering::SeqCst);
        while self.looking.load(Ordering::SeqCst) > 0 {
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 10_000 });
        }
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
        if matches!(self.state.swap(FREE, Ordering::Release), WAITED_FOR | KEPT_WAITED_FOR) {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    /// Gives the lock back in the child of a fork, in which those who waited for it are no more, and the thread that
    /// took it has another number.
    pub(crate) fn reset(&self) {
        self.holder.store(0, Ordering::Relaxed);
        self.looking.store(0, Ordering::Relaxed);
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
        assert_eq!(lock.with(|_| ()), None);
        lock.give_back();
        assert_eq!(lock.with(|value| *value), Some(1));
    }

    #[test]
    fn who_must_not_wait_for_long_is_sent_away_also_from_waiting() {
        static LOCK: Guarded<u64> = Guarded::new(0);
        assert_eq!(LOCK.take(), Taken::Now);
        std::thread::scope(|scope| {
            let (patient, hasty): (Vec<_>, Vec<_>) = (0..4)
                .map(|_| {
                    let patient = scope.spawn(|| LOCK.with(|count| *count += 1));
                    (patient, scope.spawn(|| LOCK.with_unless_kept(|count| *count += 1)))
                })
                .unzip();
            while LOCK.state.load(Ordering::Relaxed) != WAITED_FOR {
                std::thread::yield_now();
            }
            assert_eq!(LOCK.look(|count| *count), None);
            LOCK.keep();
            assert_eq!(LOCK.look(|count| *count), Some(0));
            // Nobody gives it back before they are through.
            hasty.into_iter().for_each(|hasty| assert_eq!(hasty.join().unwrap(), Tried::Kept));
            LOCK.keep_no_longer();
            assert_eq!(LOCK.look(|count| *count), None);
            LOCK.give_back();
            patient.into_iter().for_each(|patient| assert_eq!(patient.join().unwrap(), Some(())));
        });
        assert_eq!(LOCK.with_unless_kept(|count| *count), Tried::Done(4));
        assert_eq!(LOCK.with(|_| LOCK.with_unless_kept(|_| ())), Some(Tried::Within));
    }
}
