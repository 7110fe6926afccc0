//! Regions in children of `fork(2)` ([`Children`](crate::Children)): the handlers that libc calls (`pthread_atfork`).
//!
//! ```text
//! prepare  wait for operations ─▶ lock the registry ─▶ a witness for each pool ─▶ a cut of all regions ─┐
//!                                                                                                   fork(2)
//! parent   keep the snapshots beside the number of the witness ─▶ unlock ───────────────────────────────┤
//! child    map each snapshot at the addresses of its region ─▶ unlock ──────────────────────────────────┘
//!          (earlier, if an older handler touches a region: mapping/inheritance.rs)
//!
//! thread   the last mapping of a child goes (sys/linux/children.rs) ─▶ drop its snapshots
//! ```
//! libc calls `prepare` of the handlers in the reverse order of their registration. This one is registered with the
//! first such pool, so allocators that are older have not taken their locks yet, and give them back before `child`.
//! Still, what the child reads lies in the engine's own memory: the program's heap may lie in one of these regions,
//! which go back to the moment of the cut.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, Once, mpsc};
use std::time::{Duration, Instant};

use super::cut;
use super::state::{BetweenOperations, HeldOperations, OperationsCore, RegionCore};
use crate::mapping::inheritance::{Inheritance, Shown};
use crate::mem::pinned::PinnedBox;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::core::PoolCore;
use crate::pool::worker::Worker;
use crate::snapshot::core::SnapshotCore;
use crate::sync::{Engaged, SignalsBlocked, WordLock};
use crate::sys::SystemError;
use crate::sys::linux::children::{Witness, is_witnessed, on_each_close, wake};
use crate::sys::linux::memory::{Linux, NOT_INHERITED};
use crate::sys::linux::stderr::say;
use crate::sys::linux::{may_map, owner};
use crate::types::error::RegionError;

/// How long a fork keeps threads from entering operations while it waits for the end of others.
const CLOSED_FOR: Duration = Duration::from_millis(10);

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
            if let Err(error) = unsafe { owner::follow_forks(prepare, parent, child) } {
                say(format_args!("no child of fork(2) will have regions: {error}"));
            }
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
        let (starts, has_started) = mpsc::channel();
        let work = move || {
            on_each_close(&watched.pool.sys, starts, &watched.sleeper, |file| {
                watched.drop_unwitnessed(file);
                !watched.is_over.load(Ordering::SeqCst)
            });
        };
        let tell_to_end = move || {
            // Either this thread reads the other's number, or the other reads that it is over.
            told.is_over.store(true, Ordering::SeqCst);
            let _signals = SignalsBlocked::new();
            let _no_fork = REGISTRY.lock.lock();
            // Without a number the thread has not looked yet, or never will.
            let thread = told.sleeper.load(Ordering::SeqCst);
            thread == 0 || told.pool.sys.number().is_some_and(|(number, _)| wake(thread, number))
        };
        let follower = Worker::start("hugefork-child", work, tell_to_end).ok();
        // If the program closed all descriptors before the thread had its own, no blocks would ever come back. The
        // thread sends nothing: the wait ends when the thread drops its end.
        let _ = has_started.recv();
        (children, follower)
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

// SAFETY: `inner` is used under the lock only. Regions stay in place until they leave the list. The thread that
// blocked signals is the one that drops their guard.
unsafe impl Send for Registry {}
// SAFETY: as above.
unsafe impl Sync for Registry {}

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry { lock: WordLock::default(), inner: UnsafeCell::new((EngineVec::new_in(Own), None)) });

thread_local! {
    /// How many forks of this thread are under way. More than one means that another handler forks.
    static FORKS: Cell<usize> = const { Cell::new(0) };
    /// Whether the thread has a [`BeforeFork`] that has waited.
    static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
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
    /// In the order of the pools in `inheritance`.
    pools: EngineVec<PoolFork>,
    inheritance: Inheritance,
}

/// The part of a fork in one pool.
struct PoolFork {
    children: EngineArc<PoolChildren>,
    byte: u64,
    snapshots: EngineVec<PinnedBox<SnapshotCore<Linux>>>,
}

impl Fork {
    /// Takes the snapshots of all regions for a child.
    fn prepare(regions: &EngineVec<Inheritable>, signals: SignalsBlocked) -> Fork {
        let mut fork = Fork::without(signals);
        let filled = with_instead(|instead| {
            fork.fill(regions, instead)?;
            instead.refused.replace(None);
            Ok(())
        });
        if let Err(error) = filled {
            fork.inheritance.give_nothing();
            fork.pools.clear();
            refuse(error);
        }
        fork
    }

    /// A fork whose child has no regions.
    fn without(signals: SignalsBlocked) -> Fork {
        Fork { _signals: signals, pools: EngineVec::new_in(Own), inheritance: Inheritance::new() }
    }

    fn fill(&mut self, regions: &EngineVec<Inheritable>, instead: &Instead<'_>) -> Result<(), RegionError> {
        if regions.is_empty() && instead.pairs.is_empty() {
            return Ok(());
        }
        may_map()?;
        for one in regions {
            if self.of_pool(&one.children).is_some() {
                continue;
            }
            let children = one.children.clone();
            children.drop_unwitnessed(children.pool.sys.file()?);
            let witness = Witness::new(children.pool.sys.open_for_reading()?)?;
            self.pools.push(PoolFork { children, byte: witness.byte, snapshots: EngineVec::new_in(Own) });
            self.inheritance.add_pool(witness);
        }
        // SAFETY: a region stays in place until it leaves the list, which is locked.
        let cores = || regions.iter().map(|one| unsafe { &*one.region });
        let mut cut_now: EngineVec<&RegionCore<Linux>> = EngineVec::with_capacity_in(regions.len(), Own);
        cut_now.extend(cores().filter(|region| instead.of(region).is_none()));
        if cut_now.len() + instead.pairs.len() > regions.len() {
            return Err(RegionError::NotExportable { source: NOT_INHERITED });
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
                self.inheritance.add_region(pool, Shown { addresses: base..base + region.len(), mapped, copied });
                self.pools[pool].snapshots.push(frozen);
            }
        }
        Ok(())
    }

    fn of_pool(&self, children: &EngineArc<PoolChildren>) -> Option<usize> {
        self.pools.iter().position(|pool| pool.children.is(children))
    }
}

/// While this lives, no thread is inside an operation of a region that children inherit, and a fork of this thread does
/// not wait for any. It serves interpreters in which a fork holds a lock, and threads need that lock to leave an
/// operation: there, the fork would wait in vain.
///
/// ```
/// use hugefork::BeforeFork;
/// let before = BeforeFork::wait()?; // without the lock
/// // Here the thread takes the lock and forks.
/// drop(before);
/// # Ok::<(), hugefork::RegionError>(())
/// ```
/// In the child it has no effect.
pub struct BeforeFork {
    /// `None` if the thread is inside an operation, or has another value. The closed gates come
    /// before the handles that they borrow from.
    waited: Option<(EngineVec<BetweenOperations<'static>>, EngineVec<HeldOperations>)>,
    /// Belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

impl BeforeFork {
    /// Waits for the operations of all regions that children inherit.
    ///
    /// # Errors
    /// [`RegionError::OperationGoesOn`], [`RegionError::System`].
    pub fn wait() -> Result<BeforeFork, RegionError> {
        if owner::is_forked_child() || HAS_WAITED.get() || HeldOperations::is_this_thread_inside() {
            return Ok(BeforeFork { waited: None, _not_send: PhantomData });
        }
        let mut handles: EngineVec<HeldOperations> = EngineVec::new_in(Own);
        {
            let _signals = SignalsBlocked::new();
            let _locked = REGISTRY.lock.lock();
            // SAFETY: under the lock.
            let (regions, _) = unsafe { &*REGISTRY.inner.get() };
            // SAFETY: a region stays in place until it leaves the list, which is locked.
            for operations in regions.iter().filter_map(|one| unsafe { &*one.region }.operations.get()) {
                if !handles.iter().any(|known| known.is(operations)) {
                    handles.push(operations.clone());
                }
            }
        }
        // A thread inside an operation may make or drop a region, so the registry is not locked meanwhile.
        let mut between: EngineVec<BetweenOperations<'static>> = EngineVec::with_capacity_in(handles.len(), Own);
        let begun = Instant::now();
        while let Some(handle) = handles.get(between.len()) {
            let operations: *const OperationsCore = &raw const **handle.core();
            // SAFETY: the handle keeps it alive, and is dropped after what borrows it.
            let operations = unsafe { &*operations };
            // A thread inside this operation may wait to enter one that this thread has closed, as to allocate in a
            // heap. So this thread soon opens them again, and begins with the operation that it waited for.
            let is_first = between.is_empty() || begun.elapsed() > operations.patience();
            match operations.wait_for_at_most(if is_first { operations.patience() } else { CLOSED_FOR }) {
                Ok(closed) => between.push(closed),
                Err(RegionError::OperationGoesOn { .. }) if !is_first => {
                    let waited_for = between.len();
                    between.clear();
                    handles[..=waited_for].rotate_right(1);
                }
                Err(error) => return Err(error),
            }
        }
        HAS_WAITED.set(true);
        Ok(BeforeFork { waited: Some((between, handles)), _not_send: PhantomData })
    }
}

impl Drop for BeforeFork {
    fn drop(&mut self) {
        let Some(waited) = self.waited.take() else { return };
        HAS_WAITED.set(false);
        if owner::is_forked_child() {
            // Missing threads may hold locks of the operations.
            std::mem::forget(waited);
        }
    }
}

/// Snapshots that the next child of a thread has, instead of the regions as they are.
struct Instead<'a> {
    pairs: &'a [(&'a RegionCore<Linux>, &'a SnapshotCore<Linux>)],
    /// The reason why the child has none, until it is sure to have them: libc may call no handler, because no pool
    /// inherits, or a handler forks within a fork.
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
    let refused = RefCell::new(Some(RegionError::NotExportable { source: NOT_INHERITED }));
    let instead = Instead { pairs, refused };
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
    } else if let Err(reason) = BeforeFork::wait().map(|_before| begin(Fork::prepare)) {
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
    let fork = fork.insert(make(regions, signals));
    // SAFETY: it stays there until `end`, and the registry is locked until then.
    unsafe { fork.inheritance.announce() };
}

/// Unlocks the registry. Returns the fork that [`begin`] has stored, unless it belongs to an outer fork.
fn end() -> Option<Fork> {
    let forks = FORKS.replace(FORKS.get().saturating_sub(1));
    if forks != 1 {
        return None;
    }
    // SAFETY: this thread has locked the registry in `prepare`; in a child, this thread is its copy.
    let (_, fork) = unsafe { &mut *REGISTRY.inner.get() };
    Inheritance::withdraw();
    let ended = fork.take();
    REGISTRY.lock.release();
    ended
}

extern "C" fn parent() {
    let Some(fork) = end() else { return };
    for PoolFork { children, byte, snapshots } in fork.pools {
        children.with_held(|held| held.push(Held { byte, _snapshots: snapshots }));
    }
    // If the fork has failed, no other process has the descriptions, and the thread drops the snapshots.
    drop(fork.inheritance);
}

extern "C" fn child() {
    let ended = end();
    // If another handler has forked this child, the outer fork is the parent's, and never ends here.
    FORKS.set(0);
    Inheritance::withdraw();
    let Some(mut fork) = ended else { return };
    fork.inheritance.show_regions();
    if let Some(error) = fork.inheritance.lacks {
        with_instead(|instead| instead.refused.replace(Some(error.into())));
    }
    for pool in fork.pools {
        // They belong to the parent.
        std::mem::forget((pool.snapshots, pool.children));
    }
}
