//! `vm.max_map_count` as a budget: a call that would exceed it returns an error before any fault fails.

use crate::common::alone::alone;
use crate::common::mappings::{build, leave, make_foreign_mappings};
use crate::common::signals::handle;
use hugefork::{Backing, BlockSize, Pool, Region, RegionError};
use libc::SIGBUS;
use procfs::process::Process;

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// The number of mappings of a region, as the kernel counts them.
fn mappings_of(region: &Region) -> usize {
    let start = region.as_ptr().addr() as u64;
    let end = start + region.len() as u64;
    let maps = Process::myself().unwrap().maps().unwrap();
    maps.into_iter().filter(|map| map.address.0 < end && start < map.address.1).count()
}

#[track_caller]
fn check_refused<T>(result: Result<T, RegionError>) {
    let Err(error) = result else { panic!("there is no room for its mappings") };
    assert!(matches!(error, RegionError::TooManyMappings { .. }), "{error}");
    let (limit, said) = (map_count_limit(), error.to_string());
    assert!(said.contains(&format!(" of {limit} (vm.max_map_count)")), "{said}");
    assert!(said.contains(&format!("sysctl -w vm.max_map_count={}", (4 * limit).max(65530))), "{said}");
}

fn map_count_limit() -> usize {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap()
}

#[test]
fn a_region_needs_room_for_its_mappings() {
    alone(|| {
        leave(0);
        let pool = build(4 * BLOCK, BlockSize::MIB_2);
        check_refused(pool.region(BLOCK));
        assert_eq!((pool.stats().regions, pool.stats().blocks_free), (0, 4));
    })
    .well();
}

#[test]
fn a_fork_needs_room_for_its_mappings_and_a_snapshot_only_to_be_looked_at() {
    alone(|| {
        leave(400);
        let pool = build(2 * BLOCK, BlockSize::KIB_4);
        let mut region = pool.region(BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        for page in (0..250).step_by(2) {
            region.discard(page * PAGE..(page + 1) * PAGE).unwrap();
        }
        assert_eq!((region.stats().mappings, mappings_of(&region)), (250, 250));
        check_refused(region.fork());
        let snapshot = region.snapshot().unwrap();
        assert_eq!((region.stats().mappings, mappings_of(&region)), (250, 250));
        check_refused(snapshot.map());
        check_refused(snapshot.fork());

        let mut bytes = [7; 2 * PAGE];
        snapshot.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..PAGE].iter().all(|&byte| byte == 0) && bytes[PAGE..].iter().all(|&byte| byte == 1));
        region.as_mut_slice()[PAGE] = 2;
        snapshot.read_at(PAGE, &mut bytes).unwrap();
        assert_eq!((bytes[0], region.as_mut_slice()[PAGE]), (1, 2));

        // Without the region there is room for the snapshot.
        drop(region);
        assert_eq!(snapshot[PAGE], 1);
        drop(snapshot);
        assert_eq!((pool.stats().blocks_free, pool.stats().mappings), (1024, 0));
    })
    .well();
}

#[test]
fn writes_that_split_mappings_stop_at_the_budget() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        leave(20);
        let pool = build(64 * BLOCK, BlockSize::MIB_2);
        let mut region = pool.region(64 * BLOCK).unwrap();
        let every_other = (0..64).step_by(2).map(|block| block * BLOCK);
        let refused = every_other.clone().find(|&at| region.prepare_write(at..at + 1).is_err()).unwrap();
        check_refused(region.prepare_write(refused..refused + 1));
        assert!((5..12).contains(&(refused / BLOCK / 2)), "{refused:#x}");
        for at in every_other.take_while(|&at| at < refused) {
            region.as_mut_slice()[at] = 1;
        }
        assert_eq!(region.as_mut_slice()[refused], 0);
        region.as_mut_slice()[refused] = 1;
    });
    let said = ended.by(SIGBUS);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("pool `test`") && said.contains("SIGBUS"), "{said}");
    assert!(said.contains(&format!(" of {} (vm.max_map_count)", map_count_limit())), "{said}");
}

#[test]
fn discards_that_split_mappings_leave_the_rest_of_the_program_its_share() {
    alone(|| {
        leave(400);
        let pool = build(16 * BLOCK, BlockSize::KIB_4);
        let mut region = pool.region(16 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        for page in (0..16 * BLOCK / PAGE).step_by(2) {
            match region.discard(page * PAGE..(page + 1) * PAGE) {
                Ok(()) => assert_eq!(region.as_mut_slice()[page * PAGE], 0),
                refused => check_refused(refused),
            }
        }
        make_foreign_mappings(500).expect("regions keep to their budget");
    })
    .well();
}

#[test]
fn a_limit_that_the_rest_of_the_program_used_up_is_an_error_from_calls_and_a_bus_error_from_writes() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let pool = build(64 * BLOCK, BlockSize::MIB_2);
        let mut region = pool.region(64 * BLOCK).unwrap();
        region.as_mut_slice()[0] = 1;
        make_foreign_mappings(map_count_limit()).unwrap_err();
        region.prepare_write(10 * BLOCK..10 * BLOCK + 1).unwrap_err();
        assert_eq!((region.as_mut_slice()[0], region.as_mut_slice()[10 * BLOCK]), (1, 0));
        region.as_mut_slice()[10 * BLOCK] = 1;
    });
    let said = ended.by(SIGBUS);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("pool `test`") && said.contains("SIGBUS"), "{said}");
}

/// As many regions as the process may have mappings for, or a hundred thousand. One too many is an error, and at the
/// end all are dropped.
#[test]
#[ignore = "a quarter of a minute without optimisation"]
fn a_hundred_thousand_regions_are_regions_or_an_error() {
    alone(|| {
        const MANY: usize = 100_000;
        let builder = Pool::builder().capacity(MANY * PAGE).block_size(BlockSize::KIB_4).backing(Backing::ShmemBase);
        let pool = builder.build().unwrap();
        let (mut regions, mut refused) = (Vec::new(), None);
        while regions.len() < MANY && refused.is_none() {
            match pool.region(PAGE) {
                Ok(mut region) => {
                    let nth = regions.len();
                    match region.prepare_write(0..8) {
                        Ok(()) => region.as_mut_slice()[..8].copy_from_slice(&nth.to_ne_bytes()),
                        Err(error) => refused = Some(error),
                    }
                    regions.push(region);
                }
                Err(error) => refused = Some(error),
            }
        }
        println!("{} regions, then {refused:?}", regions.len());
        let is_known = |error: &RegionError| matches!(error, RegionError::TooManyMappings { .. });
        assert!(refused.as_ref().is_none_or(is_known), "{refused:?}");
        let has_last = refused.is_some().then(|| regions.pop()).is_none();
        assert!(regions.len() > 10_000 && (has_last || regions.len() < MANY), "{} regions", regions.len());
        for (nth, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.as_mut_slice()[..8], nth.to_ne_bytes());
        }
        // The rest of the program still works.
        drop(std::thread::spawn(|| vec![1_u8; 4 << 20]).join().unwrap());
        drop(regions);
        assert_eq!(pool.stats().blocks_free, pool.stats().blocks);
        pool.region(PAGE).unwrap();
    })
    .well();
}
