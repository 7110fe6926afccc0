//! A fork, from before it until both processes go on, and copies of the process that nobody told of.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use hugefork_program::{ProgramMemory, Zeros};

use super::calls::leave;
use super::engine::{Held, LATER, MEMORY, Memory, WAITING, close_descriptors, on_own_stack};
use super::state::{IS_FORKING, ROLE, Role};
use crate::threads::lock::Taken;

/// Before a fork, in the thread that forks, until [`parent`] or [`in_child`]. False if it is not worth to be followed:
/// even so the lock is taken, since a thread that has it while the process is copied has it for ever in the copy.
pub(crate) fn prepare() -> bool {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let taken = MEMORY.take();
    WAITING.fetch_sub(1, Ordering::Relaxed);
    if taken != Taken::Now {
        // It cannot be: signals are blocked as long as this thread has it.
        return false;
    }
    IS_FORKING.store(true, Ordering::Release);
    // SAFETY: taken just now.
    let memory = unsafe { MEMORY.held() };
    let inherited = on_own_stack(memory, |memory| {
        // The program closes what it did not open: nothing is the engine's any more.
        if memory.engine.iter().flat_map(ProgramMemory::descriptors).any(|file| file.get().is_err()) {
            leave(memory, Zeros::Copied);
        }
        memory.engine.as_mut().map(ProgramMemory::before_fork)
    });
    memory.pending = Held(inherited);
    MEMORY.keep();
    memory.engine.is_some()
}

/// After it, in the process that forked. Gives what the child holds.
pub(crate) fn parent() -> Held {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return Held::nothing();
    }
    MEMORY.keep_no_longer();
    // SAFETY: `prepare` has taken it, in this thread.
    let memory = unsafe { MEMORY.held() };
    let held = std::mem::replace(&mut memory.pending, Held::nothing());
    IS_FORKING.store(false, Ordering::Release);
    MEMORY.give_back();
    held
}

/// After it, in the child.
pub(crate) fn in_child() {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: `prepare` has taken it, in the thread whose copy this is.
    let memory = unsafe { MEMORY.held() };
    if let Some(engine) = memory.engine.take() {
        ROLE.store(Role::Child as u8, Ordering::Release);
        // Whoever has them has the parent's memory, now and later. A child may be about to give up its rights.
        close_descriptors(&engine);
        memory.inherited = Some(ManuallyDrop::new(engine));
    }
    give_up_all(memory);
    LATER.store(0, Ordering::Relaxed);
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
    MEMORY.reset();
}

/// In a copy of the process: all of it is the other's.
fn give_up_all(memory: &mut Memory) {
    std::mem::forget(memory.engine.take());
    std::mem::replace(&mut memory.pending, Held::nothing()).keep_for_ever();
}

/// In a copy of the process that no handler was told of: it does not have the engine's memory, which is shared.
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
