//! Late reads of snapshots and forks by the kernel, past the page table: for `O_DIRECT` and `vmsplice(2)`, it takes
//! references to pages at once and reads them later. So a holder with a reservation keeps its bytes on these very
//! pages.

use std::io::{Read, pipe};
use std::os::fd::AsRawFd;

use crate::common::{BACKINGS, by_block, pool};
use hugefork::{BlockSize, Pool, Region, RegionError, RegionOptions, Reserve};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// The number of pages that a pipe of the usual size holds.
const PAGES: usize = 16;

/// Pages to which the kernel has references, and which it has not read yet.
struct Taken(std::io::PipeReader);

impl Taken {
    /// Hands over the first pages of two blocks, from `bytes` on.
    fn of(bytes: *const u8) -> Taken {
        let (reader, writer) = pipe().unwrap();
        for page in 0..PAGES {
            let at = bytes.wrapping_add(page / (PAGES / 2) * BLOCK + page % (PAGES / 2) * PAGE);
            let part = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: PAGE };
            // SAFETY: the kernel only takes a reference to the page.
            let spliced = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const part, 1, libc::SPLICE_F_NONBLOCK) };
            assert_eq!(spliced, PAGE as isize, "{}", std::io::Error::last_os_error());
        }
        Taken(reader)
    }

    /// Makes the kernel read them now, and checks the bytes.
    #[track_caller]
    fn check(mut self, expected: u8, what: &str) {
        let mut read = vec![0; PAGES * PAGE];
        self.0.read_exact(&mut read).unwrap();
        let other = read.iter().filter(|&&byte| byte != expected).count();
        assert_eq!(other, 0, "{what}: so many bytes are not what was promised");
    }
}

fn reserved() -> RegionOptions {
    by_block().reserve(Reserve::Full)
}

/// A region of two blocks full of ones.
fn written(pool: &Pool) -> Region {
    let mut region = pool.region_with(2 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    region
}

/// Takes all blocks that are left.
fn fill(pool: &Pool) -> Option<Region> {
    let left = pool.stats().blocks_free;
    let rest = (left > 0).then(|| pool.region_with(left * BLOCK, by_block()).unwrap());
    rest.iter().for_each(|rest| rest.populate().unwrap());
    rest
}

#[test]
fn the_pages_of_a_reserved_snapshot_stay_when_its_region_finds_the_pool_full() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 6 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = written(&pool);
        let snapshot = region.snapshot_with(RegionOptions::new().reserve(Reserve::Full)).unwrap();
        let _rest = fill(&pool);
        let taken = Taken::of(snapshot.as_ptr());
        assert!(matches!(region.prepare_write(0..2 * BLOCK), Err(RegionError::PoolFull { .. })));
        taken.check(1, &format!("a snapshot on {backing}"));
        assert!(!snapshot.is_revoked() && snapshot.iter().all(|&byte| byte == 1));
        assert_eq!(region.stats().faults.blocks_revoked, 0);
        drop(snapshot);
        region.as_mut_slice().fill(2);
    }
}

#[test]
fn the_pages_of_reserved_forks_stay_until_they_are_written_to() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 8 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = written(&pool);
        let mut forks = [region.fork_with(reserved()).unwrap(), region.fork_with(reserved()).unwrap()];
        let _rest = fill(&pool);
        let taken = forks.each_ref().map(|fork| Taken::of(fork.as_ptr()));
        assert!(matches!(region.prepare_write(0..2 * BLOCK), Err(RegionError::PoolFull { .. })));
        taken.into_iter().for_each(|taken| taken.check(1, &format!("a fork on {backing}")));
        let second = Taken::of(forks[1].as_ptr());
        forks[0].as_mut_slice().fill(3);
        second.check(1, &format!("the other fork on {backing}"));
        forks[1].as_mut_slice().fill(4);
        region.as_mut_slice().fill(2);
        for (region, byte) in [&mut region].into_iter().chain(&mut forks).zip(2..) {
            assert!(region.as_mut_slice().iter().all(|&found| found == byte), "{byte} on {backing}");
        }
    }
}
