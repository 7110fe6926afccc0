//! Who may hold blocks of a pool: its regions and snapshots, for whoever needs blocks back when none is free.
//!
//! ```text
//!   fault finds no block ─▶ Holders ─▶ each region: drop what is lazily freed, oldest first
//!                                  ─▶ each fork and snapshot: let go of this block (revoke)
//! ```
//! The list is read by fault handlers, so it is guarded by a lock of ours, and its memory is got before that is taken:
//! a thread that faulted inside `malloc` may be waiting for it.

use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

use crate::own::{List, Own};
use crate::pool::lineage::{Derived, RegionId};
use crate::sync::{RegionLock, SharedGuard, SignalsBlocked};
use crate::table::transition::OnRevoke;
use crate::units::{BlockId, EntryIndex};

/// What is asked of a region or snapshot when blocks are short. Called from fault handlers that hold no other lock.
pub(crate) trait Holder: Sync {
    /// Which region this is, unless it is a snapshot: nothing is made from those.
    fn id(&self) -> Option<RegionId>;

    /// What ties it to the region that it was made from, if it was.
    fn parent(&self) -> Option<&Derived>;

    /// What was lazily freed there, if that can be.
    fn lazy(&self) -> Option<&dyn LazyHolder> {
        None
    }

    /// Whether it holds `block` at `index`, as far as can be seen without a lock.
    fn holds(&self, index: EntryIndex, block: BlockId) -> bool;

    /// Lets go of `block` at `index`, which was borrowed. Whoever looks there from now on gets an error, or a copy if a block was
    /// reserved for one and that is asked for too.
    fn let_go(&self, index: EntryIndex, block: BlockId, ask: Ask) -> LetGo;
}

/// How a holder may let go of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Without it, unless one is reserved.
    Revoke,
    /// As above, or for a copy in the block that is reserved.
    RevokeOrCopy,
}

impl Ask {
    /// Whether a holder that would have to do this is asked for it.
    pub(crate) fn is_met_by(self, needed: OnRevoke) -> bool {
        match needed {
            OnRevoke::Nothing => false,
            OnRevoke::Hide => true,
            OnRevoke::CopyIntoReserved => self == Ask::RevokeOrCopy,
        }
    }
}

/// What a holder did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetGo {
    No,
    Revoked,
    Copied,
}

impl LetGo {
    /// This, if it was really done.
    pub(crate) fn if_done(self, is_done: bool) -> LetGo {
        if is_done { self } else { LetGo::No }
    }
}

/// What is asked of a region that may have lazily freed blocks.
pub(crate) trait LazyHolder {
    /// The `lazy_free` call since which the first of the blocks waits that may be dropped.
    fn oldest_lazy(&self, what: Droppable) -> Option<u32>;

    /// Drops what has waited since `until` or longer, about `bytes` of it or a little more, oldest first. Looks at no more
    /// entries than `look`, and takes from it those that it has looked at; returns now and then, also before it is done.
    fn drop_lazy(&self, until: u32, bytes: usize, what: Droppable, look: &mut usize) -> Dropped;

    /// Puts blocks that could not be dropped before back in line, if `changes` says that this may be different now. True if
    /// there are any.
    fn recall_lazy(&self, changes: u64) -> bool;
}

/// What may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Droppable {
    /// What makes blocks available to others: whole blocks of regions that have no reservation.
    Blocks,
    /// All of it, pages of split blocks too.
    Everything,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Blocks given back to the pool.
    pub(crate) blocks: usize,
    /// Bytes, with those of pages in split blocks, which go back to the system at once.
    pub(crate) bytes: usize,
}

/// The list.
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
            // SAFETY: under the lock, exclusively.
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

    /// Removes a holder; nobody uses it any more when this returns.
    pub(crate) fn remove(&self, holder: &(dyn Holder + 'static)) {
        let _signals = SignalsBlocked::new();
        let _alone = self.lock.exclusive();
        // SAFETY: under the lock, exclusively.
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

    /// Keeps holders from coming and going until the visit is over. The visitor may wait for windows and holders' locks, and holds
    /// none before: a new holder keeps visitors out until those inside have left.
    pub(crate) fn visit(&self) -> Visit<'_> {
        let inside = self.lock.shared();
        // SAFETY: under the lock, shared with other readers.
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

    /// Whether all holders of `block` at `index` but the region `id` come from that region, so that it may take the block
    /// away from them. Takes time in proportion to the holders, for each that has the block.
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

        fn let_go(&self, _index: EntryIndex, _block: BlockId, _ask: Ask) -> LetGo {
            LetGo::No
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
