//! Threads of the library that are none of libc's but made by `clone(2)`: `pthread_create` allocates, which a fork in a
//! signal handler must not do; it makes libc take locks that a program with one thread does without; and a program
//! whose main thread ends by `pthread_exit` would wait for the thread for ever. The price: it shares the thread-local
//! data of the thread that made it, `errno` included. So it makes system calls by `rustix` and `syscalls` alone, and
//! never panics on purpose.
//!
//! All signals are blocked in it, so that the program's handlers run in the program's threads.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::nanosleep;
use rustix::time::Timespec;
use syscalls::{Sysno, syscall};

/// The stack holds two pieces of files, and little else.
const STACK: usize = 128 << 10;

/// What a thread does.
pub(crate) type Body = extern "C" fn(*mut c_void) -> c_int;

/// A place for a thread.
pub(crate) struct Place {
    /// The thread; the kernel writes 0 when it uses its stack no more.
    thread: AtomicU32,
    /// The thread that was started last; 0 before the first.
    last: AtomicU32,
    /// The address of its stack; 0 before the first.
    stack: AtomicUsize,
}

impl Place {
    pub(crate) const fn new() -> Place {
        Place { thread: AtomicU32::new(0), last: AtomicU32::new(0), stack: AtomicUsize::new(0) }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.thread.load(Ordering::Acquire) == 0
    }

    /// Starts a thread, which gets `argument`. The place is free. Allocates nothing. False if the kernel refuses.
    pub(crate) fn start(&'static self, body: Body, argument: *mut c_void) -> bool {
        let Some(stack) = self.stack() else { return false };
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_CLEARTID;
        let thread = self.thread.as_ptr();
        let none = ptr::null_mut::<c_void>();
        let all_signals = u64::MAX;
        let mut before = 0_u64;
        // The thread begins with the mask of the one that makes it. libc's own call would leave libc's signals open.
        // SAFETY: masks of the size that is named; the body stands on a stack of its own, that nobody else stands on
        // while `thread` is not 0.
        let made = unsafe {
            let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const all_signals, &raw mut before, 8);
            let made = libc::clone(body, (stack + STACK) as *mut c_void, flags, argument, thread, none, thread);
            let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const before, none, 8);
            made
        };
        self.last.store(made.max(0) as u32, Ordering::Relaxed);
        made > 0
    }

    /// Waits until the thread has left, which was told to: the kernel counts it among the process's no more.
    pub(crate) fn wait_until_gone(&self) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
        while !self.is_free() {
            let _ = nanosleep(&PAUSE);
        }
        // If the kernel knows it for so long, a thread of the program's has its number by now.
        let last = self.last.load(Ordering::Relaxed);
        for _ in 0..10_000 {
            if !is_counted(last) {
                break;
            }
            let _ = nanosleep(&PAUSE);
        }
        // The kernel takes it out of the process's list just after its number, both with the lock of the process's
        // signals, which this call takes too: it returns when both are done (`__exit_signal` of Linux).
        let mut pending = 0_u64;
        // SAFETY: the call writes a mask of the size that is named.
        let _ = unsafe { syscall!(Sysno::rt_sigpending, &raw mut pending, size_of::<u64>()) };
    }

    /// In the child of a fork, which has no such thread; the stack was copied.
    pub(crate) fn in_child(&self) {
        self.thread.store(0, Ordering::Relaxed);
        self.last.store(0, Ordering::Relaxed);
    }

    fn stack(&self) -> Option<usize> {
        let known = self.stack.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let new = unsafe { mmap_anonymous(ptr::null_mut(), STACK, rights, MapFlags::PRIVATE) }.ok()? as usize;
        self.stack.store(new, Ordering::Relaxed);
        Some(new)
    }
}

/// Whether the kernel knows a thread of this process with such a number.
fn is_counted(thread: u32) -> bool {
    const NO_SIGNAL: usize = 0;
    let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
    // SAFETY: sends nothing.
    thread != 0 && unsafe { syscall!(Sysno::tgkill, process, thread as usize, NO_SIGNAL) }.is_ok()
}
