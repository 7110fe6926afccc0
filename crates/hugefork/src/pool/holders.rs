//! All who may hold blocks of a pool: its regions and snapshots. Whoever finds no free block asks them for some.
//!
//! ```text
//!   fault finds no block ─▶ Holders ─▶ each region: drop what is lazily freed, oldest first
//!                                  ─▶ each fork and snapshot: what do you offer for this block? (revoke)
//! ```
//! Fault handlers read the list, so its lock is one of ours. Its memory is got before the lock is taken: a thread that
//! faulted inside `malloc` may be waiting for the lock.

use core::any::Any;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

use crate::own::{List, Own};
use crate::pool::lineage::{Derived, RegionId};
use crate::sync::{RegionLock, SharedGuard, SignalsBlocked};
use crate::table::Reserved;
use crate::table::transition::OnRevoke;
use crate::units::{BlockId, EntryIndex};

/// What a region or snapshot is asked when blocks are short. The fault handler asks, too, and holds no other lock.
pub(crate) trait Holder: Sync {
    /// Which region this is; `None` for a snapshot, since no block comes from one.
    fn id(&self) -> Option<RegionId>;

    /// The tie of a fork or snapshot to its parent.
    fn parent(&self) -> Option<&Derived>;

    /// Its lazily freed blocks, if it can have some.
    fn lazy(&self) -> Option<&dyn LazyHolder> {
        None
    }

    /// Its overlays, if it can have some.
    fn overlaid(&self) -> Option<&dyn OverlayHolder> {
        None
    }

    /// The snapshot, if it is one: for those who know of which kind.
    fn snapshot(&self) -> Option<&dyn Any> {
        None
    }

    /// Whether it holds `block` at `index`, as far as that can be seen without a lock.
    fn holds(&self, index: EntryIndex, block: BlockId) -> bool;

    /// What it can do for a region that has to write to `block` at `index`, as far as that can be seen without a lock.
    fn offer(&self, index: EntryIndex, block: BlockId) -> Offer;

    /// Lets go of `block` at `index`. An access there is an error from then on. The asker holds the lock of a window.
    fn let_go(&self, index: EntryIndex, block: BlockId) -> Answer;

    /// Gives up what is reserved for `block` at `index`: the asker, which holds the lock of a window, has it now.
    fn lend(&self, index: EntryIndex, block: BlockId) -> Answer;
}

/// What a holder can do for a region that has to write to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Nothing: it does not hold the block.
    Nothing,
    /// Nothing: it holds the block, and keeps it.
    Keeps,
    /// To let go of the block.
    LetsGo,
    /// To lend what is reserved for a copy of the block. It keeps the block itself.
    Lends,
}

impl Offer {
    /// What one offers who holds the block.
    pub(crate) fn of_holder(on_revoke: OnRevoke, reserved: Reserved) -> Offer {
        match (on_revoke, reserved) {
            (OnRevoke::Hide, _) => Offer::LetsGo,
            (OnRevoke::Nothing, Reserved::Yes) => Offer::Lends,
            (OnRevoke::Nothing, Reserved::No) => Offer::Keeps,
        }
    }
}

/// What a holder did when it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing: it cannot, or not any more.
    No,
    Done,
    /// Nothing: somebody works on it, and may wait for the asker.
    Busy,
}

/// What a region is asked that may have lazily freed blocks.
pub(crate) trait LazyHolder {
    /// The `lazy_free` call since which the first of its droppable blocks waits.
    fn oldest_lazy(&self, what: Droppable) -> Option<u32>;

    /// Drops about `bytes` of what has waited since `until` or longer, oldest first. Looks at no more than `look`
    /// entries, and subtracts those that it looked at. It may return before it is done.
    fn drop_lazy(&self, until: u32, bytes: usize, what: Droppable, look: &mut usize) -> Dropped;

    /// Puts blocks that could not be dropped back in line, if `changes` says that this may be different now. True if
    /// there are any.
    fn recall_lazy(&self, changes: u64) -> bool;
}

/// What a region is asked that may have overlays.
pub(crate) trait OverlayHolder {
    /// Whether it has any.
    fn has_overlays(&self) -> bool;

    /// Looks at some of them, and whether they are alike: then nobody has to look at all when there were `mean` faults
    /// for each. If they have many private pages, it leaves them to writers to copy.
    fn are_alike(&self, mean: usize) -> bool;

    /// Folds or promotes some of them, from the entry `from` on. Returns where to go on, if that is not all. It takes
    /// no block and allocates nothing.
    fn tend(&self, from: usize) -> Option<usize>;
}

/// What may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Droppable {
    /// Whole blocks of regions without a reservation: dropping them makes blocks available to others.
    Blocks,
    /// All that is lazily freed, pages of split blocks too.
    Everything,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Blocks that went back to the pool.
    pub(crate) blocks: usize,
    /// Bytes, including pages of split blocks, which go back to the system at once.
    pub(crate) bytes: usize,
}

/// The holders of one pool.
pub(crate) struct Holders {
    lock: RegionLock,
    list: UnsafeCell<List<NonNull<dyn Holder>>>,
}

impl Default for Holders {
    fn default() -> Holders {
        Holders { lock: RegionLock::default(), list: UnsafeCell::new(List::new_in(Own)) }
    }
}

// SAFETY: the list is only touched under the lock, and holders may be used from any thread.
unsafe impl Send for Holders {}
// SAFETY: as above.
unsafe impl Sync for Holders {}

impl Holders {
    /// Adds a holder.
    ///
    /// # Safety
    /// It stays in place until it is removed.
    pub(crate) unsafe fn add(&self, holder: &(dyn Holder + 'static)) {
        let _signals = SignalsBlocked::new();
        let mut larger = List::new_in(Own);
        loop {
            let alone = self.lock.exclusive();
            // SAFETY: the lock is held exclusively.
            let list = unsafe { &mut *self.list.get() };
            let needed = list.len() + 1;
            if needed > list.capacity() && needed <= larger.capacity() {
                larger.append(list);
                std::mem::swap(list, &mut larger);
            }
            if needed <= list.capacity() {
                list.push(NonNull::from(holder));
                return;
            }
            drop(alone);
            larger.reserve(2 * needed);
        }
    }

    /// Removes a holder. Nobody uses it any more when this returns.
    pub(crate) fn remove(&self, holder: &(dyn Holder + 'static)) {
        let _signals = SignalsBlocked::new();
        let _alone = self.lock.exclusive();
        // SAFETY: the lock is held exclusively.
        let list = unsafe { &mut *self.list.get() };
        let address = ptr::from_ref(holder).addr();
        if let Some(at) = list.iter().position(|other| other.as_ptr().addr() == address) {
            list.swap_remove(at);
        }
        if let Some(gone) = holder.id() {
            let parent = holder.parent().and_then(Derived::parent);
            Family(list).members().filter_map(Holder::parent).for_each(|tie| tie.outlive(gone, parent));
        }
    }

    /// Keeps holders from coming and going until the visit is over. The visitor must hold no lock before. During the
    /// visit it may wait for windows and for holders' locks. A new holder keeps visitors out until those inside have
    /// left.
    pub(crate) fn visit(&self) -> Visit<'_> {
        let inside = self.lock.shared();
        // SAFETY: the lock is held, shared with other readers.
        let family = Family(unsafe { &*self.list.get() });
        Visit { family, _inside: inside }
    }
}

/// A visit to all holders of a pool.
pub(crate) struct Visit<'a> {
    pub(crate) family: Family<'a>,
    _inside: SharedGuard<'a>,
}

/// All holders of a pool during a visit.
#[derive(Clone, Copy)]
pub(crate) struct Family<'a>(&'a [NonNull<dyn Holder>]);

impl<'a> Family<'a> {
    /// Each of them.
    pub(crate) fn members(self) -> impl Iterator<Item = &'a dyn Holder> {
        // SAFETY: holders stay in place until they are removed, which waits for the lock that the visit holds.
        self.0.iter().map(|holder| unsafe { holder.as_ref() })
    }

    /// Whether all holders of `block` at `index`, except the region `id`, come from that region, so that it may take
    /// the block away from them. For each that has the block, this takes time in proportion to the number of holders.
    pub(crate) fn is_all_of(self, id: RegionId, index: EntryIndex, block: BlockId) -> bool {
        let mut others = self.members().filter(|holder| holder.id() != Some(id) && holder.holds(index, block));
        others.all(|holder| self.comes_from(holder, id))
    }

    fn comes_from(self, holder: &dyn Holder, id: RegionId) -> bool {
        let mut parent = holder.parent().and_then(Derived::parent);
        while let Some(at) = parent.filter(|parent| *parent != id) {
            let region = self.members().find(|holder| holder.id() == Some(at));
            parent = region.and_then(Holder::parent).and_then(Derived::parent);
        }
        parent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};

    struct Counting(AtomicUsize);

    impl Holder for Counting {
        fn id(&self) -> Option<RegionId> {
            None
        }

        fn parent(&self) -> Option<&Derived> {
            None
        }

        fn holds(&self, _index: EntryIndex, _block: BlockId) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }

        fn offer(&self, _index: EntryIndex, _block: BlockId) -> Offer {
            Offer::Nothing
        }

        fn let_go(&self, _index: EntryIndex, _block: BlockId) -> Answer {
            Answer::No
        }

        fn lend(&self, _index: EntryIndex, _block: BlockId) -> Answer {
            Answer::No
        }
    }

    #[test]
    fn each_holder_is_visited_until_it_is_removed() {
        let holders = Holders::default();
        let all: Vec<_> = (0..40).map(|_| Box::new(Counting(AtomicUsize::new(0)))).collect();
        // SAFETY: they outlive the list.
        all.iter().for_each(|holder| unsafe { holders.add(&**holder) });
        all[..10].iter().for_each(|holder| holders.remove(&**holder));
        holders.visit().family.members().for_each(|holder| _ = holder.holds(EntryIndex(0), BlockId(0)));
        let visits: Vec<_> = all.iter().map(|holder| holder.0.load(Ordering::Relaxed)).collect();
        assert_eq!(visits, [[0; 10].as_slice(), &[1; 30]].concat());
    }

    #[test]
    fn holders_come_and_go_while_others_look() {
        let holders = Holders::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let holder = Box::new(Counting(AtomicUsize::new(0)));
                        // SAFETY: it is removed below.
                        unsafe { holders.add(&*holder) };
                        let visit = holders.visit();
                        visit.family.members().for_each(|holder| _ = holder.holds(EntryIndex(0), BlockId(0)));
                        drop(visit);
                        assert!(holder.0.load(Ordering::Relaxed) > 0);
                        holders.remove(&*holder);
                    }
                });
            }
        });
        assert_eq!(holders.visit().family.members().count(), 0, "all are gone");
    }
}
