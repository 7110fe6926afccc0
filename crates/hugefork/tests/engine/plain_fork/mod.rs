//! `fork(2)` by a program that uses hugefork: regions stay with the parent, whatever the child does.

mod holes;
mod inherited;

use core::sync::atomic::{AtomicBool, Ordering};

use crate::common::alone::alone;
use crate::common::forked::{
    POOL, check_fork, check_fork_dies_of_access_to, in_fork, pool_mappings, region_of_all_kinds,
};
use crate::common::{BACKINGS, pool};
use hugefork::{Backing, BlockSize, BuildError, CoreDump, Pool, RegionError};
use procfs::process::{MMPermissions, MemoryMap, VmFlags};

const BLOCK: usize = 2 << 20;

#[test]
fn a_child_cannot_touch_a_region() {
    let mut backings = 0;
    let ended = alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 8 * BLOCK, BlockSize::MIB_2) else { continue };
            let (mut region, fork, snapshot) = region_of_all_kinds(&pool);
            let before = region.as_mut_slice().to_vec();
            for at in [0, BLOCK - 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK] {
                check_fork_dies_of_access_to(region.as_mut_ptr().wrapping_add(at));
            }
            check_fork_dies_of_access_to(fork.as_mut_ptr().wrapping_add(2 * BLOCK));
            check_fork_dies_of_access_to(snapshot.as_ptr().cast_mut().wrapping_add(2 * BLOCK));
            assert!(region.as_mut_slice() == before);
            region.as_mut_slice().fill(4);
            assert_eq!((snapshot[0], snapshot[2 * BLOCK]), (0, 1));
            backings += 1;
        }
        eprintln!("backings: {backings}");
    });
    // Each of the seven addresses is read and written.
    let said = ended.stderr.lines().filter(|line| line.contains("regions do not cross fork(2)")).count();
    let (_, backings) = ended.stderr.trim().rsplit_once("backings: ").expect("the last line");
    assert_eq!(said, 14 * backings.parse::<usize>().unwrap(), "{ended}");
    ended.well();
}

/// The mappings of a pool as a whole, each as its parts: only some parts are accessible.
fn of_whole_pool(maps: Vec<MemoryMap>, capacity: usize) -> Vec<Vec<MemoryMap>> {
    let mut joined: Vec<Vec<MemoryMap>> = Vec::new();
    for map in maps {
        let goes_on = |last: &&mut Vec<MemoryMap>| {
            let last = last.last().expect("there is one");
            let len = last.address.1 - last.address.0;
            last.address.1 == map.address.0 && last.offset + len == map.offset
        };
        match joined.last_mut().filter(goes_on) {
            Some(parts) => parts.push(map),
            None => joined.push(vec![map]),
        }
    }
    let len = |parts: &Vec<MemoryMap>| parts.iter().map(|map| (map.address.1 - map.address.0) as usize).sum::<usize>();
    joined.into_iter().filter(|parts| parts[0].offset == 0 && len(parts) == capacity).collect()
}

#[test]
fn a_child_cannot_touch_the_direct_map() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 8 * BLOCK, BlockSize::MIB_2) else { continue };
            let (mut region, ..) = region_of_all_kinds(&pool);
            let before = region.as_mut_slice().to_vec();
            // The whole pool is mapped once more for read-only mappings, and for private ones if it has any.
            let whole = of_whole_pool(pool_mappings(), pool.capacity());
            let is_writable = |map: &MemoryMap| map.perms.contains(MMPermissions::SHARED | MMPermissions::WRITE);
            assert_eq!(whole.iter().filter(|maps| maps.iter().any(is_writable)).count(), 1, "the direct map");
            for maps in whole {
                let start = maps[0].address.0 as usize;
                (start..start + pool.capacity())
                    .step_by(BLOCK)
                    .for_each(|at| check_fork_dies_of_access_to(std::ptr::with_exposed_provenance_mut(at)));
            }
            assert!(region.as_mut_slice() == before);
        }
    })
    .well();
}

#[test]
fn every_mapping_of_pool_memory_is_kept_from_children_and_the_direct_map_from_core_dumps() {
    alone(|| {
        for (backing, block_size, core_dump) in [
            (Backing::ShmemHuge, BlockSize::MIB_2, CoreDump::LeftOut),
            (Backing::Hugetlb, BlockSize::MIB_2, CoreDump::LeftOut),
            (Backing::ShmemBase, BlockSize::MIB_2, CoreDump::LeftOut),
            (Backing::ShmemBase, BlockSize::KIB_64, CoreDump::LeftOut),
            (Backing::ShmemBase, BlockSize::KIB_4, CoreDump::Included),
            (Backing::ShmemHuge, BlockSize::MIB_2, CoreDump::Included),
        ] {
            let capacity = 8 * block_size.bytes();
            if pool(backing, capacity, block_size).is_none() {
                continue;
            }
            let builder = Pool::builder().capacity(capacity).block_size(block_size).backing(backing);
            let pool = builder.core_dump(core_dump).build().unwrap();
            let held = region_of_all_kinds(&pool);
            // The pool's thread may make pieces of the direct map accessible meanwhile.
            let at = |maps: &[MemoryMap]| maps.iter().map(|map| map.address).collect::<Vec<_>>();
            let (maps, whole) = loop {
                let (maps, again) = (pool_mappings(), pool_mappings());
                if at(&maps) == at(&again) {
                    break (maps, of_whole_pool(again, capacity));
                }
            };
            assert!(maps.len() >= 5, "the direct map, two in the region, one in the fork, one in the snapshot");
            for map in maps {
                let flags = map.extension.vm_flags;
                assert!(flags.contains(VmFlags::DC), "{map:?}");
                let is_whole = whole.iter().flatten().any(|part| part.address == map.address);
                // The direct map, or the mapping from which read-only mappings are made.
                let is_direct = is_whole && map.perms.contains(MMPermissions::SHARED);
                let left_out = is_direct || core_dump == CoreDump::LeftOut;
                // `/proc/self/coredump_filter` leaves shared hugetlb memory out by default.
                if is_direct || backing != Backing::Hugetlb {
                    assert_eq!(flags.contains(VmFlags::DD), left_out, "{map:?}");
                }
            }
            drop((held, pool));
            assert!(pool_mappings().is_empty(), "nothing stays mapped");
        }
    })
    .well();
}

#[test]
fn a_child_gets_errors_and_not_its_parents_memory() {
    alone(|| {
        let pool = Pool::builder().capacity(8 * BLOCK).build().unwrap();
        let (mut region, fork, snapshot) = region_of_all_kinds(&pool);
        let unmapped = region.snapshot().unwrap();
        let refused = |result: Result<(), RegionError>| assert_eq!(result, Err(RegionError::ForkedChild));
        check_fork(|| {
            refused(pool.region(BLOCK).map(drop));
            refused(region.fork().map(drop));
            refused(region.snapshot().map(drop));
            refused(region.populate());
            refused(region.prepare_write(0..1));
            refused(region.discard(0..BLOCK));
            refused(fork.fork().map(drop));
            refused(snapshot.fork().map(drop));
            refused(snapshot.map().map(drop));
            refused(unmapped.map().map(drop));
            let mut bytes = [7; 3];
            refused(snapshot.read_at(0, &mut bytes));
            assert_eq!(bytes, [7; 3]);
            assert_eq!(Pool::builder().capacity(BLOCK).build().unwrap_err(), BuildError::ForkedChild);
            assert_eq!(pool.stats().regions, 0, "regions stay with the parent");
            // The child's own children find no more.
            check_fork(|| refused(region.fork().map(drop)));
        });
        let before = region.as_mut_slice().to_vec();
        assert!(unmapped[..] == before[..]);
        region.as_mut_slice()[0] += 1;
        assert_eq!(unmapped[0] + 1, region.as_mut_slice()[0]);
    })
    .well();
}

#[test]
fn what_a_child_drops_stays_with_its_parent() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 16 * BLOCK, BlockSize::MIB_2) else { continue };
            let other = Pool::builder().name("dropped in the child").capacity(BLOCK).build().unwrap();
            let (region, fork, snapshot) = region_of_all_kinds(&pool);
            let unmapped = region.snapshot().unwrap();
            let free = pool.stats().blocks_free;
            let mut all = Some((region, fork, snapshot, unmapped, pool.clone(), other));
            for _ in 0..3 {
                check_fork(|| drop(all.take()));
                assert_eq!(pool.stats().blocks_free, free);
            }
            let (mut region, mut fork, snapshot, unmapped, _, other) = all.take().unwrap();
            region.as_mut_slice().fill(8);
            fork.as_mut_slice().fill(9);
            assert_eq!((snapshot[2 * BLOCK], snapshot[0], unmapped[0], unmapped[2 * BLOCK]), (1, 0, 2, 1));
            other.region(BLOCK).unwrap().as_mut_slice()[0] = 1;
            drop((region, fork, snapshot, unmapped));
            assert_eq!(pool.stats().blocks_free, 16);
        }
    })
    .well();
}

#[test]
fn a_child_that_was_made_before_the_first_pool_has_pools_of_its_own() {
    fn use_a_pool() {
        let pool = Pool::builder().capacity(8 * BLOCK).build().unwrap();
        let (mut region, _fork, snapshot) = region_of_all_kinds(&pool);
        region.as_mut_slice().fill(5);
        assert_eq!(snapshot[0], 0);
    }
    alone(|| {
        check_fork(use_a_pool);
        use_a_pool();
        check_fork(|| assert_eq!(Pool::builder().capacity(BLOCK).build().unwrap_err(), BuildError::ForkedChild));
    })
    .well();
}

/// Whether `/proc/self/maps` has a mapping that `is_forbidden`. Makes only system calls.
fn finds(buffer: &mut [u8], is_forbidden: impl Fn(Mapped) -> bool) -> bool {
    // SAFETY: the name ends with a zero byte.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) };
    let mut len = 0;
    loop {
        let rest = &mut buffer[len..];
        // SAFETY: the call writes into `rest` at most.
        let read = unsafe { libc::read(maps, rest.as_mut_ptr().cast(), rest.len()) };
        assert!(read >= 0 && (read as usize) < rest.len());
        if read == 0 {
            break;
        }
        len += read as usize;
    }
    assert!(len > 0);
    buffer[..len].split(|&byte| byte == b'\n').any(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let mut addresses = words.next().unwrap_or_default().split(|&byte| byte == b'-').map(hexadecimal);
        is_forbidden(Mapped {
            start: addresses.next().unwrap_or_default(),
            end: addresses.next().unwrap_or_default(),
            permissions: words.next().unwrap_or_default(),
            is_pools: line.ends_with(POOL.as_bytes()),
        })
    })
}

/// A line of `/proc/self/maps`.
struct Mapped<'a> {
    start: usize,
    end: usize,
    permissions: &'a [u8],
    is_pools: bool,
}

fn hexadecimal(digits: &[u8]) -> usize {
    digits.iter().fold(0, |number, digit| number << 4 | (*digit as char).to_digit(16).unwrap_or(0) as usize)
}

/// Makes 200 children, and more until `enough`, while two other threads `work`. No child may find a mapping that
/// `is_forbidden`.
fn check_forks_amid(work: impl Fn() + Sync, enough: impl Fn() -> bool, is_forbidden: impl Fn(Mapped) -> bool) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let mut buffer = vec![0; 1 << 20];
        let (mut found, mut failed) = (0, 0);
        for _ in (0..).take_while(|made| *made < 200 || !enough()) {
            let status = in_fork(|| i32::from(finds(&mut buffer, &is_forbidden)));
            found += usize::from(status.code() == Some(1));
            failed += usize::from(!matches!(status.code(), Some(0 | 1)));
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!((found, failed), (0, 0), "children that found pool memory, and that did not end well");
    });
}

/// Makes children amid faults of all kinds, snapshots and drops.
fn check_forks_amid_faults(backing: Backing, block_size: BlockSize, is_forbidden: fn(Mapped) -> bool) {
    let block = block_size.bytes();
    let Some(pool) = pool(backing, 24 * block, block_size) else { return };
    let fault = || {
        let mut region = pool.region(4 * block).unwrap();
        for value in 1..4 {
            let snapshot = region.snapshot().unwrap();
            (0..4).for_each(|at| region.as_mut_slice()[at * block] = value);
            assert_eq!(snapshot[0], value - 1);
        }
    };
    check_forks_amid(fault, || pool.stats().faults.faults() > 200, is_forbidden);
    assert_eq!(pool.stats().blocks_free, 24);
}

fn pool_memory(mapped: Mapped) -> bool {
    mapped.is_pools
}

fn writable_pool_memory(mapped: Mapped) -> bool {
    mapped.is_pools && mapped.permissions.contains(&b'w')
}

#[test]
fn no_child_sees_shmem_pool_memory_whenever_it_is_made() {
    alone(|| {
        check_forks_amid_faults(Backing::ShmemHuge, BlockSize::MIB_2, pool_memory);
        check_forks_amid_faults(Backing::ShmemBase, BlockSize::KIB_64, pool_memory);
    })
    .well();
}

#[test]
fn no_child_can_write_to_hugetlb_pool_memory_whenever_it_is_made() {
    // A block is mapped for reading before it can be kept from children (sys/linux/memory.rs).
    alone(|| check_forks_amid_faults(Backing::Hugetlb, BlockSize::MIB_2, writable_pool_memory)).well();
}

#[test]
fn no_child_can_write_to_a_pool_that_was_being_built_when_it_was_made() {
    alone(|| {
        let build = || drop(Pool::builder().capacity(BLOCK).backing(Backing::ShmemBase).build().unwrap());
        build();
        check_forks_amid(build, || true, writable_pool_memory);
    })
    .well();
}

/// Zeros in place of a region would look like lost data.
#[test]
fn no_child_sees_zeros_in_place_of_a_region_whenever_it_is_made() {
    alone(|| {
        let pool = Pool::builder().capacity(8 * BLOCK).backing(Backing::ShmemBase).build().unwrap();
        let region = pool.region(4 * BLOCK).unwrap();
        region.populate().unwrap();
        let (start, end) = (region.as_ptr().addr(), region.as_ptr().addr() + region.len());
        let lose_and_write = || {
            region.discard(0..2 * BLOCK).unwrap();
            region.lazy_free(2 * BLOCK..4 * BLOCK).unwrap();
            pool.reclaim(usize::MAX).unwrap();
            region.populate().unwrap();
        };
        let is_readable =
            |mapped: Mapped| mapped.start < end && start < mapped.end && mapped.permissions.contains(&b'r');
        check_forks_amid(lose_and_write, || pool.stats().faults.blocks_reclaimed > 20, is_readable);
    })
    .well();
}
