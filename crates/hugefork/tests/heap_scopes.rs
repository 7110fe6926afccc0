//! A program whose `#[global_allocator]` serves threads from heaps.

mod common;

use std::alloc::System;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

use common::alone::alone;
use common::forked::check_fork;
use common::random::Random;
use hugefork::{Children, Heap, Pool, Region, RegionError, RegionOptions, Reserve, ScopedAllocator};

#[global_allocator]
static ALLOCATOR: ScopedAllocator<System> = ScopedAllocator::over(System);

const LEN: usize = 32 << 20;

fn heap() -> &'static Heap {
    static POOL: OnceLock<Pool> = OnceLock::new();
    let pool = POOL.get_or_init(|| Pool::builder().capacity(8 * LEN).children(Children::Inherit).build().unwrap());
    Box::leak(Box::new(pool.heap(LEN).unwrap()))
}

#[test]
fn memory_of_scopes_lies_in_their_heaps_and_is_freed_from_anywhere() {
    let [first, second] = [heap(), heap()];
    let outside = vec![1_u8; 100];
    let mut mine = first.scope(|| {
        let inner = second.scope(|| vec![2_u8; 100]);
        assert!(second.contains(inner.as_ptr()));
        let mut grown = outside.clone();
        assert!(first.contains(grown.as_ptr()));
        grown.extend_from_slice(&inner);
        grown
    });
    assert!(!first.contains(outside.as_ptr()) && !second.contains(outside.as_ptr()));
    // It grows where it lies.
    for _ in 0..12 {
        mine.extend_from_within(..);
    }
    assert!(first.contains(mine.as_ptr()) && mine.len() == 200 << 12);
    let mut other = outside;
    first.scope(|| (0..12).for_each(|_| other.extend_from_within(..)));
    assert!(!first.contains(other.as_ptr()));
    mine.truncate(3);
    mine.shrink_to_fit();
    std::thread::spawn(move || drop((mine, other))).join().unwrap();
    let zeroed = first.scope(|| vec![0_u8; 3 << 20]);
    assert!(first.contains(zeroed.as_ptr()) && zeroed.iter().all(|byte| *byte == 0));
    // A panic ends the scope. A hook that prints a backtrace would take its memory from the heap.
    let panics = || first.scope(|| resume_unwind(Box::new(())));
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    assert!(!first.contains(Box::into_raw(Box::new(1_u64))));
}

#[test]
fn a_map_of_std_goes_back_and_children_have_it() {
    alone(|| {
        let heap = heap();
        let mut random = Random::new(3);
        let root = heap.put(HashMap::<String, Vec<u8>>::new());
        let fill = |random: &mut Random| {
            let (key, value) = (random.below(3_000), random.next() as u8);
            root.write(|map| heap.scope(|| map.insert(format!("key {key}"), vec![value; key])));
        };
        (0..5_000).for_each(|_| fill(&mut random));
        let expected = root.read(Clone::clone);
        let saved = heap.scope(|| heap.snapshot().unwrap());
        for _ in 0..10 {
            (0..1_000).for_each(|_| fill(&mut random));
            root.write(|map| map.retain(|key, _| !key.ends_with('7')));
            check_fork(|| {
                let before = root.read(Clone::clone);
                root.write(|map| heap.scope(|| map.insert("child".to_owned(), vec![1; 100_000])));
                root.write(|map| map.remove("child"));
                assert!(root.read(|map| *map == before));
            });
            // SAFETY: only the map has memory in the heap, and it is older than the snapshot.
            unsafe { heap.reset_to(&saved).unwrap() };
            assert!(root.read(|map| *map == expected));
        }
    })
    .well();
}

/// A cut keeps all threads from allocating in the heap. The thread that makes it would wait for itself.
#[test]
fn all_calls_can_be_made_in_a_scope() {
    alone(|| {
        let pool = Pool::builder().capacity(12 * (2 << 20)).children(Children::Inherit).build().unwrap();
        let heap: &'static Heap = Box::leak(Box::new(pool.heap(8 << 20).unwrap()));
        let map = heap.put(HashMap::<String, Vec<u8>>::new());
        let insert = |key: &str| map.write(|map| heap.scope(|| map.insert(key.to_owned(), vec![7; 10_000])));
        insert("one");
        let saved = heap.snapshot().unwrap();
        insert("two");
        heap.scope(|| {
            // SAFETY: the calls below change the heap by resets alone, and only the map has memory in it for long.
            let region: &Region = unsafe { heap.region() };
            drop(Region::snapshot_all(&[region]).unwrap());
            drop((region.fork().unwrap(), saved.fork().unwrap()));
            region.prepare_snapshot().unwrap();
            assert!(region.changed_since(&saved).unwrap().pages().count() > 0);
            let full = RegionOptions::new().reserve(Reserve::Full);
            assert!((0..12).try_for_each(|_| region.fork_with(full).map(std::mem::forget)).is_err());
            // SAFETY: locks of this program are free in the child, as other tests run elsewhere.
            let child = unsafe {
                Region::in_child(&[(region, &saved)], || {
                    insert("child");
                    map.read(|map| map.keys().map(String::as_str).collect::<Vec<_>>().concat().into())
                })
            };
            let keys = child.unwrap().wait().unwrap();
            assert!(keys == *b"onechild" || keys == *b"childone", "{keys:?}");
            check_fork(|| assert_eq!(map.read(HashMap::len), 2));
            let inside = heap.operation();
            assert_eq!(Region::snapshot_all(&[region]).map(drop), Err(RegionError::InsideOperation));
            drop(inside);
        });
        // SAFETY: nothing but the map has memory in the heap, and it is older than the snapshot.
        heap.scope(|| Region::reset_all(&[(unsafe { heap.region() }, &saved)]).unwrap());
        assert_eq!(map.read(HashMap::len), 1);
    })
    .well();
}
