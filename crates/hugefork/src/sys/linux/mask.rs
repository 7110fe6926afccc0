//! Keeps signal handlers of the program away while this thread holds engine locks.
//!
//! Not for faults: nothing that is written to under a lock that the fault handler takes lies in a region (`own`), and what else is
//! done meanwhile, such as naming a pool in an error, may write to a heap that does.

use core::mem::MaybeUninit;

/// All signals of this thread but `SIGSEGV` and `SIGBUS` are blocked until this is dropped. Two system calls, about 0.3 us together.
#[derive(Debug)]
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset writes a whole sigset_t to the pointer it is given.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        for of_a_fault in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: takes a signal out of the set made above.
            unsafe { libc::sigdelset(all.as_mut_ptr(), of_a_fault) };
        }
        // SAFETY: `all` was filled in above, `before` is written by the call, which cannot fail with SIG_SETMASK.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        SignalsBlocked {
            // SAFETY: pthread_sigmask wrote it.
            before: unsafe { before.assume_init() },
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that the kernel gave us.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut()) };
    }
}
