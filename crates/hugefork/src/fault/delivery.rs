//! Delivery of page faults: a fault in a region is resolved, or raises `SIGBUS`. This runs in the signal handler, on
//! the thread that writes, so the cleared or copied bytes are in the cache of that core.

use super::report;
use super::route::{Found, Owner, Routes};
use crate::mapping::inheritance;
use crate::pool::core::PoolCore;
use crate::region::state::Unresolved;
use crate::sys::SystemError;
use crate::sys::linux::handlers::{self, Fault, NEEDED_STACK_BYTES, Resolver};
use crate::sys::linux::memory::{Linux, now};
use crate::sys::linux::{owner, signal};

/// The functions that the signal handler calls.
static RESOLVER: Resolver = Resolver { concerns, resolve, say_no_room: report::no_stack };

/// Installs the handler, unless it is installed already.
pub(crate) fn install_once() -> Result<(), SystemError> {
    if handlers::install_once(&RESOLVER)?
        && let (Some(frame), Some(stack)) = (signal::large_registers(), signal::alternate_stack())
        && stack < frame + NEEDED_STACK_BYTES
    {
        report::small_stack(stack, frame + NEEDED_STACK_BYTES);
    }
    Ok(())
}

/// Puts hugefork's fault handler on top again. Call it after something has installed a `SIGSEGV` handler that does not
/// pass unknown faults on. That handler still gets the faults that are not hugefork's. This does nothing if hugefork's
/// handler is on top already, or in a child of `fork(2)`, which has no regions.
///
/// Call it from normal code, not from a signal handler.
///
/// # Errors
/// The error of `sigaction(2)`, or `ENOSPC` after handlers have been put on top more than sixty times. Nothing has
/// changed then.
pub fn reinstall_fault_handler() -> Result<(), SystemError> {
    if owner::is_forked_child() {
        // A child has no faults to resolve, and a thread that it does not have may hold the lock.
        return Ok(());
    }
    install_once()?;
    handlers::reinstall()
}

/// Whether an address may lie in a region or snapshot.
fn concerns(address: usize) -> bool {
    Routes::get().is_some_and(|routes| routes.contains(address))
}

/// Handles a fault. True if its address lies in a region or snapshot, whether the fault was resolved or raised
/// `SIGBUS`.
fn resolve(fault: &mut Fault<'_>) -> bool {
    let address = fault.address;
    let Some(routes) = Routes::get() else { return false };
    if owner::is_forked_child() {
        if inheritance::show_announced() {
            return true;
        }
        report::of_parent(address);
        return false;
    }
    let (region, offset) = match routes.find(address) {
        Found::Within(Owner::Region(region), offset) => (region, offset),
        Found::Within(Owner::Snapshot(snapshot), offset) if snapshot.is_revoked_at(offset) => {
            return raise(snapshot.pool(), fault, Unresolved::Revoked);
        }
        Found::Within(Owner::Snapshot(snapshot), _) if fault.is_write() => {
            report::of_snapshot(snapshot.pool(), address);
            return false;
        }
        Found::Within(Owner::Snapshot(snapshot), offset) => {
            let unmappable = |error| raise(snapshot.pool(), fault, Unresolved::Unmappable(error));
            return snapshot.show_more(offset).unwrap_or_else(unmappable);
        }
        Found::Behind(bytes) => {
            report::of_what_is_behind(bytes, address);
            return false;
        }
        Found::Nobody => {
            report::of_nobody(address);
            return false;
        }
    };
    if !fault.is_write() {
        // A read of a region faults only where a block was taken away.
        return region.is_revoked_at(offset) && raise(region.pool(), fault, Unresolved::Revoked);
    }
    let started = now();
    if let Err(reason) = region.resolve(offset) {
        raise(region.pool(), fault, reason);
    }
    region.counters.handler.record(now().saturating_sub(started));
    true
}

/// Raises `SIGBUS` for an access that cannot be completed. If the kernel refuses, the thread would repeat the access
/// for ever, so the process aborts. Always true: the fault was hugefork's.
#[cold]
fn raise(pool: &PoolCore<Linux>, fault: &mut Fault<'_>, reason: Unresolved) -> bool {
    report::unresolved(pool, fault.address, reason);
    if let Err(error) = fault.raise_bus_error() {
        report::unraisable(fault.address, error);
        std::process::abort();
    }
    true
}
