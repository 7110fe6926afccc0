//! The captured sets of all regions of a pool (captured.rs), and the ways to drop those that no snapshot has any more.
//!
//! ```text
//!   a call that finds no block ─▶ drop_unheld
//!   a fault                    ─▶ asks the pool's thread, and waits ─▶ answer_shortage ─▶ drop_unheld
//! ```
//! A fault handler must not free memory, so the maintenance thread drops sets for it (shortage.rs). That thread waits
//! for no lock whose holder may fault.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::frames::Frames;
use crate::mem::{EngineBox, EngineVec, Own};
use crate::sync::{WaitQueue, WordLock};

/// A kind of set to drop: sets that are of no use to the region.
pub(super) const USELESS: u32 = 1;

/// A kind of set to drop: sets that no snapshot has.
pub(super) const UNHELD: u32 = 2;

/// An owner of the sets of one region, on any [`Sys`](crate::sys::Sys).
pub(super) trait Keeper: Send + Sync {
    /// An address that distinguishes the region's sets from others.
    fn address(&self) -> usize;

    /// Makes another owner of the same sets.
    fn another(&self) -> EngineBox<dyn Keeper>;

    /// Whether there may be sets. Takes no lock.
    fn has_room(&self) -> bool;

    /// Drops the sets of the kinds `wanted`. If another thread has the region's turn, returns false: that thread drops
    /// them at the end of its turn.
    fn settle_for(&self, wanted: u32, frames: &Frames) -> bool;
}

/// The sets of all regions of a pool.
pub(crate) struct Captures {
    regions: Mutex<EngineVec<EngineBox<dyn Keeper>>>,
    pub(super) shortage: Shortage,
}

/// How a fault that finds no block asks the pool's thread to drop sets, and waits for the answer.
#[derive(Default)]
pub(super) struct Shortage {
    /// Whether there may be sets that no snapshot has.
    pub(super) may_be_unheld: AtomicBool,
    /// Held while a thread drops them.
    dropping: WordLock,
    asked: AtomicU32,
    answered: AtomicU32,
    answers: WaitQueue,
    /// The number of writes that have found no block and are looking for one.
    pub(super) writers: AtomicU32,
    /// Whether the pool's thread runs and answers.
    is_served: AtomicBool,
}

impl Shortage {
    /// Asks the pool's thread to drop sets that no snapshot has, and waits for its answer. Returns false if there were
    /// no such sets, or no thread to answer. The fault handler calls this, and holds no lock.
    pub(super) fn ask(&self, wake: impl FnOnce()) -> bool {
        let are_none = !self.may_be_unheld.load(Ordering::SeqCst) && !self.dropping.is_taken();
        if are_none || !self.is_served.load(Ordering::SeqCst) {
            return false;
        }
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        wake();
        let is_answered = || self.answered.load(Ordering::SeqCst).wrapping_sub(ticket).cast_signed() >= 0;
        self.answers.until(|| (is_answered() || !self.is_served.load(Ordering::SeqCst)).then_some(()));
        true
    }

    /// Calls `drop_them` if a fault waits for that.
    pub(super) fn answer(&self, drop_them: impl FnOnce()) {
        if self.is_asked() {
            let until = self.asked.load(Ordering::SeqCst);
            drop_them();
            self.answered.store(until, Ordering::SeqCst);
            self.answers.ring();
        }
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

impl Default for Captures {
    fn default() -> Captures {
        Captures { regions: Mutex::new(EngineVec::new_in(Own)), shortage: Shortage::default() }
    }
}

impl Captures {
    fn lock(&self) -> MutexGuard<'_, EngineVec<EngineBox<dyn Keeper>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, captured: EngineBox<dyn Keeper>) {
        self.lock().push(captured);
    }

    pub(super) fn remove(&self, captured: &dyn Keeper) {
        self.lock().retain(|other| other.address() != captured.address());
    }

    /// Calls `each` for all regions that may have sets. Holds no lock meanwhile.
    fn each(&self, each: impl Fn(&dyn Keeper)) {
        let mut found = EngineVec::new_in(Own);
        found.extend(self.lock().iter().filter(|captured| captured.has_room()).map(|captured| captured.another()));
        found.iter().for_each(|captured: &EngineBox<dyn Keeper>| each(&**captured));
    }

    /// Notes that a snapshot has given up its sets, so that some may belong to no snapshot now.
    pub(crate) fn note_unheld(&self) {
        self.shortage.may_be_unheld.store(true, Ordering::SeqCst);
    }

    /// Drops the sets that no snapshot has.
    pub(super) fn drop_unheld(&self, frames: &Frames) {
        let _dropping = self.shortage.dropping.lock();
        if self.shortage.may_be_unheld.swap(false, Ordering::SeqCst) {
            self.each(|captured| {
                if !captured.settle_for(UNHELD, frames) {
                    self.note_unheld();
                }
            });
        }
    }

    /// Drops the sets that are of no use to their regions.
    pub(super) fn drop_useless(&self, frames: &Frames) {
        self.each(|captured| _ = captured.settle_for(USELESS, frames));
    }
}
