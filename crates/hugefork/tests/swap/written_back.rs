//! Private pages that were swapped out are written back like all others, whichever way writers are kept off meanwhile,
//! and no other page is taken for one. The test adds a swap file for a moment, which needs root.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::file::Swap;
use crate::common::alone::{alone, is_alone};
use crate::common::pool;
use crate::common::seccomp::{every, refuse, with};
use hugefork::{Backing, BlockSize, CopyGrain, Region, RegionOptions};
use hugefork_linux::userfaultfd::USERFAULTFD_IOC_NEW;

const PAGE: usize = 4096;
const LEN: usize = 8 << 20;

/// The number of the region's pages that are swapped out.
fn swapped(region: &Region) -> usize {
    const IS_SWAPPED: u64 = 1 << 62;
    let mut entries = vec![0; region.len() / PAGE * 8];
    let offset = region.as_ptr() as usize / PAGE * 8;
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entries, offset as u64).unwrap();
    let entries = entries.chunks_exact(8).map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()));
    entries.filter(|entry| entry & IS_SWAPPED != 0).count()
}

/// Makes the kernel swap out as much of the region as it can.
fn swap_out(region: &Region) -> usize {
    // SAFETY: the range is the region's; this changes no contents.
    let done = unsafe { libc::madvise(region.as_mut_ptr().cast(), region.len(), libc::MADV_PAGEOUT) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    swapped(region)
}

/// Writes to one page in `every`, and reads some of the others, so that there are pages of all kinds. Returns the
/// number of written pages.
fn write(region: &mut Region, expected: &mut [u8], every: usize, value: u8) -> u64 {
    let mut written = 0;
    for page in (0..LEN / PAGE).step_by(every) {
        let at = page * PAGE + page % PAGE;
        // SAFETY: inside the region, which nobody else uses.
        unsafe {
            region.as_mut_ptr().add(at).write_volatile(value);
            region.as_ptr().add((at + 2 * PAGE) % LEN).read_volatile();
        }
        expected[at] = value;
        written += 1;
    }
    written
}

fn write_back_what_is_swapped_out(backing: Backing, size: BlockSize, grain: CopyGrain) {
    let Some(pool) = pool(backing, 6 * LEN, size) else { return };
    if let Some(why) = pool.no_page_grain() {
        println!("skipped: {why}");
        return;
    }
    let mut region =
        pool.region_with(LEN, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)).unwrap();
    region.as_mut_slice().fill(1);
    let mut expected = vec![1; LEN];
    let mut kept = vec![(region.snapshot().unwrap(), expected.clone())];
    for round in 0..6 {
        let written_back = region.stats().faults.pages_written_back;
        let written = write(&mut region, &mut expected, [3, 64, 17][round % 3], 10 + round as u8);
        let out = swap_out(&region);
        if round >= 3 {
            // The region alone holds most blocks now, so the pages are written back into those.
            kept.clear();
        }
        let snapshot = region.snapshot().unwrap();
        let faults = region.stats().faults;
        println!(
            "{backing}, {size}, {grain:?}: {written} pages written, {out} swapped out, {} written back",
            faults.pages_written_back - written_back
        );
        if grain == CopyGrain::Page {
            assert!(out > 0, "nothing was swapped out");
            assert_eq!(faults.pages_written_back - written_back, written, "what was written, and nothing else");
        }
        assert!(snapshot[..] == expected[..], "the snapshot of round {round} is not what was written");
        kept.push((snapshot, expected.clone()));
        kept.iter().for_each(|(snapshot, expected)| assert!(snapshot[..] == expected[..], "a snapshot has changed"));
        if kept.len() > 2 {
            kept.remove(0);
        }
    }
    swap_out(&region);
    assert!(region.as_mut_slice() == expected);
}

fn all() {
    for (backing, size) in [
        (Backing::ShmemBase, BlockSize::MIB_2),
        (Backing::ShmemBase, BlockSize::KIB_64),
        (Backing::ShmemHuge, BlockSize::MIB_2),
    ] {
        [CopyGrain::Page, CopyGrain::Auto]
            .iter()
            .for_each(|&grain| write_back_what_is_swapped_out(backing, size, grain));
    }
}

#[test]
fn pages_that_are_swapped_out_are_written_back_and_nothing_else_is() {
    // The harness's process adds the swap file, so it also removes the file if the test's own process dies.
    let swap = if is_alone() { None } else { Some(Swap::on()) };
    if let Some(Err(error)) = &swap {
        println!("skipped: no swap file here: {error}");
        return;
    }
    alone(|| {
        all();
        // Again where the process may hold nobody, so that writers are kept off by mprotect.
        refuse(every(libc::SYS_userfaultfd, libc::EPERM));
        refuse(with(libc::SYS_ioctl, 1, USERFAULTFD_IOC_NEW as i32, libc::EPERM));
        all();
    })
    .well();
}
