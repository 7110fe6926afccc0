//! The pressure watcher, with the kernel's own events. Tasks really wait for memory here, but no other process loses
//! any: the kernel counts it as pressure when a much-used page of a file was evicted and is read again, and a process
//! may evict its own pages (`MADV_PAGEOUT`).

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::alone::alone;
use common::wait::{Asleep, PATIENCE, asleep, named, until};
use hugefork::{Backing, Pool, PoolBuilder, PressureStats, PressureWatch};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;
const SYSTEM: &str = "/proc/pressure/memory";

/// Pressure concerns the whole machine, so one test runs at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool without hugetlb pages, which would stay with the pool.
fn builder(blocks: usize) -> PoolBuilder {
    Pool::builder().name("watching").capacity(blocks * BLOCK).backing(Backing::ShmemHuge)
}

/// A trigger that never fires: tasks would have to wait for two seconds out of two.
fn never() -> PressureWatch {
    PressureWatch::new().stall(Duration::from_secs(2), Duration::from_secs(2))
}

/// A pool that watches for pressure; `None`, with a message, if the kernel accepts no trigger from this process.
fn watching(blocks: usize, watch: PressureWatch) -> Option<Pool> {
    // With a descriptor, by which the kernel tells how much memory the pool has.
    let pool = builder(blocks).exports(true).reclaim_under_pressure(watch).build().unwrap();
    let trigger = File::options().read(true).write(true).open(SYSTEM).and_then(|mut file| {
        // Each trigger needs a file of its own.
        file.write_all(b"some 2000000 2000000\0")
    });
    match trigger {
        Ok(()) => assert!(pool.stats().pressure.running, "a trigger is to be had"),
        Err(error) => println!("skipped: {SYSTEM} takes no trigger: {error}"),
    }
    pool.stats().pressure.running.then_some(pool)
}

/// The number of the watcher's thread.
fn thread() -> Option<i32> {
    named("hugefork-press")
}

/// Waits until the watcher sleeps without a time limit: until the kernel reports something, or the pool ends it.
fn until_it_sleeps() {
    let is_idle = |Asleep { call, arguments }: Asleep| match call {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => arguments[2] as i32 == -1,
        libc::SYS_ppoll => arguments[2] == 0,
        _ => false,
    };
    until("a watcher that sleeps", || thread().and_then(asleep).is_some_and(is_idle));
}

/// The open files of this process whose names contain `part`.
fn open_files(part: &str) -> Vec<PathBuf> {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    files.filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(part))).collect()
}

/// A file whose pages are evicted and read again.
struct Thrashing {
    file: File,
    path: PathBuf,
    at: *mut u8,
}

impl Thrashing {
    const PAGES: usize = 2048;

    fn new() -> Thrashing {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("thrashing.{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&vec![7; Self::PAGES * PAGE], 0).unwrap();
        // The kernel cannot evict pages that are not on the disk yet.
        file.sync_all().unwrap();
        let len = Self::PAGES * PAGE;
        // SAFETY: a new mapping of a file that only this process has.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::madvise(at, len, libc::MADV_RANDOM), 0);
            at.cast()
        };
        Thrashing { file, path, at }
    }

    /// Evicts and reads pages until `done`, but for at most `most`. True if `done`.
    fn until(&self, done: impl Fn() -> bool, most: Duration) -> bool {
        let started = Instant::now();
        while !done() {
            if started.elapsed() > most {
                return false;
            }
            for page in 0..Self::PAGES {
                (0..8).for_each(|_| self.file.read_exact_at(&mut [0], (page * PAGE) as u64).unwrap());
                self.touch(page);
            }
            // SAFETY: this is the mapping of `new`, whose contents are in the file.
            let taken = unsafe { libc::madvise(self.at.cast(), Self::PAGES * PAGE, libc::MADV_PAGEOUT) };
            assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
            (0..Self::PAGES).take_while(|page| page % 8 != 0 || !done()).for_each(|page| self.touch(page));
        }
        true
    }

    fn touch(&self, page: usize) {
        // SAFETY: it is inside the mapping of `new`.
        assert_eq!(unsafe { self.at.add(page * PAGE).read_volatile() }, 7);
    }

    /// The microseconds for which tasks of this machine have waited for memory.
    fn stalled() -> u64 {
        let text = fs::read_to_string(SYSTEM).unwrap();
        text.lines().next().unwrap().rsplit_once('=').unwrap().1.parse().unwrap()
    }

    /// Whether tasks on this machine wait when their pages are evicted. Prints a message if they do not.
    fn works(&self) -> bool {
        // Read only twice, because reading often in intervals below a jiffy makes the kernel lose time.
        let (started, before) = (Instant::now(), Self::stalled());
        self.until(|| started.elapsed() > Duration::from_secs(1), Duration::MAX);
        let works = Self::stalled() > before + 50_000;
        if !works {
            println!("skipped: nobody waits for a file on this disk whose pages were taken away");
        }
        works
    }
}

impl Drop for Thrashing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn while_tasks_wait_for_memory_what_was_lazily_freed_first_goes_back_first() {
    let _one = one_at_a_time();
    alone(|| {
        let thrashing = Thrashing::new();
        if !thrashing.works() {
            return;
        }
        let watch = PressureWatch::new().stall(Duration::from_millis(20), Duration::from_secs(2)).step(2 * BLOCK);
        let Some(pool) = watching(32, watch) else { return };
        let (mut young, mut old, mut kept) =
            (pool.region(8 * BLOCK).unwrap(), pool.region(16 * BLOCK).unwrap(), pool.region(4 * BLOCK).unwrap());
        for (region, value) in [(&mut young, 1), (&mut old, 2), (&mut kept, 3)] {
            region.as_mut_slice().fill(value);
        }
        old.lazy_free(0..16 * BLOCK).unwrap();
        young.lazy_free(0..8 * BLOCK).unwrap();
        let memory = || {
            let files = open_files("memfd:hugefork");
            assert_eq!(files.len(), 1, "{files:?}");
            fs::metadata(&files[0]).unwrap().blocks() as usize * 512
        };
        let before = memory();
        assert!(before >= 28 * BLOCK);
        let pressure = || pool.stats().pressure;
        assert!(thrashing.until(|| pressure().bytes_reclaimed > 0, PATIENCE), "{:?}", pressure());
        // The kernel may report once more although the pressure is over.
        let mut seen = None;
        until("a watcher that is done", || {
            until_it_sleeps();
            let first = pressure();
            seen = Some((first, [&old, &young].map(|region| region.stats().blocks_lazy), memory()));
            pressure() == first
        });
        let (first, lazy, memory_then) = seen.unwrap();
        let dropped = first.bytes_reclaimed as usize / BLOCK;
        assert_eq!(lazy, [16 - dropped.min(16), 8 + 16 - dropped.max(16)], "oldest first: {first:?}");
        assert_eq!(memory_then, before - first.bytes_trimmed as usize, "{first:?}");

        let all = 24 * BLOCK as u64;
        assert!(thrashing.until(|| pressure().bytes_trimmed >= all, PATIENCE), "{:?}", pressure());
        let last = pressure();
        assert!(last.events >= 1 && last.bytes_reclaimed == all && last.running, "{last:?}");
        assert_eq!(memory(), before - last.bytes_trimmed as usize);
        for (region, value) in [(&mut young, 0), (&mut old, 0), (&mut kept, 3)] {
            assert!(region.as_mut_slice().iter().step_by(PAGE).all(|&byte| byte == value));
        }
        young.as_mut_slice().fill(4);
    })
    .well();
}

#[test]
fn while_nobody_waits_it_takes_no_cpu_time_and_it_goes_with_the_pool() {
    let _one = one_at_a_time();
    alone(|| {
        let Some(pool) = watching(4, never()) else { return };
        let thread_of_pool = thread().expect("it runs");
        let status = fs::read_to_string(format!("/proc/self/task/{thread_of_pool}/status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        let all = [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD, libc::SIGPROF];
        assert!(all.iter().all(|signal| blocked >> (signal - 1) & 1 == 1), "{blocked:x}");

        until_it_sleeps();
        let (other, region) = (pool.clone(), pool.region(BLOCK).unwrap());
        drop(pool);
        drop(other);
        assert!(thread().is_some(), "the region has the pool");
        drop(region);
        assert_eq!((thread(), open_files("memory.pressure"), open_files("eventfd")), (None, vec![], vec![]));
        assert!(open_files(SYSTEM).is_empty());
    })
    .well();
}

#[test]
fn a_fork_child_has_none() {
    let _one = one_at_a_time();
    alone(|| {
        let Some(pool) = watching(4, never()) else { return };
        // SAFETY: the only other thread of this process is the watcher, and it holds no lock of the allocator in its
        // sleep.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: a child that hangs ends with SIGALRM.
                unsafe { libc::alarm(300) };
                let as_expected = thread().is_none() && !pool.stats().pressure.running;
                drop(pool);
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!as_expected)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: writes the status.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
                assert!(thread().is_some() && pool.stats().pressure.running);
            }
        }
    })
    .well();
}

#[test]
fn where_pressure_cannot_be_watched_the_pool_works_without_and_says_so_once() {
    let _one = one_at_a_time();
    let precious = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("precious.{}", std::process::id()));
    let ended = alone(|| {
        // Not the file of the parent process, which waits for this one.
        let precious = precious.with_extension("child");
        fs::write(&precious, "precious data").unwrap();
        let too_long = never().stall(Duration::from_secs(3), Duration::from_secs(2));
        for watch in [
            PressureWatch::file("/nonexistent/memory.pressure"),
            PressureWatch::file(&precious),
            PressureWatch::file("/dev/null"),
            too_long,
        ] {
            let pool = builder(4).reclaim_under_pressure(watch).build().unwrap();
            assert_eq!((pool.stats().pressure, thread()), (PressureStats::default(), None));
            let mut region = pool.region(BLOCK).unwrap();
            region.as_mut_slice().fill(1);
            region.lazy_free(0..BLOCK).unwrap();
            assert_eq!(pool.reclaim(BLOCK).unwrap(), BLOCK);
        }
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious data");
        fs::remove_file(precious).unwrap();
        assert!(open_files("eventfd").is_empty());
    });
    let said: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("hugefork: ")).collect();
    let all = [
        "/nonexistent/memory.pressure: open failed: no such file or directory (ENOENT)",
        "child: no pressure file",
        "/dev/null: no pressure file",
        "/memory: ",
    ];
    assert_eq!(said.len(), all.len(), "{ended}");
    for (line, part) in said.iter().zip(all) {
        assert!(line.contains("pool `watching` does not watch memory pressure: ") && line.contains(part), "{ended}");
    }
    ended.well();
}

#[test]
fn hugetlb_pages_stay_with_the_pool_so_it_does_not_watch() {
    let _one = one_at_a_time();
    let ended = alone(|| {
        let Some(_) = common::pool(Backing::Hugetlb, 2 * BLOCK, hugefork::BlockSize::MIB_2) else { return };
        let pool = builder(2).backing(Backing::Hugetlb).reclaim_under_pressure(PressureWatch::new()).build().unwrap();
        assert!(!pool.stats().pressure.running);
        eprintln!("built");
    });
    let said = ended.stderr.lines().filter(|line| line.contains("hugetlb pages are set aside")).count();
    assert_eq!(said, usize::from(ended.stderr.contains("built")), "{ended}");
    ended.well();
}

/// Without privileges, windows must be multiples of 2 s, and old kernels accept none.
#[test]
fn a_process_without_privileges_watches_the_machine_where_the_kernel_lets_it() {
    let _one = one_at_a_time();
    alone(|| {
        // SAFETY: this process has one thread.
        if unsafe { libc::setgid(65534) != 0 || libc::setuid(65534) != 0 } && unsafe { libc::geteuid() } == 0 {
            return println!("skipped: cannot give privileges up");
        }
        let one_second = never().stall(Duration::from_millis(500), Duration::from_secs(1));
        let pool = builder(4).reclaim_under_pressure(one_second).build().unwrap();
        assert!(!pool.stats().pressure.running, "only for privileged processes");
        let Some(pool) = watching(4, never()) else { return };
        drop(pool);
        assert_eq!(thread(), None);
    })
    .well();
}

/// A control group of this process's own. The process is in it until this is dropped.
struct OwnGroup {
    before: PathBuf,
    own: PathBuf,
}

impl OwnGroup {
    fn enter() -> Option<OwnGroup> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let paths = roots.iter().filter_map(|root| Some(root.join(group?)));
        let before = paths.into_iter().find(|path| path.join("cgroup.controllers").exists());
        let Some(before) = before else {
            println!("skipped: no control groups of version 2");
            return None;
        };
        let own = before.join(format!("hugefork-pressure-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&own) {
            println!("skipped: no control group can be made: {error}");
            return None;
        }
        let group = OwnGroup { before, own };
        if let Err(error) = OwnGroup::go_to(&group.own) {
            println!("skipped: no process can be put into a control group: {error}");
            return None;
        }
        Some(group)
    }

    fn go_to(group: &Path) -> std::io::Result<()> {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let _ = OwnGroup::go_to(&self.before);
        fs::remove_dir(&self.own).unwrap();
    }
}

#[test]
fn it_watches_the_control_group_of_the_process_and_ends_with_it() {
    let _one = one_at_a_time();
    let ended = alone(|| {
        let Some(group) = OwnGroup::enter() else { return };
        let Some(pool) = watching(4, PressureWatch::new()) else { return };
        let file = group.own.join("memory.pressure");
        if !file.exists() {
            return println!("skipped: no PSI of control groups");
        }
        assert_eq!(open_files(&file.to_string_lossy()).len(), 1);
        drop(group);
        until("the end", || !pool.stats().pressure.running);
        until("the end of the thread", || thread().is_none());
        let mut region = pool.region(BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        eprintln!("outlived its group");
    });
    let said = ended.stderr.lines().filter(|line| line.contains("no longer watches memory pressure")).count();
    assert_eq!(said, usize::from(ended.stderr.contains("outlived its group")), "{ended}");
    ended.well();
}
