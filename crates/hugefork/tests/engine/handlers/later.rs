//! `SIGSEGV` handlers installed after hugefork's. Some pass faults on, some do not, and some return to hugefork the
//! faults that it passes to them.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::common::alone::{Ended, alone};
use crate::common::foreign::{
    MENDED, check_region_faults, forbid_again, forbidden_page, mend, small_region, write, write_to_be_mended,
};
use crate::common::signals::{Handler, handle, handle_info, say};
use hugefork::reinstall_fault_handler;
use libc::{SIGSEGV, siginfo_t};

/// The disposition before the test's handler.
static SAVED: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

fn saved() -> &'static libc::sigaction {
    // SAFETY: it was set, and leaked, when the calling handler was installed.
    unsafe { &*SAVED.load(Ordering::Acquire) }
}

/// The number of calls of the test's handler.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Prints a line, and calls the saved handler.
extern "C" fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    say("theirs\n");
    // SAFETY: the saved handler is hugefork's, which has this type.
    let handler: Handler = unsafe { std::mem::transmute(saved().sa_sigaction) };
    handler(signal, info, context);
}

/// Prints a line, restores the saved disposition, and lets the instruction fault again.
extern "C" fn step_aside(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    say("theirs\n");
    // SAFETY: this disposition was in force before.
    unsafe { libc::sigaction(SIGSEGV, saved(), std::ptr::null_mut()) };
}

fn install_later(handler: Handler) {
    crate::common::signals::take_a_roomy_stack();
    SAVED.store(Box::leak(Box::new(handle_info(SIGSEGV, handler))), Ordering::Release);
}

/// Checks that the test's handler printed its line this many times before the process died.
#[track_caller]
fn check_died_after_calls(ended: Ended, calls: usize) {
    let said = ended.by(SIGSEGV);
    assert_eq!(said.lines().filter(|line| *line == "theirs").count(), calls, "{said}");
}

fn has_disposition(handler: Handler) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call writes the sigaction; all zeroes is a valid one.
    let now = unsafe {
        libc::sigaction(SIGSEGV, std::ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    now.sa_sigaction == handler as *const () as usize
}

#[test]
fn a_handler_that_passes_faults_on_sees_all_and_disturbs_none() {
    let ended = alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        install_later(pass_on);
        check_region_faults(&mut region);
        assert_eq!(CALLS.load(Ordering::Relaxed), 3);
        write(forbidden_page(), 1);
    });
    check_died_after_calls(ended, 4);
}

#[test]
fn a_handler_that_passes_faults_on_may_mend_its_own() {
    extern "C" fn mend_or_pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        if crate::common::signals::address_of(info) == PAGE.load(Ordering::Relaxed) {
            mend(signal, info, context);
        } else {
            pass_on(signal, info, context);
        }
    }
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    alone(|| {
        let mut region = small_region();
        let page = forbidden_page();
        PAGE.store(page.addr(), Ordering::Relaxed);
        install_later(mend_or_pass_on);
        for round in 1..4 {
            write_to_be_mended(page);
            check_region_faults(&mut region);
            assert_eq!((MENDED.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed)), (round, 3 * round));
        }
        // The handler is below hugefork's now, and still gets faults.
        reinstall_fault_handler().unwrap();
        check_region_faults(&mut region);
        write_to_be_mended(page);
        assert_eq!(CALLS.load(Ordering::Relaxed), 9, "region faults no longer go through it");
    })
    .well();
}

#[test]
fn a_handler_that_passes_nothing_on_gets_what_is_foreign_after_a_reinstallation() {
    alone(|| {
        let mut region = small_region();
        handle_info(SIGSEGV, mend);
        let page = forbidden_page();
        reinstall_fault_handler().unwrap();
        for _ in 0..3 {
            check_region_faults(&mut region);
            write_to_be_mended(page);
        }
        // hugefork's handler is on top already, so this does nothing.
        reinstall_fault_handler().unwrap();
        check_region_faults(&mut region);
        write_to_be_mended(page);
        let mut of_a_second_pool = small_region();
        check_region_faults(&mut of_a_second_pool);
        write_to_be_mended(page);
    })
    .well();
}

#[test]
fn of_several_handlers_the_last_one_gets_what_is_foreign() {
    extern "C" fn never(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        crate::common::signals::give_up("a handler that was replaced got a fault\n");
    }
    alone(|| {
        let mut region = small_region();
        let page = forbidden_page();
        for handler in [never as Handler, mend] {
            handle_info(SIGSEGV, handler);
            reinstall_fault_handler().unwrap();
            check_region_faults(&mut region);
        }
        write_to_be_mended(page);
        check_region_faults(&mut region);
    })
    .well();
}

#[test]
fn the_first_reinstallation_may_come_before_the_first_pool() {
    alone(|| {
        handle_info(SIGSEGV, mend);
        reinstall_fault_handler().unwrap();
        assert!(!has_disposition(mend));
        let page = forbidden_page();
        write_to_be_mended(page);
        let mut region = small_region();
        check_region_faults(&mut region);
        forbid_again(page);
        write_to_be_mended(page);
    })
    .well();
}

#[test]
fn a_handler_below_that_passes_on_to_hugefork_is_called_once_for_a_fault() {
    let ended = alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        install_later(pass_on);
        reinstall_fault_handler().unwrap();
        check_region_faults(&mut region);
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        write(forbidden_page(), 1);
    });
    check_died_after_calls(ended, 1);
}

#[test]
fn a_handler_below_that_passes_on_to_hugefork_reaches_the_oldest_one() {
    alone(|| {
        handle_info(SIGSEGV, mend);
        let mut region = small_region();
        install_later(pass_on);
        reinstall_fault_handler().unwrap();
        let page = forbidden_page();
        for round in 1..4 {
            write_to_be_mended(page);
            check_region_faults(&mut region);
            assert_eq!(CALLS.load(Ordering::Relaxed), round);
        }
    })
    .well();
}

#[test]
fn a_handler_that_steps_aside_leaves_the_fault_to_the_one_before_hugefork() {
    let ended = alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        install_later(step_aside);
        check_region_faults(&mut region);
        write(forbidden_page(), 1);
    });
    check_died_after_calls(ended, 1);
}

#[test]
fn a_handler_below_that_steps_aside_for_hugefork_does_not_fault_for_ever() {
    let ended = alone(|| {
        handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
        let mut region = small_region();
        install_later(step_aside);
        reinstall_fault_handler().unwrap();
        check_region_faults(&mut region);
        write(forbidden_page(), 1);
    });
    check_died_after_calls(ended, 1);
}

/// Puts a handler on top and then below, more often than hugefork can remember, and then provokes a foreign fault.
fn push_on_top_again_and_again(handler: Handler) {
    handle(SIGSEGV, libc::SIG_DFL, 0, &[]);
    let mut region = small_region();
    for _ in 0..20 {
        install_later(handler);
        reinstall_fault_handler().unwrap();
        check_region_faults(&mut region);
    }
    write(forbidden_page(), 1);
}

#[test]
fn a_handler_that_comes_on_top_again_and_again_and_passes_on_is_called_once_for_a_fault() {
    check_died_after_calls(alone(|| push_on_top_again_and_again(pass_on)), 1);
}

#[test]
fn a_handler_that_comes_on_top_again_and_again_and_steps_aside_does_not_fault_for_ever() {
    check_died_after_calls(alone(|| push_on_top_again_and_again(step_aside)), 1);
}
