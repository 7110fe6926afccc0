//! Threads of the library that are none of libc's but made by `clone(2)`: `pthread_create` allocates, which a fork in a
//! signal handler must not do; it makes libc take locks that a program with one thread does without; and a program
//! whose main thread ends by `pthread_exit` would wait for the thread for ever. The price: it must not use thread-local
//! data. It shares those of the thread that made it, `errno` included, and they are gone once that thread has ended. So
//! it makes system calls by `rustix` and `syscalls` alone, and never panics on purpose.
//!
//! All signals are blocked in it, so that the program's handlers run in the program's threads.
//!
//! They are no reason for the process to live on: when the program's last thread has ended, they end, with its status
//! ([`end_of_the_program`]).
//!
//! The program may do what it could not do with these threads, or what they must not see ([`send_away`]). Then they
//! leave, wherever they sleep, and none is started until they are let back.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::{futex, gettid, nanosleep};
use rustix::time::Timespec;
use syscalls::{Sysno, syscall};

use crate::proc::mappings;
use crate::threads::signals;

/// The stack holds two pieces of files, and little else.
const STACK: usize = 128 << 10;

/// What a thread does.
pub(crate) type Body = extern "C" fn(*mut c_void) -> c_int;

/// So many of the program's threads are at work at what there must be no thread for.
static UNWANTED: AtomicU32 = AtomicU32::new(0);

/// Has the threads leave, and lets none start. Who wants them gone waits for each ([`Place::wait_until_gone`]).
pub(crate) fn send_away() {
    UNWANTED.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(&UNWANTED, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Takes [`send_away`] back.
pub(crate) fn let_back() {
    UNWANTED.fetch_sub(1, Ordering::SeqCst);
}

/// Whether the threads are to leave.
pub(crate) fn are_unwanted() -> bool {
    UNWANTED.load(Ordering::SeqCst) > 0
}

/// In the child of a fork: neither they nor whoever sent them away in the parent are there.
pub(crate) fn in_child() {
    COUNT.store(0, Ordering::SeqCst);
    UNWANTED.store(0, Ordering::SeqCst);
}

/// Sleeps, unless the threads are to leave. False if the kernel refuses: then it would never end.
pub(crate) fn sleep(ns: i64) -> bool {
    let time = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
    let slept = futex::wait(&UNWANTED, futex::Flags::PRIVATE, 0, Some(&time));
    matches!(slept, Ok(()) | Err(Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR))
}

/// How many threads of the library's there are, or have begun to end.
static COUNT: AtomicI32 = AtomicI32::new(0);

/// What a thread calls when it ends.
pub(crate) fn ends() {
    COUNT.fetch_sub(1, Ordering::SeqCst);
}

/// The status to end with, if none of the program's threads is left. So it is when they have all ended by the system
/// call that ends one thread: libc ends the process with the last that ends by libc's means. It takes `/proc` to know.
pub(crate) fn end_of_the_program() -> Option<c_int> {
    if is_first_there() {
        return None;
    }
    let mut ended = None;
    let _ = mappings::lines(c"/proc/self/stat", |line| {
        ended = ended.or_else(|| Ended::parse(line));
        true
    });
    // The first is there until the others are reaped.
    ended.filter(|ended| ended.threads == 1 + COUNT.load(Ordering::SeqCst)).map(|ended| ended.status)
}

/// Whether the process's first thread has not ended. The kernel gives nobody a lock that inherits priorities from a
/// thread that is there, and says so of one that is not.
fn is_first_there() -> bool {
    const TRYLOCK_PI_PRIVATE: usize = 8 | 1 << 7;
    let lock = AtomicU32::new(rustix::process::getpid().as_raw_nonzero().get().cast_unsigned());
    // SAFETY: the call writes to this word alone.
    let refused = unsafe { syscall!(Sysno::futex, lock.as_ptr(), TRYLOCK_PI_PRIVATE, 0, 0, 0, 0) };
    refused != Err(syscalls::Errno::ESRCH)
}

/// What the kernel tells of a process whose first thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    threads: i32,
    /// With which the first has ended.
    status: c_int,
}

impl Ended {
    /// `1234 (name) Z 1 …`: the third word is the state, the 20th the number of threads, the 52nd how it has ended.
    fn parse(line: &[u8]) -> Option<Ended> {
        // Names may have anything in them.
        let rest = &line[line.iter().rposition(|byte| *byte == b')')? + 1..];
        let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
        let state = words.next()?;
        let threads = words.nth(16)?.parse().ok()?;
        let ended: c_int = words.nth(31)?.parse().ok()?;
        (state == "Z").then_some(Ended { threads, status: ended >> 8 & 0xff })
    }
}

/// Somebody is about to start a thread in the place.
const STARTING: u32 = u32::MAX;

/// A place for a thread.
pub(crate) struct Place {
    /// The thread; the kernel writes 0 when it uses its stack no more.
    thread: AtomicU32,
    /// The thread that was started last; 0 before the first, and when it is known to be gone.
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

    /// Whether there may be a thread, or has been one that nobody has waited for.
    pub(crate) fn was_used(&self) -> bool {
        !self.is_free() || self.last.load(Ordering::Relaxed) != 0
    }

    /// Takes the place. False if it is not free, or the threads are to leave.
    fn take(&self) -> bool {
        let is_taken = self.thread.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        // Whoever sends them away looks at the place after he has said so.
        if is_taken && are_unwanted() {
            self.thread.store(0, Ordering::Release);
            return false;
        }
        is_taken
    }

    /// Starts a thread, which gets `argument`. Allocates nothing. False if the place is not free, the kernel refuses,
    /// or the threads are to leave.
    pub(crate) fn start(&'static self, body: Body, argument: *mut c_void) -> bool {
        let Some(stack) = self.stack() else { return false };
        if !self.take() {
            return false;
        }
        // In debug builds there are none: whoever looks at them ends the process at once, not only once they are gone.
        let without_locals = if cfg!(debug_assertions) { libc::CLONE_SETTLS } else { 0 };
        let flags = without_locals
            | libc::CLONE_VM
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
        if made > 0 {
            COUNT.fetch_add(1, Ordering::SeqCst);
            self.last.store(made as u32, Ordering::Relaxed);
        } else {
            self.thread.store(0, Ordering::Release);
        }
        made > 0
    }

    /// Starts one of libc's, which has thread-local data of its own. Allocates. False as for [`Place::start`].
    pub(crate) fn start_by_libc(&'static self, body: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
        if !self.take() {
            return false;
        }
        let mask = signals::block();
        let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the calls write to live values, of which the attributes are used as long as they are there. The body
        // takes nothing.
        let made = unsafe {
            libc::pthread_attr_init(attributes.as_mut_ptr());
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            let made = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), body, ptr::null_mut());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            made
        };
        mask.restore();
        if made != 0 {
            self.thread.store(0, Ordering::Release);
        }
        made == 0
    }

    /// What libc's thread says of itself when it begins.
    pub(crate) fn begin_of_libcs(&self) {
        COUNT.fetch_add(1, Ordering::SeqCst);
        let this = gettid().as_raw_nonzero().get().cast_unsigned();
        self.last.store(this, Ordering::Relaxed);
        self.thread.store(this, Ordering::Release);
    }

    /// The same when it ends. The kernel knows it for a moment longer.
    pub(crate) fn end_of_libcs(&self) {
        self.thread.store(0, Ordering::Release);
    }

    /// Waits until the thread has left, which was told to: the kernel counts it among the process's no more.
    pub(crate) fn wait_until_gone(&self) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
        // Whoever has started it may not have noted it yet.
        let mut seen = 0;
        loop {
            match self.thread.load(Ordering::Acquire) {
                0 => break,
                STARTING => {}
                thread => seen = thread,
            }
            let _ = nanosleep(&PAUSE);
        }
        let last = if seen == 0 { self.last.load(Ordering::Relaxed) } else { seen };
        // If the kernel knows it for so long, a thread of the program's has its number by now.
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
        let _ = self.last.compare_exchange(last, 0, Ordering::Relaxed, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_process_ends_is_read_whatever_its_name_is() {
        let fields = |state: &str, threads: i32, ended: i32| {
            let zeros = |count: usize| "0 ".repeat(count);
            format!("12 (a ) Z 9 (x) {state} {}{threads} {}{ended}\n", zeros(16), zeros(31))
        };
        let parse = |line: &str| Ended::parse(line.as_bytes());
        assert_eq!(parse(&fields("Z", 2, 7 << 8)), Some(Ended { threads: 2, status: 7 }));
        assert_eq!((parse(&fields("S", 2, 7 << 8)), parse("12 (a) Z 1"), parse("")), (None, None, None));
        assert!(is_first_there());
        let own = std::fs::read("/proc/self/stat").unwrap();
        assert_eq!(Ended::parse(&own), None, "this process has not ended: {}", String::from_utf8_lossy(&own));
    }
}
