//! All who may hold blocks of a pool: its regions and snapshots. Whoever finds no free block asks them for some.
//!
//! ```text
//!   fault finds no block ─▶ Holders ─▶ each region: drop what is lazily freed, oldest first
//!                                  ─▶ each fork and snapshot: give this block up (revoke)
//! ```
//! Fault handlers read the list, so its lock is one of ours. Its memory is got before the lock is taken: a thread that
//! faulted inside `malloc` may be waiting for the lock.

use core::cell::UnsafeCell;
use core::iter;
use core::mem;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::mem::{EngineVec, Own};
use crate::pool::lineage::{Derived, RegionId};
use crate::sync::{RegionLock, SharedGuard, SignalsBlocked};
use crate::table::transition::OnRevoke;
use crate::units::{BlockId, EntryIndex};

/// What a region or snapshot is asked when blocks are short. The fault handler asks, too, and holds no other lock.
pub(crate) trait Holder: Sync {
    /// Which region this is; `None` for a snapshot, since no block comes from one.
    fn id(&self) -> Option<RegionId>;

    /// The seat of a snapshot; `None` for a region.
    fn seat(&self) -> Option<&Seat> {
        None
    }

    /// The tie of a fork or snapshot to its parent.
    fn parent(&self) -> Option<&Derived>;

    /// Its lazily freed blocks, if it can have some.
    fn lazy(&self) -> Option<&dyn LazyHolder> {
        None
    }

    /// Its CoW mappings, if it can have some.
    fn with_cow_mappings(&self) -> Option<&dyn CowMappingHolder> {
        None
    }

    /// Whether it holds `block` at `index`, as far as that can be seen without a lock.
    fn holds(&self, index: EntryIndex, block: BlockId) -> bool;

    /// Tells how it lets go of `block` at `index`, as far as that can be seen without a lock.
    fn on_revoke(&self, index: EntryIndex, block: BlockId) -> OnRevoke;

    /// Whether it holds `block` at `index` and never gives it up. The block has to be there before and after: a
    /// snapshot that becomes a fork lets go of it meanwhile, and would seem to keep it.
    fn keeps(&self, index: EntryIndex, block: BlockId) -> bool {
        self.holds(index, block) && self.on_revoke(index, block) == OnRevoke::Nothing && self.holds(index, block)
    }

    /// Gives `block` at `index` up. An access there is an error from then on. The asker holds the lock of a window.
    fn give_up(&self, index: EntryIndex, block: BlockId) -> Answer;

    /// Gives blocks of zeros back that nobody else holds, and whose bytes it has without them. Returns how many. The
    /// asker has blocked signals.
    fn drop_zeros(&self) -> usize {
        0
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

/// What a region is asked that may have CoW mappings.
pub(crate) trait CowMappingHolder {
    /// Whether it has any.
    fn has_cow_mappings(&self) -> bool;

    /// How many blocks it has that writers may have to copy, CoW mappings or not: none where no write may fault.
    fn waited_for(&self) -> usize;

    /// Looks at some of them, and whether they are alike: then nobody has to look at all when there were `mean` faults
    /// for each. If they have many private pages, it snapshots them to writers to copy.
    fn are_alike(&self, mean: usize) -> bool;

    /// Writes back or promotes some of them, from the entry `from` on. Returns where to go on, if that is not all. It
    /// takes no block and allocates nothing.
    fn maintain(&self, from: usize) -> Option<usize>;
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

/// The holders of one pool. Its regions are a family tree: each is followed by its forks, their forks, and so on, so
/// that whether some come from one is asked of each once, and nobody goes from child to parent. Snapshots have no
/// children, may be thousands, and come and go all the time: each is in the list of its region, where it knows its
/// seat.
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
    /// Snapshots of regions that are gone, as all from which those came are.
    orphans: Snapshots,
}

/// A region in the list.
struct Member {
    holder: NonNull<dyn Holder>,
    id: RegionId,
    /// How many of its ancestors live.
    depth: usize,
    snapshots: Snapshots,
}

/// Snapshots of one region, in any order. Each has its seat.
struct Snapshots(EngineVec<NonNull<dyn Holder>>);

/// The number of a snapshot among those of its region. Read and written by the list only, under its lock.
#[derive(Debug, Default)]
pub(crate) struct Seat(AtomicUsize);

impl Snapshots {
    fn holders(&self) -> impl Iterator<Item = &dyn Holder> {
        // SAFETY: a holder stays in place until it is removed from the list, and these are in it still.
        self.0.iter().map(|holder| unsafe { holder.as_ref() })
    }

    /// There is room.
    fn add(&mut self, holder: NonNull<dyn Holder>) {
        self.0.push(holder);
        self.seat(self.0.len() - 1);
    }

    /// The last one gets the seat.
    fn remove(&mut self, holder: &dyn Holder) {
        let Some(at) = holder.seat().map(|seat| seat.0.load(Ordering::Relaxed)) else { return };
        let gone = self.0.swap_remove(at);
        assert!(ptr::addr_eq(gone.as_ptr(), holder), "a snapshot has another one's seat");
        if at < self.0.len() {
            self.seat(at);
        }
    }

    fn seat(&self, at: usize) {
        // SAFETY: a holder stays in place until it is removed from the list, and this one is in it.
        let seat = unsafe { self.0[at].as_ref() }.seat();
        seat.into_iter().for_each(|seat| seat.0.store(at, Ordering::Relaxed));
    }
}

/// Whether a list has room for so many more, if need be that of `larger`.
fn has_room<T>(list: &mut EngineVec<T>, more: usize, larger: &mut EngineVec<T>) -> bool {
    let needed = list.len() + more;
    if needed > list.capacity() && needed <= larger.capacity() {
        larger.append(list);
        mem::swap(list, larger);
    }
    needed <= list.capacity()
}

impl Member {
    fn holder(&self) -> &dyn Holder {
        // SAFETY: a holder stays in place until it is removed from the list, and this is a member still.
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

    /// The snapshots of the region `id`, or those of none.
    fn snapshots_of(&mut self, id: Option<RegionId>) -> &mut Snapshots {
        match self.region_at(id) {
            Some(at) => &mut self.regions[at].snapshots,
            None => &mut self.orphans,
        }
    }

    /// Where those regions stand that come from the one at `of`.
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
    /// Adds a holder, after the region that it comes from. Its tie to that is new, or a clone of `source`, which is
    /// that of a holder. To add a snapshot takes time in proportion to the number of regions.
    ///
    /// # Safety
    /// It stays in place until it is removed.
    pub(crate) unsafe fn add(&self, holder: &(dyn Holder + 'static), source: Option<&Derived>) {
        let _signals = SignalsBlocked::new();
        let (mut regions, mut snapshots) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        loop {
            let alone = self.lock.exclusive();
            // SAFETY: the lock is held exclusively.
            let list = unsafe { &mut *self.list.get() };
            if let (Some(tie), Some(source)) = (holder.parent(), source) {
                tie.catch_up(source);
            }
            let parent = holder.parent().and_then(Derived::parent);
            let needed = match holder.id() {
                Some(id) if has_room(&mut list.regions, 1, &mut regions) => {
                    let (at, depth) = match list.region_at(parent) {
                        Some(parent) => (parent + 1, list.regions[parent].depth + 1),
                        None => (list.regions.len(), 0),
                    };
                    let snapshots = Snapshots(EngineVec::new_in(Own));
                    list.regions.insert(at, Member { holder: NonNull::from(holder), id, depth, snapshots });
                    return;
                }
                Some(_) => list.regions.len() + 1,
                None => {
                    let of = list.snapshots_of(parent);
                    if has_room(&mut of.0, 1, &mut snapshots) {
                        of.add(NonNull::from(holder));
                        return;
                    }
                    of.0.len() + 1
                }
            };
            drop(alone);
            match holder.id() {
                Some(_) => regions.reserve(2 * needed),
                None => snapshots.reserve(2 * needed),
            }
        }
    }

    /// Removes a holder. Nobody uses it any more when this returns.
    pub(crate) fn remove(&self, holder: &(dyn Holder + 'static)) {
        let _signals = SignalsBlocked::new();
        let mut larger = EngineVec::new_in(Own);
        // What a region snapshots is dropped without the lock.
        let _left = loop {
            let alone = self.lock.exclusive();
            // SAFETY: the lock is held exclusively.
            let list = unsafe { &mut *self.list.get() };
            let parent = holder.parent().and_then(Derived::parent);
            let Some(id) = holder.id() else {
                return list.snapshots_of(parent).remove(holder);
            };
            let Some(at) = list.region_at(Some(id)) else { return };
            let count = list.regions[at].snapshots.0.len();
            let of_parent = list.snapshots_of(parent);
            if has_room(&mut of_parent.0, count, &mut larger) {
                for region in list.descendants(at) {
                    list.regions[region].depth -= 1;
                    let tie = list.regions[region].holder().parent();
                    tie.into_iter().for_each(|tie| tie.outlive(id, parent));
                }
                let gone = list.regions.remove(at);
                let of_parent = list.snapshots_of(parent);
                for (snapshot, holder) in gone.snapshots.0.iter().zip(gone.snapshots.holders()) {
                    holder.parent().into_iter().for_each(|tie| tie.outlive(id, parent));
                    of_parent.add(*snapshot);
                }
                break gone;
            }
            let needed = of_parent.0.len() + count;
            drop(alone);
            larger.reserve(needed);
        };
    }

    /// Keeps everybody off, as who comes or goes does.
    #[cfg(test)]
    pub(crate) fn lock(&self) -> crate::sync::ExclusiveGuard<'_> {
        self.lock.exclusive()
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
pub(crate) struct Family<'a>(&'a List);

impl<'a> Family<'a> {
    /// Each of them.
    pub(crate) fn members(self) -> impl Iterator<Item = &'a dyn Holder> {
        self.0.regions.iter().flat_map(Member::holders).chain(self.0.orphans.holders())
    }

    /// Each region.
    pub(crate) fn regions(self) -> impl Iterator<Item = &'a dyn Holder> {
        self.0.regions.iter().map(Member::holder)
    }

    /// The region `id`, if it lives.
    pub(crate) fn region(self, id: RegionId) -> Option<&'a dyn Holder> {
        self.0.region_at(Some(id)).map(|at| self.0.regions[at].holder())
    }

    /// Whether all holders of `block` at `index`, except the region `id`, come from that region, so that it may take
    /// the block away from them. This takes time in proportion to the number of holders.
    pub(crate) fn is_all_of(self, id: RegionId, index: EntryIndex, block: BlockId) -> bool {
        let holds = |holder: &dyn Holder| holder.holds(index, block);
        // Of the region, while those are passed who come from it.
        let mut own = None;
        for member in &self.0.regions {
            if own.is_some_and(|depth| member.depth > depth) {
                continue;
            }
            own = (member.id == id).then_some(member.depth);
            if own.is_none() && member.holders().any(holds) {
                return false;
            }
        }
        !self.0.orphans.holders().any(holds)
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
        // SAFETY: they outlive the list.
        all.iter().for_each(|holder| unsafe { holders.add(&**holder, None) });
        all[..10].iter().for_each(|holder| holders.remove(&**holder));
        holders.visit().family.members().for_each(|holder| _ = holder.holds(EntryIndex(0), BlockId(0)));
        let visits: Vec<_> = all.iter().map(|holder| holder.0.load(Ordering::Relaxed)).collect();
        assert_eq!(visits, [[0; 10].as_slice(), &[1; 30]].concat());
    }

    /// A region without bytes, or a snapshot, which holds the block that it is asked for.
    struct Relative {
        account: EngineArc<CowAccount>,
        tie: Option<Derived>,
        /// Of a snapshot.
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
            self.seat.is_none().then(|| self.account.id())
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
    fn whether_all_come_from_one_is_found_by_asking_each_once() {
        const LEN: usize = 200;
        let holders = Holders::default();
        let mut chain: Vec<Box<Relative>> = Vec::new();
        for _ in 0..LEN {
            chain.push(Relative::of(chain.last().map(|last| &**last)));
        }
        // SAFETY: they outlive the list.
        chain.iter().for_each(|holder| unsafe { holders.add(&**holder, None) });
        let of = |nth: usize| chain[nth].account.id();
        let asked = || chain.iter().map(|holder| holder.asked.load(Ordering::Relaxed)).sum::<usize>();
        let before = asked();
        assert!(holders.visit().family.is_all_of(of(0), EntryIndex(0), BlockId(0)), "all are forks of the first");
        assert!(asked() - before <= 3 * LEN, "{} questions to {LEN} holders", asked() - before);
        assert!(!holders.visit().family.is_all_of(of(1), EntryIndex(0), BlockId(0)), "the first is not its fork");
        holders.remove(&*chain[0]);
        assert!(holders.visit().family.is_all_of(of(1), EntryIndex(0), BlockId(0)));
    }

    /// Whether the tie leads to this region, from parent to parent.
    fn comes_from(all: &[Box<Relative>], relative: &Relative, id: RegionId) -> bool {
        let parent = relative.tie.as_ref().and_then(Derived::parent);
        let of = |parent: RegionId| all.iter().find(|other| other.account.id() == parent);
        parent.is_some_and(|parent| parent == id || of(parent).is_some_and(|parent| comes_from(all, parent, id)))
    }

    #[test]
    fn who_comes_from_whom_stays_known_as_relatives_come_and_go() {
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
                // SAFETY: it is removed below, or outlives the list.
                unsafe { holders.add(&*new, None) };
                all.push(new);
            } else {
                let gone = all.swap_remove(below(all.len()));
                holders.remove(&*gone);
            }
            let of = all[below(all.len())].account.id();
            let ids = all.iter().map(|relative| relative.account.id());
            let expected = all.iter().zip(ids).all(|(relative, id)| id == of || comes_from(&all, relative, of));
            assert_eq!(holders.visit().family.is_all_of(of, EntryIndex(0), BlockId(0)), expected);
            let visit = holders.visit();
            for (at, member) in visit.family.0.regions.iter().enumerate() {
                let expected = all.iter().filter(|relative| comes_from(&all, relative, member.id)).count();
                assert_eq!(visit.family.0.descendants(at).len(), expected);
            }
        }
        all.iter().for_each(|relative| holders.remove(&**relative));
        assert_eq!(holders.visit().family.members().count(), 0);
    }

    #[test]
    fn snapshots_go_from_where_they_are_and_to_whom_their_region_came_from() {
        let holders = Holders::default();
        let first = Relative::of(None);
        let second = Relative::of(Some(&first));
        let region_of = |nth: usize| [&first, &second, &second][nth % 3];
        let mut snapshots: Vec<_> = (0..30).map(|nth| Relative::snapshot_of(region_of(nth))).collect();
        // SAFETY: they are removed below, or outlive the list.
        unsafe {
            holders.add(&*first, None);
            holders.add(&*second, None);
            snapshots.iter().for_each(|snapshot| holders.add(&**snapshot, None));
        }
        let check = |snapshots: &[Box<Relative>], regions: usize| {
            let visit = holders.visit();
            let addresses = |holder: &dyn Holder| core::ptr::from_ref(holder).addr();
            let mut listed: Vec<_> =
                visit.family.members().filter(|holder| holder.id().is_none()).map(addresses).collect();
            let mut expected: Vec<_> =
                snapshots.iter().map(|snapshot| core::ptr::from_ref(&**snapshot).addr()).collect();
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!((listed, visit.family.regions().count()), (expected, regions));
        };
        let is_all_of =
            |region: &Relative| holders.visit().family.is_all_of(region.account.id(), EntryIndex(0), BlockId(0));
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
        assert!(!is_all_of(&first), "nobody has them from a region that lives");
        while !snapshots.is_empty() {
            holders.remove(&*snapshots.swap_remove(snapshots.len() / 2));
            check(&snapshots, 0);
        }
    }

    /// Each thread has a region with a fork, and snapshots of both, which go before them or after.
    #[test]
    fn families_come_and_go_beside_each_other() {
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
                        // SAFETY: all are removed below.
                        [&region, &fork].into_iter().chain(&all).for_each(|one| unsafe { holders.add(&**one, None) });
                        all.insert(nth % all.len(), region);
                        all.insert((3 * nth) % all.len(), fork);
                        let here = |one: &Relative| {
                            let visit = holders.visit();
                            visit.family.members().any(|member| ptr::addr_eq(member, one))
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
        assert_eq!(holders.visit().family.members().count(), 0, "all are gone");
    }

    #[test]
    fn holders_come_and_go_while_others_look() {
        let holders = Holders::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let holder = Box::<Counting>::default();
                        // SAFETY: it is removed below.
                        unsafe { holders.add(&*holder, None) };
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
