//! How the sets that no snapshot has any more (captured.rs) are dropped when blocks are short.
//!
//! ```text
//!   a call that finds no block ─▶ drop_unheld
//!   a fault                    ─▶ asks the pool's thread, and waits ─▶ answer_shortage ─▶ drop_unheld
//! ```
//! A fault handler must not free memory, so the maintenance thread drops sets for it (shortage.rs). That thread waits
//! for no lock whose holder may fault.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sync::{WaitQueue, WordLock};

/// A kind of set to drop: sets that are of no use to the region.
pub(crate) const USELESS: u32 = 1;

/// A kind of set to drop: sets that no snapshot has, and those of a snapshot that alone holds the block below.
pub(crate) const UNHELD: u32 = 2;

/// A kind of set to drop, together with [`UNHELD`]: those that a cut has captured that waits for operations.
pub(crate) const WAITED_FOR: u32 = 4;

/// Whether a pool may have sets that no snapshot has, and how a fault that finds no block asks the pool's thread to
/// drop them.
#[derive(Default)]
pub(crate) struct Unheld {
    /// Counts the events after which there may be such sets.
    pub(super) noted: AtomicU32,
    /// The value of `noted` before the last search that dropped all of them.
    pub(super) dropped: AtomicU32,
    /// Held while a thread drops them.
    pub(super) dropping: WordLock,
    pub(super) asked: AtomicU32,
    pub(super) answered: AtomicU32,
    pub(super) answers: WaitQueue,
    /// The number of writes that have found no block and are looking for one.
    pub(super) writers: AtomicU32,
    /// Whether the pool's thread runs and answers.
    pub(super) is_served: AtomicBool,
}

impl Unheld {
    /// Notes that some sets may belong to no snapshot: a snapshot has given up its sets, or a thread has begun a turn,
    /// in which it makes sets and keeps others from dropping any.
    pub(crate) fn note(&self) {
        self.noted.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether there may be such sets.
    pub(crate) fn may_be_any(&self) -> bool {
        self.noted.load(Ordering::SeqCst) != self.dropped.load(Ordering::SeqCst)
    }

    /// Whether a fault waits for the pool's thread.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) != self.answered.load(Ordering::SeqCst)
    }

    /// Notes whether the pool's thread answers from now on.
    pub(super) fn set_served(&self, is_served: bool) {
        self.is_served.store(is_served, Ordering::SeqCst);
        self.answers.ring();
    }
}
