//! What the forks and snapshots of a region cost it: blocks that the region has left and that they alone still hold.
//!
//! ```text
//!   region writes or discards a block that others hold   + 1
//!   a fork or snapshot of it gives the last such up       − 1
//!   its last fork or snapshot goes                        = 0
//! ```
//! The last line corrects what forks of forks make inexact, because their holders are not told apart.

use crate::mem::EngineArc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The account of one region.
#[derive(Debug)]
pub(crate) struct CowAccount {
    /// Tells the region from all others that ever lived.
    id: RegionId,
    blocks: AtomicUsize,
    derived: AtomicUsize,
}

/// Tells regions apart; no value is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionId(u64);

impl Default for CowAccount {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        CowAccount {
            id: RegionId(NEXT.fetch_add(1, Ordering::Relaxed)),
            blocks: AtomicUsize::new(0),
            derived: AtomicUsize::new(0),
        }
    }
}

impl CowAccount {
    /// The region whose account this is.
    pub(crate) fn id(&self) -> RegionId {
        self.id
    }

    /// Whether the region has more than one fork or snapshot.
    pub(crate) fn has_several(&self) -> bool {
        self.derived.load(Ordering::Relaxed) > 1
    }

    /// Blocks that only forks and snapshots hold.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Counts a block that the region has left to others.
    pub(crate) fn left(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts blocks that their last holder has given up.
    pub(crate) fn freed(&self, count: usize) {
        if count > 0 {
            self.ease(|blocks| blocks.saturating_sub(count));
        }
    }

    fn ease(&self, change: impl Fn(usize) -> usize) {
        let _ = self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |blocks| Some(change(blocks)));
    }
}

/// The tie of a fork or snapshot to its parent: its share in the parent's account, and which region the parent is.
#[derive(Debug)]
pub(crate) struct Derived {
    account: EngineArc<CowAccount>,
    /// The parent or, once that is gone, the parent's parent; 0 if no ancestor is left.
    parent: AtomicU64,
}

impl Derived {
    pub(crate) fn of(account: &EngineArc<CowAccount>) -> Derived {
        Derived::with_parent(account, account.id.0)
    }

    fn with_parent(account: &EngineArc<CowAccount>, parent: u64) -> Derived {
        account.derived.fetch_add(1, Ordering::Relaxed);
        Derived { account: account.clone(), parent: AtomicU64::new(parent) }
    }

    /// Whether it is a share in the account of this region.
    pub(crate) fn is_share_of(&self, region: RegionId) -> bool {
        self.account.id == region
    }

    /// Counts blocks that their last holder has given up.
    pub(crate) fn freed(&self, count: usize) {
        self.account.freed(count);
    }

    /// Counts a block that only a fork or snapshot holds now.
    pub(crate) fn keeps_alone(&self) {
        self.account.left();
    }

    /// The nearest ancestor that still lives.
    pub(crate) fn parent(&self) -> Option<RegionId> {
        match self.parent.load(Ordering::Acquire) {
            0 => None,
            id => Some(RegionId(id)),
        }
    }

    /// Takes `parent` in place of the region `gone`, whose parent it was.
    pub(crate) fn outlive(&self, gone: RegionId, parent: Option<RegionId>) {
        let parent = parent.map_or(0, |parent| parent.0);
        let _ = self.parent.compare_exchange(gone.0, parent, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Follows `source`, which this is a clone of, if its parent went before this one was in the list of holders. Under
    /// the lock of that list.
    pub(crate) fn catch_up(&self, source: &Derived) {
        let seen = self.parent.load(Ordering::Acquire);
        let now = source.parent.load(Ordering::Acquire);
        let _ = self.parent.compare_exchange(seen, now, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Clone for Derived {
    fn clone(&self) -> Self {
        Derived::with_parent(&self.account, self.parent.load(Ordering::Acquire))
    }
}

impl Drop for Derived {
    fn drop(&mut self) {
        if self.account.derived.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.account.ease(|_| 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_goes_up_with_copies_and_down_with_their_last_holders() {
        let account = EngineArc::new(CowAccount::default());
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
