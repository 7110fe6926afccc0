//! The thread that does what takes time, while the program goes on: it makes huge pages of memory that the program has
//! filled, and looks after what children share. It is there as long as there is a pool, and sleeps for longer and
//! longer while nothing happens.
//!
//! It is none of libc's but made by `clone(2)`: `pthread_create` allocates, which must not be done in the middle of the
//! program's `malloc` or in a signal handler; it makes libc take locks that a program with one thread does without; and
//! a program whose main thread ends by `pthread_exit` would wait for the thread for ever. Its thread-local data are the
//! first thread's, which stay, `errno` included: so it makes system calls by `rustix` and `syscalls` alone, and never
//! panics on purpose.
//!
//! All signals are blocked in it, so that the program's handlers run in the program's threads. It is no reason for the
//! process to live on: when the program's last thread has ended, it ends. Before the library steps aside it is sent
//! away.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

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

/// The stack holds two pieces of files, and little else. It takes no memory before it is used.
#[repr(align(4096))]
struct Stack(UnsafeCell<[u8; 128 << 10]>);

// SAFETY: only the thread looks at it.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 128 << 10]));

/// Where the first thread's data are; 0 where that cannot be said, and there is no worker.
static FIRST_LOCALS: AtomicUsize = AtomicUsize::new(0);

/// The thread; the kernel writes 0 when it uses its stack no more.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// In the place of the thread: somebody is about to start it.
const STARTING: u32 = u32::MAX;

/// Whether it is to leave, as 0 or 1.
static IS_UNWANTED: AtomicU32 = AtomicU32::new(0);

/// Notes where the data of this thread are, which is the first.
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

/// As above.
#[cfg(target_arch = "aarch64")]
fn locals() -> usize {
    let locals;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) locals, options(nostack, nomem, preserves_flags)) };
    locals
}

/// On other architectures no thread is started.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn locals() -> usize {
    0
}

/// Starts the thread, if it is not there. Allocates nothing. False if there can be none.
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
    // The caller of `send_away` looks for the thread after it has set the flag.
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
    // The thread begins with the mask of the one that makes it. libc's own call would leave libc's signals open.
    // SAFETY: masks of the size that is named; the body stands on a stack of its own, that nobody else stands on
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

/// Whether there is one, or one that is about to leave.
pub(crate) fn is_there() -> bool {
    THREAD.load(Ordering::Acquire) != 0
}

/// Whether it is to leave.
pub(crate) fn is_unwanted() -> bool {
    IS_UNWANTED.load(Ordering::SeqCst) != 0
}

/// Has it leave, lets it not start again, and waits until the kernel counts it among the process's no more.
pub(crate) fn send_away() {
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
    IS_UNWANTED.store(1, Ordering::SeqCst);
    let _ = futex::wake(&IS_UNWANTED, futex::Flags::PRIVATE, 1);
    let mut last = 0;
    while is_there() {
        last = THREAD.load(Ordering::Acquire);
        let _ = nanosleep(&PAUSE);
    }
    // If the kernel knows it for so long, a thread of the program's has its number by now.
    let mut tries = 0..10_000;
    while tries.next().is_some() && is_counted(last) {
        let _ = nanosleep(&PAUSE);
    }
    // The kernel takes it out of the process's list just after its number, both with the lock of the process's
    // signals, which this call takes too: it returns when both are done (`__exit_signal` of Linux).
    let mut pending = 0_u64;
    // SAFETY: the call writes a mask of the size that is named.
    let _ = unsafe { syscall!(Sysno::rt_sigpending, &raw mut pending, size_of::<u64>()) };
}

/// Whether the kernel knows a thread of this process with such a number.
fn is_counted(thread: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: sends nothing.
    ![0, STARTING].contains(&thread) && unsafe { syscall!(Sysno::tgkill, process, thread, 0) }.is_ok()
}

/// It may start again.
pub(crate) fn let_back() {
    IS_UNWANTED.store(0, Ordering::SeqCst);
}

/// In the child of a fork, which has no such thread; the stack was copied.
pub(crate) fn in_child() {
    THREAD.store(0, Ordering::Relaxed);
    let_back();
}

/// The thread.
extern "C" fn run(_: *mut c_void) -> c_int {
    take_a_table_of_its_own();
    let _ = set_name(c"hugefork-run");
    work();
    // The last thread's status may be the process's.
    status_of_the_program().unwrap_or(0)
}

/// Leaves the table of descriptors to the program, and takes another with the engine's alone: no number that the
/// program counts on is ever taken, and no file stays open that it closes. Where the kernel refuses, it shares the
/// table.
fn take_a_table_of_its_own() {
    const UNSHARE: u32 = 1 << 1;
    let mut next = 0;
    let mut close_up_to = |end: u32, flags: u32| {
        // SAFETY: closes nothing of the program's, whose table is another from then on.
        let closed = next > end || unsafe { syscall!(Sysno::close_range, next, end, flags) }.is_ok();
        next = end.saturating_add(2);
        closed
    };
    let mut kept = [0; 8];
    let mut flags = UNSHARE;
    for &number in pool::descriptors(&mut kept) {
        if !close_up_to(number.saturating_sub(1), std::mem::take(&mut flags)) {
            return;
        }
    }
    close_up_to(u32::MAX, flags);
    // Files that the thread opens later get none of the numbers that threads print to.
    for _ in 0..3 {
        let _ = open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(IntoRawFd::into_raw_fd);
    }
}

/// How long it sleeps before it looks again: first so long, then twice as long, up to the longest, which is longer
/// where no child lives.
const SHORTEST_NS: i64 = 5_000_000;
const LONGEST_NS: i64 = 160_000_000;
const LONGEST_ALONE_NS: i64 = 640_000_000;

/// Until it is to leave.
fn work() {
    let (mut pause, mut is_to_pass) = (SHORTEST_NS, false);
    while !is_unwanted() && pool::is_owner() && status_of_the_program().is_none() {
        // What was held for those who are gone is given up under the lock that forks take.
        let alive = STATE.with(|state| {
            state.outstanding.reap(|held| {
                is_to_pass = true;
                pool::gone(held);
            })
        });
        let alive = alive.unwrap_or(0);
        is_to_pass |= alive > 0;
        if !has_room(alive) {
            return withdraw();
        }
        pool::trim();
        let maintained = pool::maintain();
        if maintained == Maintained::InPart {
            continue;
        }
        if alive > 0 {
            sleep(&mut pause, LONGEST_NS);
            continue;
        }
        let mut is_shared = || is_unwanted() || STATE.with(|state| state.outstanding.count() > 0).unwrap_or(true);
        // Blocks that another thread works on have their turn later.
        let has_passed =
            maintained == Maintained::All && is_to_pass && pool::collapse_what_is_full(&mut is_shared).is_some();
        is_to_pass &= !has_passed;
        if is_to_pass || has_passed || pool::has_grown(is_unwanted) {
            pause = SHORTEST_NS;
        }
        sleep(&mut pause, LONGEST_ALONE_NS);
    }
}

/// Leaves all to the kernel, and then the program.
fn withdraw() {
    if pool::give_up(Zeros::Copied) {
        STATE.with(|_| switch::set(switch::OFF));
    }
}

/// Sleeps, unless it is to leave, and next time twice as long.
fn sleep(pause: &mut i64, longest: i64) {
    let time = Timespec { tv_sec: 0, tv_nsec: *pause };
    let slept = futex::wait(&IS_UNWANTED, futex::Flags::PRIVATE, 0, Some(&time));
    if !matches!(slept, Ok(()) | Err(Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR)) {
        let _ = nanosleep(&time);
    }
    *pause = (2 * *pause).min(longest);
}

/// The first thread's status, if none of the program's threads is left. So it is when they have all ended by the system
/// call that ends one thread: libc ends the process with the last that ends by libc's means.
fn status_of_the_program() -> Option<c_int> {
    let mut status = None;
    let _ = mappings::lines(c"/proc/self/stat", |line| {
        status = status.or_else(|| status_in(line));
        true
    });
    status
}

/// The same by the line `1234 (name) Z 1 …` of a process: the third word is the state of its first thread, the 20th the
/// number of threads, in which the first counts until the others are reaped, the 52nd how the first has ended.
fn status_in(line: &[u8]) -> Option<c_int> {
    // Names may have anything in them.
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
    fn who_has_ended_is_told_from_who_has_not() {
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
