//! A store that keeps a history: two threads put entries at a fixed rate, and the store takes a snapshot each tenth of
//! a second and keeps the last 30. Meanwhile another thread saves one of them to a disk that takes seconds for it.
//!
//! ```text
//! puts       ────────────────────────────────────────────────▶
//! snapshots  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |      the last 30 are kept
//! save                   └── one of them, to a file ──┘             which keeps it for as long as it takes
//! ```
//! The example prints a line each second, with the times of puts and snapshots and the memory that the snapshots hold.
//! At the end it checks that the file has all puts up to one moment and none after it. Each entry has a version, the
//! number of its writer's put, and each writer puts its entries in a known order.
//!
//! The time of a put is that from its beginning to its end. `hugefork bench snapshot` instead times writes from the
//! moment at which they were due.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hugefork::{BlockSize, Pool, RegionError, Snapshot};

use super::{Entry, Puts, Store, WRITERS, puts_of};

const BETWEEN_SNAPSHOTS: Duration = Duration::from_millis(100);
const KEPT: usize = 30;
/// The number of the snapshot that is saved, counted from 0.
const SAVED: u32 = 3;
/// Snapshots for a line.
const A_SECOND: u32 = 10;

/// Each writer puts this many entries, and then sleeps until the next are due. Both writers together put 20 000 entries
/// a second.
const AT_ONCE: usize = 20;
const BETWEEN_PUTS: Duration = Duration::from_millis(2);

/// The times of the puts since the last line, in nanoseconds.
type Times = Mutex<Vec<u64>>;

pub(crate) fn keep(file: &Path, count: usize, save: Duration) -> Result<(), Box<dyn Error>> {
    // The capacity has room for snapshots that are full copies. The pool takes memory only as it is used.
    let len = (count * size_of::<Entry>()).next_multiple_of(BlockSize::MIB_2.bytes());
    let pool = Pool::builder().name("history").capacity(len * (KEPT + 5)).build()?;
    let store = Store::new(&pool, count)?;
    (0..count as u64).try_for_each(|key| store.put(Entry::new(key, 0), Puts::Operations))?;
    println!(
        "a snapshot of {} MiB each 100 ms, the last {KEPT} are kept; a save takes {save:?}",
        store.region.len() >> 20
    );
    println!("     puts: number   p50 us   p99.9 us   longest ms | snapshots: median ms   longest   held");

    let (times, is_over) = (Times::default(), AtomicBool::new(false));
    let saved = thread::scope(|scope| -> Result<_, Box<dyn Error>> {
        let (store, times, is_over) = (&store, &times, &is_over);
        let writers = (0..WRITERS).map(|writer| scope.spawn(move || put(store, writer, times, is_over)));
        let writers: Vec<_> = writers.collect();
        let saved = watch(&pool, store, times, file, save);
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().map_err(|_| "a writer has panicked")??;
        }
        saved
    })?;

    let loaded = Store::load(&pool, count, file)?;
    let puts = puts_up_to_one_moment(&loaded)?;
    assert!(loaded.region.snapshot()?[..] == saved[..], "the file has what the snapshot has");
    println!("the file has {puts} puts, all up to one moment and none after it, each of them whole");
    Ok(())
}

fn put(store: &Store, writer: u64, times: &Times, is_over: &AtomicBool) -> Result<(), RegionError> {
    let mut puts = puts_of(writer, store.count);
    let (mut due, mut took) = (Instant::now(), Vec::with_capacity(AT_ONCE));
    while !is_over.load(Ordering::Relaxed) {
        for entry in puts.by_ref().take(AT_ONCE) {
            let started = Instant::now();
            store.put(entry, Puts::Operations)?;
            took.push(started.elapsed().as_nanos() as u64);
        }
        times.lock().unwrap_or_else(PoisonError::into_inner).append(&mut took);
        due += BETWEEN_PUTS;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Takes snapshots and keeps the last ones, until one of them is saved. Returns the saved one.
fn watch(
    pool: &Pool,
    store: &Store,
    times: &Times,
    file: &Path,
    save: Duration,
) -> Result<Arc<Snapshot>, Box<dyn Error>> {
    let in_use = || {
        let stats = pool.stats();
        let blocks = stats.blocks - stats.blocks_free - stats.blocks_reserved;
        // Where snapshots hold a block, the region has private pages in place of some of its pages.
        blocks * pool.block_size().bytes() + store.region.stats().pages_private * 4096
    };
    let before = in_use();
    let (mut kept, mut took) = (VecDeque::new(), Vec::new());
    let (started, mut saving) = (Instant::now(), None);
    for nth in 0.. {
        thread::sleep((BETWEEN_SNAPSHOTS * nth).saturating_sub(started.elapsed()));
        let snapshot = Instant::now();
        kept.push_back(Arc::new(store.region.snapshot()?));
        took.push(snapshot.elapsed().as_secs_f64() * 1e3);
        if kept.len() > KEPT {
            kept.pop_front();
        }
        if nth == SAVED {
            let (file, snapshot) = (File::create(file)?, Arc::clone(&kept[kept.len() - 1]));
            saving = Some(thread::spawn(move || save_slowly(&snapshot, &file, save).map(|()| snapshot)));
        }
        let is_saved = saving.as_ref().is_some_and(thread::JoinHandle::is_finished);
        if nth % A_SECOND == A_SECOND - 1 || is_saved {
            let puts = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
            line(started.elapsed(), puts, &mut took, kept.len(), in_use().saturating_sub(before));
            took.clear();
        }
        if is_saved {
            break;
        }
    }
    let saving = saving.expect("the loop ends when it has saved");
    Ok(saving.join().map_err(|_| "the thread that saves has panicked")??)
}

/// Writes the snapshot to a file as slowly as a disk that takes the time `save` for it.
fn save_slowly(snapshot: &Snapshot, file: &File, save: Duration) -> std::io::Result<()> {
    let (started, len) = (Instant::now(), snapshot.len());
    for start in (0..len).step_by(1 << 20) {
        let done = len.min(start + (1 << 20));
        snapshot.write_to(file, start..done)?;
        let due = save.mul_f64(done as f64 / len as f64);
        thread::sleep(due.saturating_sub(started.elapsed()));
    }
    Ok(())
}

fn line(at: Duration, mut puts: Vec<u64>, snapshots: &mut [f64], kept: usize, held: usize) {
    puts.sort_unstable();
    snapshots.sort_by(f64::total_cmp);
    // The list is empty if the writers got no processor time.
    let us = |per_mille: usize| puts.get(puts.len() * per_mille / 1000).map_or(0.0, |&ns| ns as f64 / 1e3);
    let longest = puts.last().map_or(0.0, |&ns| ns as f64 / 1e6);
    println!(
        "{:3.0} s {:12} {:8.2} {:10.1} {longest:12.2} | {:20.2} {:9.2}   {held:4} MiB by {kept}",
        at.as_secs_f64(),
        puts.len(),
        us(500),
        us(999),
        snapshots[snapshots.len() / 2],
        snapshots[snapshots.len() - 1],
        held = held >> 20,
    );
}

/// The number of puts in the store. Panics unless the store has, for each writer, all puts up to one and none after it.
fn puts_up_to_one_moment(store: &Store) -> Result<u64, RegionError> {
    assert_eq!(store.torn()?, 0, "no put is there by half");
    let found: Vec<u64> = store.entries()?.iter().map(|entry| entry.version).collect();
    let mut expected = vec![0; store.count];
    let mut puts = 0;
    for writer in 0..WRITERS as usize {
        let last = found.iter().skip(writer).step_by(WRITERS as usize).max().copied().unwrap_or(0);
        for entry in puts_of(writer as u64, store.count).take(last as usize) {
            expected[entry.key as usize] = entry.version;
        }
        puts += last;
    }
    assert!(found == expected, "no put is missing");
    Ok(puts)
}
