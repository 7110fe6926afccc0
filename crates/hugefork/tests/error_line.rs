//! The line on standard error about an access that cannot be completed, and what must not come of it.

mod common;

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use std::fs::File;
use std::io::pipe;
use std::os::fd::AsRawFd;

use common::alone::alone;
use common::signals::{block, handle, handle_info};
use hugefork::{Pool, Region};
use libc::{SIG_DFL, SIGBUS, SIGPIPE, SIGXFSZ, siginfo_t};
use rustix::fs::{MemfdFlags, memfd_create};

const BLOCK: usize = 2 << 20;

/// A write to the second region finds the pool full.
fn full_pool() -> (Region, Region) {
    let pool = Pool::builder().capacity(BLOCK).build().unwrap();
    let (first, second) = (pool.region(BLOCK).unwrap(), pool.region(BLOCK).unwrap());
    first.populate().unwrap();
    (first, second)
}

fn take_for_standard_error(file: &impl AsRawFd) {
    // SAFETY: the program does as it likes with its numbers.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
}

/// Nobody reads it any more.
fn break_standard_error() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    take_for_standard_error(&writer);
}

/// Whether a signal is pending for this thread or the process. May be called from a handler.
fn is_pending(signal: c_int) -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: writes the set, and reads it then.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), signal) == 1 }
}

/// The program goes on in its handler of `SIGBUS`: here, it ends well.
extern "C" fn end_well(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

fn write_to_the_full_pool() {
    let (_first, mut second) = full_pool();
    second.as_mut_slice()[0] = 1;
}

#[test]
fn a_line_that_nobody_reads_ends_nobody() {
    alone(|| {
        handle(SIGPIPE, SIG_DFL, 0, &[]);
        handle_info(SIGBUS, end_well);
        break_standard_error();
        write_to_the_full_pool();
    })
    .well();
}

#[test]
fn a_line_for_which_a_file_may_not_grow_ends_nobody() {
    alone(|| {
        handle(SIGXFSZ, SIG_DFL, 0, &[]);
        handle_info(SIGBUS, end_well);
        let (_first, mut second) = full_pool();
        let file = File::from(memfd_create("own", MemfdFlags::CLOEXEC).unwrap());
        take_for_standard_error(&file);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads `none`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &none) }, 0);
        second.as_mut_slice()[0] = 1;
    })
    .well();
}

#[test]
fn a_handler_of_such_signals_hears_nothing_of_the_line() {
    extern "C" fn end_badly(_: c_int) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(97) }
    }
    alone(|| {
        handle(SIGPIPE, end_badly as *const () as usize, 0, &[]);
        handle_info(SIGBUS, end_well);
        break_standard_error();
        write_to_the_full_pool();
    })
    .well();
}

/// The program has blocked it, and means to take it later.
#[test]
fn a_signal_that_was_pending_before_the_line_stays_so() {
    extern "C" fn look(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(if is_pending(SIGPIPE) { 0 } else { 97 }) }
    }
    alone(|| {
        handle(SIGPIPE, SIG_DFL, 0, &[]);
        handle_info(SIGBUS, look);
        block(&[SIGPIPE]);
        // SAFETY: sends a signal to this thread, which has it blocked.
        assert_eq!(unsafe { libc::raise(SIGPIPE) }, 0);
        break_standard_error();
        write_to_the_full_pool();
    })
    .well();
}
