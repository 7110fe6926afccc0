//! A store with fixed places for entries of several words: two threads put, while another saves what there is and reads
//! it back. A put is an operation, so no file has half an entry. Without operations, some soon have.
//!
//! ```text
//! region    | entry 0: key, version, 8 words of value, sum | entry 1 | …      a file is these bytes
//! ```
//! Run it with `cargo run --release -p hugefork --example store FILE`.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::{Pod, Zeroable};
use hugefork::{Operations, Pool, Region, RegionError};

/// What one put writes. Any bytes are such an entry, so the sum tells whether it is one that was put.
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

const ENTRIES: u64 = 10_000;
const WRITERS: u64 = 2;
/// So often the state is saved and read back.
const SAVES: usize = 20;

struct Store {
    entries: Region,
    operations: Operations,
}

/// Whether puts are operations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Puts {
    Operations,
    Writes,
}

impl Store {
    fn new(pool: &Pool) -> Result<Store, RegionError> {
        let len = (ENTRIES as usize * size_of::<Entry>()).next_multiple_of(pool.block_size().bytes());
        let store = Store { entries: pool.region(len)?, operations: Operations::new() };
        store.entries.set_operations(&store.operations)?; // from now on, snapshots wait for operations
        Ok(store)
    }

    fn put(&self, entry: Entry, puts: Puts) -> Result<(), RegionError> {
        let _operation = (puts == Puts::Operations).then(|| self.operations.enter());
        let entries = self.entries.values_of::<Entry>(0..ENTRIES as usize * size_of::<Entry>())?;
        entries.set(entry.key as usize, entry);
        Ok(())
    }

    /// Writes all entries as they are at one moment, while others put.
    fn save(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let snapshot = self.entries.snapshot()?;
        snapshot.write_to(File::create(file)?, 0..snapshot.len())?;
        Ok(())
    }

    fn load(pool: &Pool, file: &Path) -> Result<Store, Box<dyn Error>> {
        let store = Store::new(pool)?;
        store.entries.read_from(File::open(file)?, 0..store.entries.len())?;
        Ok(store)
    }

    fn torn(&self) -> Result<usize, RegionError> {
        let entries = self.entries.values_of::<Entry>(0..ENTRIES as usize * size_of::<Entry>())?;
        Ok(entries.iter().filter(Entry::is_torn).count())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args_os().nth(1).ok_or("name a file that may be overwritten")?;
    run(Path::new(&name))
}

/// Run by the tests, too.
pub(crate) fn run(file: &Path) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("store").capacity(64 << 20).build()?;
    let torn = save_while_putting(&pool, file, Puts::Operations, |saves, _| saves < SAVES)?;
    println!("puts are operations: {torn} torn entries in {SAVES} files");
    assert_eq!(torn, 0);
    let torn = save_while_putting(&pool, file, Puts::Writes, |_, torn| torn == 0)?;
    println!("puts are writes: {torn} torn entries in the last file");
    Ok(())
}

/// Saves and reads back while two threads put, for as long as `goes_on`, which is told how often that was and how many
/// entries were torn. Returns these.
fn save_while_putting(
    pool: &Pool,
    file: &Path,
    puts: Puts,
    goes_on: impl Fn(usize, usize) -> bool,
) -> Result<usize, Box<dyn Error>> {
    let store = Store::new(pool)?;
    (0..ENTRIES).try_for_each(|key| store.put(Entry::new(key, 0), puts))?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, is_over) = (&store, &is_over);
            scope.spawn(move || -> Result<(), RegionError> {
                // Each has the keys that are its own, so no two put the same entry.
                let keys = (0..).map(|turn| (turn * 7919 % (ENTRIES / WRITERS)) * WRITERS + writer);
                for (version, key) in (1..).zip(keys).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    store.put(Entry::new(key, version), puts)?;
                }
                Ok(())
            });
        }
        let (mut saves, mut torn) = (0, 0);
        let mut save = || -> Result<(), Box<dyn Error>> {
            while goes_on(saves, torn) {
                store.save(file)?;
                torn += Store::load(pool, file)?.torn()?;
                saves += 1;
            }
            Ok(())
        };
        let came = save();
        is_over.store(true, Ordering::Relaxed);
        came.map(|()| torn)
    })
}
