//! Impossible sizes, and resources that run out. A call returns an error that says what to do. A fault prints one line
//! and raises `SIGBUS`.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::alone::{alone, check_one_line};
use crate::common::by_block;
use crate::common::seccomp::{every, refuse};
use crate::common::signals::{address_of, block, give_up, handle, handle_info};
use hugefork::{
    Backing, BlockSize, BuildError, Commit, Fallback, Granted, Pool, Region, RegionError, RegionOptions, Reserve,
    SizeError,
};
use libc::{SIGBUS, siginfo_t};

const BLOCK: usize = 2 << 20;

fn build(capacity: usize) -> Result<Pool, BuildError> {
    Pool::builder().name("test").capacity(capacity).build()
}

/// A read may be copying from a block while the block is taken away, freed and given back to the system.
#[test]
fn a_read_of_what_is_revoked_and_trimmed_meanwhile_is_an_error() {
    const BLOCKS: usize = 8;
    alone(|| {
        let pool = Pool::builder().capacity(BLOCKS * BLOCK).obtain_ahead(0).build().unwrap();
        let region = pool.region_with(BLOCKS * BLOCK, by_block()).unwrap();
        let words = region.as_atomic_u64s();
        for round in 0..20 {
            words.iter().step_by(512).for_each(|word| word.store(7, Ordering::Relaxed));
            let snapshot = region.snapshot().unwrap();
            let reads = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut bytes = vec![0; BLOCKS * BLOCK];
                    loop {
                        if let Err(error) = snapshot.read_at(0, &mut bytes) {
                            return error;
                        }
                        assert!(bytes.chunks(4096).all(|page| page[0] == 7));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
                while reads.load(Ordering::Relaxed) <= round % 3 {
                    std::thread::yield_now();
                }
                // The pool is full: each write takes the block away from the snapshot.
                words.iter().step_by(BLOCK / 8).for_each(|word| word.store(1, Ordering::Relaxed));
                region.discard(0..region.len()).unwrap();
                pool.trim().unwrap();
                let error = reader.join().unwrap();
                assert!(matches!(error, RegionError::Revoked), "{error}");
            });
        }
    })
    .well();
}

/// The read writes to the region, and the fault of this write takes away the block that is being read.
#[test]
fn a_read_into_the_region_that_wants_its_block_back_ends() {
    alone(|| {
        let pool = Pool::builder().capacity(BLOCK).obtain_ahead(0).build().unwrap();
        let mut region = pool.region_with(BLOCK, by_block()).unwrap();
        region.as_mut_slice().fill(7);
        let snapshot = region.snapshot().unwrap();
        // The read has all bytes, or fails because its own write took the block away.
        match snapshot.read_at(0, &mut region.as_mut_slice()[..100_000]) {
            Ok(()) => assert!(region.as_mut_slice().iter().all(|&byte| byte == 7)),
            Err(error) => assert!(matches!(error, RegionError::Revoked), "{error}"),
        }
        assert!(snapshot.is_revoked());
    })
    .well();
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for bytes in [0, 1, 2048, 3 << 20, 2 << 30, usize::MAX] {
        let error = BlockSize::new(bytes).unwrap_err();
        assert!(matches!(error, SizeError::NotABlockSize { bytes: asked, .. } if asked == bytes), "{error}");
    }
    let zero = build(0).unwrap_err();
    assert!(matches!(zero, BuildError::Capacity(SizeError::Zero { .. })), "{zero}");
    for (capacity, next) in [(1, BLOCK), (BLOCK + 4096, 2 * BLOCK)] {
        let error = build(capacity).unwrap_err();
        assert!(matches!(error, BuildError::Capacity(SizeError::NotAMultiple { .. })), "{error}");
        assert!(error.to_string().contains(&format!("next multiple is {next} ")), "{error}");
    }
    let pool = build(2 * BLOCK).unwrap();
    assert!(matches!(pool.region(0), Err(RegionError::Length(SizeError::Zero { .. }))));
    for len in [1, BLOCK - 1, BLOCK + 4096] {
        let error = pool.region(len).unwrap_err();
        assert!(matches!(error, RegionError::Length(SizeError::NotAMultiple { .. })), "{len}: {error}");
    }
    for len in [3 * BLOCK, 2 * BLOCK + 1, usize::MAX - BLOCK + 1, usize::MAX] {
        let error = pool.region(len).unwrap_err();
        assert!(matches!(error, RegionError::LargerThanPool { .. }), "{len}: {error}");
        assert!(error.to_string().contains("pool `test`"), "{error}");
    }
    assert_eq!(pool.stats().regions, 0);
}

#[test]
fn a_capacity_beyond_the_machine_is_refused() {
    for huge in [usize::MAX - BLOCK + 1, usize::MAX] {
        assert!(matches!(build(huge), Err(BuildError::TooManyBlocks { .. })));
    }
    let largest = Pool::builder().block_size(BlockSize::GIB_1).capacity(1 << 57);
    for commit in [Commit::OnDemand, Commit::Upfront] {
        for backing in [Backing::Auto, Backing::Hugetlb, Backing::ShmemBase] {
            let error = largest.clone().commit(commit).backing(backing).build().unwrap_err();
            let BuildError::BeyondTheMachine { capacity, available, .. } = error else { panic!("{error}") };
            assert!(capacity == 1 << 57 && available < capacity);
        }
    }
    let BuildError::BeyondTheMachine { available: total, .. } = largest.build().unwrap_err() else { panic!() };
    let error = build((total + 1).next_multiple_of(BLOCK)).unwrap_err();
    assert!(matches!(error, BuildError::BeyondTheMachine { .. }), "{error}");
    assert!(error.to_string().contains("lower the capacity"), "{error}");
}

#[test]
fn too_few_hugetlb_pages_are_an_error_or_another_backing() {
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}")).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let (Some(pages), Some(more)) = (number("nr_hugepages"), number("nr_overcommit_hugepages")) else {
        println!("skipped: this kernel has no hugetlb");
        return;
    };
    let (capacity, block_size) = ((pages + more + 1) * BLOCK, BlockSize::MIB_2);
    let builder = Pool::builder().capacity(capacity).block_size(block_size).backing(Backing::Hugetlb);
    let error = builder.clone().fallback(Fallback::Refused).build().unwrap_err();
    assert!(matches!(error, BuildError::BackingUnavailable { backing: Backing::Hugetlb, .. }), "{error}");
    assert!(error.to_string().contains("sysctl -w vm.nr_hugepages="), "{error}");

    let pool = builder.build().unwrap();
    assert_ne!(pool.backing(), Granted::Hugetlb);
    assert!(pool.fallback_reason().unwrap().contains("nr_hugepages"), "{:?}", pool.fallback_reason());
    let mut region = pool.region(block_size.bytes()).unwrap();
    region.as_mut_slice()[1] = 1;

    let small = Pool::builder().capacity(BLOCK).block_size(BlockSize::KIB_4).backing(Backing::Hugetlb);
    let error = small.fallback(Fallback::Refused).build().unwrap_err();
    assert!(error.to_string().contains("take blocks of"), "{error}");
}

/// An error for want of descriptors must not be reported as a missing backing.
#[test]
fn a_pool_without_descriptors_says_so() {
    alone(|| {
        let limit = libc::rlimit { rlim_cur: 4, rlim_max: 4 };
        // SAFETY: reads the limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        for backing in [Backing::Hugetlb, Backing::ShmemHuge, Backing::Auto] {
            let builder = Pool::builder().capacity(2 * BLOCK).backing(backing).fallback(Fallback::Refused);
            if let Err(error) = builder.build() {
                let said = error.to_string();
                assert!(said.contains("ulimit -n") && !said.contains("has no"), "{said}");
            }
        }
    })
    .well();
}

/// A control group (version 1 or 2) with less memory than the machine has. The process is in it until this is dropped.
struct SmallGroup {
    before: PathBuf,
    own: PathBuf,
}

impl SmallGroup {
    fn enter(bytes: usize) -> Option<SmallGroup> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let of = |controllers: &str, mount: &str, limit: &'static str| {
            let path =
                groups.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(controllers)?.strip_prefix(":/"));
            path.map(|path| (Path::new(mount).join(path), limit))
        };
        let candidates =
            [of("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"), of("", "/sys/fs/cgroup", "memory.max")];
        for (before, limit) in candidates.into_iter().flatten() {
            let own = before.join(format!("hugefork-small-{}", std::process::id()));
            if fs::create_dir(&own).is_ok() {
                let group = SmallGroup { before, own };
                let limited = fs::write(group.own.join(limit), bytes.to_string());
                match limited.and_then(|()| SmallGroup::go_to(&group.own)) {
                    Ok(()) => return Some(group),
                    Err(error) => println!("{}: {error}", group.own.display()),
                }
            }
        }
        println!("skipped: no control group can be made that limits memory");
        None
    }

    fn go_to(group: &Path) -> std::io::Result<()> {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        let _ = SmallGroup::go_to(&self.before);
        fs::remove_dir(&self.own).unwrap();
    }
}

#[test]
fn a_pool_that_a_control_group_has_no_room_for_is_refused_whatever_its_version() {
    alone(|| {
        let Some(_group) = SmallGroup::enter(64 * BLOCK) else { return };
        for commit in [Commit::OnDemand, Commit::Upfront] {
            let error = Pool::builder().capacity(65 * BLOCK).commit(commit).build().unwrap_err();
            assert!(matches!(error, BuildError::BeyondTheMachine { .. }), "{error}");
            assert!(error.to_string().contains("the control group (memory."), "{error}");
        }
        drop(build(8 * BLOCK).unwrap());
    })
    .well();
}

/// A full pool of two blocks and the region that filled it: one block is the region's own, the other is left to a
/// snapshot.
fn full_pool() -> (Pool, Region, hugefork::Snapshot) {
    let pool = build(2 * BLOCK).unwrap();
    let mut region = pool.region_with(2 * BLOCK, by_block()).unwrap();
    region.as_mut_slice()[0] = 1;
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[0] = 2;
    assert_eq!(pool.stats().blocks_free, 0);
    (pool, region, snapshot)
}

#[test]
fn calls_on_a_full_pool_return_an_error_and_change_nothing() {
    let (pool, mut region, snapshot) = full_pool();
    let full = region.populate().unwrap_err();
    assert!(matches!(&full, RegionError::PoolFull { pool, capacity_blocks: 2, .. } if pool == "test"), "{full}");
    assert!(full.to_string().contains("pool `test` is full") && full.to_string().contains("more capacity"));
    assert_eq!(region.prepare_write(BLOCK..BLOCK + 1), Err(full.clone()));
    assert!(matches!(
        region.fork_with(RegionOptions::new().reserve(Reserve::Full)),
        Err(RegionError::NotReservable { wanted: 2, available: 0, .. })
    ));
    let second = region.snapshot().unwrap();
    let fork = snapshot.fork_with(by_block()).unwrap();
    assert_eq!(fork.prepare_write(0..1), Err(full.clone()), "the block is shared and cannot be copied");
    assert_eq!(fork.discard(0..1), Err(full), "nor can a part of it become zero");
    assert_eq!((snapshot[0], second[0], region.as_mut_slice()[0], region.as_mut_slice()[BLOCK]), (1, 2, 2, 0));
    assert_eq!(pool.stats().blocks_free, 0);
    drop((snapshot, fork));
    region.populate().unwrap();
    assert_eq!((second[0], region.as_mut_slice()[0]), (2, 2));
    drop(second);
    region.as_mut_slice().fill(3);
}

#[test]
fn a_pool_is_not_used_up_by_blocks_that_nobody_wrote_to() {
    let builder = Pool::builder().capacity(2 * BLOCK).block_size(BlockSize::KIB_4).backing(Backing::ShmemBase);
    let pool = builder.build().unwrap();
    let regions: Vec<Region> = (0..3).map(|_| pool.region(BLOCK).unwrap()).collect();
    for (nth, region) in regions.iter().enumerate() {
        let written = region.prepare_write(0..1);
        assert!(written.is_ok(), "{nth} of 1024 blocks were written to: {written:?}");
    }
}

#[track_caller]
fn check_says_that_the_pool_is_full(said: &str) {
    check_one_line(said, &["pool `test` is full", "drop a fork or snapshot", "more capacity", "SIGBUS"]);
}

#[test]
fn a_write_that_finds_the_pool_full_is_a_bus_error() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let (_pool, mut region, _snapshot) = full_pool();
        region.as_mut_slice()[BLOCK] = 1;
    });
    check_says_that_the_pool_is_full(&ended.by(SIGBUS));
}

/// Rust's own handler restores the default action, and the thread repeats the write.
#[test]
fn in_a_program_with_rusts_own_handler_the_line_comes_once_too() {
    let ended = alone(|| {
        let (_pool, mut region, _snapshot) = full_pool();
        region.as_mut_slice()[BLOCK] = 1;
    });
    check_says_that_the_pool_is_full(&ended.by(SIGBUS));
}

#[test]
fn a_handler_that_has_the_write_repeated_reads_the_line_each_time() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count_to_three(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        if TIMES.fetch_add(1, Ordering::Relaxed) == 2 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
    }
    let ended = alone(|| {
        handle_info(SIGBUS, count_to_three);
        let (_pool, mut region, _snapshot) = full_pool();
        region.as_mut_slice()[BLOCK] = 1;
    });
    assert_eq!(ended.stderr.matches("pool `test` is full").count(), 3, "{ended}");
    ended.well();
}

#[test]
fn a_copy_that_finds_the_pool_full_is_a_bus_error() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let (_pool, _region, snapshot) = full_pool();
        snapshot.fork_with(by_block()).unwrap().as_mut_slice()[5] = 1;
    });
    check_says_that_the_pool_is_full(&ended.by(SIGBUS));
}

#[test]
fn a_bus_error_kills_a_thread_that_has_it_blocked() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let (_pool, mut region, _snapshot) = full_pool();
        let write = || {
            block(&[SIGBUS]);
            region.as_mut_slice()[BLOCK] = 1;
        };
        std::thread::scope(|scope| scope.spawn(write).join().unwrap());
    });
    check_says_that_the_pool_is_full(&ended.by(SIGBUS));
}

#[test]
fn a_bus_error_kills_where_it_is_ignored() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_IGN, 0, &[]);
        let (_pool, mut region, _snapshot) = full_pool();
        region.as_mut_slice()[BLOCK] = 1;
    });
    check_says_that_the_pool_is_full(&ended.by(SIGBUS));
}

#[test]
fn a_bus_error_handler_is_told_the_address() {
    static EXPECTED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn look(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel made it.
        let code = unsafe { (*info).si_code };
        if address_of(info) != EXPECTED.load(Ordering::Relaxed) || code != libc::BUS_ADRERR {
            give_up("the handler got another fault\n");
        }
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
    alone(|| {
        handle_info(SIGBUS, look);
        let (_pool, mut region, _snapshot) = full_pool();
        let at = &mut region.as_mut_slice()[BLOCK + 12345];
        EXPECTED.store(std::ptr::from_mut(at).addr(), Ordering::Relaxed);
        *at = 1;
        give_up("the write was completed\n");
    })
    .well();
}

#[test]
fn a_write_that_cannot_be_completed_nor_reported_as_a_bus_error_aborts() {
    let ended = alone(|| {
        handle(libc::SIGABRT, libc::SIG_DFL, 0, &[]);
        let (_pool, mut region, _snapshot) = full_pool();
        refuse(every(libc::SYS_rt_tgsigqueueinfo, libc::EPERM));
        region.as_mut_slice()[BLOCK] = 1;
    });
    let said = ended.by(libc::SIGABRT);
    let (full, abort) = said.trim().split_once('\n').expect("two lines");
    check_says_that_the_pool_is_full(full);
    check_one_line(abort, &["SIGBUS", "rt_tgsigqueueinfo failed", "EPERM", "aborting"]);
}

#[test]
fn a_read_of_what_was_taken_away_that_cannot_be_a_bus_error_aborts() {
    let ended = alone(|| {
        handle(libc::SIGABRT, libc::SIG_DFL, 0, &[]);
        let pool = build(BLOCK).unwrap();
        let mut region = pool.region_with(BLOCK, by_block()).unwrap();
        region.as_mut_slice()[0] = 1;
        let snapshot = region.snapshot().unwrap();
        let first = snapshot.as_ptr();
        region.as_mut_slice()[0] = 2;
        refuse(every(libc::SYS_rt_tgsigqueueinfo, libc::EPERM));
        // SAFETY: nothing is mapped there any more.
        unsafe { first.read_volatile() };
    });
    assert!(ended.by(libc::SIGABRT).contains("aborting"));
}

fn limit_address_space(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads `limit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

#[test]
fn a_small_address_space_is_made_do_with_until_it_is_used_up() {
    alone(|| {
        limit_address_space(40 << 30);
        let pool = build(64 << 20).unwrap();
        let mut regions = Vec::new();
        let error = loop {
            match pool.region(64 << 20) {
                Ok(mut region) => {
                    region.as_mut_slice()[BLOCK * (regions.len() % 32)] = 1;
                    region.discard(0..64 << 20).unwrap();
                    regions.push(region);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, RegionError::OutOfAddresses { len, .. } if len == 64 << 20), "{error}");
        assert!(error.to_string().contains("RLIMIT_AS"), "{error}");
        assert!(regions.len() >= 64, "{}", regions.len());
        assert!(matches!(regions[0].fork(), Err(RegionError::OutOfAddresses { .. })));
        drop(regions.pop());
        regions[0].as_mut_slice()[7] = 7;
        assert_eq!(regions[0].fork().unwrap().as_mut_slice()[7], 7);
        drop(regions);
        assert_eq!(pool.stats().blocks_free, 32);
    })
    .well();
}

#[test]
fn an_address_space_too_small_for_any_region_is_an_error_that_names_the_limit() {
    alone(|| {
        limit_address_space(8 << 30);
        let error = build(64 << 20).unwrap_err();
        assert!(error.to_string().contains("RLIMIT_AS"), "{error}");
    })
    .well();
}

#[test]
fn a_pool_that_finds_no_addresses_says_what_to_raise() {
    alone(|| {
        // There are addresses for the arena, but not for a pool of that size in it.
        limit_address_space(20 << 30);
        match build(16 << 30).unwrap_err() {
            error @ BuildError::BeyondTheMachine { .. } => println!("skipped: {error}"),
            error => assert!(error.to_string().contains("RLIMIT_AS"), "{error}"),
        }
        build(64 << 20).unwrap().region(64 << 20).unwrap().as_mut_slice()[7] = 1;
    })
    .well();
}

#[test]
fn a_limit_on_files_is_an_error_and_not_the_end_of_the_process() {
    alone(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: reads `limit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let error = build(64 << 20).unwrap_err();
        assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
    })
    .well();
}

#[test]
fn a_limit_on_descriptors_is_said_and_not_taken_for_a_missing_backing() {
    fn limit(descriptors: u64) {
        let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: 1024 };
        // SAFETY: reads `limit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    }
    alone(|| {
        let reason = |pool: Pool| pool.fallback_reason().map(str::to_owned);
        let unlimited = reason(build(64 << 20).unwrap());
        let mut refused = 0;
        for descriptors in 3..12 {
            limit(descriptors);
            let built = build(64 << 20).map(reason);
            limit(1024);
            let said = match built {
                Ok(reason) if reason == unlimited => continue,
                Ok(reason) => reason.expect("it is no better with fewer descriptors"),
                Err(error) => error.to_string(),
            };
            assert!(said.contains("RLIMIT_NOFILE"), "with {descriptors}: {said}");
            refused += 1;
        }
        assert!(refused > 0, "three descriptors are no limit");
        // The error names a backing that was asked for; it does not blame base pages, which every machine has.
        limit(3);
        let any = build(64 << 20).unwrap_err();
        let huge = Pool::builder().capacity(64 << 20).backing(Backing::ShmemHuge).fallback(Fallback::Refused);
        let huge = huge.build().unwrap_err();
        limit(1024);
        assert!(matches!(&any, BuildError::System(error) if error.call() == "memfd_create"), "{any:?}");
        assert!(matches!(huge, BuildError::BackingUnavailable { .. }), "{huge:?}");
    })
    .well();
}

#[test]
fn a_pools_name_is_part_of_one_line() {
    let pool = Pool::builder().name("a\nb\0").capacity(2 << 20).build().unwrap();
    assert_eq!(pool.name(), "a?b?");
}
