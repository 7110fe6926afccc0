//! The cost of a region's forks and snapshots: blocks that the region no longer has, and that only they still hold.
//!
//! ```text
//!   region writes or discards a block that others hold     + 1
//!   a fork or snapshot gives up the last reference         − 1
//!   the region's last fork or snapshot goes                = 0
//! ```
//! Forks of forks make the count inexact, because the account does not distinguish their holders. The last line
//! corrects that.

use crate::mem::EngineArc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The account of one region.
#[derive(Debug)]
pub(crate) struct CowAccount {
    /// The region whose account this is.
    pub(crate) id: RegionId,
    blocks: AtomicUsize,
    derived: AtomicUsize,
}

/// The identity of a region. No value is used twice.
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
    /// Whether the region has more than one fork or snapshot.
    pub(crate) fn has_several(&self) -> bool {
        self.derived.load(Ordering::Relaxed) > 1
    }

    /// Blocks that only forks and snapshots hold.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Counts a block that the region no longer has, but a fork or snapshot does.
    pub(crate) fn left(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts blocks that their last holder has given up.
    pub(crate) fn freed(&self, count: usize) {
        if count > 0 {
            let less = |blocks: usize| Some(blocks.saturating_sub(count));
            let _ = self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

/// The link of a fork or snapshot to its parent: a share in an account, and the identity of the parent.
#[derive(Debug)]
pub(crate) struct Derived {
    pub(crate) account: EngineArc<CowAccount>,
    /// The parent or, once that is gone, the parent's parent, and so on; 0 if no ancestor is alive.
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

    /// The nearest ancestor that is still alive.
    pub(crate) fn parent(&self) -> Option<RegionId> {
        match self.parent.load(Ordering::Acquire) {
            0 => None,
            id => Some(RegionId(id)),
        }
    }

    /// Replaces the parent `gone`, if this is a child of that region, by its own parent `parent`.
    pub(crate) fn outlive(&self, gone: RegionId, parent: Option<RegionId>) {
        let parent = parent.map_or(0, |parent| parent.0);
        let _ = self.parent.compare_exchange(gone.0, parent, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Takes over the parent of `source`, of which this is a clone: that parent may have gone before the owner of this
    /// link was in the list of holders. The caller holds the lock of that list.
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
            self.account.blocks.store(0, Ordering::Relaxed);
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
        first.account.freed(2);
        assert_eq!(account.blocks(), 3);
        drop(first.clone());
        drop(first);
        assert_eq!(account.blocks(), 3, "another one is left");
        drop(second);
        assert_eq!(account.blocks(), 0);
    }
}
