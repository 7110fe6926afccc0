//! The line on standard error about an access that cannot be completed, and side effects that it must not have.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::{File, OpenOptions};
use std::io::pipe;
use std::os::fd::AsRawFd;

use crate::common::alone::{alone, with_one_thread};
use crate::common::signals::{block, handle, handle_info};
use hugefork::{CopyGrain, Pool, Region, RegionOptions};
use libc::{SIG_DFL, SIGBUS, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGXFSZ, siginfo_t};
use rustix::fs::{MemfdFlags, memfd_create};

const BLOCK: usize = 2 << 20;

/// A pool with two regions: a write to the second one finds the pool full.
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

/// Makes standard error a pipe without a reader.
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

/// A handler of `SIGBUS` with which the program goes on; here it ends the process with success.
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

/// The file has the number 2 only because the program closed standard error before.
#[test]
fn a_file_in_which_the_program_keeps_data_gets_no_line() {
    alone(|| {
        let path = std::env::temp_dir().join(format!("hugefork-error-line-{}", std::process::id()));
        let open = |options: &mut OpenOptions| options.open(&path).unwrap();
        let bytes_after_the_line = |file: File| {
            with_one_thread(|| {
                handle_info(SIGBUS, end_well);
                take_for_standard_error(&file);
                write_to_the_full_pool();
            });
            file.metadata().unwrap().len()
        };
        let data = open(OpenOptions::new().read(true).write(true).create_new(true));
        assert_eq!(bytes_after_the_line(data), 0);
        assert!(bytes_after_the_line(open(OpenOptions::new().read(true).append(true))) > 0);
        assert!(bytes_after_the_line(open(OpenOptions::new().write(true).truncate(true))) > 0);
        let without_name = open(OpenOptions::new().read(true).write(true).truncate(true));
        std::fs::remove_file(&path).unwrap();
        assert!(bytes_after_the_line(without_name) > 0);
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

/// The program has blocked the signal, and means to take it later.
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

/// Checks that the process printed one line beside Rust's own, with these parts.
#[track_caller]
fn check_line(said: &str, parts: &[&str]) {
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("hugefork: ")).collect();
    assert!(lines.len() == 1 && parts.iter().all(|part| lines[0].contains(part)), "{parts:?} in {said}");
}

fn pool() -> Pool {
    Pool::builder().name("test").capacity(8 * BLOCK).build().unwrap()
}

#[test]
fn a_write_to_a_snapshot_says_that_nobody_can() {
    let said = alone(|| {
        handle(SIGSEGV, SIG_DFL, 0, &[]);
        let pool = pool();
        let mut region = pool.region(BLOCK).unwrap();
        region.as_mut_slice()[0] = 1;
        let snapshot = region.snapshot().unwrap();
        let at = snapshot.as_ptr().cast_mut();
        // SAFETY: a fault, which ends the process.
        unsafe { at.add(3).write_volatile(1) };
    })
    .by(SIGSEGV);
    check_line(&said, &["pool `test`", "lies in a snapshot", "make a fork", "SIGSEGV"]);
}

#[test]
fn an_access_behind_a_region_says_how_far() {
    let said = alone(|| {
        handle(SIGSEGV, SIG_DFL, 0, &[]);
        let region = pool().region(BLOCK).unwrap();
        // SAFETY: as above.
        unsafe { region.as_mut_ptr().wrapping_add(BLOCK + 5).write_volatile(1) };
    })
    .by(SIGSEGV);
    check_line(&said, &["lies 5 bytes behind the end of a region", "correct the index", "SIGSEGV"]);
}

#[test]
fn an_access_to_what_was_dropped_says_that_nothing_is_there() {
    let said = alone(|| {
        handle(SIGSEGV, SIG_DFL, 0, &[]);
        let (pool, at) = (pool(), {
            let region = pool().region(BLOCK).unwrap();
            region.as_mut_ptr()
        });
        // SAFETY: as above.
        unsafe { at.write_volatile(1) };
        drop(pool);
    })
    .by(SIGSEGV);
    check_line(&said, &["in no region or snapshot", "dropped or closed", "SIGSEGV"]);
}

/// Rust's own handler restores the default action, and the thread repeats the access.
#[test]
fn in_a_program_with_rusts_own_handler_such_a_line_comes_once_too() {
    let said = alone(|| {
        let region = pool().region(BLOCK).unwrap();
        // SAFETY: as above.
        unsafe { region.as_mut_ptr().wrapping_add(BLOCK).read_volatile() };
    })
    .by(SIGSEGV);
    check_line(&said, &["0 bytes behind the end of a region"]);
}

/// Blocks all signals, as threads of many servers do.
fn block_all() {
    block(&(1..32).filter(|signal| ![SIGKILL, SIGSTOP].contains(signal)).collect::<Vec<_>>());
}

#[test]
fn a_thread_that_blocks_all_signals_may_write_to_a_region_that_it_makes() {
    alone(|| {
        let pool = pool();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                block_all();
                let mut region = pool.region(BLOCK).unwrap();
                region.as_mut_slice()[0] = 1;
                let snapshot = region.snapshot().unwrap();
                region.as_mut_slice()[0] = 2;
                block_all();
                let mut fork = snapshot.fork().unwrap();
                fork.as_mut_slice()[0] = 3;
                assert_eq!((snapshot[0], region.as_mut_slice()[0], fork.as_mut_slice()[0]), (1, 2, 3));
            });
        });
    })
    .well();
}

/// The documentation says so: the kernel delivers no signal to such a thread.
#[test]
fn a_thread_that_blocks_all_signals_ends_the_process_at_its_first_write() {
    let said = alone(|| {
        let mut region = pool().region(BLOCK).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                block_all();
                region.as_mut_slice()[0] = 1;
            });
        });
    })
    .by(SIGSEGV);
    assert_eq!(said, "");
}

#[test]
fn a_thread_that_blocks_all_signals_may_write_where_calls_wait_and_all_is_populated() {
    alone(|| {
        let options = RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true);
        let (pool, over) = (pool(), AtomicBool::new(false));
        let region = match pool.region_with(2 * BLOCK, options) {
            Ok(region) if pool.has_page_grain() => region,
            other => return println!("skipped: {:?}", other.err()),
        };
        region.populate().unwrap();
        let words = region.as_atomic_u64s();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                block_all();
                for round in 1.. {
                    words.iter().step_by(512).for_each(|word| word.store(round, Ordering::Relaxed));
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut held = Vec::new();
            for round in 0..30 {
                held.push(region.snapshot().unwrap());
                if round % 3 == 2 {
                    held.remove(0);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    })
    .well();
}
