//! Reads by address of snapshots that hold pages over blocks of older snapshots.

use std::io::Write;

use crate::common::alone::alone;
use hugefork::{Pool, Region, Snapshot};

const BLOCK: usize = 2 << 20;
const LEN: usize = 8 * BLOCK;
const PAGE: usize = 4096;

/// A region with snapshots, between which every seventh page was written. `None` if the kernel cannot copy single
/// pages.
fn history(pool: &Pool, snapshots: usize) -> Option<(Region, Vec<Snapshot>)> {
    let mut region = pool.region(LEN).unwrap();
    region.as_mut_slice().fill(0);
    let mut held = vec![region.snapshot().unwrap()];
    for nth in 1..snapshots {
        for page in (nth..LEN / PAGE).step_by(7 * snapshots) {
            region.as_mut_slice()[page * PAGE + nth] = nth as u8;
        }
        held.push(region.snapshot().unwrap());
    }
    (pool.stats().pages_held > 0).then_some((region, held))
}

fn pool() -> Pool {
    Pool::builder().capacity(4 * LEN).build().unwrap()
}

fn expected(nth: usize, snapshots: usize, at: usize) -> u8 {
    let wrote = (1..=nth).find(|of| at / PAGE % (7 * snapshots) == *of && at % PAGE == *of);
    wrote.map_or(0, |of| of as u8)
}

#[test]
fn a_byte_costs_the_pages_around_it_and_a_scan_all() {
    alone(|| {
        let pool = pool();
        let Some((_region, held)) = history(&pool, 6) else { return println!("skipped: no pages are copied singly") };
        let copied = || pool.stats().pages_in_views;
        for (nth, snapshot) in held.iter().enumerate() {
            let before = copied();
            assert_eq!(snapshot.view().unwrap()[LEN - 1], 0);
            assert!(copied() - before <= 16, "snapshot {nth}: {} pages for one byte", copied() - before);
        }
        for (nth, snapshot) in held.iter().enumerate() {
            let wrong = snapshot.view().unwrap().iter().enumerate().find(|(at, byte)| **byte != expected(nth, 6, *at));
            assert_eq!(wrong, None, "snapshot {nth}");
        }
        assert!(copied() > 0);
        drop(held);
        assert_eq!(copied(), 0);
    })
    .well();
}

#[test]
fn threads_that_read_one_view_see_its_pages_and_nothing_else() {
    alone(|| {
        let pool = pool();
        let Some((_region, held)) = history(&pool, 4) else { return println!("skipped: no pages are copied singly") };
        for (nth, snapshot) in held.iter().map(|snapshot| snapshot.view().unwrap()).enumerate() {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        for by in 0..LEN / PAGE {
                            let page = (by * (2 * thread + 1) + thread * 97) % (LEN / PAGE);
                            let at = page * PAGE + page % (7 * 4);
                            assert_eq!(snapshot[at], expected(nth, 4, at), "snapshot {nth}, at {at}");
                        }
                    });
                }
            });
        }
    })
    .well();
}

/// A fault inside a system call cannot be resolved. The call fails, and never reads bytes that are not the snapshot's.
#[test]
fn a_system_call_reads_what_is_mapped_for_it() {
    alone(|| {
        let pool = pool();
        let Some((_region, held)) = history(&pool, 3) else { return println!("skipped: no pages are copied singly") };
        let (snapshot, mut file) = (&held[2], tempfile());
        let hidden = file.write_all(snapshot.view().unwrap()).unwrap_err();
        assert_eq!(hidden.raw_os_error(), Some(libc::EFAULT));
        let mut file = tempfile();
        file.write_all(snapshot.map().unwrap()).unwrap();
        assert_eq!(file.metadata().unwrap().len(), LEN as u64);
    })
    .well();
}

fn tempfile() -> std::fs::File {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"snapshot_views".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0);
    // SAFETY: a new descriptor, which nobody else has.
    unsafe { OwnedFd::from_raw_fd(descriptor) }.into()
}
