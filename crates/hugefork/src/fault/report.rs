//! The one line that an unresolvable fault leaves on standard error. No allocation, no lock: a buffer on the stack and one
//! `write(2)`.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::stdio::stderr;

use super::resolver::Unresolved;
use crate::error::SystemError;
use crate::pool::core::PoolCore;
use crate::sys::Sys;
use crate::sys::linux::signal;

/// Longer lines are cut.
const LINE: usize = 400;

struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.len().min(LINE - self.len);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

/// Writes one line to standard error. Whatever goes wrong with that is nobody's concern any more.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    // One byte is kept for the end of the line.
    let mut line = Line { bytes: [b'\n'; LINE], len: 0 };
    let _ = write!(line, "hugefork: {message}");
    let end = line.len.min(LINE - 1);
    line.bytes[end] = b'\n';
    let _ = rustix::io::write(stderr(), &line.bytes[..=end]);
}

/// Says that a failed call could not be undone.
pub(crate) fn lost<S: Sys>(pool: &PoolCore<S>, address: usize, error: SystemError) {
    say(format_args!(
        "pool `{}`: the kernel refused to map a block at {address:#x} and to put back what was there: {error}; aborting",
        pool.name
    ));
}

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

/// Says that the handler has no room to say more.
pub(super) fn no_stack() {
    const LINE: &str = "hugefork: this thread's alternate signal stack is too small to resolve a fault of a region: take one of \
                        getauxval(AT_MINSIGSTKSZ) + 8 KiB, or none; aborting\n";
    let _ = rustix::io::write(stderr(), LINE.as_bytes());
}

/// The address of the last line about an access.
static SAID: AtomicUsize = AtomicUsize::new(0);

/// Says why an access to `address` cannot be completed, and what would have prevented it. Not once more where a handler has
/// put the default back and has the access repeated, to die of it: Rust's own does.
pub(super) fn unresolved<S: Sys>(pool: &PoolCore<S>, address: usize, reason: Unresolved) {
    if SAID.swap(address, Ordering::Relaxed) == address && signal::is_default(libc::SIGBUS) {
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
             empty and the region that it was made from had to go on; make it with Reserve::Full (SIGBUS)"
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
