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
    /// Whether there may be such sets.
    pub(super) may_be_any: AtomicBool,
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
    /// Notes that a snapshot has given up its sets, so that some may belong to no snapshot now.
    pub(crate) fn note(&self) {
        self.may_be_any.store(true, Ordering::SeqCst);
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
