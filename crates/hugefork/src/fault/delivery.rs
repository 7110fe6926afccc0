//! What becomes of a page fault: whose it is, and, if it is ours, its resolution or a `SIGBUS`. Runs in the signal handler, on the
//! thread that writes, so that what is cleared or copied is in *that* core's cache.

use super::report;
use super::route::{Owner, Routes};
use crate::pool::core::PoolCore;
use crate::region::unresolved::Unresolved;
use crate::sys::SystemError;
use crate::sys::linux::handlers::{self, Fault};
use crate::sys::linux::memory::{Linux, now};
use crate::sys::linux::{owner, signal};

/// Bytes of stack that the handler may need, beside the registers that the kernel puts there (`tests/handler_stack.rs`).
const STACK: usize = if cfg!(debug_assertions) { 4608 } else { 3072 };

/// What of that is used by the time that the room is looked at.
const BEFORE: usize = 512;

/// Installs the handler if it is not yet.
pub(crate) fn install_once() -> Result<(), SystemError> {
    if handlers::install_once(resolve)?
        && let (Some(frame), Some(stack)) = (signal::large_registers(), signal::alternate_stack())
        && stack < frame + STACK
    {
        report::small_stack(stack, frame + STACK);
    }
    Ok(())
}

/// Puts hugefork's fault handler on top again, after something else has installed a `SIGSEGV` handler that does not pass
/// on faults it does not know. That handler keeps getting the faults that are not hugefork's. Does nothing if hugefork's
/// is on top already, and in a child of `fork(2)`, which has no regions.
///
/// Call it from normal code, not from a signal handler.
///
/// # Errors
/// What `sigaction(2)` says, or `ENOSPC` when other handlers have come on top more than sixty times; nothing has changed then.
pub fn reinstall_fault_handler() -> Result<(), SystemError> {
    if owner::is_forked_child() {
        // No faults to resolve here, and the lock may be held by a thread that did not come along.
        return Ok(());
    }
    install_once()?;
    handlers::reinstall()
}

/// True if the fault was ours, whether it could be resolved or not.
fn resolve(fault: &mut Fault<'_>) -> bool {
    let address = fault.address;
    let Some(routes) = Routes::get().filter(|routes| routes.contains(address)) else { return false };
    if !fault.has_room(STACK - BEFORE) {
        report::no_stack();
        std::process::abort();
    }
    if owner::is_forked_child() {
        report::of_parent(address);
        return false;
    }
    let (region, offset) = match routes.find(address) {
        Some((Owner::Region(region), offset)) => (region, offset),
        Some((Owner::Snapshot(snapshot), offset)) => {
            return snapshot.is_revoked_at(offset) && raise_revoked(snapshot.pool(), fault);
        }
        None => return false,
    };
    if !fault.is_write() {
        // All of a region can be read at any time, but for what was taken away from it.
        return region.is_revoked_at(offset) && raise_revoked(region.pool(), fault);
    }
    let started = now();
    match region.resolve(offset) {
        Ok(_) => {}
        Err(reason) => raise(region.pool(), fault, reason),
    }
    region.counters.record_handler(now().saturating_sub(started));
    true
}

/// For an access to what was taken away. True, since the fault was ours.
fn raise_revoked(pool: &PoolCore<Linux>, fault: &mut Fault<'_>) -> bool {
    raise(pool, fault, Unresolved::Revoked);
    true
}

/// For an access that cannot be completed. Without the signal it would be repeated for ever, so then the process is aborted.
fn raise(pool: &PoolCore<Linux>, fault: &mut Fault<'_>, reason: Unresolved) {
    report::unresolved(pool, fault.address, reason);
    if let Err(error) = fault.raise_bus_error() {
        report::unraisable(fault.address, error);
        std::process::abort();
    }
}
