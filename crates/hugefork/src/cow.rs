//! What the forks and snapshots of a region cost it: blocks that it has left and that they alone still hold.
//!
//! ```text
//!   region writes or discards a block that others hold   + 1
//!   a fork or snapshot of it gives the last such up       − 1
//!   its last fork or snapshot goes                        = 0
//! ```
//! The last line mends what forks of forks make inexact: their holders are not told apart.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::options::OnLimit;
use crate::own::Counted;
use crate::sync;

/// How long a write that has to wait for room waits before it lets signals in and faults again.
const MOMENT: Duration = Duration::from_millis(10);

/// The account of one region.
#[derive(Debug, Default)]
pub(crate) struct CowAccount {
    blocks: AtomicUsize,
    derived: AtomicUsize,
    /// Changes when `blocks` has gone down.
    eased: AtomicU32,
    waiting: AtomicU32,
}

/// The most that a region lets its account come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CowLimit {
    pub(crate) blocks: usize,
    pub(crate) on_limit: OnLimit,
}

impl CowAccount {
    /// Blocks that forks and snapshots alone hold.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// The region has left a block to others.
    pub(crate) fn left(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the account goes down, for a moment at most.
    pub(crate) fn wait_a_moment(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        sync::wait_at_most(&self.eased, self.eased.load(Ordering::SeqCst), MOMENT);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn ease(&self, change: impl Fn(usize) -> usize) {
        let _ = self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |blocks| Some(change(blocks)));
        self.eased.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            sync::wake(&self.eased, u32::MAX >> 1);
        }
    }
}

/// A fork or snapshot's share in the account of the region that it was made from.
#[derive(Debug)]
pub(crate) struct Derived(Counted<CowAccount>);

impl Derived {
    pub(crate) fn of(account: &Counted<CowAccount>) -> Derived {
        account.derived.fetch_add(1, Ordering::Relaxed);
        Derived(account.clone())
    }

    /// The last holder of some blocks has given them up.
    pub(crate) fn freed(&self, count: usize) {
        if count > 0 {
            self.0.ease(|blocks| blocks.saturating_sub(count));
        }
    }
}

impl Clone for Derived {
    fn clone(&self) -> Self {
        Derived::of(&self.0)
    }
}

impl Drop for Derived {
    fn drop(&mut self) {
        if self.0.derived.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.ease(|_| 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_goes_up_with_copies_and_down_with_their_last_holders() {
        let account = Counted::new(CowAccount::default());
        let (first, second) = (Derived::of(&account), Derived::of(&account));
        (0..5).for_each(|_| account.left());
        first.freed(2);
        assert_eq!(account.blocks(), 3);
        drop(first.clone());
        drop(first);
        assert_eq!(account.blocks(), 3, "another one is left");
        drop(second);
        assert_eq!(account.blocks(), 0);
    }
}
