//! The holders of a pool's blocks: its regions and snapshots. A thread that finds no free block asks them for some.
//!
//! ```text
//!   fault finds no block ─▶ Holders ─▶ each region: drop lazily freed blocks, oldest first
//!                                  ─▶ each fork and snapshot: give this block up (revoke)
//! ```
//! Fault handlers read the list, so its lock is one that a signal handler may take. A thread allocates memory for the
//! list before it takes the lock, because another thread that faulted inside `malloc` may be waiting for the lock.

use core::cell::UnsafeCell;
use core::iter;
use core::mem;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::frames::Frames;
use crate::mem::{EngineVec, Own};
use crate::pool::lineage::{Derived, RegionId};
use crate::sync::{RegionLock, SharedGuard, SignalsBlocked};
use crate::table::transition::OnRevoke;
use crate::units::{BlockId, EntryIndex};

/// A region or snapshot, as seen by a thread that looks for blocks. The thread may be in a fault handler. It then holds
/// no lock but the visit and, in [`Holder::give_up`], that of one window.
pub(crate) trait Holder: Sync {
    /// The region's identity; `None` for a snapshot, which cannot be a parent.
    fn id(&self) -> Option<RegionId>;

    /// The place of a snapshot in its list; `None` for a region.
    fn seat(&self) -> Option<&Seat> {
        None
    }

    /// The link of a fork or snapshot to its parent.
    fn parent(&self) -> Option<&Derived>;

    /// The part that drops lazily freed blocks, if the holder can have some.
    fn lazy(&self) -> Option<&dyn LazyHolder> {
        None
    }

    /// The part that maintains CoW mappings, if the holder can have some.
    fn with_cow_mappings(&self) -> Option<&dyn CowMappingHolder> {
        None
    }

    /// Whether it holds `block` at `index`. Without a lock, so the answer may be outdated at once.
    fn holds(&self, index: EntryIndex, block: BlockId) -> bool;

    /// How it gives up `block` at `index`. Without a lock, so the answer may be outdated at once.
    fn on_revoke(&self, index: EntryIndex, block: BlockId) -> OnRevoke;

    /// Whether it holds `block` at `index` and never gives it up. This checks for the block before and after: a
    /// snapshot that becomes a fork may let go of it in between, and would then seem to keep it.
    fn keeps(&self, index: EntryIndex, block: BlockId) -> bool {
        self.holds(index, block) && self.on_revoke(index, block) == OnRevoke::Nothing && self.holds(index, block)
    }

    /// Gives up `block` at `index`. From then on, an access there is an error. The caller holds the lock of a window.
    fn give_up(&self, index: EntryIndex, block: BlockId) -> Answer;

    /// Gives back blocks of zeros that no one else holds and without which the holder's bytes are still zeros. Returns
    /// the number of blocks. The caller has blocked signals.
    fn drop_zeros(&self) -> usize {
        0
    }
}

/// The answer of a holder that was asked to give up a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The holder gives up nothing: it cannot, or does not hold the block any more.
    No,
    Done,
    /// The holder gives up nothing now: another thread works on that entry, and may wait for the caller.
    Busy,
}

/// A region that may have lazily freed blocks.
pub(crate) trait LazyHolder {
    /// The number of the `lazy_free` call that freed the oldest of its droppable blocks.
    fn oldest_lazy(&self, what: Droppable) -> Option<u32>;

    /// Drops about `bytes` bytes that were freed in the `lazy_free` call `until` or earlier, oldest first. Inspects at
    /// most `look` entries, and subtracts those that it inspected. It may return before it has dropped that much.
    fn drop_lazy(&self, until: u32, bytes: usize, what: Droppable, look: &mut usize) -> Dropped;

    /// Makes blocks that could not be dropped candidates again, if the counter `changes` has risen since. Returns true
    /// if there are any.
    fn recall_lazy(&self, changes: u64) -> bool;
}

/// A region that may have CoW mappings.
pub(crate) trait CowMappingHolder {
    /// Whether the region has any CoW mapping.
    fn has_cow_mappings(&self) -> bool;

    /// How many blocks its writers may have to copy, whether they are CoW mappings or not; 0 in a region where no write
    /// may fault.
    fn waited_for(&self) -> usize;

    /// Samples some CoW mappings. Returns true if they have about as many private pages as there were faults for each,
    /// which is `mean`: then all are alike, and the thread need not inspect each. If they have many private pages,
    /// write-protects all CoW mappings, so that the writers copy the blocks.
    fn are_alike(&self, mean: usize) -> bool;

    /// Writes back or promotes some CoW mappings, from the entry `from` on. Returns the entry to go on with, or `None`
    /// at the end. It allocates nothing on the heap.
    fn maintain(&self, from: usize) -> Option<usize>;
}

/// The page sets captured of a region (captured.rs), or those of a snapshot (snapshot/pages.rs). They are no part of
/// the [`Holder`], because their drop is not for fault handlers.
pub(crate) trait SetHolder: Sync {
    /// Drops the sets of the kinds `wanted`. If another thread has the region's turn, returns false: that thread drops
    /// them at the end of its turn. Also returns false while a cut waits for operations, unless its sets are wanted.
    /// The caller has blocked signals.
    fn drop_sets(&self, wanted: u32, frames: &Frames) -> bool;
}

/// The contents that a search may drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Droppable {
    /// Whole blocks of regions without a reservation: a drop makes them available to others.
    Blocks,
    /// Everything that is lazily freed, including pages of split blocks.
    Everything,
}

/// The amount that a search has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Blocks that went back to the pool.
    pub(crate) blocks: usize,
    /// Bytes, including pages of split blocks; those go back to the system at once.
    pub(crate) bytes: usize,
}

/// The holders of one pool. The regions form a family tree, listed in depth-first order: each region is followed by its
/// forks, their forks, and so on. So one pass over the list finds all descendants of a region, and no search goes from
/// child to parent. Snapshots have no children, may be thousands, and come and go all the time. So each is in the list
/// of its region, and knows its place there.
///
/// ```text
///   region ─┬─ fork ─── snapshot        region 0: snapshot │ fork 1: snapshot │ fork 1 │ other 0
///           ├─ snapshot                        depth ─┘
///           └─ fork
/// ```
pub(crate) struct Holders {
    lock: RegionLock,
    list: UnsafeCell<List>,
}

/// All holders.
struct List {
    regions: EngineVec<Member>,
    /// Snapshots whose region is gone, with all ancestors of that region.
    orphans: Snapshots,
}

/// A region in the list.
struct Member {
    holder: NonNull<dyn Holder>,
    sets: Option<NonNull<dyn SetHolder>>,
    id: RegionId,
    /// How many of its ancestors are still alive.
    depth: usize,
    snapshots: Snapshots,
}

/// The snapshots of one region, in any order. Each stores its index in this list as its [`Seat`].
struct Snapshots(EngineVec<Snapshot>);

#[derive(Clone, Copy)]
struct Snapshot {
    holder: NonNull<dyn Holder>,
    sets: Option<NonNull<dyn SetHolder>>,
}

/// The index of a snapshot in its region's list. Only the list reads and writes it, under its lock.
#[derive(Debug, Default)]
pub(crate) struct Seat(AtomicUsize);

impl Snapshots {
    fn holders(&self) -> impl Iterator<Item = &dyn Holder> {
        // SAFETY: a holder stays in place until it is removed from the list, and these are still in the list.
        self.0.iter().map(|snapshot| unsafe { snapshot.holder.as_ref() })
    }

    /// Adds a snapshot. The list must have room for it.
    fn add(&mut self, snapshot: Snapshot) {
        self.0.push(snapshot);
        self.seat(self.0.len() - 1);
    }

    /// Removes a snapshot. The last one of the list moves to its place.
    fn remove(&mut self, holder: &dyn Holder) {
        let Some(at) = holder.seat().map(|seat| seat.0.load(Ordering::Relaxed)) else { return };
        let gone = self.0.swap_remove(at);
        assert!(ptr::addr_eq(gone.holder.as_ptr(), holder), "a snapshot has the list index of another");
        if at < self.0.len() {
            self.seat(at);
        }
    }

    fn seat(&self, at: usize) {
        // SAFETY: a holder stays in place until it is removed from the list, and this one is in it.
        let seat = unsafe { self.0[at].holder.as_ref() }.seat();
        seat.into_iter().for_each(|seat| seat.0.store(at, Ordering::Relaxed));
    }
}

impl Member {
    fn holder(&self) -> &dyn Holder {
        // SAFETY: a holder stays in place until it is removed from the list, and this one is still in the list.
        unsafe { self.holder.as_ref() }
    }

    /// The region and its snapshots.
    fn holders(&self) -> impl Iterator<Item = &dyn Holder> {
        iter::once(self.holder()).chain(self.snapshots.holders())
    }
}

impl List {
    fn region_at(&self, id: Option<RegionId>) -> Option<usize> {
        self.regions.iter().position(|member| Some(member.id) == id)
    }

    /// The snapshots of the region `id`, or those without a living ancestor.
    fn snapshots_of(&mut self, id: Option<RegionId>) -> &mut Snapshots {
        match self.region_at(id) {
            Some(at) => &mut self.regions[at].snapshots,
            None => &mut self.orphans,
        }
    }

    /// The positions of all descendants of the region at `of`.
    fn descendants(&self, of: usize) -> Range<usize> {
        let comes_from = |member: &&Member| member.depth > self.regions[of].depth;
        of + 1..of + 1 + self.regions[of + 1..].iter().take_while(comes_from).count()
    }
}

impl Default for Holders {
    fn default() -> Holders {
        let list = List { regions: EngineVec::new_in(Own), orphans: Snapshots(EngineVec::new_in(Own)) };
        Holders { lock: RegionLock::default(), list: UnsafeCell::new(list) }
    }
}

// SAFETY: the list is only touched under the lock, and holders may be used from any thread.
unsafe impl Send for Holders {}
// SAFETY: as above.
unsafe impl Sync for Holders {}

impl Holders {
    /// Adds a holder; a region is placed right after its parent. Its link to its parent is new, or a clone of `source`,
    /// which is the link of a listed holder. To add a snapshot takes time in proportion to the number of regions.
    ///
    /// # Safety
    /// The holder and the sets stay in place until the holder is removed.
    pub(crate) unsafe fn add(
        &self,
        holder: &(dyn Holder + 'static),
        source: Option<&Derived>,
        sets: Option<&(dyn SetHolder + 'static)>,
    ) {
        let parent = || {
            if let (Some(tie), Some(source)) = (holder.parent(), source) {
                tie.catch_up(source);
            }
            holder.parent().and_then(Derived::parent)
        };
        let sets = sets.map(NonNull::from);
        let Some(id) = holder.id() else {
            let snapshot = Snapshot { holder: NonNull::from(holder), sets };
            let add = |list: &mut List| list.snapshots_of(parent()).add(snapshot);
            return self.change(|list| (&mut list.snapshots_of(parent()).0, 1), add);
        };
        let add = |list: &mut List| {
            let (at, depth) = match list.region_at(parent()) {
                Some(parent) => (parent + 1, list.regions[parent].depth + 1),
                None => (list.regions.len(), 0),
            };
            let snapshots = Snapshots(EngineVec::new_in(Own));
            list.regions.insert(at, Member { holder: NonNull::from(holder), sets, id, depth, snapshots });
        };
        self.change(|list| (&mut list.regions, 1), add);
    }

    /// Removes a holder. When this returns, no visitor uses it any more.
    pub(crate) fn remove(&self, holder: &(dyn Holder + 'static)) {
        let parent = || holder.parent().and_then(Derived::parent);
        let Some(id) = holder.id() else {
            return self.change(|list| (&mut list.regions, 0), |list| list.snapshots_of(parent()).remove(holder));
        };
        let remove = |list: &mut List| {
            let at = list.region_at(Some(id))?;
            for region in list.descendants(at) {
                list.regions[region].depth -= 1;
                let tie = list.regions[region].holder().parent();
                tie.into_iter().for_each(|tie| tie.outlive(id, parent()));
            }
            let gone = list.regions.remove(at);
            let of_parent = list.snapshots_of(parent());
            for (snapshot, holder) in gone.snapshots.0.iter().zip(gone.snapshots.holders()) {
                holder.parent().into_iter().for_each(|tie| tie.outlive(id, parent()));
                of_parent.add(*snapshot);
            }
            Some(gone)
        };
        let gone = self.change(
            |list| {
                let count = list.region_at(Some(id)).map_or(0, |at| list.regions[at].snapshots.0.len());
                (&mut list.snapshots_of(parent()).0, count)
            },
            remove,
        );
        // The memory of the region's list of snapshots is freed after the lock is released.
        drop(gone);
    }

    /// Calls `change` with the list. Before, makes room for more elements in the part of the list that `room` names
    /// with their number, and allocates outside of the lock for that.
    fn change<T, R>(
        &self,
        room: impl Fn(&mut List) -> (&mut EngineVec<T>, usize),
        change: impl FnOnce(&mut List) -> R,
    ) -> R {
        let _signals = SignalsBlocked::new();
        let mut larger = EngineVec::new_in(Own);
        loop {
            let alone = self.lock.exclusive();
            // SAFETY: the lock is held exclusively.
            let list = unsafe { &mut *self.list.get() };
            let (part, more) = room(list);
            let needed = part.len() + more;
            if needed > part.capacity() && needed <= larger.capacity() {
                larger.append(part);
                mem::swap(part, &mut larger);
            }
            if needed <= part.capacity() {
                return change(list);
            }
            drop(alone);
            larger.reserve(2 * needed);
        }
    }

    /// Keeps visitors off, as adding or removing a holder does.
    #[cfg(test)]
    pub(crate) fn lock(&self) -> crate::sync::ExclusiveGuard<'_> {
        self.lock.exclusive()
    }

    /// Begins a visit, during which no holder is added or removed. The caller must hold no lock before. During the
    /// visit it may wait for the locks of windows and holders. A thread that adds a holder keeps new visitors out until
    /// the present ones have left.
    pub(crate) fn visit(&self) -> Visit<'_> {
        let inside = self.lock.shared();
        // SAFETY: the lock is held, shared with other readers.
        Visit { list: unsafe { &*self.list.get() }, _inside: inside }
    }
}

/// A visit to all holders of a pool.
pub(crate) struct Visit<'a> {
    list: &'a List,
    _inside: SharedGuard<'a>,
}

impl Visit<'_> {
    /// All regions and snapshots.
    pub(crate) fn members(&self) -> impl Iterator<Item = &dyn Holder> {
        self.list.regions.iter().flat_map(Member::holders).chain(self.list.orphans.holders())
    }

    /// All regions.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &dyn Holder> {
        self.list.regions.iter().map(Member::holder)
    }

    /// The page sets of all snapshots, and then those of all regions.
    pub(super) fn sets(&self) -> impl Iterator<Item = &dyn SetHolder> {
        let List { regions, orphans } = self.list;
        let snapshots = regions.iter().map(|member| &member.snapshots).chain([orphans]);
        let of_snapshots = snapshots.flat_map(|snapshots| &snapshots.0).map(|snapshot| snapshot.sets);
        let sets = of_snapshots.chain(regions.iter().map(|member| member.sets));
        // SAFETY: they stay in place until their holder is removed from the list, and it is still in the list.
        sets.filter_map(|sets| Some(unsafe { sets?.as_ref() }))
    }

    /// The region `id`, if it is still alive.
    pub(crate) fn region(&self, id: RegionId) -> Option<&dyn Holder> {
        self.list.region_at(Some(id)).map(|at| self.list.regions[at].holder())
    }

    /// Whether every holder of `block` at `index` is the region `id` or descends from it, so that the region may take
    /// the block away from the others. This takes time in proportion to the number of holders.
    pub(crate) fn is_all_of(&self, id: RegionId, index: EntryIndex, block: BlockId) -> bool {
        let holds = |holder: &dyn Holder| holder.holds(index, block);
        // The depth of the region `id`, while the loop passes its descendants.
        let mut own = None;
        for member in &self.list.regions {
            if own.is_some_and(|depth| member.depth > depth) {
                continue;
            }
            own = (member.id == id).then_some(member.depth);
            if own.is_none() && member.holders().any(holds) {
                return false;
            }
        }
        !self.list.orphans.holders().any(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::EngineArc;
    use crate::pool::lineage::CowAccount;

    /// A snapshot without blocks, of no region.
    #[derive(Default)]
    struct Counting(AtomicUsize, Seat);

    impl Holder for Counting {
        fn id(&self) -> Option<RegionId> {
            None
        }

        fn seat(&self) -> Option<&Seat> {
            Some(&self.1)
        }

        fn parent(&self) -> Option<&Derived> {
            None
        }

        fn holds(&self, _index: EntryIndex, _block: BlockId) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }

        fn on_revoke(&self, _index: EntryIndex, _block: BlockId) -> OnRevoke {
            OnRevoke::Nothing
        }

        fn give_up(&self, _index: EntryIndex, _block: BlockId) -> Answer {
            Answer::No
        }
    }

    #[test]
    fn each_holder_is_visited_until_it_is_removed() {
        let holders = Holders::default();
        let all: Vec<_> = (0..40).map(|_| Box::<Counting>::default()).collect();
        // SAFETY: the holders outlive the list.
        all.iter().for_each(|holder| unsafe { holders.add(&**holder, None, None) });
        all[..10].iter().for_each(|holder| holders.remove(&**holder));
        holders.visit().members().for_each(|holder| _ = holder.holds(EntryIndex(0), BlockId(0)));
        let visits: Vec<_> = all.iter().map(|holder| holder.0.load(Ordering::Relaxed)).collect();
        assert_eq!(visits, [[0; 10].as_slice(), &[1; 30]].concat());
    }

    /// A region without bytes, or a snapshot. It claims to hold every block.
    struct Relative {
        account: EngineArc<CowAccount>,
        tie: Option<Derived>,
        /// Only a snapshot has one.
        seat: Option<Seat>,
        asked: AtomicUsize,
    }

    impl Relative {
        fn of(parent: Option<&Relative>) -> Box<Relative> {
            let tie = parent.map(|parent| Derived::of(&parent.account));
            let account = EngineArc::new(CowAccount::default());
            Box::new(Relative { account, tie, seat: None, asked: AtomicUsize::new(0) })
        }

        fn snapshot_of(region: &Relative) -> Box<Relative> {
            Box::new(Relative { seat: Some(Seat::default()), ..*Relative::of(Some(region)) })
        }
    }

    impl Holder for Relative {
        fn id(&self) -> Option<RegionId> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.seat.is_none().then(|| self.account.id)
        }

        fn seat(&self) -> Option<&Seat> {
            self.seat.as_ref()
        }

        fn parent(&self) -> Option<&Derived> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.tie.as_ref()
        }

        fn holds(&self, _index: EntryIndex, _block: BlockId) -> bool {
            true
        }

        fn on_revoke(&self, _index: EntryIndex, _block: BlockId) -> OnRevoke {
            OnRevoke::Nothing
        }

        fn give_up(&self, _index: EntryIndex, _block: BlockId) -> Answer {
            Answer::No
        }
    }

    #[test]
    fn is_all_of_asks_each_holder_once() {
        const LEN: usize = 200;
        let holders = Holders::default();
        let mut chain: Vec<Box<Relative>> = Vec::new();
        for _ in 0..LEN {
            chain.push(Relative::of(chain.last().map(|last| &**last)));
        }
        // SAFETY: the holders outlive the list.
        chain.iter().for_each(|holder| unsafe { holders.add(&**holder, None, None) });
        let of = |nth: usize| chain[nth].account.id;
        let asked = || chain.iter().map(|holder| holder.asked.load(Ordering::Relaxed)).sum::<usize>();
        let before = asked();
        assert!(holders.visit().is_all_of(of(0), EntryIndex(0), BlockId(0)), "all are forks of the first");
        assert!(asked() - before <= 3 * LEN, "{} questions to {LEN} holders", asked() - before);
        assert!(!holders.visit().is_all_of(of(1), EntryIndex(0), BlockId(0)), "the first is not its fork");
        holders.remove(&*chain[0]);
        assert!(holders.visit().is_all_of(of(1), EntryIndex(0), BlockId(0)));
    }

    /// Whether `relative` descends from the region `id`: follows the links from parent to parent.
    fn comes_from(all: &[Box<Relative>], relative: &Relative, id: RegionId) -> bool {
        let parent = relative.tie.as_ref().and_then(Derived::parent);
        let of = |parent: RegionId| all.iter().find(|other| other.account.id == parent);
        parent.is_some_and(|parent| parent == id || of(parent).is_some_and(|parent| comes_from(all, parent, id)))
    }

    #[test]
    fn descent_stays_known_as_relatives_come_and_go() {
        let (holders, mut all, mut random) = (Holders::default(), Vec::<Box<Relative>>::new(), 99_u64);
        let mut below = |end: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % end
        };
        for _ in 0..3000 {
            if all.len() < 3 || (all.len() < 40 && below(2) == 0) {
                let parent = below(all.len() + 1);
                let new = Relative::of(all.get(parent).map(|parent| &**parent));
                // SAFETY: the holder is removed below, or outlives the list.
                unsafe { holders.add(&*new, None, None) };
                all.push(new);
            } else {
                let gone = all.swap_remove(below(all.len()));
                holders.remove(&*gone);
            }
            let of = all[below(all.len())].account.id;
            let ids = all.iter().map(|relative| relative.account.id);
            let expected = all.iter().zip(ids).all(|(relative, id)| id == of || comes_from(&all, relative, of));
            assert_eq!(holders.visit().is_all_of(of, EntryIndex(0), BlockId(0)), expected);
            let visit = holders.visit();
            for (at, member) in visit.list.regions.iter().enumerate() {
                let expected = all.iter().filter(|relative| comes_from(&all, relative, member.id)).count();
                assert_eq!(visit.list.descendants(at).len(), expected);
            }
        }
        all.iter().for_each(|relative| holders.remove(&**relative));
        assert_eq!(holders.visit().members().count(), 0);
    }

    #[test]
    fn snapshots_leave_from_any_place_and_pass_to_the_parent_of_their_region() {
        let holders = Holders::default();
        let first = Relative::of(None);
        let second = Relative::of(Some(&first));
        let region_of = |nth: usize| [&first, &second, &second][nth % 3];
        let mut snapshots: Vec<_> = (0..30).map(|nth| Relative::snapshot_of(region_of(nth))).collect();
        // SAFETY: the holders are removed below, or outlive the list.
        unsafe {
            holders.add(&*first, None, None);
            holders.add(&*second, None, None);
            snapshots.iter().for_each(|snapshot| holders.add(&**snapshot, None, None));
        }
        let check = |snapshots: &[Box<Relative>], regions: usize| {
            let visit = holders.visit();
            let addresses = |holder: &dyn Holder| core::ptr::from_ref(holder).addr();
            let mut listed: Vec<_> = visit.members().filter(|holder| holder.id().is_none()).map(addresses).collect();
            let mut expected: Vec<_> =
                snapshots.iter().map(|snapshot| core::ptr::from_ref(&**snapshot).addr()).collect();
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!((listed, visit.regions().count()), (expected, regions));
        };
        let is_all_of = |region: &Relative| holders.visit().is_all_of(region.account.id, EntryIndex(0), BlockId(0));
        check(&snapshots, 2);
        for at in [0, 11, 5, 26, 1, 20] {
            holders.remove(&*snapshots.swap_remove(at));
            check(&snapshots, 2);
        }
        assert_eq!((is_all_of(&first), is_all_of(&second)), (true, false));
        holders.remove(&*second);
        check(&snapshots, 1);
        assert!(is_all_of(&first), "the snapshots of its fork are its own now");
        holders.remove(&*snapshots.swap_remove(3));
        holders.remove(&*first);
        check(&snapshots, 0);
        assert!(!is_all_of(&first), "the region of these snapshots is gone");
        while !snapshots.is_empty() {
            holders.remove(&*snapshots.swap_remove(snapshots.len() / 2));
            check(&snapshots, 0);
        }
    }

    /// Each thread has a region with a fork, and snapshots of both, which it removes before or after the regions.
    #[test]
    fn families_come_and_go_on_several_threads() {
        let holders = Holders::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for nth in 0..300 {
                        let region = Relative::of(None);
                        let fork = Relative::of(Some(&region));
                        let mut all = vec![];
                        for _ in 0..5 {
                            all.extend([Relative::snapshot_of(&region), Relative::snapshot_of(&fork)]);
                        }
                        // SAFETY: all holders are removed below.
                        [&region, &fork]
                            .into_iter()
                            .chain(&all)
                            .for_each(|one| unsafe { holders.add(&**one, None, None) });
                        all.insert(nth % all.len(), region);
                        all.insert((3 * nth) % all.len(), fork);
                        let here = |one: &Relative| {
                            let visit = holders.visit();
                            visit.members().any(|member| ptr::addr_eq(member, one))
                        };
                        all.iter().for_each(|one| assert!(here(one)));
                        for nth in 0..all.len() {
                            holders.remove(&*all[nth]);
                            assert!(!here(&all[nth]) && all[nth + 1..].iter().all(|one| here(one)));
                        }
                    }
                });
            }
        });
        assert_eq!(holders.visit().members().count(), 0, "all are gone");
    }

    #[test]
    fn holders_come_and_go_while_others_look() {
        let holders = Holders::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let holder = Box::<Counting>::default();
                        // SAFETY: the holder is removed below.
                        unsafe { holders.add(&*holder, None, None) };
                        let visit = holders.visit();
                        visit.members().for_each(|holder| _ = holder.holds(EntryIndex(0), BlockId(0)));
                        drop(visit);
                        assert!(holder.0.load(Ordering::Relaxed) > 0);
                        holders.remove(&*holder);
                    }
                });
            }
        });
        assert_eq!(holders.visit().members().count(), 0, "all are gone");
    }
}
