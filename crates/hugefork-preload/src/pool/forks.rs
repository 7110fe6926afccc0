//! The pool during a fork, in both processes, and in copies that were made without the fork
//! handlers.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use hugefork_program::{ProgramMemory, Zeros};

use super::calls::leave;
use super::engine::{Held, LATER, MEMORY, Memory, WAITING, close_descriptors, on_own_stack};
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
    let inherited = on_own_stack(memory, |memory| {
        // The program has closed descriptors that it did not open. The engine cannot work without them.
        if memory.engine.iter().flat_map(ProgramMemory::descriptors).any(|file| file.get().is_err()) {
            leave(memory, Zeros::Copied);
        }
        memory.engine.as_mut().map(ProgramMemory::before_fork)
    });
    memory.pending = Held(inherited);
    MEMORY.pin();
    memory.engine.is_some()
}

/// Called after a fork in the process that forked. Returns the child's holdings.
pub(crate) fn parent() -> Held {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return Held::nothing();
    }
    MEMORY.unpin();
    // SAFETY: this thread has taken the lock in `prepare`.
    let memory = unsafe { MEMORY.held() };
    let held = std::mem::replace(&mut memory.pending, Held::nothing());
    IS_FORKING.store(false, Ordering::Release);
    MEMORY.give_back();
    held
}

/// Called after a fork in the child.
pub(crate) fn in_child() {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the thread that this one copies has taken the lock in `prepare`.
    let memory = unsafe { MEMORY.held() };
    if let Some(engine) = memory.engine.take() {
        ROLE.store(Role::Child as u8, Ordering::Release);
        // The descriptors give access to the parent's memory, now and later, and a child may be about to drop its
        // rights.
        close_descriptors(&engine);
        memory.inherited = Some(ManuallyDrop::new(engine));
    }
    give_up_all(memory);
    LATER.store(0, Ordering::Relaxed);
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
    MEMORY.reset();
}

/// In a copy of the process: forgets the engine, which belongs to the original.
fn give_up_all(memory: &mut Memory) {
    std::mem::forget(memory.engine.take());
    std::mem::replace(&mut memory.pending, Held::nothing()).never_release();
}

/// Called in a copy that was made without the fork handlers: it has no access to the engine's memory, which is shared.
pub(crate) fn in_unnoticed_copy() {
    MEMORY.reset();
    LATER.store(0, Ordering::Relaxed);
    MEMORY.with(|memory| {
        if memory.engine.is_some() {
            ROLE.store(Role::Without as u8, Ordering::Release);
        }
        give_up_all(memory);
    });
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
}
