//! The one line that an unresolvable fault leaves on standard error.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::core::PoolCore;
use crate::region::unresolved::Unresolved;
use crate::sys::linux::signal;
use crate::sys::linux::stderr::{say, say_plainly};
use crate::sys::{Sys, SystemError};

/// Says that the process cannot be told of an access that cannot be completed.
pub(super) fn unraisable(address: usize, error: SystemError) {
    say(format_args!(
        "the access to {address:#x} cannot be completed, nor raised as SIGBUS: {error}; aborting; allow that call (seccomp)"
    ));
}

/// Says that threads like this one may find no room for the handler.
pub(super) fn small_stack(has: usize, needed: usize) {
    say(format_args!(
        "this process may use AMX tiles: a thread that does, writes to a region and has an alternate signal stack needs one of \
         {needed} bytes (sigaltstack), and this one has {has}"
    ));
}

/// Says why a child of `fork(2)` faults on what its parent has.
pub(super) fn of_parent(address: usize) {
    say(format_args!(
        "{address:#x} lies in a region, and regions do not cross fork(2): this process is a child of their owner"
    ));
}

/// Says that the handler has no room to say more.
pub(super) fn no_stack() {
    const LINE: &str = "hugefork: this thread's alternate signal stack is too small to resolve a fault of a region: take one of \
                        getauxval(AT_MINSIGSTKSZ) + 8 KiB, or none; aborting\n";
    say_plainly(LINE);
}

/// The address of the last line about an access.
static SAID: AtomicUsize = AtomicUsize::new(0);

/// Says why an access to `address` cannot be completed, and what would have prevented it. Not once more where a handler has
/// put the default back and has the access repeated, to die of it: Rust's own does.
pub(super) fn unresolved<S: Sys>(pool: &PoolCore<S>, address: usize, reason: Unresolved) {
    if SAID.swap(address, Ordering::Relaxed) == address && signal::is_bus_error_default() {
        return;
    }
    let name = &pool.name;
    match reason {
        Unresolved::PoolFull => say(format_args!(
            "pool `{name}` is full: the write to {address:#x} needs a block and all {} of {} are in use; drop a fork or \
             snapshot, discard a range, or build the pool with more capacity (SIGBUS)",
            pool.frames.len(),
            pool.block_size,
        )),
        Unresolved::OutOfMemory(error) => say(format_args!(
            "pool `{name}`: no memory for the write to {address:#x}: {error}; free memory or build the pool with \
             Commit::Upfront (SIGBUS)"
        )),
        Unresolved::TooManyMappings => say(format_args!(
            "pool `{name}`: the write to {address:#x} needs another mapping and all {} are in use; raise \
             vm.max_map_count or take larger blocks (SIGBUS)",
            pool.sys.budget().limit(),
        )),
        // It comes back by itself.
        Unresolved::NotYet => {}
        Unresolved::Revoked => say(format_args!(
            "pool `{name}`: {address:#x} lies in a block that was taken away from a fork or snapshot, since the pool was \
             empty and its parent had to go on; make it with Reserve::Full (SIGBUS)"
        )),
        Unresolved::CowLimit(_) => say(format_args!(
            "pool `{name}`: the write to {address:#x} would copy a block for forks and snapshots that hold all that its \
             region allows (max_cow_bytes); drop one or raise the limit (SIGBUS)"
        )),
        Unresolved::Unmappable(error) => {
            say(format_args!("pool `{name}`: the write to {address:#x} cannot be mapped: {error} (SIGBUS)"))
        }
    }
}
