//! Heaps: the allocator against a model, snapshots and resets of maps, children of `fork(2)`.

mod common;

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::sync::Mutex;

use allocator_api2_02::alloc::Allocator;
use allocator_api2_02::boxed::Box;
use allocator_api2_02::vec::Vec as HeapVec;
use common::alone::{alone, check_one_line};
use common::forked::check_fork;
use common::random::Random;
use common::{Over, by_block};
use hashbrown::DefaultHashBuilder;
use hugefork::{BlockSize, Children, Heap, Pool, RegionError, RegionOptions};

const BLOCK: usize = 2 << 20;

type Bytes<'h> = HeapVec<u8, &'h Heap>;
type Map<'h> = hashbrown::HashMap<Bytes<'h>, Bytes<'h>, DefaultHashBuilder, &'h Heap>;

fn pool(blocks: usize) -> Pool {
    Pool::builder().name("heap").capacity(blocks * BLOCK).children(Children::Inherit).build().unwrap()
}

fn bytes<'h>(heap: &'h Heap, text: &[u8]) -> Bytes<'h> {
    let mut bytes = HeapVec::new_in(heap);
    bytes.extend_from_slice(text);
    bytes
}

/// An allocation, all of whose bytes have one value.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: NonNull<u8>,
    layout: Layout,
    value: u8,
}

// SAFETY: memory that belongs to one thread at a time.
unsafe impl Send for Piece {}

impl Piece {
    fn new(heap: &Heap, random: &mut Random) -> Piece {
        let layout = any_layout(random);
        let at = heap.allocate(layout).unwrap();
        assert_eq!((at.len(), at.cast::<u8>().addr().get() % layout.align()), (layout.size(), 0));
        let piece = Piece { at: at.cast(), layout, value: random.next() as u8 };
        piece.fill();
        piece
    }

    fn fill(&self) {
        // SAFETY: the allocation has this size.
        unsafe { self.at.write_bytes(self.value, self.layout.size()) }
    }

    fn check(&self, len: usize) {
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.layout.size()) };
        assert!(bytes[..len].iter().all(|byte| *byte == self.value), "{self:?}");
    }

    fn free(self, heap: &Heap) {
        self.check(self.layout.size());
        // SAFETY: an allocation of the heap, which nobody uses any more.
        unsafe { heap.deallocate(self.at, self.layout) }
    }

    fn resize(&mut self, heap: &Heap, random: &mut Random) {
        let (old, new) = (self.layout, any_layout(random));
        // SAFETY: as above; the longer one is the new one for `grow`, the old one for `shrink`.
        let moved = unsafe {
            if new.size() >= old.size() { heap.grow(self.at, old, new) } else { heap.shrink(self.at, old, new) }
        };
        (self.at, self.layout) = (moved.unwrap().cast(), new);
        assert_eq!(self.at.addr().get() % new.align(), 0);
        self.check(old.size().min(new.size()));
        self.fill();
    }
}

/// Mostly small ones, some around the limit between small and large ones, and few that are larger than a slab.
fn any_layout(random: &mut Random) -> Layout {
    let size = match random.below(100) {
        0 => 0,
        1..80 => 1 + random.below(600),
        80..90 => 8100 + random.below(200),
        90..98 => random.below(20_000),
        _ => random.below(400_000),
    };
    let align = if random.one_in(10) { 1 << random.below(17) } else { 1 << random.below(4) };
    Layout::from_size_align(size, align).unwrap()
}

/// Allocates, frees and resizes. Pieces in `shared` go from thread to thread.
fn churn(heap: &Heap, own: &mut Vec<Piece>, shared: &Mutex<Vec<Piece>>, random: &mut Random) {
    for _ in 0..3_000 {
        match random.below(8) {
            0..3 => own.push(Piece::new(heap, random)),
            3 if !own.is_empty() => shared.lock().unwrap().push(own.swap_remove(random.below(own.len()))),
            4 => {
                let another = shared.lock().unwrap().pop();
                another.into_iter().for_each(|piece| piece.free(heap));
            }
            5 if !own.is_empty() => {
                let nth = random.below(own.len());
                own[nth].resize(heap, random);
            }
            _ if !own.is_empty() => own.swap_remove(random.below(own.len())).free(heap),
            _ => {}
        }
    }
}

#[test]
fn the_allocator_agrees_with_a_model_on_several_threads_through_snapshots_and_resets() {
    for (block_size, seed) in [(BlockSize::MIB_2, 1), (BlockSize::KIB_64, 2)] {
        let builder = Pool::builder().capacity(256 << 20).block_size(block_size);
        let pool = builder.build().unwrap();
        let heap = pool.heap(64 << 20).unwrap();
        let mut random = Random::new(seed);
        let mut pieces: Vec<Vec<Piece>> = vec![Vec::new(); 4];
        let shared = Mutex::new(Vec::new());
        let mut saved = Vec::new();
        for round in 0..8 {
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _over = Over(&is_over);
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(heap.snapshot().unwrap());
                    }
                });
                let churns = pieces.iter_mut().map(|own| {
                    let (mut random, heap, shared) = (Random::new(random.next()), &heap, &shared);
                    scope.spawn(move || churn(heap, own, shared, &mut random))
                });
                churns.collect::<Vec<_>>().into_iter().for_each(|churn| churn.join().unwrap());
            });
            let kept = (pieces.clone(), shared.lock().unwrap().clone());
            saved.push((heap.snapshot().unwrap(), kept));
            if round % 2 == 1 {
                let (snapshot, kept) = &saved[random.below(saved.len())];
                // SAFETY: the model goes back with the heap.
                unsafe { heap.reset_to(snapshot).unwrap() };
                pieces.clone_from(&kept.0);
                shared.lock().unwrap().clone_from(&kept.1);
            }
            pieces
                .iter()
                .flatten()
                .chain(shared.lock().unwrap().iter())
                .for_each(|piece| piece.check(piece.layout.size()));
        }
        pieces.into_iter().flatten().chain(shared.into_inner().unwrap()).for_each(|piece| piece.free(&heap));
    }
}

#[test]
fn resets_beside_threads_that_allocate_and_end_leave_the_heap_whole() {
    let pool = pool(128);
    let heap = pool.heap(64 << 20).unwrap();
    let map = heap.put(Map::new_in(&heap));
    map.write(|map| {
        (0..1_000_u32).for_each(|key| _ = map.insert(bytes(&heap, &key.to_le_bytes()), bytes(&heap, b"v")))
    });
    let saved = heap.snapshot().unwrap();
    let before = (&heap).allocate(Layout::new::<[u8; 300_000]>()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for seed in 0..3 {
            let (heap, map, is_over) = (&heap, &map, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // A thread that ends leaves its memory to the next one.
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            let mut random = Random::new(seed);
                            for _ in 0..100 {
                                // A reset loses all or nothing of this.
                                let inside = heap.operation();
                                let mut own: Vec<Piece> = (0..20).map(|_| Piece::new(heap, &mut random)).collect();
                                own.iter_mut().for_each(|piece| piece.resize(heap, &mut random));
                                own.into_iter().for_each(|piece| piece.free(heap));
                                drop(inside);
                                // The old value goes inside of the operation, too.
                                map.write(|map| drop(map.insert(bytes(heap, b"more"), bytes(heap, &[1; 5_000]))));
                            }
                        });
                    });
                }
            });
        }
        for _ in 0..200 {
            // SAFETY: values that are kept outside of the heap are older than the snapshot, or gone at its moment.
            unsafe { heap.reset_to(&saved).unwrap() };
        }
    });
    // SAFETY: as above.
    unsafe { heap.reset_to(&saved).unwrap() };
    assert_eq!(map.read(|map| map.len()), 1_000);
    assert_eq!((&heap).allocate(Layout::new::<[u8; 300_000]>()).unwrap(), before);
}

#[test]
fn large_alignments_are_kept_as_memory_grows_and_moves() {
    let pool = pool(64);
    let heap = &pool.heap(64 << 20).unwrap();
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    let is_aligned = |at: NonNull<[u8]>, align| at.cast::<u8>().addr().get().is_multiple_of(align);
    let first = layout(1, 4 << 20);
    let mut at = heap.allocate(first).unwrap();
    assert!(is_aligned(at, 4 << 20));
    // SAFETY: an allocation of the layout that was given last, which is grown and shrunk.
    unsafe {
        at.cast::<u8>().write(7);
        let mut old = first;
        for new in [layout(100, 8), layout(20 << 20, 4 << 20), layout(21 << 20, 1), layout(30 << 20, 64 << 10)] {
            at = heap.grow(at.cast(), old, new).unwrap();
            assert!(is_aligned(at, new.align()) && at.cast::<u8>().read() == 7);
            old = new;
        }
        heap.grow(at.cast(), old, layout(60 << 20, 1)).unwrap_err();
        assert_eq!(at.cast::<u8>().read(), 7);
        let none = layout(0, 4 << 20);
        let empty = heap.shrink(at.cast(), old, none).unwrap();
        assert!(is_aligned(empty, 4 << 20));
        at = heap.grow(empty.cast(), none, layout(40 << 20, 1 << 20)).unwrap();
        heap.deallocate(at.cast(), layout(40 << 20, 1 << 20));
    }
}

/// The entries of a map, as the model has them.
fn entries(map: &Map<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    map.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[test]
fn a_map_goes_back_by_resets_and_goes_on() {
    let pool = pool(128);
    let heap = pool.heap(64 << 20).unwrap();
    let map = heap.put(Map::new_in(&heap));
    let (mut model, mut random, mut history) = (BTreeMap::new(), Random::new(7), Vec::new());
    for round in 0..60 {
        for _ in 0..500 {
            let key = format!("key {}", random.below(4_000)).into_bytes();
            if random.one_in(3) {
                map.write(|map| map.remove(&bytes(&heap, &key)));
                model.remove(&key);
            } else {
                let value = vec![random.next() as u8; random.below(3_000)];
                map.write(|map| map.insert(bytes(&heap, &key), bytes(&heap, &value)));
                model.insert(key, value);
            }
        }
        if round % 3 == 0 {
            history.push((heap.snapshot().unwrap(), model.clone()));
        }
        if random.one_in(3) {
            let (snapshot, then) = &history[random.below(history.len())];
            // SAFETY: only the map has memory in the heap, and it is older than all snapshots.
            unsafe { heap.reset_to(snapshot).unwrap() };
            model.clone_from(then);
        }
        assert!(map.read(entries) == model, "round {round}");
    }
    // A reset to the same moment over and over takes no more memory each time.
    let (snapshot, then) = history.pop().unwrap();
    for _ in 0..50 {
        // SAFETY: as above.
        unsafe { heap.reset_to(&snapshot).unwrap() };
        map.write(|map| map.values_mut().for_each(|value| value.resize(4_000, 1)));
    }
    // SAFETY: as above.
    unsafe { heap.reset_to(&snapshot).unwrap() };
    assert!(map.read(entries) == then);
}

/// Four threads write pairs of entries. Both entries of a pair have the same value, in each child.
#[test]
fn children_have_maps_as_they_were_beside_four_writers() {
    alone(|| {
        let pool = pool(128);
        let heap = pool.heap(48 << 20).unwrap();
        let map = heap.put(Map::new_in(&heap));
        let check = |map: &Map<'_>| {
            for (key, value) in map {
                let mut twin = key.clone();
                twin[0] ^= 1;
                assert!(map.get(&twin) == Some(value), "{key:?}");
            }
            map.len()
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            for seed in 0..4 {
                let (heap, map, is_over) = (&heap, &map, &is_over);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    // Allocations outside of the map, which snapshots have in any state between two of them.
                    let mut own: Vec<Bytes<'_>> = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let key = random.below(2_000).to_le_bytes();
                        let value = vec![random.next() as u8; random.below(2_000)];
                        map.write(|map| {
                            for kind in [0, 1] {
                                let key = [&[kind], &key[..]].concat();
                                map.insert(bytes(heap, &key), bytes(heap, &value));
                            }
                        });
                        own.push(bytes(heap, &value));
                        if random.one_in(2) {
                            own.swap_remove(random.below(own.len()));
                        }
                        if own.len() > 500 {
                            own.clear();
                        }
                    }
                });
            }
            for _ in 0..100 {
                check_fork(|| {
                    let found = map.read(check);
                    map.write(|map| {
                        for key in 0..300_u32 {
                            map.insert(bytes(&heap, &[&[2], &key.to_le_bytes()[..]].concat()), bytes(&heap, b"mine"));
                        }
                        map.retain(|key, _| key[0] < 2);
                    });
                    assert_eq!(map.read(check), found);
                    // A thread of the child has no place at the operations, and frees and allocates all the same.
                    std::thread::scope(|scope| {
                        _ = scope.spawn(|| map.write(Map::clear)).join();
                        _ = scope.spawn(|| map.write(|map| map.insert(bytes(&heap, b"0"), bytes(&heap, b"1")))).join();
                    });
                    assert_eq!(map.read(entries).len(), 1);
                });
            }
        });
        map.read(check);
    })
    .well();
}

#[test]
fn readers_are_beside_each_other_and_a_writer_is_alone_and_all_are_operations() {
    let pool = pool(8);
    let heap = pool.heap(4 << 20).unwrap();
    let pair = heap.put((0_u64, 0_u64));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    pair.write(|pair| {
                        pair.0 += 1;
                        std::hint::spin_loop();
                        pair.1 += 1;
                    });
                    assert!(pair.read(|pair| pair.0 == pair.1));
                }
            });
        }
        for _ in 0..20 {
            drop(heap.snapshot().unwrap());
        }
    });
    assert_eq!(pair.read(|pair| *pair), (8_000, 8_000));
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| (0..2).for_each(|_| _ = scope.spawn(|| pair.read(|_| barrier.wait()))));
    assert_eq!(pair.read(|_| heap.snapshot().map(drop)), Err(RegionError::InsideOperation));
    let inside = heap.operation();
    assert_eq!(heap.snapshot().map(drop), Err(RegionError::InsideOperation));
    drop(inside);
    // A panic leaves the value, and the lock is free.
    let saved = heap.snapshot().unwrap();
    let panicking = || {
        pair.write(|pair| {
            pair.0 = 1;
            panic!("expected");
        })
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).unwrap_err();
    assert_eq!(pair.read(|pair| *pair), (1, 8_000));
    // SAFETY: the pair is older than the snapshot, and nobody uses it.
    unsafe { heap.reset_to(&saved).unwrap() };
    assert_eq!(pair.read(|pair| *pair), (8_000, 8_000));
}

#[test]
fn a_full_heap_refuses_and_goes_on() {
    let pool = pool(16);
    let heap = &pool.heap(8 << 20).unwrap();
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    for size in [heap.len(), usize::MAX >> 2, isize::MAX as usize - 8] {
        heap.allocate(layout(size)).unwrap_err();
    }
    heap.allocate(Layout::from_size_align(8, 1 << 40).unwrap()).unwrap_err();
    // Small ones until nothing is left, large ones from then on, and the other way round.
    for (first, then) in [(64, 100_000), (100_000, 64)] {
        let empty = heap.snapshot().unwrap();
        let mut all = Vec::new();
        while let Ok(at) = heap.allocate(layout(first)) {
            all.push(at.cast::<u8>());
        }
        assert!(all.len() * first > 6 << 20, "{} of {first}", all.len());
        while heap.allocate(layout(then)).is_ok() {}
        let freed = all.split_off(all.len() / 2);
        // SAFETY: allocations of this layout.
        freed.iter().for_each(|at| unsafe { heap.deallocate(*at, layout(first)) });
        freed.iter().for_each(|_| _ = heap.allocate(layout(first)).unwrap());
        heap.allocate(layout(heap.len() / 2)).unwrap_err();
        // SAFETY: all that was allocated since is forgotten.
        unsafe { heap.reset_to(&empty).unwrap() };
    }
    let most = heap.allocate(layout(7 << 20)).unwrap();
    // SAFETY: the allocation has this size.
    unsafe { most.cast::<u8>().write_bytes(1, 7 << 20) };
    assert!(matches!(pool.heap(0).unwrap_err(), RegionError::Length(_)));
    assert!(matches!(pool.heap(BLOCK + 1).unwrap_err(), RegionError::Length(_)));
    assert!(matches!(pool.heap(64 * BLOCK).unwrap_err(), RegionError::LargerThanPool { .. }));
    // The pool is full: an error, and no fault.
    let rest = pool.region_with(pool.capacity(), RegionOptions::new()).unwrap();
    assert!(rest.populate().is_err());
    assert!(pool.heap(BLOCK).is_err());
}

#[test]
fn a_full_heap_says_so_once() {
    let ended = alone(|| {
        let pool = pool(16);
        let heap = &pool.heap(BLOCK).unwrap();
        let mut bytes = HeapVec::<u8, _>::new_in(heap);
        bytes.try_reserve(BLOCK / 2).unwrap();
        for _ in 0..3 {
            assert!(
                bytes.try_reserve(2 * BLOCK).is_err() && HeapVec::<u8, _>::new_in(heap).try_reserve(BLOCK).is_err()
            );
        }
    });
    check_one_line(
        &ended.stderr,
        &["pool `heap`: its heap of 2097152 bytes is full", "an allocation of 4194304 bytes"],
    );
    ended.well();
}

#[test]
fn a_heap_takes_memory_as_it_is_used_and_small_heaps_have_room() {
    let pool = Pool::builder().capacity(1 << 30).block_size(BlockSize::KIB_4).build().unwrap();
    let used = || pool.stats().blocks - pool.stats().blocks_free;
    let heap = pool.heap(1 << 30).unwrap();
    // First writes get 2 MiB at once.
    let at_first = used();
    assert!(at_first <= 512, "{at_first}");
    let large = Box::<[u8; 64 << 20], _>::new_uninit_in(&heap);
    let small = HeapVec::<u64, _>::with_capacity_in(10, &heap);
    assert!(used() <= at_first + 4 * 512, "{}", used());
    drop((large, small));
    let small = pool.heap(4096).unwrap();
    assert_eq!(small.len(), 256 << 10);
    let mut some: Vec<Box<[u8; 100], &Heap>> = Vec::new();
    (0..1_000).for_each(|_| some.push(Box::new_in([7; 100], &small)));
    assert!(some.iter().all(|one| **one == [7; 100]));
}

#[test]
fn more_threads_than_shards_allocate_and_free_for_each_other_and_as_they_end() {
    thread_local! {
        static LAST: std::cell::RefCell<Option<HeapVec<u8, &'static Heap>>> = const { std::cell::RefCell::new(None) };
    }
    let heap: &'static Heap = std::boxed::Box::leak(std::boxed::Box::new(pool(512).heap(512 << 20).unwrap()));
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<Bytes<'static>>>();
    let receiver = Mutex::new(receiver);
    let barrier = std::sync::Barrier::new(100);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for value in 0..100_u8 {
                let (sender, receiver, barrier) = (sender.clone(), &receiver, &barrier);
                scope.spawn(move || {
                    // Its destructor is registered before the thread uses the heap for the first time.
                    LAST.with(|last| assert!(last.borrow().is_none()));
                    barrier.wait();
                    for round in 0..50 {
                        sender.send((1..40).map(|size| bytes(heap, &[value].repeat(size * 3))).collect()).unwrap();
                        let got = receiver.lock().unwrap().recv().unwrap();
                        assert!(got.iter().all(|bytes| bytes.iter().all(|byte| *byte == bytes[0])));
                        if round == 49 {
                            LAST.set(got.into_iter().next());
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn snapshots_by_block_have_heaps_too() {
    let pool = pool(16);
    let heap = pool.heap(8 << 20).unwrap();
    let list = heap.put(HeapVec::new_in(&heap));
    (0..1_000_u64).for_each(|nth| list.write(|list| list.push(nth)));
    let saved = heap.snapshot().unwrap();
    let other = pool.region_with(BLOCK, by_block()).unwrap();
    other.set_operations(heap.operations()).unwrap();
    list.write(|list| list.clear());
    // SAFETY: the list is older than the snapshot.
    unsafe { heap.reset_to(&saved).unwrap() };
    assert!(list.read(|list| list.iter().copied().eq(0..1_000)));
    assert!(heap.stats().blocks > 0 && format!("{heap:?} {list:?}").contains("Heap"));
}
