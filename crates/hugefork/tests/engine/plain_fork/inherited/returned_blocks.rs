//! The blocks of children come back to the pool: when the last descendant is gone or has other memory, and also where
//! the process lacks descriptors or inotify.

use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{BLOCK, Waiting, builder, close_from, until_free};
use crate::common::alone::alone;
use crate::common::forked::{POOL, check_fork, in_fork, pool_mappings};
use crate::common::seccomp::{refuse, with};
use crate::common::wait::{self, until};
use hugefork::{CopyGrain, RegionOptions};

/// Closes all descriptors, as daemons do.
fn close_all() {
    // SAFETY: closes descriptors; this process uses none of them any more.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

#[test]
fn the_parent_keeps_the_blocks_until_all_descendants_are_gone_or_have_other_memory() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let at = region.as_ptr();
        // SAFETY: the child's own memory, which nobody writes to.
        let is_as_before = move || unsafe { std::slice::from_raw_parts(at, 4 * BLOCK) }.iter().all(|byte| *byte == 1);
        // A grandchild lives on, without any descriptor; so does one that was forked without the C library.
        for raw in [false, true] {
            let mut ready = [0; 2];
            // SAFETY: writes two numbers.
            assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
            let status = in_fork(|| {
                let child = std::process::id();
                let goes_on = || {
                    // The child has ended when the kernel gives this process another parent.
                    until("the end of the child", || std::os::unix::process::parent_id() != child);
                    let is_right = is_as_before();
                    let mut byte = u8::from(!is_right);
                    // SAFETY: one byte.
                    unsafe { libc::write(ready[1], (&raw mut byte).cast(), 1) };
                    0
                };
                let grandchild = if raw {
                    // SAFETY: the grandchild goes on with a copy of this stack.
                    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
                } else {
                    // SAFETY: the child has one thread.
                    unsafe { libc::fork() }
                };
                if grandchild == 0 {
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(goes_on()) }
                }
                0
            });
            assert!(status.success(), "{status}");
            region.as_mut_slice().fill(2);
            let mut byte = 9u8;
            // SAFETY: reads one byte.
            assert_eq!(unsafe { libc::read(ready[0], (&raw mut byte).cast(), 1) }, 1);
            assert_eq!(byte, 0, "the grandchild has seen a later write");
            until_free(&pool, 12);
            region.as_mut_slice().fill(1);
            // SAFETY: descriptors of this test.
            unsafe { (libc::close(ready[0]), libc::close(ready[1])) };
        }
        // A child without descriptors.
        let mut memory = vec![0u8; 1];
        let waits = {
            // SAFETY: memory that both processes share.
            let shared = unsafe {
                let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
                libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0).cast::<AtomicU64>()
            };
            // SAFETY: it is mapped until the process ends.
            let word = unsafe { &*shared };
            // SAFETY: the child makes only such calls as a child of one thread may make.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                close_all();
                word.store(1, Ordering::SeqCst);
                until("the parent's writes", || word.load(Ordering::SeqCst) == 2);
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!is_as_before())) };
            }
            until("the child", || word.load(Ordering::SeqCst) == 1);
            (pid, word)
        };
        region.as_mut_slice().fill(3);
        assert!(pool.stats().blocks_free < 12, "the child still has its blocks");
        waits.1.store(2, Ordering::SeqCst);
        let mut status = -1;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(waits.0, &raw mut status, 0) }, waits.0);
        assert_eq!(status, 0, "the child has seen a later write");
        until_free(&pool, 12);
        memory.clear();
    })
    .well();
}

#[test]
fn a_child_that_executes_another_program_gives_the_blocks_back_at_once() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let mut cat = Command::new("cat");
        // With such a closure, std forks.
        // SAFETY: it does nothing.
        unsafe { cat.pre_exec(|| Ok(())) };
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        region.as_mut_slice().fill(2);
        until_free(&pool, 12);
        assert!(cat.try_wait().unwrap().is_none());
        drop(cat.stdin.take());
        let mut said = String::new();
        cat.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(cat.wait().unwrap().success() && said.is_empty());
        // `posix_spawn` takes no snapshot, so the region goes on without a fault.
        region.as_mut_slice().fill(3);
        let before = format!("{:?}", region.stats().faults);
        assert!(Command::new("true").status().unwrap().success());
        region.as_mut_slice().fill(4);
        assert_eq!(format!("{:?}", region.stats().faults), before);
    })
    .well();
}

#[test]
fn a_fork_that_fails_leaves_nothing() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        // Root may have any number of processes, so another user forks.
        // SAFETY: a process of one thread, but for those of the engine, which need no rights.
        unsafe {
            let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const none), 0);
            assert!(libc::setuid(12_345) == 0 || libc::getuid() != 0);
            let forked = libc::fork();
            if forked == 0 {
                libc::_exit(0);
            }
            assert_eq!(forked, -1, "the limit has no effect");
        }
        region.as_mut_slice().fill(2);
        until_free(&pool, 12);
    })
    .well();
}

/// With this limit the kernel refuses to poll (`EINVAL`).
#[test]
fn blocks_come_back_although_the_process_may_have_no_descriptor() {
    alone(|| {
        let pool = builder(20).build().unwrap();
        // Writes copy whole blocks, so that each child has four blocks that neither the region nor another child has.
        let mut region = pool.region_with(4 * BLOCK, RegionOptions::new().copy_grain(CopyGrain::Block)).unwrap();
        let children: Vec<Waiting> = (0..4)
            .map(|nth| {
                region.as_mut_slice().fill(nth);
                Waiting::fork(|| (), || 0)
            })
            .collect();
        region.as_mut_slice().fill(9);
        assert_eq!(pool.stats().blocks_free, 0);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads the structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        for (nth, child) in children.into_iter().enumerate() {
            assert_eq!(child.end(), 0);
            until_free(&pool, 4 * (nth + 1));
        }
    })
    .well();
}

/// The kernel reports the close of the child's last mapping before the lock of the witness goes. Other watchers of the
/// same file, to which the kernel reports it too, make the time in between longer.
#[test]
fn blocks_come_back_although_the_close_is_reported_before_the_lock_goes() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        let is_of_pool = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|file| file.as_os_str() == POOL);
        let paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let path = CString::new(paths.into_iter().find(is_of_pool).unwrap().into_os_string().into_vec()).unwrap();
        for _ in 0..60 {
            // SAFETY: makes a descriptor, and reads a path.
            unsafe {
                let watcher = libc::inotify_init1(libc::IN_CLOEXEC);
                assert!(watcher >= 0 && libc::inotify_add_watch(watcher, path.as_ptr(), libc::IN_CLOSE_NOWRITE) >= 0);
            }
        }
        for round in 0..300 {
            check_fork(|| ());
            region.as_mut_slice().fill(round as u8);
            until_free(&pool, 14);
        }
    })
    .well();
}

/// A user has 128 instances of inotify by default, and other programs use them, too.
#[test]
fn blocks_come_back_without_inotify() {
    alone(|| {
        refuse(with(libc::SYS_inotify_init1, 0, libc::IN_CLOEXEC, libc::EMFILE));
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        check_fork(|| ());
        region.as_mut_slice().fill(2);
        until_free(&pool, 14);
    })
    .well();
}

/// A daemon may close all descriptors at once after it has built a pool.
#[test]
fn the_thread_of_a_new_pool_has_descriptors_of_its_own() {
    alone(|| {
        for _ in 0..30 {
            let pool = builder(16).build().unwrap();
            let thread = wait::named("hugefork-child").expect("the thread has begun");
            // The pool's file, and soon inotify.
            let descriptors = std::fs::read_dir(format!("/proc/self/task/{thread}/fd")).unwrap().count();
            assert!(descriptors <= 2, "{descriptors} descriptors");
            drop(pool);
            until("the end of the thread", || wait::named("hugefork-child").is_none());
        }
    })
    .well();
}

#[test]
fn a_pool_ends_with_its_thread_although_the_program_has_closed_its_descriptors() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        pool.region(BLOCK).unwrap().as_mut_slice().fill(1);
        let asleep = || wait::named("hugefork-child").and_then(wait::asleep);
        until("the thread's sleep", || asleep().is_some_and(|asleep| asleep.call == libc::SYS_ppoll));
        close_from(3);
        drop(pool);
        assert!(pool_mappings().is_empty(), "the memory is still there");
        until("the end of the thread", || wait::named("hugefork-child").is_none());
    })
    .well();
}
