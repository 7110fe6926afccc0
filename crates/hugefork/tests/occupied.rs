//! A pool without a free block, whose threads still write, lazily free, snapshot, fork, pin, reclaim and trim.
//!
//! ```text
//! the region   | page of 1 | of 2 | of 3 | of 1 | …  | all of 1 | all of 2 | all of 3 |   reserved: writes cannot fail
//!                stripes: owners share blocks           each its own blocks
//! the filler   | takes every block that is left, gives some up lazily, takes them again                              |
//! ```
//! Each page has one owner, who knows its contents: words that name the owner, the page and the write. A lazily freed
//! page reads as before or as zeros. Every other page must be exact, in the region and in every snapshot and fork, or
//! accesses must fail because the block was taken away. In the end every block must be back.
//!
//! The test takes 2 s for each block size and copy grain, and longer with `HUGEFORK_SOAK_SECONDS=60`.

mod common;
#[path = "occupied/owner.rs"]
mod owner;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::signals::handle;
use common::wait::PATIENCE;
use hugefork::{Backing, BlockSize, CopyGrain, Pool, Region, RegionOptions, Reserve};
use owner::Owner;

const PAGE: usize = 4096;

const OWNERS: usize = 3;

/// The state that all threads share.
struct World {
    pool: Pool,
    /// A region as large as the pool, without a reservation.
    filler: Region,
    /// The copy grain of all regions and forks.
    grain: CopyGrain,
    started: Instant,
    over: AtomicBool,
    progress: [Progress; OWNERS + 1],
    counts: Counts,
}

/// The progress of a thread. If the thread hangs, this says where.
#[derive(Default)]
struct Progress {
    steps: AtomicU64,
    doing: Mutex<&'static str>,
}

/// The last value of [`Progress::doing`].
const DONE: &str = "done";

/// Counts of events.
#[derive(Debug, Default)]
struct Counts {
    /// Prepared writes that found the pool full.
    full: AtomicU64,
    /// Accesses to blocks that were taken away.
    revoked: AtomicU64,
    /// Snapshots, forks and discards that found no room.
    refused: AtomicU64,
    /// Snapshots that were taken.
    snapshots: AtomicU64,
    forks: AtomicU64,
}

impl World {
    fn new(pool: Pool, grain: CopyGrain) -> World {
        World {
            filler: pool
                .region_with(
                    pool.capacity(),
                    RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page),
                )
                .unwrap(),
            pool,
            grain,
            started: Instant::now(),
            over: AtomicBool::new(false),
            progress: Default::default(),
            counts: Counts::default(),
        }
    }

    /// Whether every kind of event has happened, and blocks came from every source.
    fn has_seen_all(&self) -> bool {
        let Counts { full, revoked, snapshots, forks, .. } = &self.counts;
        let faults = self.pool.stats().faults;
        let is_done = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        faults.blocks_reclaimed > 0
            && faults.blocks_revoked > 0
            && [full, revoked, snapshots, forks].into_iter().all(is_done)
    }

    /// In every fourth quarter of a second the pool has some free blocks, so that copies and reservations are made too.
    fn is_at_ease(&self) -> bool {
        self.started.elapsed().as_millis() / 250 % 4 == 3
    }
}

fn more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Aborts if a thread makes no progress.
fn watch(world: &World) {
    let read = || world.progress.each_ref().map(|progress| progress.steps.load(Ordering::Relaxed));
    let mut last = read().map(|steps| (steps, Instant::now()));
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let doing = world.progress.each_ref().map(|progress| *progress.doing.lock().unwrap());
        if doing.iter().all(|&doing| doing == DONE) {
            return;
        }
        for (thread, (steps, last)) in read().into_iter().zip(&mut last).enumerate() {
            if last.0 != steps {
                *last = (steps, Instant::now());
            } else if last.1.elapsed() > PATIENCE && doing[thread] != DONE {
                // Directly to standard error, because the harness captures other output.
                let _ = writeln!(
                    std::io::stderr(),
                    "thread {thread} makes no progress: {doing:?}, {:?}",
                    world.pool.stats()
                );
                std::process::abort();
            }
        }
    }
}

/// Runs the test with a region of `blocks` blocks in a pool of three times as many, all in use. In the first half, each
/// stripe of `stripe` pages belongs to one owner.
fn occupy(backing: Backing, block_size: BlockSize, grain: CopyGrain, blocks: usize, stripe: usize) {
    // One pool at a time, so that its threads really meet.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // The default action, because Rust's own handler would repeat a write that fails.
    handle(libc::SIGBUS, libc::SIG_DFL, 0, &[]);
    let seconds = std::env::var("HUGEFORK_SOAK_SECONDS").map_or(2, |seconds| seconds.parse().unwrap());
    let len = blocks * block_size.bytes();
    let pool = Pool::builder().name("occupied").capacity(3 * len).block_size(block_size).backing(backing);
    let world = World::new(pool.build().unwrap(), grain);
    let options = RegionOptions::new().reserve(Reserve::Full).copy_grain(grain).calls_wait(grain == CopyGrain::Page);
    let region = world.pool.region_with(len, options).unwrap();
    // The first half is in stripes, the second block by block.
    let (half, own) = (len / PAGE / 2, len / PAGE / 2 / OWNERS);
    let mut found_full = [0, 0];
    std::thread::scope(|scope| {
        let (world, region) = (&world, &region);
        for id in 0..OWNERS {
            let stripes = (0..half).filter(move |page| page / stripe % OWNERS == id);
            let pages = stripes.chain(half + id * own..half + (id + 1) * own).collect();
            scope.spawn(move || Owner::new(world, id, region, pages, true).run(Owner::step));
        }
        let pages = (0..world.filler.len() / PAGE).collect();
        scope.spawn(move || Owner::new(world, OWNERS, &world.filler, pages, false).run(Owner::fill));
        scope.spawn(|| watch(world));
        // Goes on until the time is over and everything has happened.
        let is_time_up = || world.started.elapsed() >= Duration::from_secs(seconds) && world.has_seen_all();
        while !((found_full[1] > 0 && is_time_up()) || world.over.load(Ordering::Relaxed)) {
            assert!(world.started.elapsed() < Duration::from_secs(seconds) + PATIENCE, "{:?}", world.counts);
            std::thread::sleep(Duration::from_millis(5));
            found_full[usize::from(world.pool.stats().blocks_free == 0)] += 1;
        }
        world.over.store(true, Ordering::Relaxed);
    });
    let World { pool, filler, counts, .. } = world;
    drop((region, filler));
    let stats = pool.stats();
    println!(
        "{}, {block_size}, {grain:?}, {seconds} s: full at {found_full:?}, {counts:?}, {:?}",
        pool.backing(),
        stats.faults
    );
    assert_eq!((stats.blocks_free, stats.blocks_reserved, stats.blocks_leaked), (stats.blocks, 0, 0));
}

#[test]
fn nothing_is_lost_in_an_occupied_pool_of_huge_blocks() {
    occupy(Backing::Auto, BlockSize::MIB_2, CopyGrain::Auto, 12, 128);
}

#[test]
fn nothing_is_lost_in_an_occupied_pool_of_huge_blocks_by_page() {
    occupy(Backing::Auto, BlockSize::MIB_2, CopyGrain::Page, 12, 128);
}

#[test]
fn nothing_is_lost_in_an_occupied_pool_of_64_kib_blocks() {
    occupy(Backing::ShmemBase, BlockSize::KIB_64, CopyGrain::Auto, 96, 4);
}

#[test]
fn nothing_is_lost_in_an_occupied_pool_of_64_kib_blocks_by_page() {
    occupy(Backing::ShmemBase, BlockSize::KIB_64, CopyGrain::Page, 96, 4);
}

#[test]
fn nothing_is_lost_in_an_occupied_pool_of_4_kib_blocks() {
    occupy(Backing::ShmemBase, BlockSize::KIB_4, CopyGrain::Auto, 1536, 1);
}
