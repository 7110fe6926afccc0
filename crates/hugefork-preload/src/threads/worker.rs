//! The worker: a thread that does slow work while the program runs. It makes huge pages of memory
//! that the program has filled, and maintains memory that children share. It exists as long as
//! there is a pool, and sleeps longer and longer while there is no work.
//!
//! It is made by `clone(2)` instead of libc. `pthread_create` allocates, which is forbidden in the
//! middle of the program's `malloc` or in a signal handler; it makes libc take locks that a
//! single-threaded program does without; and a program whose main thread ends by `pthread_exit`
//! would wait for the worker for ever. The worker uses the thread-local data of the first thread,
//! `errno` included, because these are never freed. So it makes system calls only by `rustix` and
//! `syscalls`, and never panics on purpose.
//!
//! All signals are blocked in it, so the program's handlers run in the program's threads. It does
//! not prolong the process's life: when the program's last thread has ended, the worker ends.
//! Before a withdrawal it is stopped.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hugefork_linux::Descriptor;
use hugefork_program::Forks;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{futex, nanosleep, set_name};
use rustix::time::Timespec;
use syscalls::{Sysno, syscall};

use crate::fork::STATE;
use crate::pool::{Maintained, Zeros};
use crate::proc::limits::has_room;
use crate::proc::mappings;
use crate::{pool, switch};

/// Large enough for two pieces of files and little else. It takes no memory before its first use.
#[repr(align(4096))]
struct Stack(UnsafeCell<[u8; 128 << 10]>);

// SAFETY: only the worker accesses it.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 128 << 10]));

/// Address of the first thread's data; 0 if it is unknown, and then there is no worker.
static FIRST_LOCALS: AtomicUsize = AtomicUsize::new(0);

/// The worker's thread number; the kernel writes 0 when it no longer uses the worker's stack.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// Value instead of a thread number while a thread is starting the worker.
const STARTING: u32 = u32::MAX;

/// Whether the worker should exit, as 0 or 1.
static IS_UNWANTED: AtomicU32 = AtomicU32::new(0);

/// Notes the address of this thread's data; called by the first thread.
pub(crate) fn note_first() {
    FIRST_LOCALS.store(locals(), Ordering::Relaxed);
}

/// The address of the calling thread's data.
#[cfg(target_arch = "x86_64")]
fn locals() -> usize {
    let locals;
    // SAFETY: reads the first word of the thread's data, which is their address (psABI, "Thread-Local Storage").
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) locals, options(nostack, readonly, preserves_flags)) };
    locals
}

/// Like the version for x86-64.
#[cfg(target_arch = "aarch64")]
fn locals() -> usize {
    let locals;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) locals, options(nostack, nomem, preserves_flags)) };
    locals
}

/// On other architectures the worker is never started.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn locals() -> usize {
    0
}

/// Starts the worker if it does not run. Allocates nothing. Returns false if it cannot run.
pub(crate) fn start() -> bool {
    if is_there() {
        return true;
    }
    let locals = FIRST_LOCALS.load(Ordering::Relaxed);
    if locals == 0 || !has_room(0) {
        return false;
    }
    if THREAD.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return true;
    }
    // `send_away` checks for the thread after it has set the flag.
    if is_unwanted() {
        THREAD.store(0, Ordering::Release);
        return true;
    }
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let (thread, none, all_signals) = (THREAD.as_ptr(), ptr::null_mut::<c_void>(), u64::MAX);
    let mut before = 0_u64;
    // The worker starts with the signal mask of the thread that makes it. libc's own call would leave libc's signals
    // unblocked. SAFETY: the masks have the given size; `run` uses a stack of its own, on which no other code runs
    // while `THREAD` is not 0.
    let made = unsafe {
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const all_signals, &raw mut before, 8);
        let end = STACK.0.get().add(1).cast::<c_void>();
        let made = libc::clone(run, end, flags, none, thread, locals as *mut c_void, thread);
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const before, none, 8);
        made
    };
    if made <= 0 {
        THREAD.store(0, Ordering::Release);
    }
    made > 0
}

/// Whether the worker runs, or is about to exit.
pub(crate) fn is_there() -> bool {
    THREAD.load(Ordering::Acquire) != 0
}

/// Whether the worker should exit.
pub(crate) fn is_unwanted() -> bool {
    IS_UNWANTED.load(Ordering::SeqCst) != 0
}

/// Stops the worker, prevents its restart, and waits until the kernel no longer counts it as a thread of the process.
pub(crate) fn send_away() {
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
    IS_UNWANTED.store(1, Ordering::SeqCst);
    let _ = futex::wake(&IS_UNWANTED, futex::Flags::PRIVATE, 1);
    pool::wake(THREAD.load(Ordering::Acquire));
    let mut last = 0;
    while is_there() {
        last = THREAD.load(Ordering::Acquire);
        let _ = nanosleep(&PAUSE);
    }
    // After this many tries, a thread of the program must have got the same number.
    let mut tries = 0..10_000;
    while tries.next().is_some() && is_counted(last) {
        let _ = nanosleep(&PAUSE);
    }
    // The kernel removes the number and then the thread from the process's list, both under the lock of the process's
    // signals (`__exit_signal` in Linux). This call takes the same lock, so it returns after both.
    let mut pending = 0_u64;
    // SAFETY: the call writes a mask of the given size.
    let _ = unsafe { syscall!(Sysno::rt_sigpending, &raw mut pending, size_of::<u64>()) };
}

/// Whether the kernel knows a thread of this process with this number.
fn is_counted(thread: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 sends nothing.
    ![0, STARTING].contains(&thread) && unsafe { syscall!(Sysno::tgkill, process, thread, 0) }.is_ok()
}

/// Allows the worker to start again.
pub(crate) fn let_back() {
    IS_UNWANTED.store(0, Ordering::SeqCst);
}

/// Called in the child of a fork, which has no worker; its stack was copied.
pub(crate) fn in_child() {
    THREAD.store(0, Ordering::Relaxed);
    let_back();
}

/// The worker's main function.
extern "C" fn run(_: *mut c_void) -> c_int {
    let has_own_table = take_a_table_of_its_own();
    let _ = set_name(c"hugefork-run");
    work(has_own_table);
    // If the worker is the process's last thread, its status may become the process's.
    status_of_the_program().unwrap_or(0)
}

/// Gives the worker a descriptor table of its own that contains the library's descriptors only. So it never occupies a
/// number that the program expects to be free, and it holds no file open that the program closes. If the kernel
/// refuses, returns false, and the worker shares the program's table.
fn take_a_table_of_its_own() -> bool {
    if !pool::keep_own_descriptors() {
        return false;
    }
    // Occupies 0, 1 and 2, so that no later file of the worker gets a number that threads print to.
    for _ in 0..3 {
        let _ = open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(IntoRawFd::into_raw_fd);
    }
    true
}

/// Shortest and longest sleep between two checks: it doubles from one to the other.
const MIN_PAUSE_NS: i64 = 5_000_000;
const MAX_PAUSE_NS: i64 = 640_000_000;

/// Works until the worker should exit. While children live, the kernel wakes the worker when one of them has ended, if
/// the worker has a table of descriptors of its own.
fn work(has_own_table: bool) {
    let (mut pause, mut is_to_pass, mut ends) = (MIN_PAUSE_NS, false, None);
    while !is_unwanted() && pool::is_owner() && status_of_the_program().is_none() {
        let living = pool::release();
        is_to_pass |= living.forks > 0 || living.some_have_ended;
        if !has_room(living.forks) {
            return withdraw();
        }
        if living.forks > 0 && ends.is_none() && has_own_table {
            ends = pool::ends();
            if ends.is_some() {
                // A child may have ended before, and the worker may have become unwanted.
                continue;
            }
        }
        pool::trim();
        let maintained = pool::maintain();
        if maintained == Maintained::InPart {
            continue;
        }
        if living.forks > 0 {
            sleep(&mut pause, ends.as_ref());
            continue;
        }
        let mut is_shared = || is_unwanted() || pool::has_descendants();
        // Blocks that another thread works on are left for later.
        let has_passed =
            maintained == Maintained::All && is_to_pass && pool::collapse_what_is_full(&mut is_shared).is_some();
        is_to_pass &= !has_passed;
        if is_to_pass || has_passed || pool::has_grown(is_unwanted) {
            pause = MIN_PAUSE_NS;
        }
        sleep(&mut pause, ends.as_ref());
    }
}

/// Hands all memory over to the kernel, and stops working in this program.
fn withdraw() {
    if pool::give_up(Zeros::Copied) {
        STATE.with(|_| switch::set(switch::OFF));
    }
}

/// Sleeps, unless the worker should exit or a child has ended, and doubles the pause for the next time. The kernel may
/// report an end a moment early, so the next pause is short then.
fn sleep(pause: &mut i64, ends: Option<&Descriptor>) {
    match ends.and_then(|ends| Forks::wait(ends, *pause)) {
        Some(true) => {
            *pause = MIN_PAUSE_NS;
            return;
        }
        Some(false) => {}
        None => {
            let time = Timespec { tv_sec: 0, tv_nsec: *pause };
            let slept = futex::wait(&IS_UNWANTED, futex::Flags::PRIVATE, 0, Some(&time));
            if !matches!(slept, Ok(()) | Err(Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR)) {
                let _ = nanosleep(&time);
            }
        }
    }
    *pause = (2 * *pause).min(MAX_PAUSE_NS);
}

/// The first thread's exit status, if no thread of the program is left. That happens if all have ended by the system
/// call that ends one thread; after an exit by libc's functions, the last thread ends the process.
fn status_of_the_program() -> Option<c_int> {
    let mut status = None;
    let _ = mappings::lines(c"/proc/self/stat", |line| {
        status = status.or_else(|| status_in(line));
        true
    });
    status
}

/// The exit status of the first thread, from the line `1234 (name) Z 1 …` of `/proc/self/stat`, if no thread of the
/// program is left. Of the words after the name, the first is the state of the first thread. The eighteenth is the
/// number of threads; it includes the first thread until all others are reaped. The fiftieth is the exit status of the
/// first thread.
fn status_in(line: &[u8]) -> Option<c_int> {
    // A process name may contain any characters.
    let rest = &line[line.iter().rposition(|byte| *byte == b')')? + 1..];
    let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    let is_over = words.next()? == "Z" && words.nth(16)? == "2";
    let ended: c_int = words.nth(31)?.parse().ok()?;
    is_over.then_some(ended >> 8 & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_shows_whether_the_program_has_ended() {
        let line = |state: &str, threads: u32| {
            let zeros = |count: usize| "0 ".repeat(count);
            format!("12 (a ) Z 9 (x) {state} {}{threads} {}1792\n", zeros(16), zeros(31))
        };
        let status = |line: &str| status_in(line.as_bytes());
        assert_eq!((status(&line("Z", 2)), status(&line("Z", 3))), (Some(7), None));
        assert_eq!((status(&line("S", 2)), status("12 (a) Z 1"), status("")), (None, None, None));
        assert_eq!(status_of_the_program(), None);
        assert!(
            !is_counted(0)
                && !is_counted(STARTING)
                && is_counted(rustix::thread::gettid().as_raw_nonzero().get() as u32)
        );
    }
}
