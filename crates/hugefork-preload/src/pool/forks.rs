//! The pool during a fork, in both processes, and in copies that were made without the fork
//! handlers.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use hugefork_program::{Forks, Zeros};

use super::calls::leave;
use super::engine::{LATER, MEMORY, WAITING, on_own_stack};
use super::state::{IS_FORKING, ROLE, Role};
use crate::threads::lock::Taken;

/// Called before a fork by the forking thread; [`parent`] or [`in_child`] ends it. Returns false if the fork need not
/// be followed. The lock is taken in any case: otherwise the copy could contain a lock held by a thread that it does
/// not have.
pub(crate) fn prepare() -> bool {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let taken = MEMORY.take();
    WAITING.fetch_sub(1, Ordering::Relaxed);
    if taken != Taken::Now {
        // Unreachable: signals are blocked while this thread has the lock.
        return false;
    }
    IS_FORKING.store(true, Ordering::Release);
    // SAFETY: this thread has just taken the lock.
    let memory = unsafe { MEMORY.held() };
    on_own_stack(memory, |memory| {
        let fork = memory.forks.as_mut().and_then(Forks::mark);
        // The program has closed descriptors that it did not open, or may open no more. The engine cannot work without
        // them, and without a mark it would never release the memory that the child holds.
        if fork.is_none() || memory.descriptors().any(|file| file.get().is_err()) {
            leave(memory, Zeros::Copied);
        }
        // Nothing is allocated between this and the end of the fork.
        memory.held.reserve(1);
        memory.pending = memory.engine.as_mut().map(|engine| (fork, engine.before_fork()));
    });
    MEMORY.pin();
    memory.engine.is_some()
}

/// Called after a fork in the process that forked.
pub(crate) fn parent() {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return;
    }
    MEMORY.unpin();
    // SAFETY: this thread has taken the lock in `prepare`.
    let memory = unsafe { MEMORY.held() };
    memory.forks.iter_mut().for_each(Forks::unmark);
    match memory.pending.take() {
        Some((Some(fork), inherited)) => memory.held.push((fork, inherited)),
        // There was neither a mark nor the memory to leave: it is never released.
        Some((None, inherited)) => std::mem::forget(inherited),
        None => {}
    }
    IS_FORKING.store(false, Ordering::Release);
    MEMORY.give_back();
}

/// Called after a fork in the child.
pub(crate) fn in_child() {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the thread that this one copies has taken the lock in `prepare`.
    let memory = unsafe { MEMORY.held() };
    // The descriptors give access to the parent's memory, now and later, and a child may be about to drop its rights.
    memory.close_descriptors();
    if let Some(engine) = memory.engine.take() {
        ROLE.store(Role::Child as u8, Ordering::Release);
        memory.inherited = Some(ManuallyDrop::new(engine));
    }
    memory.forget();
    LATER.store(0, Ordering::Relaxed);
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
    MEMORY.reset();
}

/// Called in a copy that was made without the fork handlers: it has no access to the engine's memory, which is shared.
pub(crate) fn in_unnoticed_copy() {
    MEMORY.reset();
    LATER.store(0, Ordering::Relaxed);
    MEMORY.with(|memory| {
        if memory.engine.is_some() {
            ROLE.store(Role::Without as u8, Ordering::Release);
        }
        memory.forget();
    });
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
}
