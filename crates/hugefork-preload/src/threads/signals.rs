//! Keeps the program's signal handlers away from a thread that holds what they may need.

use std::ptr;

use syscalls::{Sysno, syscall};

/// What the kernel has for a set of signals: bit *n* - 1 for signal *n*.
type KernelSet = u64;

/// Those of a thread's own faults, and the two that libc keeps for itself and puts into no set.
const OPEN: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, 32, 33];

/// The signals that a thread had blocked before. They are blocked again, and no others, by [`Mask::restore`].
#[derive(Clone, Copy)]
pub(crate) struct Mask(KernelSet);

/// Blocks all signals of this thread but those of its own faults, and libc's.
///
/// Not by libc, which looks at thread-local data, and that of the library's threads may be gone
/// ([`super::thread`]).
pub(crate) fn block() -> Mask {
    let open = OPEN.iter().map(|signal| 1 << (signal - 1)).sum::<KernelSet>();
    let mut before = 0;
    set(&!open, &raw mut before);
    Mask(before)
}

impl Mask {
    /// As before.
    pub(crate) fn restore(self) {
        set(&self.0, ptr::null_mut());
    }
}

fn set(mask: &KernelSet, before: *mut KernelSet) {
    // SAFETY: the kernel reads one set and writes the other, unless that is null. The call cannot fail.
    let _ =
        unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const *mask, before, size_of::<KernelSet>()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is blocked just now.
    fn now() -> KernelSet {
        let mut now = 0;
        // SAFETY: without a new mask, the call only writes the one that there is.
        unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut now, size_of::<KernelSet>()) }.unwrap();
        now
    }

    #[test]
    fn all_signals_wait_but_those_of_faults_and_of_libc() {
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
