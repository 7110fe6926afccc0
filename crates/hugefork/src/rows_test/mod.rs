//! Tests of the design's tables of copy-on-write, exhaustion and lazy free, and of bugs that other implementations had
//! there. Each row of a table is one test. The same code runs on the software MMU and on real memory.
//!
//! | ground | memory | blocks |
//! |---|---|---|
//! | [`Soft`], [`SoftHugetlb`] | the software MMU, with mappings that merge or do not | 64 KiB |
//! | [`Base`] | shmem base pages | 64 KiB |
//! | [`Huge`], [`Hugetlb`] | shmem huge pages, hugetlb | 2 MiB |
//!
//! For a row that ends in an error, `tests/engine/promises/mod.rs` checks the signal that a plain load or store raises.

// Lists of runs of pages may have only one run.
#![allow(clippy::single_range_in_vec_init)]

mod by_page;
mod captured;
mod changes;
mod copy_on_write;
mod cow_mapping;
mod exhaustion;
mod lazy_free;
mod lent_zeros;
mod orders;
mod races;
mod reset;
mod reset_by_sets;
#[path = "../../tests/common/wait.rs"]
#[allow(dead_code)] // The other tests use the rest.
mod wait;

use std::ops::{Deref, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hugefork_kernels::Kernels;

use crate::api::pool::Pool;
use crate::fault::route::Routes;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::pool::core::PoolCore;
use crate::pool::holders::{Droppable, Dropped};
use crate::pool::stock::Stock;
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::snapshot::read::Destination;
use crate::sync::SignalsBlocked;
use crate::sys::linux::memory::Linux;
use crate::sys::soft::{Call, SoftMmu};
use crate::sys::{Access, Merging, Sys};
use crate::table::{Entry, Origin};
use crate::types::backing::{Backing, Fallback};
use crate::types::error::RegionError;
use crate::types::options::{CopyGrain, RegionOptions, Reserve};
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex};
use wait::{PATIENCE, this_thread, until_it_waits};

/// Runs a row on every ground.
macro_rules! everywhere {
    ($row:ident, $blocks:expr) => {
        where_blocks_split!($row, $blocks);
        where_blocks_do_not_split!($row, $blocks);
    };
}

/// Runs a row on every ground whose blocks can be treated page by page.
macro_rules! where_blocks_split {
    ($row:ident, $blocks:expr) => {
        run::<Soft>($blocks, $row);
        run::<Base>($blocks, $row);
        run::<Huge>($blocks, $row);
    };
}

/// Runs a row on every ground whose blocks can only be treated as a whole.
macro_rules! where_blocks_do_not_split {
    ($row:ident, $blocks:expr) => {
        run::<SoftHugetlb>($blocks, $row);
        run::<Hugetlb>($blocks, $row);
    };
}

use {everywhere, where_blocks_do_not_split, where_blocks_split};

/// The kind of memory that a row runs on.
trait Ground: Sized {
    type S: Sys;
    const BLOCK: usize;
    const PAGES: usize = Self::BLOCK / BASE_PAGE;

    /// A pool; `None`, with a message, if the machine does not have this memory.
    fn pool(blocks: usize) -> Option<EngineArc<PoolCore<Self::S>>>;

    /// Routes faults at the region's addresses to it. `leave` removes the route.
    fn enter(_: &RegionCore<Self::S>) {}
    fn leave(_: &RegionCore<Self::S>) {}

    /// A plain load; `None` where it would fault.
    fn load(pool: &PoolCore<Self::S>, address: usize) -> Option<u8>;

    /// A plain store, which may fault.
    fn store(space: &RegionCore<Self::S>, offset: usize, value: u8);

    /// How often the engine made this call, on ground that counts calls.
    fn calls(_: &PoolCore<Self::S>, _: Call) -> Option<usize> {
        None
    }
}

struct Soft;
struct SoftHugetlb;
struct Base;
struct Huge;
struct Hugetlb;

/// The software MMU.
macro_rules! soft_ground {
    ($ground:ty, $merging:expr) => {
        impl Ground for $ground {
            type S = SoftMmu;
            const BLOCK: usize = 64 << 10;

            fn pool(blocks: usize) -> Option<EngineArc<PoolCore<SoftMmu>>> {
                let mmu = SoftMmu::new(blocks * Self::BLOCK, $merging, 1000).with_cow_mappings();
                let (name, size) = ("rows".to_owned(), BlockSize::new(Self::BLOCK).unwrap());
                let kernels = Kernels::default_for_this_cpu();
                Some(EngineArc::new(PoolCore::new(mmu, name, size, blocks, kernels, Stock::default())))
            }

            fn load(pool: &PoolCore<SoftMmu>, address: usize) -> Option<u8> {
                pool.sys.load(address).ok()
            }

            fn store(space: &RegionCore<SoftMmu>, offset: usize, value: u8) {
                let started = Instant::now();
                while space.pool().sys.store(space.addresses.base() + offset, value).is_err() {
                    space.resolve(offset).unwrap();
                    assert!(started.elapsed() < PATIENCE, "a write does not get through");
                }
            }

            fn calls(pool: &PoolCore<SoftMmu>, call: Call) -> Option<usize> {
                Some(pool.sys.calls(call))
            }
        }
    };
}

soft_ground!(Soft, Merging::Merge);
soft_ground!(SoftHugetlb, Merging::Separate);

/// Real memory.
macro_rules! real_ground {
    ($ground:ty, $backing:expr, $block:expr) => {
        impl Ground for $ground {
            type S = Linux;
            const BLOCK: usize = $block;

            fn pool(blocks: usize) -> Option<EngineArc<PoolCore<Linux>>> {
                real_pool($backing, blocks, Self::BLOCK)
            }

            fn enter(space: &RegionCore<Linux>) {
                // SAFETY: the value is fixed in place, and the ground removes its route before it is dropped.
                unsafe { Routes::get().unwrap().to_region(space) };
            }

            fn leave(space: &RegionCore<Linux>) {
                Routes::get().unwrap().forget(space.addresses.base(), space.len());
            }

            fn load(_: &PoolCore<Linux>, address: usize) -> Option<u8> {
                real_load(address)
            }

            fn store(space: &RegionCore<Linux>, offset: usize, value: u8) {
                assert!(offset < space.len());
                // SAFETY: it is inside the region, which the fault handler knows.
                unsafe {
                    std::ptr::with_exposed_provenance_mut::<u8>(space.addresses.base() + offset).write_volatile(value)
                };
            }
        }
    };
}

real_ground!(Base, Backing::ShmemBase, 64 << 10);
real_ground!(Huge, Backing::ShmemHuge, 2 << 20);
real_ground!(Hugetlb, Backing::Hugetlb, 2 << 20);

/// As `pool` of `tests/common`, for tests inside the crate.
fn real_pool(backing: Backing, blocks: usize, block: usize) -> Option<EngineArc<PoolCore<Linux>>> {
    let builder = Pool::builder().name("rows").capacity(blocks * block).block_size(BlockSize::new(block).unwrap());
    match builder.backing(backing).fallback(Fallback::Refused).build() {
        Ok(pool) => Some(pool.core),
        Err(error) => {
            let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == backing.to_string()), "required, but {error}");
            println!("skipped: {error}");
            None
        }
    }
}

fn real_load(address: usize) -> Option<u8> {
    let at: *const u8 = std::ptr::with_exposed_provenance(address);
    let mut byte = 0u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: 1 };
    // SAFETY: reads one byte of this process into `byte`; an address without access is an error.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    // SAFETY: the kernel has just read it, and only the test that calls this changes what is mapped there.
    (read == 1).then(|| unsafe { at.read_volatile() })
}

/// One row runs at a time, because some kinds of real memory are scarce.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a row in a pool of its own. All blocks of the pool must be free afterwards.
fn run<G: Ground>(blocks: usize, row: impl FnOnce(&World<G>)) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    println!("on {}", std::any::type_name::<G>());
    let _stack = SignalStack::of_64_kib();
    let Some(pool) = G::pool(blocks) else { return };
    let world = World { pool };
    row(&world);
    assert_eq!((world.free(), world.reserved()), (blocks, 0), "free and reserved blocks when all is dropped");
    assert_eq!(world.pool.leaked.load(Ordering::Relaxed), 0);
}

/// A large alternate signal stack of this thread. The atomics of these tests, which let other threads run, take more
/// stack than the one that Rust gives a thread, on processors with large registers. `tests/engine/handlers/stack.rs`
/// checks the stack that the handler takes without them.
struct SignalStack {
    before: libc::stack_t,
    _memory: Vec<u8>,
}

impl SignalStack {
    fn of_64_kib() -> SignalStack {
        let mut memory = vec![0; 64 << 10];
        let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        let mut before = std::mem::MaybeUninit::uninit();
        // SAFETY: the memory lives until the drop has put the earlier stack back.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, before.as_mut_ptr()) }, 0);
        // SAFETY: the call has written it.
        SignalStack { before: unsafe { before.assume_init() }, _memory: memory }
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        // SAFETY: this was the thread's stack before.
        unsafe { libc::sigaltstack(&raw const self.before, std::ptr::null_mut()) };
    }
}

/// A pool.
struct World<G: Ground> {
    pool: EngineArc<PoolCore<G::S>>,
}

impl<G: Ground> World<G> {
    /// Blocks that any region may take.
    fn free(&self) -> usize {
        self.pool.frames.available()
    }

    fn reserved(&self) -> usize {
        self.pool.frames.reserved()
    }

    fn region_with(&self, blocks: usize, options: RegionOptions) -> Region<G> {
        Region::new(RegionCore::zeros(&self.pool, blocks * G::BLOCK, by_block(options)).unwrap())
    }

    fn region(&self, blocks: usize) -> Region<G> {
        self.region_with(blocks, RegionOptions::new())
    }

    /// A region with the pattern in all pages.
    fn written(&self, blocks: usize) -> Region<G> {
        self.written_with(blocks, RegionOptions::new())
    }

    fn written_with(&self, blocks: usize, options: RegionOptions) -> Region<G> {
        self.with_pattern(self.region_with(blocks, options))
    }

    fn with_pattern(&self, region: Region<G>) -> Region<G> {
        for page in 0..region.len() / BASE_PAGE {
            region.write(page * BASE_PAGE, pattern(page));
            region.write((page + 1) * BASE_PAGE - 1, pattern(page));
        }
        region
    }

    /// Takes all free blocks.
    fn fill(&self) -> Region<G> {
        let rest = self.region(self.free());
        rest.populate(0..rest.len()).unwrap();
        assert_eq!(self.free(), 0);
        rest
    }

    /// Uses all free blocks once, so that none of them is fresh from now on.
    fn use_free_blocks(&self) {
        drop(self.fill());
    }

    /// Reclaims lazily freed memory, about `bytes`.
    fn reclaim(&self, bytes: usize) -> Dropped {
        let _signals = SignalsBlocked::new();
        self.pool.drop_lazy(bytes, Droppable::Everything)
    }

    fn reclaim_all(&self) -> Dropped {
        self.reclaim(usize::MAX)
    }
}

/// The value of the first and the last byte of a page. It is never zero.
fn pattern(page: usize) -> u8 {
    (1 + page % 250) as u8
}

/// A region whose faults are routed to it.
struct Region<G: Ground> {
    space: PinnedBox<RegionCore<G::S>>,
}

impl<G: Ground> Region<G> {
    fn new(space: PinnedBox<RegionCore<G::S>>) -> Region<G> {
        G::enter(&space);
        Region { space }
    }

    fn write(&self, offset: usize, value: u8) {
        G::store(&self.space, offset, value);
    }

    /// `None` if a plain load would fault.
    fn read(&self, offset: usize) -> Option<u8> {
        G::load(self.pool(), self.addresses.base() + offset)
    }

    fn entry(&self, block: usize) -> Entry {
        self.table.get(EntryIndex(block))
    }

    fn block(&self, block: usize) -> usize {
        self.entry(block).block().unwrap().index()
    }

    /// Bytes that are lazily freed but not dropped.
    fn lazy(&self) -> usize {
        self.accounts.lazy_blocks.load(Ordering::Relaxed) * G::BLOCK
            + self.accounts.lazy_pages.load(Ordering::Relaxed) * BASE_PAGE
    }

    /// The runs of pages that hold the pattern. All other pages must be zeros.
    fn kept(&self) -> Vec<Range<usize>> {
        kept(self.len(), |offset| self.read(offset).expect("a region can be read"))
    }

    fn snapshot(&self) -> PinnedBox<SnapshotCore<G::S>> {
        self.freeze().unwrap()
    }

    fn fork(&self, options: RegionOptions) -> Region<G> {
        Region::new(RegionCore::of_snapshot(&self.snapshot(), by_block(options)).unwrap())
    }
}

impl<G: Ground> Deref for Region<G> {
    type Target = RegionCore<G::S>;

    fn deref(&self) -> &RegionCore<G::S> {
        &self.space
    }
}

impl<G: Ground> Drop for Region<G> {
    fn drop(&mut self) {
        G::leave(&self.space);
    }
}

/// The runs of pages that hold the pattern. All other pages must be zeros.
fn kept(len: usize, read: impl Fn(usize) -> u8) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for page in 0..len / BASE_PAGE {
        let ends = [read(page * BASE_PAGE), read((page + 1) * BASE_PAGE - 1)];
        if ends == [0; 2] {
            continue;
        }
        assert_eq!(ends, [pattern(page); 2], "in page {page}");
        match runs.last_mut().filter(|run| run.end == page) {
            Some(run) => run.end += 1,
            None => runs.push(page..page + 1),
        }
    }
    runs
}

/// One byte of a snapshot, read as `Snapshot::read_at` does.
fn read_at<S: Sys>(frozen: &SnapshotCore<S>, offset: usize) -> Result<u8, RegionError> {
    let mut byte = [0];
    frozen.read(offset, &mut byte, Destination::Region).map(|()| byte[0])
}

/// The runs of pages of a snapshot that hold the pattern, read as `Snapshot::read_at` does.
fn kept_by<S: Sys>(frozen: &SnapshotCore<S>) -> Vec<Range<usize>> {
    kept(frozen.len(), |offset| read_at(frozen, offset).unwrap())
}

/// The options with block grain, unless a row chooses another (cow_mapping.rs).
fn by_block(options: RegionOptions) -> RegionOptions {
    match options.grain {
        CopyGrain::Auto => options.copy_grain(CopyGrain::Block),
        CopyGrain::Page | CopyGrain::Block => options,
    }
}

/// Options of a region or fork with a reservation.
fn reserved() -> RegionOptions {
    RegionOptions::new().reserve(Reserve::Full)
}
