//! A program whose heap lies in a region. The engine's own data must not come from this heap, because the engine writes
//! to them in the fault handler and under locks that a fault would wait for.

mod common;

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::alloc::System;

use common::alone::alone;
use common::{BACKINGS, exporting};
use hugefork::{
    Backing, BlockSize, CopyGrain, Extents, Imported, Pool, PressureWatch, Region, RegionOptions, Reserve, ZeroedStock,
};

const BLOCK: usize = 2 << 20;

/// The system's allocator until it gets a region. From then on all memory comes from the region, and freed pieces are
/// used again.
struct Heap {
    is_locked: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    next: usize,
    /// The last free piece of each power of two. Each free piece begins with the address of the one before it.
    free: [usize; 64],
}

// SAFETY: the inner part is touched only under the lock.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap {
    is_locked: AtomicBool::new(false),
    start: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
    inner: UnsafeCell::new(Inner { next: 0, free: [0; 64] }),
};

/// The number of allocations served from the region.
static SERVED: AtomicUsize = AtomicUsize::new(0);

impl Heap {
    /// Serves everything from `region` from now on. The region lives until the process ends.
    fn switch_to(&self, region: Region) {
        let start = region.as_ptr().expose_provenance();
        let len = region.len();
        std::mem::forget(region);
        self.locked(|inner| inner.next = start);
        self.end.store(start + len, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
    }

    fn locked<T>(&self, body: impl FnOnce(&mut Inner) -> T) -> T {
        while self.is_locked.swap(true, Ordering::Acquire) {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        // SAFETY: the lock is held.
        let result = body(unsafe { &mut *self.inner.get() });
        self.is_locked.store(false, Ordering::Release);
        result
    }

    fn holds(&self, at: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        start != 0 && (start..self.end.load(Ordering::SeqCst)).contains(&at)
    }
}

/// The power of two that is a piece's size: at least 16 bytes, so that a free piece can hold the address of another.
fn class(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(16).next_power_of_two().trailing_zeros() as usize
}

// SAFETY: pieces are disjoint, as large and as aligned as their class, and in memory that stays.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.start.load(Ordering::SeqCst) == 0 {
            // SAFETY: the caller guarantees the contract.
            return unsafe { System.alloc(layout) };
        }
        SERVED.fetch_add(1, Ordering::Relaxed);
        self.locked(|inner| {
            let class = class(layout);
            let free = inner.free[class];
            if free != 0 {
                let free = ptr::with_exposed_provenance_mut::<usize>(free);
                // SAFETY: a free piece begins with the address of another, or with zero.
                inner.free[class] = unsafe { free.read() };
                return free.cast();
            }
            let at = inner.next.next_multiple_of(1 << class);
            inner.next = at + (1 << class);
            if inner.next > self.end.load(Ordering::SeqCst) {
                ptr::null_mut()
            } else {
                ptr::with_exposed_provenance_mut(at)
            }
        })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !self.holds(at.expose_provenance()) {
            // SAFETY: the caller guarantees the contract, and the piece came from there.
            return unsafe { System.dealloc(at, layout) };
        }
        self.locked(|inner| {
            let class = class(layout);
            // SAFETY: the piece has at least 16 bytes, and nobody uses it any more. The write may fault, since it lies
            // in the region.
            unsafe { at.cast::<usize>().write(inner.free[class]) };
            inner.free[class] = at.addr();
        });
    }
}

/// Moves the heap into a region. The region must not be dropped, but the program takes snapshots of it.
fn heap_in(pool: &Pool, len: usize, grain: CopyGrain) -> &'static Region {
    let region =
        pool.region_with(len, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)).unwrap();
    // Two handles of one region: one for the heap, one for the test.
    // SAFETY: a bitwise copy of a value that is never dropped; its methods take shared references.
    let heap = unsafe { ptr::read(&raw const region) };
    let region = Box::leak(Box::new(region));
    HEAP.switch_to(heap);
    region
}

/// Uses the heap, so that the engine meets parts of it that were written since the last snapshot, and parts that were
/// not.
fn churn(kept: &mut Vec<Vec<u8>>, round: usize) {
    for size in [10, 300, 5_000, 70_000] {
        kept.push(vec![round as u8; size + round % 7]);
    }
    if kept.len() > 40 {
        kept.drain(..20);
    }
    assert!(kept.iter().all(|piece| piece.iter().all(|byte| *byte == piece[0])));
}

fn cut_the_heap(grain: CopyGrain) {
    for backing in BACKINGS {
        let Some(pool) = exporting(backing, 256 * BLOCK, BlockSize::MIB_2) else { continue };
        let heap = heap_in(&pool, 64 * BLOCK, grain);
        let mut kept = Vec::new();
        for round in 0..40 {
            churn(&mut kept, round);
            let marked = Box::new(round);
            let offset = (&raw const *marked).addr() - heap.as_ptr().addr();
            // The boxes lie in the heap as well.
            let (snapshot, fork) = (Box::new(heap.snapshot().unwrap()), Box::new(heap.fork().unwrap()));
            let again = snapshot.fork_with(RegionOptions::new().reserve(Reserve::Full)).unwrap();
            churn(&mut kept, round);
            let mut seen = [0; 8];
            snapshot.read_at(offset, &mut seen).unwrap();
            assert_eq!(usize::from_ne_bytes(seen), round);
            let mapped = &snapshot[offset..offset + 8];
            assert_eq!(mapped, seen);
            drop((fork, again));
            churn(&mut kept, round);
        }
        let faults = heap.stats().faults;
        assert!(SERVED.load(Ordering::Relaxed) > 300 && faults.copied + faults.pages_written_back > 0);
        // A process has one heap.
        break;
    }
}

#[test]
fn snapshots_and_forks_of_the_heap_that_the_program_runs_on() {
    alone(|| cut_the_heap(CopyGrain::Auto)).well();
}

/// A thread that reads the heap waits while pages of it are written back; the engine itself must not be such a thread.
#[test]
fn snapshots_and_forks_of_a_heap_whose_pages_the_kernel_copies() {
    alone(|| cut_the_heap(CopyGrain::Page)).well();
}

/// Everything else that the engine can do, on pools and regions made while the heap lies in a region.
fn do_all(pool: &Pool, size: BlockSize, round: usize) {
    let mut region = pool.region(4 * BLOCK).unwrap();
    region.as_mut_slice()[..3 * BLOCK].fill(1);
    let snapshot = region.snapshot_with(RegionOptions::new().reserve(Reserve::Full)).unwrap();
    region.as_mut_slice()[round % BLOCK] = 2;
    let pin = region.pin(BLOCK..BLOCK + 1).unwrap();
    let fork = region.fork().unwrap();
    drop(pin);
    let export = Box::new(snapshot.export().unwrap());
    assert_eq!(region.changed_since(&snapshot).unwrap().pages().count(), 1);
    assert_eq!(fork.snapshot().unwrap().changed_since(&snapshot).unwrap().pages().count(), 1);
    for export in [&*export, &snapshot.export_copy().unwrap()] {
        let extents: Box<Extents> = Box::new(export.extents().to_string().parse().unwrap());
        let imported = Box::new(Imported::map(export, &extents).unwrap());
        let mut some = vec![0; 8];
        imported.read_at(BLOCK, &mut some).unwrap();
        assert_eq!(some, [1; 8]);
    }
    drop(snapshot);
    drop(export);
    region.lazy_free(0..BLOCK).unwrap();
    if size.bytes() > 4096 && pool.backing() != hugefork::Granted::Hugetlb {
        region.lazy_free(2 * BLOCK + 4096..2 * BLOCK + 8192).unwrap();
    }
    pool.reclaim(4 * BLOCK).unwrap();
    region.cancel_lazy_free(0..4 * BLOCK).unwrap();
    region.discard(BLOCK..2 * BLOCK + 100).unwrap();
    region.populate_with(2, |_| {}).unwrap();
    pool.trim().unwrap();
    drop(region);
    assert_eq!((fork.stats().blocks * size.bytes(), pool.stats().regions > 0), (4 * BLOCK, true));
    // Errors contain the name of the pool.
    pool.region(pool.capacity() + size.bytes()).unwrap_err();
    let full = Pool::builder().capacity(BLOCK).block_size(size).backing(Backing::ShmemBase).build().unwrap();
    let (one, other) = (full.region(BLOCK).unwrap(), full.region(BLOCK).unwrap());
    one.populate().unwrap();
    other.populate().unwrap_err();
    one.fork_with(RegionOptions::new().reserve(Reserve::Full)).unwrap_err();
    one.lazy_free(0..BLOCK).unwrap();
    other.populate().unwrap();
}

fn do_all_while_the_heap_is_cut(grain: CopyGrain) {
    let base = |blocks: usize, size| {
        let builder = Pool::builder().capacity(blocks * BLOCK).block_size(size).exports(true);
        builder.backing(Backing::ShmemBase)
    };
    let heap = heap_in(&base(512, BlockSize::KIB_64).build().unwrap(), 128 * BLOCK, grain);
    std::thread::scope(|scope| {
        for size in [BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::KIB_4] {
            scope.spawn(move || {
                let stock = ZeroedStock::keep(4 * BLOCK, 8 * BLOCK);
                let watch = PressureWatch::new();
                let pool = base(64, size).zeroed_stock(stock).reclaim_under_pressure(watch).build().unwrap();
                let mut kept = Vec::new();
                for round in 0..8 {
                    do_all(&pool, size, round);
                    churn(&mut kept, round);
                }
            });
        }
        scope.spawn(move || {
            let mut kept = Vec::new();
            for round in 0..40 {
                let snapshot = heap.snapshot().unwrap();
                churn(&mut kept, round);
                let mut changed = Box::new(heap.changed_since(&snapshot).unwrap().pages());
                assert!(changed.all(|range| range.is_ok()));
                drop(changed);
                drop((snapshot.export_copy().unwrap(), snapshot.export().unwrap()));
                drop(snapshot);
            }
        });
    });
    hugefork::reinstall_fault_handler().unwrap();
    assert!(SERVED.load(Ordering::Relaxed) > 300);
}

#[test]
fn threads_do_all_that_the_engine_can_while_the_heap_is_being_snapshotted() {
    alone(|| do_all_while_the_heap_is_cut(CopyGrain::Auto)).well();
}

#[test]
fn threads_do_all_that_the_engine_can_while_the_heap_is_snapshotted_by_page() {
    alone(|| do_all_while_the_heap_is_cut(CopyGrain::Page)).well();
}
