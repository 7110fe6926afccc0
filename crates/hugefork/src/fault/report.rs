//! Writes one line to standard error about a fault that cannot be resolved. Programs in C and Python show it too, so it
//! names nothing of Rust's.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::core::PoolCore;
use crate::region::state::Unresolved;
use crate::sys::budget::MARGIN_MAPPINGS;
use crate::sys::linux::signal;
use crate::sys::linux::stderr::{say, write_out};
use crate::sys::{Sys, SystemError, answer};

/// For an access that cannot be completed, when `SIGBUS` cannot be raised either.
pub(super) fn unraisable(address: usize, error: SystemError) {
    say(format_args!(
        "the access to {address:#x} cannot be completed, and SIGBUS cannot be raised for it: {error}; aborting; allow that \
         system call (seccomp)"
    ));
}

/// For a thread whose alternate stack may be too small for the handler.
pub(super) fn small_stack(has: usize, needed: usize) {
    say(format_args!(
        "this process may use AMX tiles: a thread that uses them and writes to a region needs an alternate signal stack of \
         {needed} bytes (sigaltstack) or none; this thread has one of {has}"
    ));
}

/// For a child of `fork(2)` that touches its parent's regions.
pub(super) fn of_parent(address: usize) {
    say(format_args!(
        "{address:#x} lies in a region or snapshot; regions do not cross fork(2) unless the option `children` of their pool \
         says so, and snapshots never do: this process is a child of the one that made it"
    ));
}

/// For a write to a snapshot.
#[cold]
pub(super) fn of_snapshot<S: Sys>(pool: &PoolCore<S>, address: usize) {
    if is_new(address) {
        say(format_args!(
            "pool `{}`: {address:#x} lies in a snapshot, to which nobody can write; make a fork of it to write there \
             (SIGSEGV)",
            pool.name
        ));
    }
}

/// For an access past the end of a region or snapshot. Reads nothing of the owner: another thread may be dropping it.
#[cold]
pub(super) fn of_what_is_behind(bytes: usize, address: usize) {
    if is_new(address) {
        say(format_args!(
            "{address:#x} lies {bytes} bytes behind the end of a region or snapshot; correct the index (SIGSEGV)"
        ));
    }
}

/// For an access to addresses without an owner.
#[cold]
pub(super) fn of_nobody(address: usize) {
    if is_new(address) {
        say(format_args!(
            "{address:#x} lies in no region or snapshot: the one that was there was dropped or closed, or the address is \
             wrong; use addresses only while their region lives (SIGSEGV)"
        ));
    }
}

/// Whether the last line was about another address. An earlier handler may make the thread repeat the access.
fn is_new(address: usize) -> bool {
    SAID.swap(address, Ordering::Relaxed) != address
}

/// For a fault whose stack has no room for the handler.
pub(super) fn no_stack() {
    const LINE: &str = "hugefork: this thread's alternate signal stack is too small to resolve a fault of a region: take one of \
                        getauxval(AT_MINSIGSTKSZ) + 4 KiB, or none; aborting\n";
    write_out(LINE.as_bytes());
}

/// The address in the last line about an access.
static SAID: AtomicUsize = AtomicUsize::new(0);

/// For an access to `address` that cannot be completed: says why, and how to prevent it. A handler may restore the
/// default action and repeat the access to end the process, as Rust's own does; the second time, this says nothing.
pub(super) fn unresolved<S: Sys>(pool: &PoolCore<S>, address: usize, reason: Unresolved) {
    if !is_new(address) && signal::is_bus_error_default() {
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
            "pool `{name}`: no memory for the write to {address:#x}: {error}; free memory or build the pool with all of \
             its memory upfront (SIGBUS)"
        )),
        Unresolved::TooManyMappings => say(format_args!(
            "pool `{name}`: the write to {address:#x} needs more mappings, and the process has {} of {} (vm.max_map_count), \
             {MARGIN_MAPPINGS} of which stay for the rest of the program; raise that limit or take larger blocks (SIGBUS)",
            pool.sys.budget().of_process(),
            pool.sys.budget().most(),
        )),
        // The thread repeats the write.
        Unresolved::NotYet | Unresolved::CowLimit => {}
        Unresolved::Revoked => say(format_args!(
            "pool `{name}`: {address:#x} lies in a block that was taken away from a fork or snapshot, because its parent \
             wrote and the pool was full, or the parent's max_cow_bytes were used up; make forks and snapshots with \
             blocks reserved (SIGBUS)"
        )),
        Unresolved::Unmappable(error) => {
            let is_memory = error.raw_os_error() == answer::OUT_OF_MEMORY;
            let advice = if is_memory { "; raise RLIMIT_AS (ulimit -v) if it was lowered, or free memory" } else { "" };
            say(format_args!("pool `{name}`: the access to {address:#x} cannot be mapped: {error}{advice} (SIGBUS)"));
        }
    }
}
