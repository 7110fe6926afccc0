//! Measures `Region::reset_to` and `Region::prepare_write`.
//!
//! ```text
//! cargo run --release -p hugefork --example reset_cost                 1 GiB, in a process of one thread
//! cargo run --release -p hugefork --example reset_cost -- 64 WORD ...  64 MiB, and what the words say:
//!
//! beside   with another thread, so that writers are held
//! older    an older snapshot is held, from which the other one differs in 16 pages, all over it
//! fresh    nobody has written to the region before the snapshot
//! others   other pages are written in each round
//! by-page  the region is written by page from the snapshot on (CopyGrain::Page)
//! ```
//! Each round writes a word in each of some random pages, the same in all rounds, and resets the region. There is one
//! line for each number of pages: the median and the 99th percentile of the resets, the median of writes and reset
//! together, and the counts of page faults and of hugefork's own faults over all rounds. Unless it is fresh, the whole
//! region was read before.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Instant;

use hugefork::{Commit, CopyGrain, Pool, Region, RegionOptions};

const PAGE: usize = 4096;

/// Rounds that do not count.
const FIRST: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let size = arguments.first().map_or(Ok(1024), |mib| mib.parse::<usize>())? << 20;
    let mut work = Work::default();
    for word in arguments.iter().skip(1) {
        match word.as_str() {
            "beside" => drop(std::thread::spawn(std::thread::park)),
            "older" => work.is_older_held = true,
            "fresh" => work.is_fresh = true,
            "others" => work.are_others = true,
            "by-page" => work.is_by_page = true,
            _ => return Err(format!("{word} is none of beside, older, fresh, others, by-page").into()),
        }
    }
    measure(size, &[10, 44, 100, 1_000, 10_000, 100_000], 1000, work)
}

/// What the rounds are like.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) is_older_held: bool,
    pub(crate) is_fresh: bool,
    pub(crate) are_others: bool,
    pub(crate) is_by_page: bool,
}

/// Run by the tests, too, with less.
pub(crate) fn measure(size: usize, counts: &[usize], rounds: usize, work: Work) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("reset").capacity(3 * size).commit(Commit::Upfront).build()?;
    for &count in counts.iter().filter(|&&count| count <= size / PAGE / 2) {
        let grain = if work.is_by_page { CopyGrain::Page } else { CopyGrain::Auto };
        let mut region = pool.region_with(size, RegionOptions::new().copy_grain(grain))?;
        if !work.is_fresh {
            region.as_mut_slice().chunks_mut(8).enumerate().for_each(|(nth, word)| word[0] = nth as u8);
        }
        let older = work.is_older_held.then(|| region.snapshot()).transpose()?;
        if older.is_some() {
            region.as_mut_slice().chunks_mut(PAGE).step_by(size / PAGE / 16).for_each(|page| page[0] ^= 1);
        }
        let snapshot = region.snapshot()?;
        if !work.is_fresh {
            assert!(region.as_mut_slice() == &snapshot[..], "reads all");
        }
        // As many rounds as take some seconds.
        let rounds = rounds.min((20_000_000 / count).max(20));
        let line = of_pages(&mut region, &snapshot, count, rounds, work.are_others)?;
        assert!(region.as_mut_slice() == &snapshot[..], "it is as it was");
        println!("{line}");
    }
    let mut region = pool.region(size)?;
    region.as_mut_slice().chunks_mut(PAGE).for_each(|page| page[0] = 1);
    let mut prepared: Vec<f64> = Vec::new();
    for _ in 0..FIRST {
        let _snapshot = region.snapshot()?;
        let started = Instant::now();
        region.prepare_write(0..size)?;
        prepared.push(started.elapsed().as_secs_f64() * 1e3);
    }
    prepared.sort_by(f64::total_cmp);
    println!("prepare_write of all: {:.3} ms", prepared[FIRST / 2]);
    Ok(())
}

fn of_pages(
    region: &mut Region,
    snapshot: &hugefork::Snapshot,
    count: usize,
    rounds: usize,
    are_others: bool,
) -> Result<String, Box<dyn Error>> {
    let (mut random, all) = (Random(count as u64), region.len() / PAGE);
    let mut pages = random.pages(count, all);
    let (mut resets, mut both) = (Vec::new(), Vec::new());
    let mut before = (0, 0);
    for round in 0..FIRST + rounds {
        if round == FIRST {
            before = (minor_faults()?, region.stats().faults.faults());
        }
        if are_others {
            pages = random.pages(count, all);
        }
        let started = Instant::now();
        let bytes = region.as_mut_slice();
        pages.iter().for_each(|page| bytes[page * PAGE + page % PAGE] ^= 0xff);
        let written = Instant::now();
        region.reset_to(snapshot)?;
        if round >= FIRST {
            resets.push(written.elapsed().as_secs_f64() * 1e6);
            both.push(started.elapsed().as_secs_f64() * 1e6);
        }
    }
    let after = (minor_faults()?, region.stats().faults.faults());
    resets.sort_by(f64::total_cmp);
    both.sort_by(f64::total_cmp);
    Ok(format!(
        "{count:6} pages: reset {:8.1} us, p99 {:8.1}; with the writes {:8.1}; {rounds} rounds, {} page faults, {} faults",
        resets[rounds / 2],
        resets[rounds * 99 / 100],
        both[rounds / 2],
        after.0 - before.0,
        after.1 - before.1,
    ))
}

/// The number of page faults of this process that the kernel has resolved so far.
fn minor_faults() -> Result<u64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, after_name) = stat.rsplit_once(')').ok_or("no name in /proc/self/stat")?;
    Ok(after_name.split_whitespace().nth(7).ok_or("too few fields in /proc/self/stat")?.parse()?)
}

/// The generator of Marsaglia, "xorshift".
struct Random(u64);

impl Random {
    fn pages(&mut self, count: usize, all: usize) -> BTreeSet<usize> {
        let mut pages = BTreeSet::new();
        while pages.len() < count {
            pages.insert(self.below(all));
        }
        pages
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
