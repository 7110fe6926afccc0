//! Who may hold blocks of a pool: its regions and snapshots, for whoever needs blocks back when none is free.
//!
//! ```text
//!   fault finds no block ─▶ Holders ─▶ each region: drop what is lazily freed, oldest first
//!                                  ─▶ each fork and snapshot: let go of this block (revoke)
//! ```
//! The list is read by fault handlers, so it is guarded by a lock of ours, and its memory is got before that is taken:
//! a thread that faulted inside `malloc` may be waiting for it.

use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::own::{List, Own};
use crate::sync::{RegionLock, SignalsBlocked};
use crate::units::{BlockId, EntryIndex};

/// What is asked of a region or snapshot when blocks are short. Called from fault handlers that hold no other lock.
pub(crate) trait Holder: Sync {
    /// When the oldest of the blocks that may be dropped was lazily freed, of those after `after`.
    fn oldest_lazy(&self, after: u32) -> Option<u32>;

    /// Drops what was lazily freed at `mark`, about `blocks` of it or a little more.
    fn drop_lazy(&self, mark: u32, blocks: usize, what: Droppable) -> Dropped;

    /// Lets go of `block` at `index`, which was borrowed, unless a reservation or a pin says no. Whoever looks there
    /// from now on gets an error. True if it let go.
    fn revoke(&self, index: EntryIndex, block: BlockId) -> bool;

    /// Whether it holds `block` at `index`, as far as can be seen without a lock.
    fn holds(&self, index: EntryIndex, block: BlockId) -> bool;

    /// Hands the booking of `block` at `index` over, if this holder has one and needs it no more once the region that
    /// wrote the block has a copy of its own. The caller answers for the booking from then on.
    fn lend_booking(&self, index: EntryIndex, block: BlockId) -> bool;
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
        let holder: *const dyn Holder = holder;
        if let Some(at) = list.iter().position(|other| other.as_ptr().addr() == holder.addr()) {
            list.swap_remove(at);
        }
    }

    /// Calls `each` for the holders until it says enough. `each` may wait for windows and holders' locks: the caller holds
    /// none, since a new holder keeps visitors out until those inside have left.
    pub(crate) fn visit(&self, mut each: impl FnMut(&dyn Holder) -> Enough) {
        let _inside = self.lock.shared();
        // SAFETY: under the lock, shared with other readers.
        let list = unsafe { &*self.list.get() };
        for holder in list {
            // SAFETY: holders stay in place until they are removed, which waits for the lock.
            if each(unsafe { holder.as_ref() }) == Enough::Yes {
                break;
            }
        }
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
        fn oldest_lazy(&self, _after: u32) -> Option<u32> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn drop_lazy(&self, _mark: u32, _blocks: usize, _what: Droppable) -> Dropped {
            Dropped::default()
        }

        fn revoke(&self, _index: EntryIndex, _block: BlockId) -> bool {
            false
        }

        fn holds(&self, _index: EntryIndex, _block: BlockId) -> bool {
            false
        }

        fn lend_booking(&self, _index: EntryIndex, _block: BlockId) -> bool {
            false
        }
    }

    #[test]
    fn each_holder_is_visited_until_it_is_removed() {
        let holders = Holders::default();
        let all: Vec<_> = (0..40).map(|_| Box::new(Counting(AtomicUsize::new(0)))).collect();
        all.iter().for_each(|holder| holders.add(&**holder));
        all[..10].iter().for_each(|holder| holders.remove(&**holder));
        holders.visit(|holder| {
            holder.oldest_lazy(0);
            Enough::No
        });
        let visits: Vec<_> = all.iter().map(|holder| holder.0.load(Ordering::Relaxed)).collect();
        assert_eq!(visits, [[0; 10].as_slice(), &[1; 30]].concat());
        let mut visited = 0;
        holders.visit(|_| {
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
                        holders.visit(|holder| {
                            holder.oldest_lazy(0);
                            Enough::No
                        });
                        assert!(holder.0.load(Ordering::Relaxed) > 0);
                        holders.remove(&*holder);
                    }
                });
            }
        });
        holders.visit(|_| panic!("all are gone"));
    }
}
