//! A mutex in one word.
//!
//! ```text
//!             lock                    lock, taken
//!   FREE ───────────────▶ HELD ──────────────────────▶ HELD_WITH_WAITERS
//!    ▲  ◀───────────────         (sleeps on the word)          │
//!    │       unlock                                            │
//!    └──────────────────── unlock, wakes one ──────────────────┘
//! ```
//! The three-state futex mutex of Drepper, "Futexes are tricky" (2011). Every state change is one atomic instruction.

use super::primitive::{AtomicU32, Ordering, SPINS, spin_loop, wait, wake};

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_WAITERS: u32 = 2;

/// A mutex in one word; all zeroes is a free lock.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct WordLock {
    state: AtomicU32,
}

/// Holds a [`WordLock`] until dropped.
#[derive(Debug)]
pub(crate) struct WordGuard<'a> {
    lock: &'a WordLock,
}

impl WordLock {
    /// Takes the lock. Sleeps while another thread has it.
    pub(crate) fn lock(&self) -> WordGuard<'_> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        WordGuard { lock: self }
    }

    /// Whether any thread has the lock.
    pub(crate) fn is_taken(&self) -> bool {
        self.state.load(Ordering::Acquire) != FREE
    }

    /// Takes the lock if no thread has it.
    pub(crate) fn try_lock(&self) -> Option<WordGuard<'_>> {
        let taken = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        // `then` makes a guard only on success: a discarded guard would release a lock that another thread holds.
        taken.is_ok().then(|| WordGuard { lock: self })
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            spin_loop();
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
        }
        // From here on this thread cannot know whether others sleep, so it takes the lock as if it had waiters.
        while self.state.swap(HELD_WITH_WAITERS, Ordering::Acquire) != FREE {
            wait(&self.state, HELD_WITH_WAITERS);
        }
    }

    /// Releases a lock whose guard was [kept](WordGuard::keep).
    pub(crate) fn release(&self) {
        let order = if seeded!("lock-released-without-a-fence") { Ordering::Relaxed } else { Ordering::Release };
        if self.state.swap(FREE, order) == HELD_WITH_WAITERS {
            wake(&self.state, 1);
        }
    }
}

impl WordGuard<'_> {
    /// Leaves the lock taken until [`WordLock::release`].
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for WordGuard<'_> {
    fn drop(&mut self) {
        self.lock.release();
    }
}
