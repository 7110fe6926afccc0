//! The fork handlers that libc calls (`pthread_atfork`), and the work after them.
//!
//! ```text
//! prepare  take the lock ── worth following? ── mark the process (pool::prepare) ─┐
//!                                                                              fork(2)
//! parent   record the child's holdings ── release the lock ───────────────────────┤
//! child    has the mark ── forget the parent's records, lock and worker
//!
//! afterwards   outside of the handlers, in the parent: the worker
//! worker       releases the holdings of ended children (threads/worker)
//! ```
//!
//! Other handlers, such as an allocator's, hold their locks while ours run, so ours allocate
//! nothing and start nothing. `vfork`, `posix_spawn` and `system` call no handlers, since they copy
//! no memory. A fork within libc (`daemon`, `forkpty`) calls the handlers but not `afterwards`; the
//! next fork catches up.

pub(crate) mod copies;
pub(crate) mod origin;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Pid, getpid};
use rustix::thread::sched_getcpu;

use crate::threads::lock::{Guarded, Taken};
use crate::threads::signals::Mask;
use crate::threads::{signals, worker};
use crate::{ALLOCATOR, pool, switch};

/// The state of the fork handlers.
pub(crate) struct State {
    /// For the fork under way: the process that is copied.
    copied: Option<Pid>,
    is_followed: bool,
    /// The processor on which the fork began.
    processor: usize,
    /// The earlier signal mask of the forking thread. Signals are blocked, since a handler could fork in the middle of
    /// the fork.
    mask: Option<Mask>,
    /// Whether that thread has locked the library's allocator.
    has_allocator: bool,
}

/// Locked by [`prepare`], unlocked by [`parent`] and [`child`].
pub(crate) static STATE: Guarded<State> =
    Guarded::new(State { copied: None, is_followed: false, processor: 0, mask: None, has_allocator: false });

/// Number of forks within a fork of the same thread, by another handler. The library does not follow them.
static NESTED: AtomicU32 = AtomicU32::new(0);

impl State {
    /// Resets the state in a new process, which has inherited its parent's.
    fn begin_anew(&mut self) {
        // After a fork without handlers, only the present parent is known.
        origin::forked_from(self.copied.take());
        worker::in_child();
        // The kernel wipes the page in each copy, also in copies without handlers, such as a child's child.
        copies::know();
    }
}

/// Whether the handlers are registered with libc.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Registers the handlers with libc, before any other library registers its own. libc then calls [`prepare`] last:
/// other handlers have taken their locks by then, so no thread waits for the library with such a lock.
pub(crate) fn follow() {
    // Other libraries may start before this one, so the handlers may be registered before the constructor has run.
    unsafe extern "C" fn in_prepare() {
        if switch::is_on() {
            prepare();
        }
    }
    unsafe extern "C" fn in_parent() {
        if switch::is_on() {
            parent();
        }
    }
    unsafe extern "C" fn in_child() {
        if switch::is_on() {
            child();
        }
    }
    if !IS_FOLLOWED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers do only what fork handlers may do.
        unsafe { libc::pthread_atfork(Some(in_prepare), Some(in_parent), Some(in_child)) };
    }
}

/// Before the fork.
pub(crate) extern "C" fn prepare() {
    let mask = signals::block();
    if copies::is_unnoticed() {
        notice_copy();
    }
    if STATE.take() == Taken::Before {
        NESTED.fetch_add(1, Ordering::Relaxed);
        return mask.restore();
    }
    if !switch::is_on() {
        // The process changed while this thread waited. libc will not call the other handlers then.
        STATE.give_back();
        return mask.restore();
    }
    // SAFETY: this thread has just taken the lock.
    let state = unsafe { STATE.held() };
    state.mask = Some(mask);
    state.processor = sched_getcpu();
    state.copied = Some(getpid());
    state.is_followed = pool::prepare();
    // Last: from here on nothing is allocated until the fork is over.
    state.has_allocator = ALLOCATOR.before_fork();
}

/// Resets everything in a copy of the process that was made without the handlers.
pub(crate) fn notice_copy() {
    // The lock's holder is not in this process.
    STATE.reset();
    NESTED.store(0, Ordering::Relaxed);
    pool::in_unnoticed_copy();
    STATE.with(State::begin_anew);
}

fn is_nested() -> bool {
    // All other threads wait in `prepare`, so only this thread reads it.
    let nested = NESTED.load(Ordering::Relaxed);
    NESTED.store(nested.saturating_sub(1), Ordering::Relaxed);
    nested > 0
}

/// Runs after the fork in the process that forked. After a failed fork the worker finds no descendants.
pub(crate) extern "C" fn parent() {
    if is_nested() {
        return;
    }
    // SAFETY: this thread has taken the lock in `prepare`.
    let state = unsafe { STATE.held() };
    if std::mem::take(&mut state.has_allocator) {
        ALLOCATOR.in_parent();
    }
    state.copied = None;
    pool::parent();
    let mask = state.mask.take();
    STATE.give_back();
    mask.into_iter().for_each(Mask::restore);
}

/// Runs after the fork in the new process, which has only this thread.
pub(crate) extern "C" fn child() {
    if is_nested() {
        return;
    }
    // SAFETY: the thread that this one copies has taken the lock in `prepare`.
    let state = unsafe { STATE.held() };
    if std::mem::take(&mut state.has_allocator) {
        ALLOCATOR.in_child();
    }
    if state.is_followed && sched_getcpu() == state.processor {
        yield_to_the_parent();
    }
    state.begin_anew();
    pool::in_child();
    let mask = state.mask.take();
    STATE.reset();
    mask.into_iter().for_each(Mask::restore);
}

/// Sleeps for a moment in the child. The kernel often starts a new process on its parent's processor in place of the
/// parent, even if another processor is idle. The parent would then pause for a time slice of the child, some 3 ms.
/// While the child sleeps, the parent usually completes its fork, and on waking the child moves to an idle processor.
/// If there is none and the parent is not done, the child yields.
fn yield_to_the_parent() {
    let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 250_000 });
    rustix::thread::sched_yield();
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Only one test at a time may fork.
    pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_fork_within_a_fork_is_allowed() {
        let _others_wait = one_at_a_time();
        prepare();
        prepare();
        parent();
        parent();
        assert!(STATE.with(|_| ()).is_some() && !pool::has_descendants());
    }
}
