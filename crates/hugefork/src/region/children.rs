//! Regions in children of `fork(2)` ([`Children`](crate::Children)): the handlers that libc calls (`pthread_atfork`).
//!
//! ```text
//! prepare  wait for operations ─▶ lock the registry ─▶ a witness for each pool ─▶ a cut of all regions ─┐
//!                                                                                                   fork(2)
//! parent   keep the snapshots beside the number of the witness ─▶ unlock ───────────────────────────────┤
//! child    map each snapshot at the addresses of its region ─▶ unlock ──────────────────────────────────┘
//!
//! thread   the last mapping of a child goes (sys/linux/children.rs) ─▶ drop its snapshots
//! ```
//! libc calls `prepare` of the handlers in the reverse order of their registration. This one is registered with the
//! first such pool, so allocators that are older have not taken their locks yet, and give them back before `child`.
//! Still, what the child reads lies in the engine's own memory: the program's heap may lie in one of these regions,
//! which go back to the moment of the cut.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{LazyLock, Once};

use super::cut;
use super::state::{BetweenOperations, HeldOperations, RegionCore};
use crate::mem::pinned::PinnedBox;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::core::PoolCore;
use crate::pool::worker::Worker;
use crate::snapshot::core::SnapshotCore;
use crate::sync::{Engaged, SignalsBlocked, WordLock};
use crate::sys::SystemError;
use crate::sys::linux::children::{Piece, Witness, is_witnessed, on_each_close, wake};
use crate::sys::linux::memory::{Linux, NOTHING_KEPT};
use crate::sys::linux::stderr::say;
use crate::sys::linux::{may_map, owner};
use crate::types::error::RegionError;

/// The snapshots that children of the process have, for one pool.
pub(crate) struct PoolChildren {
    pool: EngineArc<PoolCore<Linux>>,
    lock: WordLock,
    /// Changes under `lock`.
    held: UnsafeCell<EngineVec<Held>>,
    is_over: AtomicBool,
    /// The number of the thread that drops snapshots, once it sleeps.
    sleeper: AtomicU32,
}

// SAFETY: `held` is used under the lock only.
unsafe impl Send for PoolChildren {}
// SAFETY: as above.
unsafe impl Sync for PoolChildren {}

/// The snapshots of one fork.
struct Held {
    /// The byte that its [`Witness`] has locked.
    byte: u64,
    _snapshots: EngineVec<PinnedBox<SnapshotCore<Linux>>>,
}

impl PoolChildren {
    /// Follows forks from now on, with a thread that drops snapshots that no child has any more. Without the thread,
    /// the next fork does that.
    pub(crate) fn follow(pool: &EngineArc<PoolCore<Linux>>) -> (EngineArc<PoolChildren>, Option<Worker>) {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            LazyLock::force(&REGISTRY);
            // SAFETY: the handlers do what such handlers may do.
            unsafe { owner::follow_forks(prepare, parent, child) };
        });
        let (lock, held) = (WordLock::default(), UnsafeCell::new(EngineVec::new_in(Own)));
        let children = EngineArc::new(PoolChildren {
            pool: pool.clone(),
            lock,
            held,
            is_over: AtomicBool::new(false),
            sleeper: AtomicU32::new(0),
        });
        let (watched, told) = (children.clone(), children.clone());
        let work = move || {
            on_each_close(&watched.pool.sys, &watched.sleeper, |file| {
                watched.drop_unwitnessed(file);
                !watched.is_over.load(Ordering::SeqCst)
            });
        };
        let tell_to_end = move || {
            // Either this thread reads the other's number, or the other reads that it is over.
            told.is_over.store(true, Ordering::SeqCst);
            let _signals = SignalsBlocked::new();
            let _no_fork = REGISTRY.lock.lock();
            wake(&told.pool.sys, &told.sleeper)
        };
        (children, Worker::start("hugefork-child", work, tell_to_end).ok())
    }

    /// Drops the snapshots that no child has any more.
    fn drop_unwitnessed(&self, file: BorrowedFd<'_>) {
        let mut gone = EngineVec::new_in(Own);
        self.with_held(|held| {
            for nth in (0..held.len()).rev() {
                if !is_witnessed(file, held[nth].byte) {
                    gone.push(held.swap_remove(nth));
                }
            }
        });
    }

    fn with_held(&self, body: impl FnOnce(&mut EngineVec<Held>)) {
        let _signals = SignalsBlocked::new();
        let _locked = self.lock.lock();
        // SAFETY: under the lock.
        body(unsafe { &mut *self.held.get() });
    }
}

/// A region that children inherit.
struct Inheritable {
    region: *const RegionCore<Linux>,
    children: EngineArc<PoolChildren>,
}

/// All regions that children inherit, and the fork under way.
struct Registry {
    /// Held from `prepare` to `parent` or `child`.
    lock: WordLock,
    inner: UnsafeCell<(EngineVec<Inheritable>, Option<Fork>)>,
}

// SAFETY: `inner` is used under the lock only. Regions stay in place until they leave the list. What blocks signals is
// dropped by the thread that made it.
unsafe impl Send for Registry {}
// SAFETY: as above.
unsafe impl Sync for Registry {}

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry { lock: WordLock::default(), inner: UnsafeCell::new((EngineVec::new_in(Own), None)) });

thread_local! {
    /// How many forks of this thread are under way. More than one means that another handler forks.
    static FORKS: Cell<usize> = const { Cell::new(0) };
}

/// From now on, children of `fork(2)` inherit the region.
///
/// # Safety
/// The region stays in place until [`leave_out`] gets it.
pub(crate) unsafe fn inherit(region: &RegionCore<Linux>, children: &EngineArc<PoolChildren>) {
    let _signals = SignalsBlocked::new();
    let _locked = REGISTRY.lock.lock();
    // SAFETY: under the lock.
    let (regions, _) = unsafe { &mut *REGISTRY.inner.get() };
    regions.push(Inheritable { region, children: children.clone() });
}

/// From now on, children do not inherit the region.
pub(crate) fn leave_out(region: &RegionCore<Linux>) {
    let _signals = SignalsBlocked::new();
    let _locked = REGISTRY.lock.lock();
    // SAFETY: under the lock.
    let (regions, _) = unsafe { &mut *REGISTRY.inner.get() };
    regions.retain(|one| !ptr::eq(one.region, region));
}

/// A fork under way, between `prepare` and its end in either process.
struct Fork {
    /// Blocked until the end: a handler of the program could fork in between.
    _signals: SignalsBlocked,
    pools: EngineVec<PoolFork>,
}

/// The part of a fork in one pool.
struct PoolFork {
    children: EngineArc<PoolChildren>,
    byte: u64,
    witness: Witness,
    snapshots: EngineVec<PinnedBox<SnapshotCore<Linux>>>,
    shown: EngineVec<Shown>,
}

/// What a child sees at the addresses of a region.
struct Shown {
    addresses: Range<usize>,
    /// Parts of the pool's file.
    mapped: EngineVec<Piece>,
    /// Pages in place of some in the parts above.
    copied: EngineVec<Piece>,
}

impl Fork {
    /// Takes the snapshots of all regions for a child.
    fn prepare(regions: &EngineVec<Inheritable>, signals: SignalsBlocked) -> Fork {
        let mut fork = Fork::without(signals);
        let filled = with_instead(|instead| fork.fill(regions, instead));
        if let Err(error) = filled {
            fork.pools.clear();
            refuse(error);
        }
        fork
    }

    /// A fork whose child has no regions.
    fn without(signals: SignalsBlocked) -> Fork {
        Fork { _signals: signals, pools: EngineVec::new_in(Own) }
    }

    fn fill(&mut self, regions: &EngineVec<Inheritable>, instead: &Instead<'_>) -> Result<(), RegionError> {
        static BYTE: AtomicU64 = AtomicU64::new(0);
        if regions.is_empty() && instead.pairs.is_empty() {
            return Ok(());
        }
        may_map()?;
        for one in regions {
            if self.of_pool(&one.children).is_some() {
                continue;
            }
            let (children, byte) = (one.children.clone(), BYTE.fetch_add(1, Ordering::Relaxed));
            children.drop_unwitnessed(children.pool.sys.file()?);
            let witness = Witness::new(&children.pool.sys, byte)?;
            let (snapshots, shown) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
            self.pools.push(PoolFork { children, byte, witness, snapshots, shown });
        }
        // SAFETY: a region stays in place until it leaves the list, which is locked.
        let cores = || regions.iter().map(|one| unsafe { &*one.region });
        let mut cut_now: EngineVec<&RegionCore<Linux>> = EngineVec::with_capacity_in(regions.len(), Own);
        cut_now.extend(cores().filter(|region| instead.of(region).is_none()));
        if cut_now.len() + instead.pairs.len() > regions.len() {
            return Err(RegionError::NotExportable { source: NOTHING_KEPT });
        }
        let mut made = loop {
            let made = cut::freeze_for_children(&cut_now)?;
            // A write may revoke a block before the snapshot is irrevocable. If a block is lost for good, the next cut
            // returns the error.
            match made.iter().try_for_each(|frozen| frozen.make_irrevocable()) {
                Err(RegionError::Revoked) => {}
                kept => break kept.map(|()| made.into_iter())?,
            }
        };
        for (one, region) in regions.iter().zip(cores()) {
            let frozen = match instead.of(region) {
                Some(snapshot) => snapshot.keep()?,
                None => made.next().expect("a cut has a snapshot of each region"),
            };
            let base = region.addresses.base();
            let (mut mapped, mut copied) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
            frozen.list_places(&mut mapped, &mut copied);
            if let Some(pool) = self.of_pool(&one.children) {
                pool.shown.push(Shown { addresses: base..base + region.len(), mapped, copied });
                pool.snapshots.push(frozen);
            }
        }
        Ok(())
    }

    fn of_pool(&mut self, children: &EngineArc<PoolChildren>) -> Option<&mut PoolFork> {
        self.pools.iter_mut().find(|pool| pool.children.is(children))
    }
}

/// Calls `body` between the operations of all regions, unless this thread is inside an operation.
fn between_operations(body: impl FnOnce()) -> Result<(), RegionError> {
    let mut waited_for: EngineVec<HeldOperations> = EngineVec::new_in(Own);
    if !HeldOperations::is_this_thread_inside() {
        let _signals = SignalsBlocked::new();
        let _locked = REGISTRY.lock.lock();
        // SAFETY: under the lock.
        let (regions, _) = unsafe { &*REGISTRY.inner.get() };
        for one in regions {
            // SAFETY: a region stays in place until it leaves the list, which is locked.
            let Some(operations) = (unsafe { &*one.region }).operations.get() else { continue };
            if !waited_for.iter().any(|known| known.is(operations)) {
                waited_for.push(operations.clone());
            }
        }
    }
    // A fork keeps the first operations out while it waits for the next, so all forks wait in the same order.
    waited_for.sort_unstable_by_key(|operations| ptr::from_ref(&**operations.core()).addr());
    // A thread inside an operation may make or drop a region, so the registry is not locked meanwhile.
    let mut between: EngineVec<BetweenOperations<'_>> = EngineVec::with_capacity_in(waited_for.len(), Own);
    for operations in &waited_for {
        between.push(operations.core().wait_for_all()?);
    }
    body();
    Ok(())
}

/// Snapshots that the next child of a thread has, instead of the regions as they are.
struct Instead<'a> {
    pairs: &'a [(&'a RegionCore<Linux>, &'a SnapshotCore<Linux>)],
    /// The reason why the child has none.
    refused: RefCell<Option<RegionError>>,
}

thread_local! {
    /// Null, or the wish of [`fork_with`], which is on the stack of this thread.
    static INSTEAD: Cell<*const Instead<'static>> = const { Cell::new(ptr::null()) };
}

impl<'a> Instead<'a> {
    fn of(&self, region: &RegionCore<Linux>) -> Option<&'a SnapshotCore<Linux>> {
        self.pairs.iter().find(|pair| ptr::eq(pair.0, region)).map(|pair| pair.1)
    }
}

fn with_instead<T>(body: impl FnOnce(&Instead<'_>) -> T) -> T {
    // SAFETY: it is null, or `fork_with` of this thread waits for the fork.
    match unsafe { INSTEAD.get().as_ref() } {
        Some(instead) => body(instead),
        None => body(&Instead { pairs: &[], refused: RefCell::new(None) }),
    }
}

/// The child of the fork under way has no regions, for this reason.
fn refuse(reason: RegionError) {
    with_instead(|instead| {
        if instead.pairs.is_empty() {
            say(format_args!("the next child of fork(2) has no regions: {reason}"));
        } else {
            instead.refused.replace(Some(reason));
        }
    });
}

/// Calls `fork`, which forks by libc, and returns 0 in the child, and its number in the parent. In the child, each
/// region of `pairs` is as the snapshot beside it, and the others as children inherit them. If that cannot be had, the
/// child ends at once.
pub(crate) fn fork_with(
    pairs: &[(&RegionCore<Linux>, &SnapshotCore<Linux>)],
    fork: impl FnOnce() -> Result<i32, SystemError>,
) -> Result<i32, RegionError> {
    /// Takes the wish back, also after a panic.
    struct TakesBack;
    impl Drop for TakesBack {
        fn drop(&mut self) {
            INSTEAD.replace(ptr::null());
        }
    }
    let instead = Instead { pairs, refused: RefCell::new(None) };
    let takes_back = TakesBack;
    INSTEAD.replace((&raw const instead).cast());
    let child = fork();
    drop(takes_back);
    match (instead.refused.take(), child) {
        (None, child) => Ok(child?),
        (Some(_), Ok(0)) => owner::end(1),
        (Some(reason), child) => {
            child.map(owner::wait_for)?;
            Err(reason)
        }
    }
}

extern "C" fn prepare() {
    if owner::is_forked_child() || FORKS.replace(FORKS.get() + 1) > 0 {
        return;
    }
    if Engaged::is_this_thread() {
        // The cut would wait for this thread.
        say(format_args!(
            "the next child of fork(2) has no regions: a signal handler forks in the middle of a snapshot"
        ));
        begin(|_, signals| Fork::without(signals));
    } else if let Err(reason) = between_operations(|| begin(Fork::prepare)) {
        refuse(reason);
        begin(|_, signals| Fork::without(signals));
    }
}

/// Locks the registry until [`end`], and stores the fork that `make` returns.
fn begin(make: impl FnOnce(&EngineVec<Inheritable>, SignalsBlocked) -> Fork) {
    let signals = SignalsBlocked::new();
    REGISTRY.lock.lock().keep();
    // SAFETY: under the lock.
    let (regions, fork) = unsafe { &mut *REGISTRY.inner.get() };
    *fork = Some(make(regions, signals));
}

/// Unlocks the registry. Returns the fork that [`begin`] has stored, unless it belongs to an outer fork.
fn end() -> Option<Fork> {
    let forks = FORKS.replace(FORKS.get().saturating_sub(1));
    if forks != 1 {
        return None;
    }
    // SAFETY: this thread has locked the registry in `prepare`; in a child, this thread is its copy.
    let (_, fork) = unsafe { &mut *REGISTRY.inner.get() };
    let ended = fork.take();
    REGISTRY.lock.release();
    ended
}

extern "C" fn parent() {
    let Some(fork) = end() else { return };
    for PoolFork { children, byte, witness, snapshots, .. } in fork.pools {
        children.with_held(|held| held.push(Held { byte, _snapshots: snapshots }));
        // If the fork has failed, no other process has the description, and the thread drops the snapshots.
        drop(witness);
    }
}

extern "C" fn child() {
    let ended = end();
    // If another handler has forked this child, the outer fork is the parent's, and never ends here.
    FORKS.set(0);
    let Some(fork) = ended else { return };
    for pool in fork.pools {
        for Shown { addresses, mapped, copied } in &pool.shown {
            // SAFETY: the addresses of a region, which the child does not have.
            if let Err(error) = unsafe { pool.witness.show(addresses, mapped, copied) } {
                say(format_args!("this child of fork(2) lacks the region at {:#x}: {error}", addresses.start));
                with_instead(|instead| instead.refused.replace(Some(error.into())));
            }
        }
        drop(pool.witness);
        // They belong to the parent.
        std::mem::forget((pool.snapshots, pool.children));
    }
}
