//! Keeps the program's signal handlers from running while this thread holds locks of the engine.
//!
//! It does not have to prevent faults: memory that is written under a lock of the fault handler never lies in a region
//! (`own`). Other work under an engine's lock, such as naming a pool in an error, may write to a heap that lies in a
//! region.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;

use syscalls::{Sysno, syscall2, syscall4};

thread_local! {
    /// How many [`SignalsBlocked`] of this thread are alive, and the mask from before the first of them.
    static BLOCKED: (Cell<usize>, Cell<KernelSet>) = const { (Cell::new(0), Cell::new(0)) };
}

/// Blocks all signals of this thread except `SIGSEGV` and `SIGBUS` until the thread's last guard is dropped. The two
/// system calls of the outermost guard take about 0.3 us; an inner guard costs nothing.
#[derive(Debug)]
pub(crate) struct SignalsBlocked(PhantomData<*mut ()>);

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        BLOCKED.with(|(count, before)| {
            if count.get() == 0 {
                before.replace(block_all());
            }
            // The count rises only now: a signal handler that runs before this line finds signals unblocked, and blocks
            // them itself.
            count.replace(count.get() + 1);
        });
        SignalsBlocked(PhantomData)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        BLOCKED.with(|(count, before)| {
            count.replace(count.get() - 1);
            if count.get() == 0 {
                set_mask(&before.get(), ptr::null_mut());
            }
        });
    }
}

/// Blocks all signals but those of faults, and those that the C library keeps for itself: from 32 to the first that it
/// leaves to programs. Returns the mask from before.
fn block_all() -> KernelSet {
    let of_faults = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);
    let of_c_library: KernelSet = (1 << (libc::SIGRTMIN() - 1)) - (1 << 31);
    let how = if seeded!("signals-come-under-locks") { libc::SIG_UNBLOCK } else { libc::SIG_SETMASK };
    let mut before = 0;
    change_mask(how, &!(of_faults | of_c_library), &raw mut before);
    before
}

/// Unblocks the signal of first writes, `SIGSEGV`, if this thread has blocked it. The kernel ends a process that faults
/// with `SIGSEGV` blocked, without a message. Blocking it is of no use to a program.
pub(crate) fn allow_faults() {
    change_mask(libc::SIG_UNBLOCK, &(1 << (libc::SIGSEGV - 1)), ptr::null_mut());
}

/// A set of signals as the kernel has it: bit *n* - 1 for signal *n*. The C library's sets begin with these bits.
pub(super) type KernelSet = u64;

/// The signals of a C library's set.
pub(super) fn kernel_set(set: &libc::sigset_t) -> KernelSet {
    // SAFETY: the set is at least as large and as aligned, and its first bytes are what the kernel reads and writes.
    unsafe { *ptr::from_ref(set).cast() }
}

/// The signals that no thread can block.
const NEVER: KernelSet = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);

/// Blocks all signals of this thread until it is dropped. This includes the signals of faults, and those that the C
/// library keeps for itself (`setuid(2)` in another thread, cancellation) and puts into no set. It does not change
/// `errno`.
///
/// The fault handler uses this. The kernel calls the handler with all signals blocked already, but another handler may
/// call it with only those that it asked for. So this mostly is one system call.
#[derive(Debug)]
pub(super) struct AllBlocked {
    before: KernelSet,
}

impl AllBlocked {
    pub(super) fn new() -> AllBlocked {
        let mut before = 0;
        let all = if seeded!("signals-come-on-the-handlers-stack") { 0 } else { KernelSet::MAX };
        set_mask(&all, &raw mut before);
        AllBlocked { before }
    }
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        if self.before | NEVER != KernelSet::MAX {
            set_mask(&self.before, ptr::null_mut());
        }
    }
}

/// The signals that the kernel sends to a thread because of its own write: to a pipe or socket without a reader, to a
/// file that would become larger than `RLIMIT_FSIZE`, and to a terminal that another job has. By default, the first two
/// kill the process, and the third stops it.
const OF_WRITES: KernelSet = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1) | 1 << (libc::SIGTTOU - 1);

/// Keeps the signals of a write from this thread until it is dropped: the write fails instead, and a write to a
/// terminal goes on. Signals that were pending before stay pending.
///
/// A line of the library must not end the process, and the program's handlers of these signals do not expect such a
/// write.
#[derive(Debug)]
pub(super) struct WriteSignalsTaken {
    before: KernelSet,
    were_pending: KernelSet,
}

impl WriteSignalsTaken {
    pub(super) fn new() -> WriteSignalsTaken {
        let (mut before, mut were_pending) = (0, 0);
        change_mask(libc::SIG_BLOCK, &OF_WRITES, &raw mut before);
        // SAFETY: the kernel writes a set. The call cannot fail.
        let _ = unsafe { syscall2(Sysno::rt_sigpending, (&raw mut were_pending).addr(), size_of::<KernelSet>()) };
        WriteSignalsTaken { before, were_pending }
    }
}

impl Drop for WriteSignalsTaken {
    fn drop(&mut self) {
        let own = OF_WRITES & !self.were_pending;
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (own_at, time) = ((&raw const own).addr(), (&raw const at_once).addr());
        // Each call takes one pending signal, and fails if there is none.
        // SAFETY: the kernel reads a set and a time.
        while unsafe { syscall4(Sysno::rt_sigtimedwait, own_at, 0, time, size_of::<KernelSet>()) }.is_ok() {}
        set_mask(&self.before, ptr::null_mut());
    }
}

pub(super) fn set_mask(mask: &KernelSet, before: *mut KernelSet) {
    change_mask(libc::SIG_SETMASK, mask, before);
}

fn change_mask(how: core::ffi::c_int, mask: &KernelSet, before: *mut KernelSet) {
    // SAFETY: the kernel reads one set and writes the other, unless that is null. The call cannot fail.
    let _ = unsafe {
        syscall4(Sysno::rt_sigprocmask, how as usize, (&raw const *mask).addr(), before.addr(), size_of::<KernelSet>())
    };
}

#[cfg(test)]
mod tests {
    use core::mem::MaybeUninit;

    use super::*;

    /// Whether each of these is blocked at this moment.
    fn are_blocked(signals: [i32; 5]) -> [bool; 5] {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: without a new mask, the call only writes the one that there is.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: the call wrote it.
        let mask = unsafe { mask.assume_init() };
        // SAFETY: the call reads the mask.
        signals.map(|signal| unsafe { libc::sigismember(&mask, signal) } == 1)
    }

    #[test]
    fn all_signals_but_those_of_faults_wait_until_the_last_is_dropped() {
        let signals = [libc::SIGALRM, libc::SIGUSR1, libc::SIGPROF, libc::SIGSEGV, libc::SIGBUS];
        let before = are_blocked(signals);
        let outer = SignalsBlocked::new();
        assert_eq!(are_blocked(signals), [true, true, true, false, false]);
        drop(SignalsBlocked::new());
        assert_eq!(are_blocked(signals), [true, true, true, false, false]);
        drop(outer);
        assert_eq!(are_blocked(signals), before);
    }
    #[test]
    fn signals_of_the_c_library_are_blocked_too() {
        // Signals 32 and 33 are glibc's own; it shows them in no set.
        let now = || {
            let mut now = 0;
            let (block, at) = (libc::SIG_BLOCK as usize, &raw mut now);
            // SAFETY: without a new mask, the call only writes the one that there is.
            unsafe { syscall4(Sysno::rt_sigprocmask, block, 0, at.addr(), size_of::<KernelSet>()) }.unwrap();
            now
        };
        let before = now();
        let outer = AllBlocked::new();
        assert_eq!(now() | NEVER, KernelSet::MAX);
        drop(AllBlocked::new());
        assert_eq!(now() | NEVER, KernelSet::MAX);
        drop(outer);
        assert_eq!(now(), before);
    }
}
