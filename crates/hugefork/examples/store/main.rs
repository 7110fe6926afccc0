//! A store with fixed places for entries of several words. Two threads put entries, while another saves the store to a
//! file and reads the file back. A put is an operation, so no file has half an entry. Without operations, some file
//! soon has.
//!
//! Then the store keeps a history: a snapshot each tenth of a second, while a slow disk takes seconds to save one of
//! them ([`history`]).
//!
//! ```text
//! region    | entry 0: key, version, 8 words of value, sum | entry 1 | …      a file is these bytes
//! ```
//! Run it with `cargo run --release -p hugefork --example store FILE`, or `… store FILE 20` for a save of 20 seconds.

mod history;

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use hugefork::{Operations, Pool, Region, RegionError, Values};

/// The words that one put writes. A file may have any bytes here, so the sum shows whether they are those of one put.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    key: u64,
    version: u64,
    value: [u64; 8],
    sum: u64,
}

impl Entry {
    fn new(key: u64, version: u64) -> Entry {
        let value = std::array::from_fn(|nth| key * 1000 + version * 10 + nth as u64);
        let mut entry = Entry { key, version, value, sum: 0 };
        entry.sum = entry.total();
        entry
    }

    fn total(&self) -> u64 {
        self.value.iter().fold(self.key ^ self.version << 32, |sum, word| sum.rotate_left(5).wrapping_add(*word))
    }

    /// Whether it was cut in half.
    fn is_torn(&self) -> bool {
        self.sum != self.total()
    }
}

/// The number of entries where each file is checked; [`MANY`] where a history is kept: 44 MiB.
const FEW: usize = 10_000;
const MANY: usize = 1 << 19;
const WRITERS: u64 = 2;
/// The number of times that the store is saved and read back.
const SAVES: usize = 20;

struct Store {
    region: Region,
    /// How many entries it has.
    count: usize,
    operations: Operations,
}

/// Whether puts are operations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Puts {
    Operations,
    Writes,
}

impl Store {
    fn new(pool: &Pool, count: usize) -> Result<Store, RegionError> {
        let len = (count * size_of::<Entry>()).next_multiple_of(pool.block_size().bytes());
        let store = Store { region: pool.region(len)?, count, operations: Operations::new() };
        store.region.set_operations(&store.operations)?; // from now on, snapshots wait for operations
        Ok(store)
    }

    fn entries(&self) -> Result<Values<'_, Entry>, RegionError> {
        self.region.values_of(0..self.count * size_of::<Entry>())
    }

    fn put(&self, entry: Entry, puts: Puts) -> Result<(), RegionError> {
        let _operation = (puts == Puts::Operations).then(|| self.operations.enter());
        self.entries()?.set(entry.key as usize, entry);
        Ok(())
    }

    /// Writes all entries as they are at one moment to a file, while other threads put.
    fn save(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let snapshot = self.region.snapshot()?;
        snapshot.write_to(File::create(file)?, 0..snapshot.len())?;
        Ok(())
    }

    fn load(pool: &Pool, count: usize, file: &Path) -> Result<Store, Box<dyn Error>> {
        let store = Store::new(pool, count)?;
        store.region.read_from(File::open(file)?, 0..store.region.len())?;
        Ok(store)
    }

    fn torn(&self) -> Result<usize, RegionError> {
        Ok(self.entries()?.iter().filter(Entry::is_torn).count())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args_os().nth(1).ok_or("name a file that may be overwritten")?;
    let seconds = std::env::args().nth(2).map_or(Ok(5), |seconds| seconds.parse());
    let seconds = seconds.map_err(|_| "that is no number of seconds: say how long the save is to take, such as 5")?;
    let file = Path::new(&name);
    File::create(file).map_err(|error| format!("{}: {error}: name a file that can be written", file.display()))?;
    run(file, MANY, Duration::from_secs(seconds))
}

/// Runs both parts. The tests run this, too, with fewer entries in the history and a shorter save.
pub(crate) fn run(file: &Path, count: usize, save: Duration) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("store").capacity(64 << 20).build()?;
    let torn = save_while_putting(&pool, file, Puts::Operations, |saves, _| saves < SAVES)?;
    println!("puts are operations: {torn} torn entries in {SAVES} files");
    assert_eq!(torn, 0);
    let torn = save_while_putting(&pool, file, Puts::Writes, |_, torn| torn == 0)?;
    println!("puts are writes: {torn} torn entries in the last file");
    history::keep(file, count, save)
}

/// The entries that a writer puts, one after the other; the first has version 1. No two writers put the same entry.
/// Seven of eight puts go to a few entries that are put again and again, as in most stores.
fn puts_of(writer: u64, count: usize) -> impl Iterator<Item = Entry> {
    let own = count as u64 / WRITERS;
    // The stride and the number of entries have no common divisor, so every entry gets its turn.
    let nth = move |turn: u64, of: u64| turn * 324_027 % of;
    let which = move |turn: u64| if turn.is_multiple_of(8) { nth(turn / 8, own) } else { nth(turn, own / 64) };
    (0..).map(move |turn| Entry::new(which(turn) * WRITERS + writer, turn + 1))
}

/// Saves the store and reads it back while two threads put, as long as `goes_on` returns true. `goes_on` gets the
/// number of saves and the number of torn entries so far. Returns the number of torn entries.
fn save_while_putting(
    pool: &Pool,
    file: &Path,
    puts: Puts,
    goes_on: impl Fn(usize, usize) -> bool,
) -> Result<usize, Box<dyn Error>> {
    let store = Store::new(pool, FEW)?;
    (0..FEW as u64).try_for_each(|key| store.put(Entry::new(key, 0), puts))?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, is_over) = (&store, &is_over);
            scope.spawn(move || -> Result<(), RegionError> {
                let goes_on = |_: &Entry| !is_over.load(Ordering::Relaxed);
                puts_of(writer, FEW).take_while(goes_on).try_for_each(|entry| store.put(entry, puts))
            });
        }
        let (mut saves, mut torn) = (0, 0);
        let mut save = || -> Result<(), Box<dyn Error>> {
            while goes_on(saves, torn) {
                store.save(file)?;
                torn += Store::load(pool, FEW, file)?.torn()?;
                saves += 1;
            }
            Ok(())
        };
        let came = save();
        is_over.store(true, Ordering::Relaxed);
        came.map(|()| torn)
    })
}
