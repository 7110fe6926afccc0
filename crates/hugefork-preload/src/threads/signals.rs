//! Keeps the program's signal handlers away from a thread that holds what they may need.

use std::mem::MaybeUninit;
use std::ptr;

/// The signals that a thread had blocked before. They are blocked again, and no others, by [`Mask::restore`].
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// Blocks all signals of this thread but those of its own faults.
pub(crate) fn block() -> Mask {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the calls write whole sets where they are told to, and change this thread's mask. They cannot fail with
    // these arguments, and leave `errno` alone.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for of_a_fault in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigdelset(all.as_mut_ptr(), of_a_fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Mask(before.assume_init())
    }
}

impl Mask {
    /// As before.
    pub(crate) fn restore(self) {
        // SAFETY: a mask that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}
