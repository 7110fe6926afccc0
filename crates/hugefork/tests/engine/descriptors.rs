//! Programs that close or replace descriptors which they have not opened, as daemons do, and programs that are started
//! without the first three. The engine must then change no file of theirs, and their output must not change any pool.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::forked::check_fork_dies_of_access_to;
use crate::common::wait::until;
use crate::common::{BACKINGS, Over, built};
use hugefork::{Backing, CopyGrain, ErrorCode, Pool, PoolBuilder, PressureWatch, Region, RegionOptions};
use rustix::fs::{MemfdFlags, SeekFrom, fcntl_get_seals, fstat, ftruncate, memfd_create, seek};
use rustix::io::{FdFlags, fcntl_getfd, pread, pwrite};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;
const BLOCKS: usize = 24;

/// The text of the errors in such a case.
const LOST: &str = "the program has closed or replaced";

/// The lowest number of the engine's descriptors, if the process may have that many.
const HIGH: RawFd = 900;

/// A pool with every descriptor that a pool may have.
fn pool(backing: Backing) -> Option<Pool> {
    let watch = PressureWatch::new().stall(Duration::from_secs(2), Duration::from_secs(2));
    built(builder(backing).exports(true).reclaim_under_pressure(watch), backing)
}

fn builder(backing: Backing) -> PoolBuilder {
    Pool::builder().name("test").capacity(BLOCKS * BLOCK).backing(backing)
}

/// Regions of all kinds, in use, so that the engine has opened every descriptor that it ever opens.
struct Used {
    pool: Pool,
    regions: Vec<Region>,
}

impl Used {
    fn new(pool: Pool) -> Used {
        let options = [
            RegionOptions::new().copy_grain(CopyGrain::Block),
            RegionOptions::new(),
            RegionOptions::new().calls_wait(true),
        ];
        let regions = options.map(|options| pool.region_with(2 * BLOCK, options));
        let mut used = Used { pool, regions: regions.into_iter().flatten().collect() };
        assert!(!used.regions.is_empty());
        used.work(1).unwrap();
        used
    }

    /// Work that needs only addresses.
    fn work(&mut self, value: u8) -> Result<(), hugefork::RegionError> {
        for region in &mut self.regions {
            region.as_mut_slice().fill(value);
            let snapshot = region.snapshot()?;
            (0..2 * BLOCK).step_by(3 * PAGE).for_each(|at| region.as_mut_slice()[at] = value + 1);
            let newer = region.snapshot()?;
            region.reset_to(&snapshot).map_err(|error| error.reason)?;
            assert!(is_all(region.as_mut_slice(), value) && is_all(&snapshot, value));
            assert_eq!((newer[0], newer[PAGE], newer[3 * PAGE]), (value + 1, value, value + 1));
            let fork = region.fork()?;
            // SAFETY: nobody writes to it.
            assert_eq!(unsafe { fork.as_ptr().read_volatile() }, value);
            drop((snapshot, newer, fork));
            region.discard(0..BLOCK)?;
            assert!(is_all(&region.as_mut_slice()[..BLOCK], 0));
            let _ = region.lazy_free(BLOCK..2 * BLOCK)?;
        }
        self.pool.reclaim(BLOCKS * BLOCK)?;
        self.pool.trim()?;
        let mut new = self.pool.region(4 * BLOCK)?;
        new.populate()?;
        assert!(is_all(new.as_mut_slice(), 0), "a new region reads as zeros");
        Ok(())
    }
}

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.chunks(PAGE).all(|page| page == [value; PAGE])
}

/// A file of the program's, as large as a pool.
struct Own {
    file: OwnedFd,
    before: [u64; 5],
}

impl Own {
    /// A file with which everything can be done that can be done with a pool's. The program uses it by its number, too.
    fn new() -> Own {
        let file = memfd_create("own", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, (BLOCKS * BLOCK) as u64).unwrap();
        for at in (0..BLOCKS * BLOCK).step_by(BLOCK) {
            assert_eq!(pwrite(&file, &vec![b'Z'; BLOCK], at as u64), Ok(BLOCK));
        }
        seek(&file, SeekFrom::Start(11)).unwrap();
        let before = Own::state(&file);
        Own { file, before }
    }

    fn state(file: &OwnedFd) -> [u64; 5] {
        let stat = fstat(file).unwrap();
        let (seals, place) = (fcntl_get_seals(file).unwrap(), seek(file, SeekFrom::Current(0)).unwrap());
        [stat.st_size as u64, stat.st_blocks as u64, stat.st_mode.into(), seals.bits().into(), place]
    }

    fn take(&self, number: RawFd) {
        // SAFETY: the program may do as it likes with its numbers.
        assert_eq!(unsafe { libc::dup2(self.file.as_raw_fd(), number) }, number);
    }

    /// Checks that the file still has these numbers and is unchanged.
    #[track_caller]
    fn check(&self, numbers: &BTreeSet<RawFd>) {
        assert_eq!(Own::state(&self.file), self.before, "size, blocks, mode, seals, place");
        let own = fstat(&self.file).unwrap();
        for number in numbers {
            // SAFETY: the descriptor is only queried.
            let at = fstat(unsafe { std::os::fd::BorrowedFd::borrow_raw(*number) });
            assert!(at.is_ok_and(|at| (at.st_dev, at.st_ino) == (own.st_dev, own.st_ino)), "{number} was closed");
        }
        let mut bytes = vec![0; BLOCK];
        for at in (0..BLOCKS * BLOCK).step_by(BLOCK) {
            assert_eq!(pread(&self.file, &mut bytes, at as u64), Ok(BLOCK));
            assert!(is_all(&bytes, b'Z'), "bytes of a file have changed");
        }
    }
}

fn open_numbers() -> BTreeSet<RawFd> {
    let names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    let all: Vec<RawFd> = names.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    // SAFETY: only asks whether it is open; the folder's own descriptor is closed by now.
    all.into_iter().filter(|&number| number > 2 && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0).collect()
}

fn close_from(first: u32) {
    // SAFETY: in this process, only the engine has such descriptors.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }, 0);
}

/// Uses a pool, then closes its descriptors and gives the numbers that `taken` returns to files of the program.
fn check_lost(backing: Backing, taken: impl FnOnce(&BTreeSet<RawFd>) -> BTreeSet<RawFd>) {
    let Some(pool) = pool(backing) else { return };
    let mut used = Used::new(pool);
    let snapshot = used.regions[0].snapshot().unwrap();
    let mut numbers = taken(&open_numbers());
    let own = Own::new();
    assert!(!numbers.is_empty());
    numbers.remove(&own.file.as_raw_fd());
    numbers.iter().for_each(|&number| own.take(number));
    // The kernel cannot duplicate a mapping of hugetlb, so no block can be shown there any more.
    if backing == Backing::Hugetlb {
        let lost = used.pool.region(BLOCK).and_then(|region| region.populate()).unwrap_err().to_string();
        assert!(lost.contains(LOST), "{lost}");
    } else {
        // The descriptor that makes system calls wait is gone, and its number is taken.
        if let Some(mut waiting) = (used.regions.len() > 2).then(|| used.regions.remove(2)) {
            let snapshot = waiting.snapshot().unwrap();
            waiting.as_mut_slice().fill(9);
            let error = waiting.snapshot().map(drop).err().map(|error| error.to_string());
            assert!(error.as_ref().is_none_or(|error| error.contains(LOST)), "{error:?}");
            drop(snapshot);
        }
        (2..6).for_each(|value| used.work(value).unwrap());
    }
    let error = snapshot.export().map(drop).unwrap_err().to_string();
    assert!(error.contains(LOST) && error.contains("close only descriptors"), "{error}");
    own.check(&numbers);
    let copy = snapshot.export_copy().unwrap();
    let mut byte = [9];
    assert_eq!(pread(copy.as_fd(), &mut byte, 0), Ok(1));
    // A new pool has descriptors of its own.
    drop(Used::new(self::pool(backing).unwrap()));
    drop((snapshot, copy, used));
    own.check(&numbers);
}

#[test]
fn files_that_are_opened_after_all_descriptors_were_closed_stay_as_they_are() {
    alone(|| {
        for backing in BACKINGS {
            check_lost(backing, |open| {
                close_from(3);
                open.clone()
            });
            close_from(3);
        }
    })
    .well();
}

#[test]
fn files_in_the_place_of_all_descriptors_stay_as_they_are() {
    alone(|| {
        for backing in BACKINGS {
            check_lost(backing, |_| (3..1023).collect());
            close_from(3);
        }
    })
    .well();
}

#[test]
fn regions_go_on_when_all_descriptors_are_closed() {
    alone(|| {
        for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
            let Some(pool) = pool(backing) else { continue };
            let mut used = Used::new(pool);
            close_from(3);
            (2..6).for_each(|value| used.work(value).unwrap());
        }
    })
    .well();
}

/// Closes the first three descriptors until it is dropped.
struct Without([RawFd; 3]);

impl Without {
    fn standard() -> Without {
        Without([0, 1, 2].map(|number| {
            // SAFETY: they are this process's.
            unsafe {
                let kept = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 700);
                assert!(kept >= 700 && libc::close(number) == 0);
                kept
            }
        }))
    }
}

impl Drop for Without {
    fn drop(&mut self) {
        for (number, kept) in self.0.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { libc::dup2(kept, number as RawFd) };
        }
    }
}

#[test]
fn lines_that_the_engine_prints_reach_no_pool() {
    alone(|| {
        for backing in BACKINGS {
            let without = Without::standard();
            let Some(pool) = pool(backing) else { continue };
            let mut used = Used::new(pool);
            let region = &mut used.regions[0];
            region.as_mut_slice().fill(5);
            let snapshot = region.snapshot().unwrap();
            // Each of these accesses prints a line.
            check_fork_dies_of_access_to(region.as_mut_ptr());
            // All blocks are in use, so the one with the lowest offset is, too.
            let all: Vec<_> =
                std::iter::from_fn(|| used.pool.region(BLOCK).ok().filter(|new| new.populate().is_ok())).collect();
            let zeros = all.iter().all(|new| {
                // SAFETY: nobody writes to it.
                is_all(unsafe { std::slice::from_raw_parts(new.as_ptr(), BLOCK) }, 0)
            });
            let is_as_it_was = is_all(&snapshot, 5);
            drop(without);
            assert!(is_as_it_was && zeros, "a line came into the pool");
        }
    })
    .well();
}

/// Another thread prints all the time, also while pools are built.
#[test]
fn what_the_program_prints_reaches_no_pool() {
    alone(|| {
        for backing in BACKINGS {
            if pool(backing).is_none() {
                continue;
            }
            let over = AtomicBool::new(false);
            let without = Without::standard();
            let zeros = std::thread::scope(|scope| {
                let _over = Over(&over);
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        // SAFETY: reads the bytes.
                        (0..3).for_each(|number| _ = unsafe { libc::write(number, b"printed".as_ptr().cast(), 7) });
                    }
                });
                (0..200).all(|_| {
                    let pool = Pool::builder().capacity(2 * BLOCK).backing(backing).build().unwrap();
                    let mut region = pool.region(2 * BLOCK).unwrap();
                    region.populate().unwrap();
                    is_all(region.as_mut_slice(), 0)
                })
            });
            drop(without);
            assert!(zeros, "a pool has what was printed");
        }
    })
    .well();
}

#[test]
fn the_engines_descriptors_have_high_numbers_and_exec_closes_them() {
    alone(|| {
        for backing in BACKINGS {
            let before = open_numbers();
            let Some(pool) = pool(backing) else { continue };
            let used = Used::new(pool);
            let snapshot = used.regions[0].snapshot().unwrap();
            let exports = (snapshot.export().unwrap(), snapshot.export_copy().unwrap());
            let opened: Vec<RawFd> = open_numbers().difference(&before).copied().collect();
            assert!(opened.len() > 5 || backing == Backing::Hugetlb, "{opened:?}");
            for number in opened {
                // SAFETY: the descriptor is only queried.
                let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
                let what = || fs::read_link(format!("/proc/self/fd/{number}"));
                assert!(number >= HIGH, "{number}: {:?}", what());
                assert_eq!(fcntl_getfd(file), Ok(FdFlags::CLOEXEC), "{:?}", what());
            }
            drop(exports);
        }
    })
    .well();
}

/// For each descriptor of a pool's memory: whether it allows writes.
fn of_memory() -> Vec<bool> {
    let leads_to = |number: &RawFd| fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
    let all: Vec<_> = open_numbers().into_iter().map(|number| (number, leads_to(&number))).collect();
    let of_memory = all.iter().filter(|(_, to)| to.to_str().unwrap().contains("memfd:hugefork"));
    // SAFETY: the descriptor is only queried.
    let rights = |number: RawFd| unsafe { libc::fcntl(number, libc::F_GETFL) };
    let found = of_memory.map(|(number, to)| (rights(*number) & libc::O_ACCMODE != libc::O_RDONLY, number, to));
    found.inspect(|of| println!("{of:?} of {all:?}")).map(|(may_write, ..)| may_write).collect()
}

#[test]
fn a_pool_keeps_no_descriptor_of_its_memory_but_for_exports_and_hugetlb() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = built(builder(backing), backing) else { continue };
            let used = Used::new(pool);
            // In a process with a filter for system calls, the pool keeps one for reading.
            let is_filtered = fs::read_to_string("/proc/self/status").unwrap().contains("\nSeccomp:\t2\n");
            let kept = match backing {
                Backing::Hugetlb => vec![true],
                _ if is_filtered => vec![false],
                _ => vec![],
            };
            assert_eq!(of_memory(), kept, "{backing}");
            let stats = used.pool.stats();
            assert!(
                stats.bytes_base.zip(stats.bytes_huge).is_some_and(|(base, huge)| base + huge >= BLOCK),
                "{stats:?}"
            );
            let refused = used.regions[0].snapshot().unwrap().export().map(drop).unwrap_err();
            assert!(refused.to_string().contains("build the pool with exports(true)"), "{refused}");
            assert_eq!(refused.code(), ErrorCode::NotExportable);
            drop(used);
            let used = Used::new(built(builder(backing).exports(true), backing).unwrap());
            assert_eq!(of_memory(), [backing == Backing::Hugetlb], "{backing}");
            let export = used.regions[0].snapshot().unwrap().export().unwrap();
            assert_eq!(of_memory(), [backing == Backing::Hugetlb, false], "{backing}");
            drop((export, used));
            assert!(of_memory().is_empty());
        }
    })
    .well();
}

/// If the process may have only few descriptors, the engine's are at least not the standard ones, to which programs
/// print.
#[test]
fn a_process_that_may_have_few_descriptors_has_pools_too() {
    alone(|| {
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        let without = Without::standard();
        // SAFETY: reads `few`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let pool = Pool::builder().capacity(BLOCKS * BLOCK).build().unwrap();
        let used = Used::new(pool);
        // SAFETY: the descriptor is only queried.
        let are_open = [0, 1, 2].map(|number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
        drop(without);
        assert_eq!(are_open, [false; 3]);
        drop(used);
    })
    .well();
}

/// Closes one descriptor at a time. Some descriptors belong together, so the others of such a group are still open
/// then.
#[test]
fn any_one_descriptor_may_be_closed() {
    alone(|| {
        // Without its file, no hugetlb block can be shown.
        for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
            for nth in 0.. {
                let before = open_numbers();
                let Some(pool) = pool(backing) else { break };
                let mut used = Used::new(pool);
                let Some(&number) = open_numbers().difference(&before).nth(nth) else { break };
                // SAFETY: the program may do as it likes with its numbers.
                assert_eq!(unsafe { libc::close(number) }, 0);
                used.work(2).unwrap();
            }
        }
    })
    .well();
}

/// The thread that watches memory pressure sleeps in a call that names its files by their numbers. The program may give
/// a number to a file of its own meanwhile, and then drop the pool.
#[test]
fn a_pool_goes_whose_watcher_sleeps_on_a_file_of_the_program() {
    alone(|| {
        let (nobody_writes, _writer) = std::io::pipe().unwrap();
        for nth in 0.. {
            let before = sockets();
            let pool = pool(Backing::ShmemBase).unwrap();
            if !pool.stats().pressure.running {
                println!("skipped: no pressure file can be watched here");
                return;
            }
            until("a watcher that sleeps", || sleeps_in_poll("hugefork-press"));
            let Some(&(number, _)) = sockets().difference(&before).nth(nth) else {
                assert_eq!(nth, 2, "the sockets of a watcher");
                return;
            };
            // SAFETY: the program may do as it likes with its numbers.
            assert_eq!(unsafe { libc::dup2(nobody_writes.as_raw_fd(), number) }, number);
            drop(pool);
            // SAFETY: the number is the program's by now.
            assert_eq!(unsafe { libc::close(number) }, 0, "the engine has closed it");
        }
    })
    .well();
}

/// The open sockets: their numbers, and names that no other socket has. The watcher of an earlier pool may close its
/// own at any moment, and a later pool may get the same numbers.
fn sockets() -> BTreeSet<(RawFd, PathBuf)> {
    let link = |number| Some((number, fs::read_link(format!("/proc/self/fd/{number}")).ok()?));
    let is_socket = |(_, link): &(RawFd, PathBuf)| link.to_string_lossy().starts_with("socket:");
    open_numbers().into_iter().filter_map(link).filter(is_socket).collect()
}

/// Whether all threads of this name sleep in `poll`, and there is one.
fn sleeps_in_poll(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut of_name = threads.filter(|thread| read(thread.join("comm")).trim() == name).peekable();
    of_name.peek().is_some() && of_name.all(|thread| read(thread.join("wchan")).contains("poll"))
}
