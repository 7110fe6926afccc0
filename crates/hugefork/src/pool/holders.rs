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

use crate::cow::{Derived, RegionId};
use crate::own::{List, Own};
use crate::sync::{RegionLock, SignalsBlocked};
use crate::units::{BlockId, EntryIndex};

/// What is asked of a region or snapshot when blocks are short. Called from fault handlers that hold no other lock.
pub(crate) trait Holder: Sync {
    /// Which region this is, unless it is a snapshot: nothing is made from those.
    fn id(&self) -> Option<RegionId>;

    /// What ties it to the region that it was made from, if it was.
    fn origin(&self) -> Option<&Derived>;

    /// The `lazy_free` call since which the first of the blocks waits that may be dropped.
    fn oldest_lazy(&self, what: Droppable) -> Option<u32>;

    /// Drops what has waited since `until` or longer, about `bytes` of it or a little more, oldest first. Looks at no more
    /// entries than `look`, and takes from it those that it has looked at; returns now and then, also before it is done.
    fn drop_lazy(&self, until: u32, bytes: usize, what: Droppable, look: &mut usize) -> Dropped;

    /// Puts blocks that could not be dropped before back in line, if `changes` says that this may be different now. True if
    /// there are any.
    fn recall_lazy(&self, changes: u64) -> bool;

    /// Lets go of `block` at `index`, which was borrowed, unless a reservation says no. Whoever looks there from now on gets
    /// an error. True if it let go.
    fn revoke(&self, index: EntryIndex, block: BlockId) -> bool;

    /// Lets go of `block` at `index` for a copy in the block that is booked for that, if there is one. True if it let go.
    fn copy_from_booking(&self, index: EntryIndex, block: BlockId) -> bool;

    /// Whether it holds `block` at `index`, as far as can be seen without a lock.
    fn holds(&self, index: EntryIndex, block: BlockId) -> bool;
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
    /// Adds a holder, which must stay in place until it is removed.
    pub(crate) fn add(&self, holder: &(dyn Holder + 'static)) {
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
            let parent = holder.origin().and_then(Derived::parent);
            Family(list).members().filter_map(Holder::origin).for_each(|origin| origin.outlive(gone, parent));
        }
    }

    /// Calls `each` for the holders until it says enough; it may ask who comes from whom. `each` may wait for windows and
    /// holders' locks: the caller holds none, since a new holder keeps visitors out until those inside have left.
    pub(crate) fn visit(&self, mut each: impl FnMut(&dyn Holder, Family<'_>) -> Enough) {
        let _inside = self.lock.shared();
        // SAFETY: under the lock, shared with other readers.
        let family = Family(unsafe { &*self.list.get() });
        for holder in family.members() {
            if each(holder, family) == Enough::Yes {
                break;
            }
        }
    }
}

/// All holders of a pool during a visit.
#[derive(Clone, Copy)]
pub(crate) struct Family<'a>(&'a [NonNull<dyn Holder>]);

impl<'a> Family<'a> {
    fn members(self) -> impl Iterator<Item = &'a dyn Holder> {
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
        let mut parent = holder.origin().and_then(Derived::parent);
        while let Some(at) = parent.filter(|parent| *parent != id) {
            let region = self.members().find(|holder| holder.id() == Some(at));
            parent = region.and_then(Holder::origin).and_then(Derived::parent);
        }
        parent.is_some()
    }
}

/// Whether a visit goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enough {
    Yes,
    No,
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

        fn origin(&self) -> Option<&Derived> {
            None
        }

        fn oldest_lazy(&self, _what: Droppable) -> Option<u32> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn drop_lazy(&self, _until: u32, _bytes: usize, _what: Droppable, _look: &mut usize) -> Dropped {
            Dropped::default()
        }

        fn recall_lazy(&self, _changes: u64) -> bool {
            false
        }

        fn revoke(&self, _index: EntryIndex, _block: BlockId) -> bool {
            false
        }

        fn copy_from_booking(&self, _index: EntryIndex, _block: BlockId) -> bool {
            false
        }

        fn holds(&self, _index: EntryIndex, _block: BlockId) -> bool {
            false
        }
    }

    #[test]
    fn each_holder_is_visited_until_it_is_removed() {
        let holders = Holders::default();
        let all: Vec<_> = (0..40).map(|_| Box::new(Counting(AtomicUsize::new(0)))).collect();
        all.iter().for_each(|holder| holders.add(&**holder));
        all[..10].iter().for_each(|holder| holders.remove(&**holder));
        holders.visit(|holder, _| {
            holder.oldest_lazy(Droppable::Everything);
            Enough::No
        });
        let visits: Vec<_> = all.iter().map(|holder| holder.0.load(Ordering::Relaxed)).collect();
        assert_eq!(visits, [[0; 10].as_slice(), &[1; 30]].concat());
        let mut visited = 0;
        holders.visit(|_, _| {
            visited += 1;
            if visited == 3 { Enough::Yes } else { Enough::No }
        });
        assert_eq!(visited, 3);
    }

    #[test]
    fn holders_come_and_go_while_others_look() {
        let holders = Holders::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let holder = Box::new(Counting(AtomicUsize::new(0)));
                        holders.add(&*holder);
                        holders.visit(|holder, _| {
                            holder.oldest_lazy(Droppable::Everything);
                            Enough::No
                        });
                        assert!(holder.0.load(Ordering::Relaxed) > 0);
                        holders.remove(&*holder);
                    }
                });
            }
        });
        holders.visit(|_, _| panic!("all are gone"));
    }
}
