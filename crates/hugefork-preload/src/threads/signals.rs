//! Blocks the program's signal handlers in a thread that holds locks which the handlers may need.

use std::ptr;

use syscalls::{Sysno, syscall};

/// The kernel's representation of a signal set: bit *n* - 1 for signal *n*.
type KernelSet = u64;

/// The signals of a thread's own faults, and the two that libc reserves for itself.
const OPEN: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, 32, 33];

/// The signals that a thread had blocked before. [`Mask::restore`] blocks exactly these again.
#[derive(Clone, Copy)]
pub(crate) struct Mask(KernelSet);

/// Blocks all signals of this thread except those of its own faults, and libc's.
///
/// It bypasses libc, which uses thread-local data; the worker's data may be freed by then ([`super::thread`]).
pub(crate) fn block() -> Mask {
    let open = OPEN.iter().map(|signal| 1 << (signal - 1)).sum::<KernelSet>();
    let mut before = 0;
    set(&!open, &raw mut before);
    Mask(before)
}

/// Runs `work` while the program's handlers are blocked.
pub(crate) fn blocked<R>(work: impl FnOnce() -> R) -> R {
    let mask = block();
    let done = work();
    mask.restore();
    done
}

impl Mask {
    /// Restores the earlier mask.
    pub(crate) fn restore(self) {
        set(&self.0, ptr::null_mut());
    }
}

fn set(mask: &KernelSet, before: *mut KernelSet) {
    // SAFETY: the kernel reads one set, and writes the other unless it is null. The call cannot fail.
    let _ =
        unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const *mask, before, size_of::<KernelSet>()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that are blocked at the moment.
    fn now() -> KernelSet {
        let mut now = 0;
        // SAFETY: without a new mask, the call only writes the current one.
        unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut now, size_of::<KernelSet>()) }.unwrap();
        now
    }

    #[test]
    fn all_signals_are_blocked_except_faults_and_libcs() {
        let is_blocked = |signal: i32| now() >> (signal - 1) & 1 == 1;
        let before = now();
        let mask = block();
        for open in OPEN {
            assert!(!is_blocked(open), "{open}");
        }
        for closed in [libc::SIGINT, libc::SIGALRM, libc::SIGUSR1, libc::SIGPROF, libc::SIGRTMAX()] {
            assert!(is_blocked(closed), "{closed}");
        }
        mask.restore();
        assert_eq!(now(), before);
    }
}
