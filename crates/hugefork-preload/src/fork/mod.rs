//! What happens around a fork: in the handlers that libc calls (`pthread_atfork`), and after them.
//!
//! ```text
//! prepare  take the lock ── worth following? ── a token ─┐
//!                                                     fork(2)
//! parent   hold the token ── count ── give the lock back ┤
//! child    inherit the token ── forget what is the parent's, lock and worker included
//!
//! afterwards   outside of the handlers, in the parent: the page of statistics, the worker
//! worker       gives back what was held for those who are gone (liveness, threads/worker)
//! ```
//!
//! Handlers of others, such as an allocator's, hold their locks around ours: so nothing is allocated in ours, and
//! nothing is started but a child's helper (modes/child), which looks at none of them. `vfork`, `posix_spawn` and
//! `system` call no handlers, since they copy nothing. A fork within libc (`daemon`, `forkpty`) calls the handlers, but
//! not [`afterwards`]: the next one makes good for it.

pub(crate) mod copies;
mod liveness;
pub(crate) mod origin;
pub(crate) mod spare;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Pid, getpid};
use rustix::thread::sched_getcpu;

use crate::descriptors::{self, passing};
use crate::proc::usage::now_ns;
use crate::sandbox::withdrawn;
use crate::stats::own as stats;
use crate::threads::lock::{Guarded, Taken};
use crate::threads::signals::Mask;
use crate::threads::{signals, thread, worker};
use crate::{ALLOCATOR, config, modes};
use liveness::{Outstanding, Token};

/// What is known of forks.
pub(crate) struct State {
    /// Forks of which something may still live.
    pub(crate) outstanding: Outstanding,
    /// Whether the worker has been started and has not left.
    pub(crate) has_worker: bool,
    /// Of the fork that is under way: the process that is copied, and its token.
    copied: Option<Pid>,
    token: Option<Token>,
    is_followed: bool,
    began: u64,
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
    has_worker: false,
    copied: None,
    token: None,
    is_followed: false,
    began: 0,
    processor: 0,
    mask: None,
    has_allocator: false,
});

/// Forks within a fork of the same thread, by another handler of it. They are not followed.
static NESTED: AtomicU32 = AtomicU32::new(0);

impl State {
    /// In a new process: what is known is its parent's.
    fn begin_anew(&mut self) {
        if let Some(token) = self.token.take() {
            token.inherit();
        }
        self.outstanding.forget();
        self.has_worker = false;
        // Of a copy that no handler was told of, only its present parent is known.
        origin::forked_from(self.copied.take());
        thread::in_child();
        worker::in_child();
        stats::in_child();
        // The page is wiped in each copy, also in those of which nobody followed the fork: a child's child, for one.
        if self.is_followed || copies::are_watched() {
            copies::watch();
        }
    }
}

/// Whether the parent of this process is gone.
fn is_orphan() -> bool {
    !origin::has_parent()
}

/// Whether libc knows of the handlers.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Whether forks are anybody's business.
fn is_on() -> bool {
    config::mode().is_some() && !withdrawn::is_withdrawn()
}

/// Has libc call the handlers, before anybody else has it call his own. [`prepare`] is called last then: who takes a
/// lock in a handler has it already, and nobody else waits for us with it.
pub(crate) fn follow() {
    // Other libraries begin before this one, so the handlers may be there before it is known what is wanted.
    unsafe extern "C" fn in_prepare() {
        if is_on() {
            prepare();
        }
    }
    unsafe extern "C" fn in_parent() {
        if is_on() {
            parent();
        }
    }
    unsafe extern "C" fn in_child() {
        if is_on() {
            child();
        }
    }
    if !IS_FOLLOWED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers do what handlers may do.
        unsafe { libc::pthread_atfork(Some(in_prepare), Some(in_parent), Some(in_child)) };
    }
}

/// Microseconds of a clock that goes on steadily.
fn now() -> u64 {
    now_ns() / 1_000
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
    if withdrawn::is_withdrawn() {
        // Since this thread has waited. The other handlers will not be called.
        STATE.give_back();
        return mask.restore();
    }
    // SAFETY: taken just now.
    let state = unsafe { STATE.held() };
    state.mask = Some(mask);
    state.began = now();
    state.processor = sched_getcpu();
    state.copied = Some(getpid());
    if state.outstanding.is_empty() && !descriptors::are_enough() && !spare::is_there() {
        // The program has lowered its limit, and there would be no token: what children hold would never come back.
        modes::heed_limits();
    }
    // Who has no thread cannot say when the descendants are gone.
    state.is_followed = modes::prepare() && origin::may_have_threads();
    if state.is_followed {
        copies::watch();
    }
    if state.is_followed && state.outstanding.is_full() {
        // The worker has not come to it yet.
        state.outstanding.reap(modes::gone);
    }
    // Without one, the descendants of this fork count as gone in mode `collapse`, and never do in mode `pool`.
    state.token = if state.is_followed { Token::next(&state.outstanding).ok() } else { None };
    passing::prepare();
    // Last: nothing is allocated from here until the fork is over.
    state.has_allocator = ALLOCATOR.before_fork();
}

/// In a copy of the process that no handler was told of.
pub(crate) fn notice_copy() {
    // Whoever had the lock is not in this process.
    STATE.reset();
    passing::in_child();
    NESTED.store(0, Ordering::Relaxed);
    modes::in_unnoticed_copy();
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
    passing::parent();
    state.copied = None;
    let held = modes::parent();
    match state.token.take() {
        Some(token) => token.hold(&mut state.outstanding, held),
        None => held.keep_for_ever(),
    }
    if state.is_followed {
        stats::forked(now().saturating_sub(state.began));
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
    passing::in_child();
    state.begin_anew();
    modes::in_child();
    let (mask, is_followed) = (state.mask.take(), state.is_followed);
    STATE.reset();
    if is_followed {
        help();
    }
    mask.into_iter().for_each(Mask::restore);
}

/// Starts what helps a child, if there is to be any.
pub(crate) fn help() {
    if config::helps_children() {
        modes::help(is_orphan);
    }
}

/// The kernel often begins a new process on its parent's processor and in the parent's place, even where another one
/// is idle: the parent's pause would be as long as a turn of the child's, some 3 ms. So the child sleeps, until its
/// parent is through at most times, and is put where there is room when it wakes up. If there is none and the parent is
/// not through, it wakes up in the parent's place again, and gives its turn away.
fn let_the_parent_go_first() {
    let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 250_000 });
    rustix::thread::sched_yield();
}

/// After a fork, in the parent, when all handlers are through. In the middle of another call of this thread, which a
/// signal interrupted, nothing is done.
pub(crate) fn afterwards() {
    if !is_on() {
        return;
    }
    let mask = signals::block();
    let wants_worker = STATE.with(|state| {
        let wants = state.is_followed && !state.has_worker && !state.outstanding.is_empty();
        state.has_worker |= wants;
        (wants, state.is_followed)
    });
    mask.restore();
    let Some((wants_worker, is_followed)) = wants_worker else { return };
    if is_followed {
        stats::publish();
    }
    if wants_worker && !worker::start() {
        STATE.with(|state| state.has_worker = false);
    }
}

/// Whether something of a fork may still live, as far as that can be said at once.
pub(crate) fn has_descendants() -> bool {
    STATE.with_if_free(|state| !state.outstanding.is_empty()).unwrap_or(false)
}

/// Starts the worker, if it can be done at once and in the middle of the program's `malloc`: the program has memory
/// that the worker looks after. Otherwise another time will do.
pub(crate) fn want_worker() {
    if !worker::can_start_anywhere() {
        return;
    }
    let mask = signals::block();
    let wants = STATE.with_if_free(|state| !std::mem::replace(&mut state.has_worker, true));
    if wants == Some(true) && !worker::start() {
        STATE.with(|state| state.has_worker = false);
    }
    mask.restore();
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
