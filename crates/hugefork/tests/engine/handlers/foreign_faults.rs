//! Faults that are not hugefork's go to the handler that was there before the first pool, as if there were no pool.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::common::alone::alone;
use crate::common::foreign::{
    MENDED, check_region_faults, forbidden_page, mend, mend_plain, small_region, write, write_to_be_mended,
};
use crate::common::signals::{
    address_of, block, blocked_now, come_back, give_up, handle, handle_info, read_and_come_back,
};
use libc::{SIGBUS, SIGHUP, SIGSEGV, SIGUSR1, SIGUSR2, siginfo_t};

fn null() -> *mut u8 {
    ptr::without_provenance_mut(8)
}

#[test]
fn an_earlier_handler_may_mend_a_foreign_fault() {
    alone(|| {
        handle_info(SIGSEGV, mend);
        let page = forbidden_page();
        let mut region = small_region();
        for _ in 0..3 {
            check_region_faults(&mut region);
            write_to_be_mended(page);
        }
        assert_eq!(MENDED.load(Ordering::Relaxed), 3);
    })
    .well();
}

#[test]
fn an_earlier_handler_that_is_told_the_signal_only_works_too() {
    alone(|| {
        handle(SIGSEGV, mend_plain as *const () as usize, 0, &[]);
        let page = forbidden_page();
        let mut region = small_region();
        check_region_faults(&mut region);
        write_to_be_mended(page);
        check_region_faults(&mut region);
    })
    .well();
}

#[test]
fn foreign_faults_of_many_threads_beside_region_faults_are_all_mended() {
    extern "C" fn mend_any(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        MENDED.fetch_add(1, Ordering::Relaxed);
        let page = ptr::with_exposed_provenance_mut(address_of(info));
        // SAFETY: the pages are of `forbidden_page`; any other address is refused or does no harm in this process.
        unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) };
    }
    alone(|| {
        handle_info(SIGSEGV, mend_any);
        let pool = hugefork::Pool::builder().capacity(32 << 20).build().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut region = pool.region_with(4 << 20, crate::common::by_block()).unwrap();
                    let page = forbidden_page();
                    for _ in 0..50 {
                        check_region_faults(&mut region);
                        crate::common::foreign::forbid_again(page);
                        write(page, 1);
                    }
                });
            }
        });
        assert_eq!(MENDED.load(Ordering::Relaxed), 200);
    })
    .well();
}

/// The state that a handler finds.
#[derive(Debug, PartialEq)]
struct Found {
    signal: c_int,
    code: c_int,
    address: usize,
    blocked: u64,
    blocked_afterwards: u64,
}

/// Provokes a foreign fault before there is a pool and again after. Compares the states that a handler installed with
/// `flags` finds.
fn check_nothing_changes_for_the_handler(flags: c_int) {
    static SIGNAL: AtomicUsize = AtomicUsize::new(0);
    static CODE: AtomicUsize = AtomicUsize::new(0);
    static ADDRESS: AtomicUsize = AtomicUsize::new(0);
    static BLOCKED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn look(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        SIGNAL.store(signal as usize, Ordering::Relaxed);
        // SAFETY: the kernel made it.
        CODE.store(unsafe { (*info).si_code } as usize, Ordering::Relaxed);
        ADDRESS.store(address_of(info), Ordering::Relaxed);
        BLOCKED.store(blocked_now(), Ordering::Relaxed);
        mend(signal, info, context);
    }
    let page = forbidden_page();
    let find = || {
        write_to_be_mended(page);
        Found {
            signal: SIGNAL.load(Ordering::Relaxed) as c_int,
            code: CODE.load(Ordering::Relaxed) as c_int,
            address: ADDRESS.load(Ordering::Relaxed),
            blocked: BLOCKED.load(Ordering::Relaxed),
            blocked_afterwards: blocked_now(),
        }
    };
    handle(SIGSEGV, look as *const () as usize, flags, &[SIGUSR1]);
    block(&[SIGHUP]);
    let before = find();
    let mut region = small_region();
    check_region_faults(&mut region);
    assert_eq!(find(), before);
    let nodefer = flags & libc::SA_NODEFER != 0;
    assert_eq!(before.blocked, 1 << SIGHUP | 1 << SIGUSR1 | if nodefer { 0 } else { 1 << SIGSEGV });
    assert_eq!(before.blocked_afterwards, 1 << SIGHUP);
}

#[test]
fn an_earlier_handler_finds_what_it_found_without_a_pool() {
    alone(|| check_nothing_changes_for_the_handler(libc::SA_SIGINFO | libc::SA_ONSTACK)).well();
}

#[test]
fn an_earlier_handler_that_may_be_interrupted_by_its_own_signal_still_may() {
    alone(|| check_nothing_changes_for_the_handler(libc::SA_SIGINFO | libc::SA_NODEFER)).well();
}

#[test]
fn an_earlier_handler_for_one_fault_gets_one_and_region_faults_go_on() {
    let ended = alone(|| {
        handle(SIGSEGV, mend as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND, &[]);
        let page = forbidden_page();
        let mut region = small_region();
        write_to_be_mended(page);
        check_region_faults(&mut region);
        eprintln!("region faults go on");
        crate::common::foreign::forbid_again(page);
        write(page, 1);
    });
    let said = ended.by(SIGSEGV);
    assert!(said.contains("region faults go on"), "{said}");
}

#[test]
fn an_earlier_handler_may_change_the_registers_of_the_interrupted_code() {
    static RESUME: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    extern "C" fn skip(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: this is the kernel's ucontext_t.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        let resume = RESUME.load(Ordering::Relaxed);
        #[cfg(target_arch = "x86_64")]
        (registers.gregs[libc::REG_RIP as usize] = resume as i64);
        #[cfg(target_arch = "aarch64")]
        (registers.pc = resume as u64);
    }
    alone(|| {
        handle_info(SIGSEGV, skip);
        let mut region = small_region();
        for _ in 0..3 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the handler goes on at the label; the block changes nothing else.
            unsafe {
                core::arch::asm!(
                    "lea {to}, [rip + 2f]",
                    "mov [{resume}], {to}",
                    "mov byte ptr [{page}], 1",
                    "2:",
                    to = out(reg) _,
                    resume = in(reg) RESUME.as_ptr(),
                    page = in(reg) null(),
                );
            }
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            unsafe {
                core::arch::asm!(
                    "adr {to}, 2f",
                    "str {to}, [{resume}]",
                    "strb wzr, [{page}]",
                    "2:",
                    to = out(reg) _,
                    resume = in(reg) RESUME.as_ptr(),
                    page = in(reg) null(),
                );
            }
            check_region_faults(&mut region);
        }
    })
    .well();
}

#[test]
fn an_earlier_handler_may_leave_without_returning() {
    alone(|| {
        handle_info(SIGSEGV, come_back);
        let mut region = small_region();
        // More often than hugefork can remember faults in progress, on threads that end afterwards.
        for _ in 0..100 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    read_and_come_back(null());
                    read_and_come_back(null());
                    check_region_faults(&mut region);
                    assert_eq!(blocked_now(), 0);
                });
            });
        }
    })
    .well();
}

#[test]
fn without_an_earlier_handler_a_null_write_kills() {
    alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        check_region_faults(&mut region);
        write(null(), 1);
    })
    .by(SIGSEGV);
}

#[test]
fn without_an_earlier_handler_a_write_past_the_end_of_a_region_kills() {
    alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        check_region_faults(&mut region);
        write(region.as_mut_ptr().wrapping_add(region.len()), 1);
    })
    .by(SIGSEGV);
}

#[test]
fn without_an_earlier_handler_a_write_to_a_snapshot_kills_and_changes_nothing() {
    let ended = alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        region.as_mut_slice()[0] = 7;
        let snapshot = region.snapshot().unwrap();
        write(snapshot.as_ptr().cast_mut(), 1);
        eprintln!("written");
    });
    assert!(!ended.by(SIGSEGV).contains("written"));
}

#[test]
fn without_an_earlier_handler_the_signal_itself_kills() {
    alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        check_region_faults(&mut small_region());
        send_to_this_process(SIGSEGV);
        // Another thread may get the signal.
        loop {
            std::thread::park();
        }
    })
    .by(SIGSEGV);
}

fn send_to_this_process(signal: c_int) {
    // SAFETY: sends a signal to this process.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
}

#[test]
fn an_ignored_signal_stays_ignored_when_it_is_sent() {
    alone(|| {
        handle(SIGSEGV, libc::SIG_IGN, 0, &[]);
        let mut region = small_region();
        send_to_this_process(SIGSEGV);
        check_region_faults(&mut region);
        // SAFETY: sends a signal to this thread.
        assert_eq!(unsafe { libc::raise(SIGSEGV) }, 0);
        check_region_faults(&mut region);
    })
    .well();
}

#[test]
fn a_fault_kills_even_where_the_signal_is_ignored() {
    alone(|| {
        handle(SIGSEGV, libc::SIG_IGN, 0, &[]);
        check_region_faults(&mut small_region());
        write(null(), 1);
    })
    .by(SIGSEGV);
}

#[test]
fn a_stack_overflow_is_still_reported() {
    #[allow(unconditional_recursion)]
    fn overflow(depth: u64) -> u64 {
        std::hint::black_box([depth; 64])[0] + overflow(depth + 1)
    }
    let ended = alone(|| {
        let mut region = small_region();
        check_region_faults(&mut region);
        std::thread::Builder::new().name("deep".to_owned()).spawn(|| overflow(0)).unwrap().join().unwrap();
    });
    let said = ended.by(libc::SIGABRT);
    assert!(said.contains("thread 'deep'") && said.contains("has overflowed its stack"), "{said}");
}

#[test]
fn an_earlier_bus_error_handler_keeps_its_own_faults() {
    static PAST_THE_END: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
    extern "C" fn put_memory_there(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
        let page = PAST_THE_END.load(Ordering::Relaxed);
        // SAFETY: the kernel made it.
        if signal != SIGBUS || address_of(info) != page.addr() || unsafe { (*info).si_code } != libc::BUS_ADRERR {
            give_up("the handler got another fault\n");
        }
        MENDED.fetch_add(1, Ordering::Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces the page that the test mapped.
        unsafe { libc::mmap(page.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    }
    alone(|| {
        handle_info(SIGBUS, put_memory_there);
        let mut region = small_region();
        // SAFETY: the name ends with a zero byte.
        let empty = unsafe { libc::memfd_create(c"empty".as_ptr(), 0) };
        // SAFETY: a new mapping of an empty file.
        let page = unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, empty, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        PAST_THE_END.store(page.cast(), Ordering::Relaxed);
        check_region_faults(&mut region);
        write(page.cast(), 9);
        assert_eq!(MENDED.load(Ordering::Relaxed), 1);
        check_region_faults(&mut region);
    })
    .well();
}

#[test]
fn region_faults_leave_errno_and_the_signal_mask_as_they_were() {
    alone(|| {
        for backing in crate::common::BACKINGS {
            let Some(pool) = crate::common::pool(backing, 4 << 20, hugefork::BlockSize::MIB_2) else { continue };
            let region = pool.region_with(2 << 20, crate::common::by_block()).unwrap();
            block(&[SIGUSR2]);
            let mask = blocked_now();
            let mut snapshot = None;
            for turn in 0..4 {
                // SAFETY: this is the thread's errno.
                let errno = unsafe { libc::__errno_location() };
                // SAFETY: as above; only the fault comes between the two.
                let after = unsafe {
                    errno.write_volatile(77_777);
                    region.as_mut_ptr().write_volatile(turn);
                    errno.read_volatile()
                };
                assert_eq!((after, blocked_now()), (77_777, mask));
                // Demand-zero, then copied, reused, copied.
                snapshot = if turn == 1 { None } else { Some(region.snapshot().unwrap()) };
                if turn == 1 {
                    drop(region.snapshot().unwrap());
                }
            }
            drop(snapshot);
            let faults = region.stats().faults;
            assert_eq!((faults.demand_zero, faults.copied, faults.reused), (1, 2, 1));
        }
    })
    .well();
}
