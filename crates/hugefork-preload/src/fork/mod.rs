//! What happens around a fork: in the handlers that libc calls (`pthread_atfork`), and after them.
//!
//! ```text
//! prepare  take the lock ── worth following? ── a token ─┐
//!                                                     fork(2)
//! parent   hold the token ── count ── give the lock back ┤
//! child    inherit the token ── forget what is the parent's, lock and worker included
//!
//! afterwards   outside of the handlers, in the parent: the worker
//! worker       gives back what was held for those who are gone (liveness, threads/worker)
//! ```
//!
//! Handlers of others, such as an allocator's, hold their locks around ours: so nothing is allocated in ours, and
//! nothing is started. `vfork`, `posix_spawn` and
//! `system` call no handlers, since they copy nothing. A fork within libc (`daemon`, `forkpty`) calls the handlers, but
//! not `afterwards`: the next one makes good for it.

pub(crate) mod copies;
mod liveness;
pub(crate) mod origin;
pub(crate) mod token;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Pid, getpid};
use rustix::thread::sched_getcpu;

use crate::threads::lock::{Guarded, Taken};
use crate::threads::signals::Mask;
use crate::threads::{signals, worker};
use crate::{ALLOCATOR, pool, switch};
use liveness::Outstanding;
use token::Token;

/// What is known of forks.
pub(crate) struct State {
    /// Forks of which something may still live.
    pub(crate) outstanding: Outstanding,
    /// Of the fork that is under way: the process that is copied, and its token.
    copied: Option<Pid>,
    token: Option<Token>,
    is_followed: bool,
    /// The processor that it began on.
    processor: usize,
    /// The signals of the thread that forks. A handler could fork in the middle of the fork.
    mask: Option<Mask>,
    /// Whether that thread keeps others from the library's allocator.
    has_allocator: bool,
}

/// Locked by [`prepare`], and given back by [`parent`] and [`child`].
pub(crate) static STATE: Guarded<State> = Guarded::new(State {
    outstanding: Outstanding::none(),
    copied: None,
    token: None,
    is_followed: false,
    processor: 0,
    mask: None,
    has_allocator: false,
});

/// Forks within a fork of the same thread, by another handler of it. They are not followed.
static NESTED: AtomicU32 = AtomicU32::new(0);

impl State {
    /// In a new process: what is known is its parent's.
    fn begin_anew(&mut self) {
        self.outstanding.forget();
        self.token = None;
        // Of a copy that no handler was told of, only its present parent is known.
        origin::forked_from(self.copied.take());
        worker::in_child();
        // The page is wiped in each copy, also in those of which nobody followed the fork: a child's child, for one.
        copies::know();
    }
}

/// Whether libc knows of the handlers.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Has libc call the handlers, before anybody else has it call his own. [`prepare`] is called last then: who takes a
/// lock in a handler has it already, and nobody else waits for us with it.
pub(crate) fn follow() {
    // Other libraries begin before this one, so the handlers may be there before it is known what is wanted.
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
        // SAFETY: the handlers do what handlers may do.
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
        // Since this thread has waited. The other handlers will not be called.
        STATE.give_back();
        return mask.restore();
    }
    // SAFETY: taken just now.
    let state = unsafe { STATE.held() };
    state.mask = Some(mask);
    state.processor = sched_getcpu();
    state.copied = Some(getpid());
    state.is_followed = pool::prepare();
    if state.is_followed && state.outstanding.is_full() {
        // The worker has not come to it yet.
        state.outstanding.reap(pool::gone);
    }
    // Without one, what the descendants of this fork hold is never given up.
    state.token = if state.is_followed { state.outstanding.token() } else { None };
    // Last: nothing is allocated from here until the fork is over.
    state.has_allocator = ALLOCATOR.before_fork();
}

/// In a copy of the process that no handler was told of.
pub(crate) fn notice_copy() {
    // Whoever had the lock is not in this process.
    STATE.reset();
    NESTED.store(0, Ordering::Relaxed);
    pool::in_unnoticed_copy();
    STATE.with(|state| {
        state.is_followed = true;
        state.begin_anew();
    });
}

fn is_nested() -> bool {
    // Others wait in `prepare`, so this thread alone looks at it.
    let nested = NESTED.load(Ordering::Relaxed);
    NESTED.store(nested.saturating_sub(1), Ordering::Relaxed);
    nested > 0
}

/// After the fork, in the process that forked. Also if it failed: then the token is over at once.
pub(crate) extern "C" fn parent() {
    if is_nested() {
        return;
    }
    // SAFETY: `prepare` has taken it, in this thread.
    let state = unsafe { STATE.held() };
    if std::mem::take(&mut state.has_allocator) {
        ALLOCATOR.in_parent();
    }
    state.copied = None;
    let held = pool::parent();
    match state.token.take() {
        Some(token) => state.outstanding.hold(&token, held),
        None => held.keep_for_ever(),
    }
    let mask = state.mask.take();
    STATE.give_back();
    mask.into_iter().for_each(Mask::restore);
}

/// After the fork, in the new process, which has this thread alone.
pub(crate) extern "C" fn child() {
    if is_nested() {
        return;
    }
    // SAFETY: `prepare` has taken it, in the thread whose copy this is.
    let state = unsafe { STATE.held() };
    if std::mem::take(&mut state.has_allocator) {
        ALLOCATOR.in_child();
    }
    if state.is_followed && sched_getcpu() == state.processor {
        let_the_parent_go_first();
    }
    state.begin_anew();
    pool::in_child();
    let mask = state.mask.take();
    STATE.reset();
    mask.into_iter().for_each(Mask::restore);
}

/// The kernel often begins a new process on its parent's processor and in the parent's place, even where another one
/// is idle: the parent's pause would be as long as a turn of the child's, some 3 ms. So the child sleeps, until its
/// parent is through at most times, and is put where there is room when it wakes up. If there is none and the parent is
/// not through, it wakes up in the parent's place again, and gives its turn away.
fn let_the_parent_go_first() {
    let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 250_000 });
    rustix::thread::sched_yield();
}

/// Whether something of a fork that was followed may still live, for which a worker is wanted.
pub(crate) fn wants_worker() -> bool {
    let mask = signals::block();
    let wants = STATE.with(|state| state.is_followed && state.outstanding.count() > 0);
    mask.restore();
    wants == Some(true)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// One test at a time forks or has tokens: a child that another test forks maps the tokens, too, as long as it
    /// lives.
    pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_fork_within_a_fork_is_let_through() {
        let _others_wait = one_at_a_time();
        prepare();
        prepare();
        parent();
        parent();
        assert_eq!(STATE.with(|state| state.outstanding.reap(|_| ())), Some(0));
    }
}
