//! The fault handler switches to a stack of its own. These tests show what a signal in between would destroy there, and
//! that none is delivered. They also check that threads find stacks however many are in the handler at once, and that a
//! backtrace of a fault leads back to the writing code.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::signals::{
    Handler, blocked_now, come_back, give_up, handle, handle_info, read_and_come_back, take_a_roomy_stack,
};
use hugefork::{Backing, BlockSize, Observer, Pool, Region};
use libc::{SIGBUS, SIGSEGV, SIGUSR1, siginfo_t};

/// The block size of regions with an observer.
const PAGE: usize = 4096;

/// Number of stacks that are mapped at a time (sys/linux/stacks.rs).
const IN_A_CHUNK: usize = 32;

/// An observer that calls a function in the handler, while a block is given.
struct Inside<F>(F);

impl<F: Fn() + Send + Sync> Observer for Inside<F> {
    fn invalidate_start(&self, _: Range<usize>) {
        (self.0)();
    }

    fn invalidate_end(&self, _: Range<usize>) {}
}

fn small_pool(pages: usize) -> Pool {
    let builder = Pool::builder().capacity(pages * PAGE).block_size(BlockSize::KIB_4).backing(Backing::ShmemBase);
    builder.build().unwrap()
}

/// A region of one page, whose first write calls `inside` in the handler.
fn watched(pool: &Pool, inside: impl Fn() + Send + Sync + 'static) -> Region {
    let region = pool.region(PAGE).unwrap();
    region.observe(Arc::new(Inside(inside))).unwrap();
    region
}

/// An address on the caller's stack.
fn stack_here() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// The reason for which the handler blocks signals: if the stack pointer is not on the alternate stack, the kernel puts
/// the next signal at its end, even if a handler has yet to return there.
#[test]
fn a_signal_would_write_over_the_registers_of_a_handler_that_has_left_its_stack() {
    static INTERRUPTED: AtomicUsize = AtomicUsize::new(0);
    static BEGINS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn nested(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        BEGINS.store(info.addr(), Ordering::Relaxed);
    }
    fn raise_another() {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(SIGUSR1) };
    }
    extern "C" fn leaves(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        let other: &'static mut [u8] = vec![0; 64 << 10].leak();
        INTERRUPTED.store(info.addr(), Ordering::Relaxed);
        let end = other.as_mut_ptr_range().end.map_addr(|end| end & !15);
        // SAFETY: the end of memory that nobody uses, a multiple of 16.
        unsafe { hugefork_linux::stack::run_on(end.cast(), raise_another) };
        // The frame to return to may be overwritten.
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(INTERRUPTED.load(Ordering::Relaxed) != BEGINS.load(Ordering::Relaxed))) };
    }
    alone(|| {
        take_a_roomy_stack();
        handle_info(SIGSEGV, leaves);
        handle_info(SIGUSR1, nested);
        crate::common::foreign::write(crate::common::foreign::forbidden_page(), 1);
    })
    .well();
}

/// The number of calls of [`comes`].
static CAME: AtomicUsize = AtomicUsize::new(0);

extern "C" fn comes(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    CAME.fetch_add(1, Ordering::Relaxed);
}

/// A signal that glibc reserves for `setuid(2)`: `sigaction` refuses it, and no signal set can contain it.
const OF_GLIBC: c_int = 33;

/// Makes [`comes`] the handler of [`OF_GLIBC`] on the alternate stack, as Go does with glibc's handler.
fn handle_that_of_glibc() {
    handle_info(SIGUSR1, comes);
    let (mut action, size) = ([0_u64; 4], size_of::<u64>());
    // SAFETY: reads and writes the kernel's form of a disposition.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, SIGUSR1, 0, action.as_mut_ptr(), size), 0);
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, OF_GLIBC, action.as_ptr(), 0, size), 0);
    }
}

/// Sends two signals to this thread, and checks that neither is delivered.
fn send_in_vain() {
    for signal in [SIGUSR1, OF_GLIBC] {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    }
    if CAME.load(Ordering::Relaxed) != 0 {
        give_up("a signal came while the handler was on a stack of its own\n");
    }
}

#[test]
fn signals_on_the_alternate_stack_wait_until_the_handler_is_done() {
    alone(|| {
        handle_that_of_glibc();
        let mut region = watched(&small_pool(4), send_in_vain);
        let before = blocked_now();
        region.as_mut_slice()[5] = 1;
        assert_eq!((CAME.load(Ordering::Relaxed), region.as_mut_slice()[5], blocked_now()), (2, 1, before));
    })
    .well();
}

#[test]
fn they_wait_too_where_another_handler_has_called_this_one() {
    static EARLIER: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn calls(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: hugefork's handler has this type.
        let handler: Handler = unsafe { core::mem::transmute(EARLIER.load(Ordering::Relaxed)) };
        let before = blocked_now();
        handler(signal, info, context);
        // Both signals must have been delivered by now, because the caller had blocked only `SIGSEGV`.
        if CAME.load(Ordering::Relaxed) != 2 || before != 1 << SIGSEGV || blocked_now() != before {
            give_up("the mask is another\n");
        }
    }
    alone(|| {
        take_a_roomy_stack();
        handle_that_of_glibc();
        let mut region = watched(&small_pool(4), send_in_vain);
        EARLIER.store(handle_info(SIGSEGV, calls).sa_sigaction, Ordering::Relaxed);
        region.as_mut_slice()[5] = 1;
        assert_eq!((CAME.load(Ordering::Relaxed), region.as_mut_slice()[5], blocked_now()), (2, 1, 0));
    })
    .well();
}

#[test]
fn two_hundred_threads_are_in_the_handler_at_once() {
    const THREADS: usize = 200;
    alone(|| {
        let (all, stacks) = (Arc::new(Barrier::new(THREADS)), Arc::new(Mutex::new(Vec::new())));
        let pool = small_pool(2 * THREADS);
        let regions = (0..THREADS).map(|_| {
            let (all, stacks) = (all.clone(), stacks.clone());
            watched(&pool, move || {
                stacks.lock().unwrap().push(stack_here() / (64 << 10));
                all.wait();
            })
        });
        let regions: Vec<Region> = regions.collect();
        std::thread::scope(|scope| {
            for mut region in regions {
                scope.spawn(move || region.as_mut_slice()[7] = 7);
            }
        });
        let mut stacks = stacks.lock().unwrap();
        stacks.sort_unstable();
        stacks.dedup();
        assert_eq!(stacks.len(), THREADS, "no two had the same");
    })
    .well();
}

#[test]
fn where_all_are_taken_and_there_is_no_memory_a_write_waits_for_one_of_them() {
    if cfg!(target_env = "musl") {
        println!("skipped: without mmap(2) musl's malloc has no memory, which the test itself needs");
        return;
    }
    alone(|| {
        let (inside, open, done) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let pool = small_pool(2 * IN_A_CHUNK + 2);
        let regions = (0..IN_A_CHUNK).map(|_| {
            let (inside, open) = (inside.clone(), open.clone());
            watched(&pool, move || {
                inside.fetch_add(1, Ordering::Relaxed);
                while !open.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        });
        let regions: Vec<Region> = regions.collect();
        let mut last = pool.region(PAGE).unwrap();
        let (begin, done, inside, writer) = (Barrier::new(2), &done, &inside, &AtomicI32::new(0));
        std::thread::scope(|scope| {
            for mut region in regions {
                scope.spawn(move || region.as_mut_slice()[7] = 7);
            }
            let begin = &begin;
            scope.spawn(move || {
                writer.store(crate::common::wait::this_thread(), Ordering::Relaxed);
                begin.wait();
                last.as_mut_slice()[7] = 7;
                done.store(true, Ordering::Relaxed);
                assert_eq!(last.stats().faults.demand_zero, 1);
            });
            crate::common::wait::until("all are inside", || inside.load(Ordering::Relaxed) == IN_A_CHUNK);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            crate::common::seccomp::refuse(crate::common::seccomp::with(libc::SYS_mmap, 3, flags, libc::ENOMEM));
            begin.wait();
            // The writer waits, finds no stack, and waits again.
            let before = sleeps_of(writer.load(Ordering::Relaxed));
            crate::common::wait::until("the writer waits several times", || {
                assert!(!done.load(Ordering::Relaxed), "it went on without a stack");
                sleeps_of(writer.load(Ordering::Relaxed)) >= before + 3
            });
            open.store(true, Ordering::Relaxed);
        });
        assert!(done.load(Ordering::Relaxed));
    })
    .well();
}

/// The number of times that a thread has gone to sleep.
fn sleeps_of(thread: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("the kernel counts them")
}

#[test]
fn a_handler_of_the_bus_error_that_never_returns_takes_no_stack_along() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count_and_jump(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        come_back(signal, info, context);
    }
    alone(|| {
        take_a_roomy_stack();
        handle(SIGBUS, count_and_jump as *const () as usize, libc::SA_SIGINFO, &[]);
        let stands = Arc::new(AtomicUsize::new(0));
        let at_all_times = small_pool(4);
        let look = || {
            let stands_here = stands.clone();
            let mut region = watched(&at_all_times, move || stands_here.store(stack_here(), Ordering::Relaxed));
            region.as_mut_slice()[0] = 1;
            stands.load(Ordering::Relaxed)
        };
        let before = look();
        let pool = Pool::builder().capacity(2 << 20).backing(Backing::ShmemBase).build().unwrap();
        let mut region = pool.region_with(2 << 20, crate::common::by_block()).unwrap();
        region.as_mut_slice()[0] = 1;
        let snapshot = region.snapshot().unwrap();
        let gone = snapshot.as_ptr();
        region.as_mut_slice()[0] = 2;
        assert!(snapshot.is_revoked());
        for _ in 0..2 * IN_A_CHUNK {
            read_and_come_back(gone);
        }
        assert_eq!(CALLS.load(Ordering::Relaxed), 2 * IN_A_CHUNK);
        assert_eq!(look(), before, "the thread gets the stack that it had");
    })
    .well();
}

#[test]
fn a_backtrace_leads_from_the_handler_to_who_wrote() {
    if cfg!(target_env = "musl") {
        println!("skipped: the unwinder of musl's target does not pass a signal frame");
        return;
    }
    #[inline(never)]
    fn who_writes(region: &mut Region) {
        region.as_mut_slice()[0] = 1;
    }
    alone(|| {
        take_a_roomy_stack();
        let seen = Arc::new(Mutex::new(String::new()));
        let kept = seen.clone();
        let mut region = watched(&small_pool(4), move || {
            // A program should not do this in a handler, but here nothing else runs.
            *kept.lock().unwrap() = std::backtrace::Backtrace::force_capture().to_string();
        });
        who_writes(&mut region);
        let seen = seen.lock().unwrap();
        let at = |name: &str| seen.find(name).unwrap_or_else(|| panic!("{name} is not in {seen}"));
        assert!(at("call_on") < at("handlers::on_fault") && at("handlers::on_fault") < at("who_writes"), "{seen}");
    })
    .well();
}
