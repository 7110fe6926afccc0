//! Compares the speed of a pool with all defaults with that of a pool that gets all its memory at once
//! (`Commit::Upfront`).
//!
//! ```text
//! cargo run --release -p hugefork --example defaults                      512 MiB, 5 rounds by turns, 3 s each
//! cargo run --release -p hugefork --example defaults -- 256 9 0           256 MiB, 9 rounds, `fill` alone
//! ```
//! Each round measures both settings, each with a new region in a new pool of twice its size:
//!
//! * `fill`: the time of the first writes, to every 8-byte word of the region in order. The line also has the part of
//!   the pool's memory that is in huge pages at the end of the round.
//! * `longest`: two threads then write batches without a pause, for the given number of seconds. A batch is 64 writes
//!   of 64 bytes each to random places of the region. Every half second the main thread replaces its snapshot by a new
//!   one. The figure is the time of the longest batch of both threads.
//!
//! The last lines have the medians over the rounds, and the ratio of both settings.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hugefork::{Commit, Pool, Region};

const BETWEEN_SNAPSHOTS: Duration = Duration::from_millis(500);
const WRITERS: u64 = 2;
const WRITES: usize = 64;
const BYTES: usize = 64;

struct Round {
    fill_ms: f64,
    huge_percent: f64,
    longest_ms: f64,
    p999_ms: f64,
    batches: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let size = numbers.first().copied().unwrap_or(512) << 20;
    let rounds = numbers.get(1).copied().unwrap_or(5).max(1);
    let seconds = numbers.get(2).copied().unwrap_or(3);
    let mut all: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    for number in 0..rounds {
        // The two settings take turns at going first.
        for turn in 0..2 {
            let which = (number + turn) % 2;
            let done = round([Commit::Upfront, Commit::OnDemand][which], size, Duration::from_secs(seconds as u64))?;
            println!(
                "{:8} fill {:6.1} ms, {:5.1} % huge; longest {:6.2} ms, p99.9 {:5.2} ms of {} batches",
                ["upfront", "default"][which],
                done.fill_ms,
                done.huge_percent,
                done.longest_ms,
                done.p999_ms,
                done.batches
            );
            all[which].push(done);
        }
    }
    compare("fill", all.each_ref().map(|rounds| rounds.iter().map(|round| round.fill_ms).collect()));
    compare("longest", all.each_ref().map(|rounds| rounds.iter().map(|round| round.longest_ms).collect()));
    Ok(())
}

fn compare(name: &str, times: [Vec<f64>; 2]) {
    let [upfront, default] = times.map(median);
    println!("{name:8} {upfront:6.2} ms upfront, {default:6.2} ms by default: {:.2}x", default / upfront);
}

fn round(commit: Commit, size: usize, length: Duration) -> Result<Round, Box<dyn Error>> {
    let pool = Pool::builder().name("defaults").capacity(2 * size).commit(commit).build()?;
    let region = pool.region(size)?;
    let started = Instant::now();
    for word in 0..size / 8 {
        store(&region, word, word as u64);
    }
    let fill_ms = started.elapsed().as_secs_f64() * 1e3;
    let stop = AtomicBool::new(false);
    let mut batches = std::thread::scope(|scope| {
        let (region, stop) = (&region, &stop);
        let writers: Vec<_> = (1..=WRITERS).map(|seed| scope.spawn(move || write(region, seed, stop))).collect();
        let snapshots = take_snapshots(region, length);
        stop.store(true, Ordering::Relaxed);
        let times = writers.into_iter().flat_map(|writer| writer.join().expect("a writer does not panic"));
        let times: Vec<f64> = times.collect();
        snapshots.map(|()| times)
    })?;
    batches.sort_by(f64::total_cmp);
    let stats = pool.stats();
    let huge = stats.bytes_huge.zip(stats.bytes_base).map(|(huge, base)| huge as f64 / (huge + base) as f64 * 100.0);
    let nth = |index: usize| batches.get(index).copied().unwrap_or(f64::NAN);
    Ok(Round {
        fill_ms,
        huge_percent: huge.unwrap_or(f64::NAN),
        longest_ms: nth(batches.len().saturating_sub(1)),
        p999_ms: nth(batches.len() * 999 / 1000),
        batches: batches.len(),
    })
}

fn take_snapshots(region: &Region, length: Duration) -> Result<(), hugefork::RegionError> {
    let started = Instant::now();
    let mut held = None;
    for number in 1..=(length.as_millis() / BETWEEN_SNAPSHOTS.as_millis()) as u32 {
        std::thread::sleep((BETWEEN_SNAPSHOTS * number).saturating_sub(started.elapsed()));
        drop(held.take());
        held = Some(region.snapshot()?);
    }
    Ok(())
}

/// The milliseconds that each batch took.
fn write(region: &Region, seed: u64, stop: &AtomicBool) -> Vec<f64> {
    let (mut random, mut times) = (seed, Vec::with_capacity(1 << 22));
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        for _ in 0..WRITES {
            // The generator of Steele and Vigna, "splitmix64".
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            let first = (mixed >> 33) as usize % (region.len() / BYTES) * BYTES / 8;
            (first..first + BYTES / 8).for_each(|word| store(region, word, seed));
        }
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times
}

fn store(region: &Region, word: usize, value: u64) {
    // SAFETY: callers name words of the region, which is borrowed, writable and aligned to its blocks. All threads
    // access it by atomics only.
    unsafe { &*region.as_mut_ptr().cast::<AtomicU64>().add(word) }.store(value, Ordering::Relaxed);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
