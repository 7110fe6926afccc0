//! A fork, from before it until both processes go on, and copies of the process that nobody told of.

use std::sync::atomic::Ordering;

use super::super::{child, collapse};
use super::calls::leave_it_all_to_the_kernel;
use super::engine::{Held, LATER, MEMORY, Memory, WAITING, on_own_stack, reopen};
use super::state::{IS_FORKING, ROLE, Role, role};
use crate::descriptors;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::threads::lock::Taken;

/// Before a fork, in the thread that forks, until [`parent`] or [`in_child`]. False if it is not worth to be followed:
/// even so the lock is taken, since a thread that has it while the process is copied has it for ever in the copy.
pub(in crate::modes) fn prepare() -> bool {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let taken = MEMORY.take();
    WAITING.fetch_sub(1, Ordering::Relaxed);
    if taken != Taken::Now {
        // It cannot be: signals are blocked as long as this thread has it.
        return false;
    }
    IS_FORKING.store(true, Ordering::Release);
    if role() == Role::Child {
        child::before_fork();
    }
    // SAFETY: taken just now.
    let memory = unsafe { MEMORY.held() };
    let inherited = on_own_stack(memory, |memory| {
        reopen(memory);
        memory.engine.as_mut().map(|engine| {
            let inherited = engine.before_fork();
            stats::set(Word::PoolUnseen, engine.counts().unseen);
            inherited
        })
    });
    memory.pending = Held(inherited);
    let is_followed = memory.engine.is_some() || collapse::is_worth_following();
    MEMORY.keep();
    is_followed
}

/// After it, in the process that forked. Gives what the child holds.
pub(in crate::modes) fn parent() -> Held {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return Held::nothing();
    }
    MEMORY.keep_no_longer();
    // SAFETY: `prepare` has taken it, in this thread.
    let memory = unsafe { MEMORY.held() };
    let held = std::mem::replace(&mut memory.pending, Held::nothing());
    IS_FORKING.store(false, Ordering::Release);
    child::after_fork();
    MEMORY.give_back();
    held
}

/// After it, in the child.
pub(in crate::modes) fn in_child() {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: `prepare` has taken it, in the thread whose copy this is.
    let memory = unsafe { MEMORY.held() };
    if let Some(engine) = &memory.engine {
        ROLE.store(Role::Child as u8, Ordering::Release);
        child::noted::begin(engine.blocks());
        child::ends::note(engine.ends());
        // Whoever has them has the parent's memory, now and later. A child may be about to give up its rights.
        memory.descriptors.iter().for_each(|kept| kept.close());
        descriptors::forget_all();
    }
    give_up_all(memory);
    LATER.store(0, Ordering::Relaxed);
    child::in_child();
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
    MEMORY.reset();
}

/// In the child, afterwards.
pub(in crate::modes) fn help(is_orphan: fn() -> bool) {
    if role() == Role::Child {
        child::help(is_orphan);
    }
}

/// Before the process may make no calls of its own any more: all that it has of a pool is the kernel's. False if that
/// cannot be.
pub(in crate::modes) fn withdraw() -> bool {
    match role() {
        Role::Owner => leave_it_all_to_the_kernel(),
        Role::Child => {
            child::noted::withdraw();
            true
        }
        Role::Without => true,
    }
}

/// In a copy of the process: all of it is the other's.
fn give_up_all(memory: &mut Memory) {
    std::mem::forget(memory.engine.take());
    std::mem::replace(&mut memory.pending, Held::nothing()).keep_for_ever();
}

/// In a copy of the process that no handler was told of: it does not have the engine's memory, which is shared.
pub(in crate::modes) fn in_unnoticed_copy() {
    MEMORY.reset();
    LATER.store(0, Ordering::Relaxed);
    MEMORY.with(|memory| {
        if memory.engine.is_some() {
            ROLE.store(Role::Without as u8, Ordering::Release);
        }
        give_up_all(memory);
    });
    descriptors::forget_all();
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
}
