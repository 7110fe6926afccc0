//! System calls that write to a region of [`CopyGrain::Page`] while other threads take and drop forks and snapshots.
//! Where the process may hold them, the calls wait. Nothing is lost, in either case.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use crate::common::alone::alone;
use crate::common::random::Random;
use crate::common::seccomp::{every, refuse, with};
use crate::common::{Over, may_hold, pool};
use hugefork::{Backing, BlockSize, CopyGrain, Pool, Region, RegionOptions};
use hugefork_linux::userfaultfd::USERFAULTFD_IOC_NEW;

const PAGE: usize = 4096;
const THREADS: usize = 3;
const LEN: usize = 12 << 20;
const CUTS: usize = 30;
const KEPT: usize = 2;

/// The way in which a call treats memory that is not writable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    Wait,
    MayFail,
}

/// A file in which byte `at` is `byte(at)`, and its bytes.
fn source() -> (File, Vec<u8>) {
    let mut file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    let bytes: Vec<u8> = (0..SOURCE).map(byte).collect();
    file.write_all(&bytes).unwrap();
    (file, bytes)
}

const SOURCE: usize = 64 << 10;

fn byte(at: usize) -> u8 {
    (at ^ at >> 8) as u8 | 1
}

/// Fills `len` bytes at `at` from the file, and returns how often a call failed.
fn fill(region: &Region, file: &File, at: usize, len: usize, from: usize) -> usize {
    assert!(at + len <= region.len() && from + len <= SOURCE);
    let (mut done, mut failed) = (0, 0);
    while done < len {
        // SAFETY: inside the region; each thread has bytes of its own.
        let count = unsafe {
            let to = region.as_mut_ptr().add(at + done).cast();
            libc::pread(file.as_raw_fd(), to, len - done, (from + done) as i64)
        };
        match usize::try_from(count) {
            Ok(count) => done += count,
            Err(_) => {
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
                failed += 1;
            }
        }
    }
    failed
}

/// Fills a page from the file, and returns 1 if that call failed.
fn fill_once(region: &Region, file: &File, at: usize) -> usize {
    assert!(at + PAGE <= region.len());
    // SAFETY: inside the region, which no other thread uses.
    let count = unsafe { libc::pread(file.as_raw_fd(), region.as_mut_ptr().add(at).cast(), PAGE, 0) };
    usize::from(count != PAGE as isize)
}

/// Reads files into pages of its own, and writes to some of them, until the test is over. Returns the bytes that the
/// pages must have, and the number of failed calls.
fn read_and_write(region: &Region, thread: usize, rounds: &AtomicU64, over: &AtomicBool) -> (Vec<u8>, usize) {
    let ((file, bytes), mut random, mut failed) = (source(), Random::new(31 + thread as u64), 0);
    let mut expected = vec![0xff; LEN];
    while !over.load(Ordering::Relaxed) {
        let page = random.below(LEN / PAGE / THREADS) * THREADS + thread;
        let (within, from) = (random.below(PAGE - 1), random.below(SOURCE - PAGE));
        let len = 1 + random.below(PAGE - within - 1);
        let at = page * PAGE + within;
        failed += fill(region, &file, at, len, from);
        expected[at..at + len].copy_from_slice(&bytes[from..from + len]);
        let (at, value) = (page * PAGE + random.below(PAGE), random.below(255) as u8);
        // SAFETY: as in `fill`.
        unsafe { region.as_mut_ptr().add(at).write_volatile(value) };
        expected[at] = value;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    (expected, failed)
}

/// The number of calls that failed while snapshots and forks came and went.
fn cut_while_they_read(pool: &Pool) -> usize {
    let mut region = pool.region_with(LEN, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)).unwrap();
    region.as_mut_slice().fill(0xff);
    let first = region.snapshot().unwrap();
    let (rounds, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut failed = 0;
    std::thread::scope(|scope| {
        let (region, rounds, over) = (&region, &rounds, &over);
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || read_and_write(region, thread, rounds, over))).collect();
        {
            let _over = Over(over);
            let (mut random, mut kept) = (Random::new(5), Vec::new());
            for cut in 0..CUTS {
                let enough = rounds.load(Ordering::Relaxed) + random.below(60) as u64;
                while rounds.load(Ordering::Relaxed) < enough {
                    std::thread::yield_now();
                }
                let snapshot = region.snapshot().unwrap();
                let bytes = snapshot.to_vec();
                match cut % 5 {
                    0 => {
                        let fork = region.fork().unwrap();
                        fork.prepare_write(0..LEN / 2).unwrap();
                    }
                    1 => region.prepare_write(random.below(LEN / 2)..LEN / 2).unwrap(),
                    2 => drop(region.pin(0..PAGE).unwrap()),
                    _ => {}
                }
                assert!(snapshot[..] == bytes[..], "a snapshot has changed");
                if kept.len() == KEPT {
                    kept.swap_remove(random.below(KEPT));
                }
                kept.push((snapshot, bytes));
                kept.iter().for_each(|(snapshot, bytes)| assert!(snapshot[..] == bytes[..], "a snapshot has changed"));
            }
        }
        let mut expected = vec![0xff; LEN];
        for (thread, handle) in threads.into_iter().enumerate() {
            let (bytes, of_thread) = handle.join().unwrap();
            failed += of_thread;
            let pages = (thread..LEN / PAGE).step_by(THREADS).map(|page| page * PAGE..(page + 1) * PAGE);
            pages.for_each(|page| expected[page.clone()].copy_from_slice(&bytes[page]));
        }
        // SAFETY: all of it can be read, and nobody writes any more.
        let shown = unsafe { std::slice::from_raw_parts(region.as_ptr(), LEN) };
        let wrong = (0..LEN / PAGE).find(|page| shown[page * PAGE..][..PAGE] != expected[page * PAGE..][..PAGE]);
        assert_eq!(wrong, None, "this page is not what was read there");
        assert!(region.snapshot().unwrap()[..] == expected[..] && first[..] == vec![0xff; LEN]);
    });
    let faults = region.stats().faults;
    println!("{} of {}: {failed} calls failed, {faults:?}", pool.backing(), pool.block_size());
    assert!(faults.pages_written_back > 0);
    drop((region, first));
    let stats = pool.stats();
    assert_eq!((stats.blocks_free, stats.blocks_leaked, stats.faults.failed), (stats.blocks, 0, 0));
    failed
}

fn check_all(calls: Calls) {
    for (backing, size) in [
        (Backing::ShmemHuge, BlockSize::MIB_2),
        (Backing::ShmemHuge, BlockSize::KIB_64),
        (Backing::ShmemBase, BlockSize::MIB_2),
    ] {
        let Some(pool) = pool(backing, (KEPT + 6) * LEN, size) else { continue };
        if let Some(why) = pool.no_page_grain() {
            println!("skipped: {why}");
            continue;
        }
        let failed = cut_while_they_read(&pool);
        assert!(calls == Calls::MayFail || failed == 0, "{failed} calls failed");
    }
}

#[test]
fn system_calls_wait_while_forks_and_snapshots_are_taken() {
    alone(|| {
        if !may_hold() {
            println!("skipped: this process may not handle the faults of system calls (CAP_SYS_PTRACE)");
            return;
        }
        check_all(Calls::Wait);
    })
    .well();
}

#[test]
fn without_the_right_to_hold_them_system_calls_may_fail_and_nothing_is_lost() {
    alone(|| {
        refuse_userfaultfd();
        check_all(Calls::MayFail);
    })
    .well();
}

fn refuse_userfaultfd() {
    refuse(every(libc::SYS_userfaultfd, libc::EPERM));
    // The same right, by way of /dev/userfaultfd.
    refuse(with(libc::SYS_ioctl, 1, USERFAULTFD_IOC_NEW as i32, libc::EPERM));
}

/// After a cut, system calls can write to all memory that was written before it, even to blocks to which nobody has
/// written since the previous cut.
#[test]
fn system_calls_can_write_after_each_cut_without_the_right_to_hold_them() {
    alone(|| {
        refuse_userfaultfd();
        let pool = pool(Backing::ShmemBase, 4 * LEN, BlockSize::MIB_2).unwrap();
        if let Some(why) = pool.no_page_grain() {
            println!("skipped: {why}");
            return;
        }
        let mut region =
            pool.region_with(LEN, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)).unwrap();
        region.as_mut_slice().fill(0xff);
        let (file, _) = source();
        let mut cuts = Vec::new();
        for cut in 0..4 {
            cuts.push((region.snapshot().unwrap(), region.fork().unwrap()));
            let failed: usize = (0..LEN).step_by(1 << 20).map(|at| fill_once(&region, &file, at + cut * PAGE)).sum();
            assert_eq!(failed, 0, "calls that failed after cut {cut}");
        }
    })
    .well();
}

/// A process that may open this file may hold threads without any other privilege.
#[test]
fn with_the_device_file_alone_system_calls_wait() {
    alone(|| {
        refuse(every(libc::SYS_userfaultfd, libc::EPERM));
        if let Err(error) = File::options().read(true).write(true).open("/dev/userfaultfd") {
            println!("skipped: no /dev/userfaultfd: {error}");
            return;
        }
        let pool = pool(Backing::ShmemBase, (KEPT + 6) * LEN, BlockSize::MIB_2).unwrap();
        if let Some(why) = pool.no_page_grain() {
            println!("skipped: {why}");
            return;
        }
        assert_eq!(cut_while_they_read(&pool), 0, "calls that failed");
    })
    .well();
}

/// Calls that read from a region succeed at every moment of a reset; calls that write to it wait.
#[test]
fn system_calls_beside_resets_succeed() {
    alone(|| {
        const CALLS: usize = 200;
        if !may_hold() {
            println!("skipped: this process may not handle the faults of system calls");
            return;
        }
        for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
            let Some(pool) = pool(backing, 3 * LEN, BlockSize::MIB_2) else { continue };
            let region =
                pool.region_with(LEN, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)).unwrap();
            region.as_atomic_u64s().iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let (snapshot, over) = (region.snapshot().unwrap(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let (region, over) = (&region, &over);
                        scope.spawn(move || {
                            let ((file, _), mut random) = (source(), Random::new(7 + thread as u64));
                            let sink =
                                File::from(rustix::fs::memfd_create("sink", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
                            let (mut failed, mut calls) = (0, 0);
                            while !over.load(Ordering::Relaxed) || calls < CALLS {
                                let at = random.below(LEN / THREADS - SOURCE) + thread * (LEN / THREADS);
                                failed += fill(region, &file, at, SOURCE, 0);
                                // SAFETY: inside the region.
                                let from = unsafe { region.as_ptr().add(at) };
                                // SAFETY: as above; the kernel reads it.
                                let written = unsafe { libc::pwrite(sink.as_raw_fd(), from.cast(), SOURCE, 0) };
                                assert_eq!(written, SOURCE as isize, "{}", std::io::Error::last_os_error());
                                calls += 1;
                            }
                            failed
                        })
                    })
                    .collect();
                let over = Over(&over);
                for _ in 0..CALLS {
                    region.reset_to(&snapshot).unwrap();
                    std::thread::yield_now();
                }
                drop(over);
                assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 0), "calls have failed");
            });
            region.reset_to(&snapshot).unwrap();
            assert!(region.as_atomic_u64s().iter().all(|word| word.load(Ordering::Relaxed) == 0));
            assert_eq!(pool.stats().faults.failed, 0);
        }
    })
    .well();
}
