//! The kernel swaps out, migrates and merges pages of a region while the engine scans for private ones. Each scan must
//! find exactly the written pages.
//!
//! ```text
//!   region's process                       another process
//!   write, reset | snapshot | changes  ◀─  process_madvise(MADV_PAGEOUT), compact memory, again and again
//!   compare with a vector                  ksmd merges pages
//! ```
//! The test adds a swap file and changes the settings of ksmd for a moment, which needs root.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::fs;
use std::io;
use std::ptr;

use super::file::Swap;
use crate::common::alone::{alone, is_alone, with_one_thread};
use crate::common::pool;
use hugefork::{Backing, BlockSize, CopyGrain, Region, RegionOptions};

const PAGE: usize = 4096;
const LEN: usize = 8 << 20;
const ROUNDS: usize = 60;
const KSM: &str = "/sys/kernel/mm/ksm";

/// Settings of ksmd, restored when this is dropped.
struct Merging(Vec<(String, String)>);

impl Merging {
    fn on() -> io::Result<Merging> {
        let mut before = Merging(Vec::new());
        for (name, value) in [("sleep_millisecs", "0"), ("pages_to_scan", "5000"), ("run", "1")] {
            let path = format!("{KSM}/{name}");
            let old = fs::read_to_string(&path)?;
            before.0.push((path.clone(), old));
            fs::write(path, value)?;
        }
        Ok(before)
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|(path, value)| fs::write(path, value).unwrap());
    }
}

/// A counter of /proc/vmstat.
fn vmstat(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let figure = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    figure.unwrap_or(0)
}

/// Starts a child of `fork(2)` that makes the kernel swap out and migrate the memory at `at` in this process, as long
/// as this process lives. Returns the count of the child's rounds.
fn start_mover(at: &'static AtomicUsize) -> &'static AtomicUsize {
    let (parent, rounds) = (std::process::id(), shared());
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: a descriptor of the parent.
        let pid = unsafe { libc::syscall(libc::SYS_pidfd_open, parent, 0) };
        // SAFETY: only asks for the parent, which changes when the parent ends.
        while unsafe { libc::getppid() } as u32 == parent {
            let range = libc::iovec { iov_base: ptr::without_provenance_mut(at.load(Ordering::SeqCst)), iov_len: LEN };
            // SAFETY: this changes no contents.
            unsafe { libc::syscall(libc::SYS_process_madvise, pid, &raw const range, 1, libc::MADV_PAGEOUT, 0) };
            if rounds.fetch_add(1, Ordering::SeqCst) % 16 == 0 {
                let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            }
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    rounds
}

/// A word shared with children.
fn shared() -> &'static AtomicUsize {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which stays.
    unsafe { AtomicUsize::from_ptr(libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0).cast()) }
}

/// A pseudo-random number below `end`.
fn below(random: &mut u64, end: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random % end as u64) as usize
}

/// Writes to some pages and returns them. ksmd may merge some of these pages.
fn write(region: &Region, bytes: &mut [u8], random: &mut u64) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..1 + below(random, 60)).map(|_| below(random, LEN / PAGE)).collect();
    pages.sort_unstable();
    pages.dedup();
    for page in &pages {
        let value = 2 + below(random, 3) as u8;
        let is_whole = below(random, 2) == 0;
        let range = if is_whole { page * PAGE..(page + 1) * PAGE } else { page * PAGE + 7..page * PAGE + 8 };
        bytes[range.clone()].fill(value);
        // SAFETY: inside the region, which nobody else uses.
        unsafe { region.as_mut_ptr().add(range.start).write_bytes(value, range.len()) };
    }
    pages
}

fn rounds(backing: Backing, grain: CopyGrain, at: &AtomicUsize, moved: &AtomicUsize) {
    let Some(pool) = pool(backing, 6 * LEN, BlockSize::MIB_2) else { return };
    if let Some(why) = pool.no_page_grain() {
        return println!("skipped: {why}");
    }
    let mut region =
        pool.region_with(LEN, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)).unwrap();
    region.as_mut_slice().fill(1);
    at.store(region.as_ptr().addr(), Ordering::SeqCst);
    let mut random = 88_172_645_463_325_252;
    let (mut snapshot, mut then) = (region.snapshot().unwrap(), vec![1; LEN]);
    let mut now = then.clone();
    let mut put_back = 0;
    for round in 0..ROUNDS {
        write(&region, &mut now, &mut random);
        let seen = moved.load(Ordering::SeqCst);
        while moved.load(Ordering::SeqCst) == seen {
            std::thread::yield_now();
        }
        match below(&mut random, 8) {
            0 => {
                snapshot = region.snapshot().unwrap();
                then.clone_from(&now);
                assert!(snapshot[..] == then[..], "{backing}, {grain:?}: the snapshot of round {round}");
            }
            1 | 2 => {
                let changed: Vec<_> = region.changed_since(&snapshot).unwrap().pages().map(Result::unwrap).collect();
                let told: Vec<_> = changed.into_iter().flat_map(|range| range.start / PAGE..range.end / PAGE).collect();
                let page = |bytes: &[u8], page: usize| bytes[page * PAGE..][..PAGE].to_vec();
                let differing: Vec<_> = (0..LEN / PAGE).filter(|&nth| page(&now, nth) != page(&then, nth)).collect();
                assert_eq!(told, differing, "{backing}, {grain:?}: what has changed in round {round}");
            }
            _ => {
                region.reset_to(&snapshot).unwrap();
                now.clone_from(&then);
                put_back += 1;
            }
        }
        // SAFETY: all of the region, which nobody else uses. A `&mut` would start a write-back.
        let bytes = unsafe { core::slice::from_raw_parts(region.as_ptr(), LEN) };
        assert!(bytes == now, "{backing}, {grain:?}: the region after round {round}");
    }
    assert!(put_back > 0 && snapshot[..] == then[..]);
}

#[test]
fn looks_find_what_was_written_while_the_kernel_swaps_migrates_and_merges() {
    // The harness's process changes the settings, so it also restores them if the test's own process dies.
    let settings = if is_alone() { None } else { Some((Swap::on(), Merging::on())) };
    if let Some((Err(error), _) | (_, Err(error))) = &settings {
        return println!("skipped: no swap file or no ksmd here: {error}");
    }
    let figures = || ["pswpout ", "pgmigrate_success ", "cow_ksm "].map(vmstat);
    let before = figures();
    alone(|| {
        with_one_thread(|| {
            const PR_SET_MEMORY_MERGE: i32 = 67;
            // SAFETY: lets ksmd scan all memory of this process.
            if unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } != 0 {
                println!("skipped: pages are not merged here: {}", io::Error::last_os_error());
            }
            let at = shared();
            let moved = start_mover(at);
            for backing in [Backing::ShmemBase, Backing::ShmemHuge] {
                for grain in [CopyGrain::Auto, CopyGrain::Page] {
                    rounds(backing, grain, at, moved);
                    // Once more beside another thread.
                    let over = std::sync::Arc::new(core::sync::atomic::AtomicBool::new(false));
                    let other = std::thread::spawn({
                        let over = over.clone();
                        move || {
                            while !over.load(Ordering::Relaxed) {
                                std::thread::park();
                            }
                        }
                    });
                    rounds(backing, grain, at, moved);
                    over.store(true, Ordering::Relaxed);
                    other.thread().unpark();
                    other.join().unwrap();
                }
            }
        });
    })
    .well();
    let after = figures();
    println!("swapped out, migrated, merged and written again: {before:?}, then {after:?}");
    if settings.is_some() {
        assert!(after[0] > before[0], "nothing was swapped out");
    }
}
