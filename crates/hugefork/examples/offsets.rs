//! A hash table that lives in a region, and is forked, snapshotted and saved as it is.
//!
//! A fork or snapshot lies at another address than its region, so a structure inside must not hold addresses. Here
//! every link is an *offset*: the index of a word from the start of the region, with 0 for none.
//!
//! ```text
//! word   0     1        2 ……………… 2+BUCKETS   then entries, one behind the other
//!      | end | count | first of each chain | next key value | next key value | …      (bump allocation)
//!                       │                        ▲      └──▶ another entry of the chain, or 0
//!                       └────────────────────────┘
//! ```
//! Run it with `cargo run --release -p hugefork --features bytemuck --example offsets`.

use std::error::Error;
use std::ops::{Deref, DerefMut};

use hugefork::Pool;

const END: usize = 0;
const COUNT: usize = 1;
const FIRST: usize = 2;
const BUCKETS: usize = 1 << 16;
const ENTRY: usize = 3;

/// A hash table over the words of a region (`&mut [u64]`) or snapshot (`&[u64]`). A table of zeros is empty, so a new
/// region needs no setup.
struct Table<W> {
    words: W,
}

impl<W: Deref<Target = [u64]>> Table<W> {
    fn len(&self) -> usize {
        self.words[COUNT] as usize
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.find(key).map(|entry| self.words[entry + 2])
    }

    /// Where the entry of `key` is.
    fn find(&self, key: u64) -> Option<usize> {
        let mut entry = self.words[bucket(key)] as usize;
        while entry != 0 {
            if self.words[entry + 1] == key {
                return Some(entry);
            }
            entry = self.words[entry] as usize;
        }
        None
    }
}

impl<W: DerefMut<Target = [u64]>> Table<W> {
    /// Sets the value of `key`. False if the table has no room for another entry.
    fn insert(&mut self, key: u64, value: u64) -> bool {
        if let Some(entry) = self.find(key) {
            self.words[entry + 2] = value;
            return true;
        }
        let entry = (self.words[END] as usize).max(FIRST + BUCKETS);
        if entry + ENTRY > self.words.len() {
            return false;
        }
        let next = self.words[bucket(key)];
        self.words[entry..entry + ENTRY].copy_from_slice(&[next, key, value]);
        self.words[bucket(key)] = entry as u64;
        self.words[END] = (entry + ENTRY) as u64;
        self.words[COUNT] += 1;
        true
    }
}

/// The index of the word with the first entry of the chain of `key`.
fn bucket(key: u64) -> usize {
    FIRST + (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % BUCKETS
}

/// Run by the tests, too.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    const LEN: usize = 16 << 20;
    let pool = Pool::builder().name("table").capacity(64 << 20).build()?;
    let mut live = pool.region(LEN)?;

    let mut table = Table { words: live.slice_of_mut::<u64>(0..LEN)? };
    for key in 0..200_000 {
        assert!(table.insert(key, key * key));
    }

    // A snapshot to go back to, and a fork whose table then differs.
    let saved = live.snapshot()?;
    let mut branch = live.fork()?;
    let mut table = Table { words: branch.slice_of_mut::<u64>(0..LEN)? };
    assert!(table.insert(7, 1) && table.insert(1 << 40, 2));

    let mut live_table = Table { words: live.slice_of_mut::<u64>(0..LEN)? };
    assert!(live_table.insert(7, 3));
    let saved_table = Table { words: saved.slice_of::<u64>(0..LEN)? };

    for (name, at, len, seven) in [
        ("live", live_table.words.as_ptr(), live_table.len(), live_table.get(7)),
        ("branch", table.words.as_ptr(), table.len(), table.get(7)),
        ("saved", saved_table.words.as_ptr(), saved_table.len(), saved_table.get(7)),
    ] {
        println!("{name:<6} at {at:?}: {len} entries, 7 → {seven:?}");
    }
    assert_eq!((live_table.get(7), table.get(7), saved_table.get(7)), (Some(3), Some(1), Some(49)));
    assert_eq!((live_table.len(), table.len(), saved_table.len()), (200_000, 200_001, 200_000));
    assert_eq!((saved_table.get(1 << 40), table.get(1 << 40)), (None, Some(2)));
    assert!((8..200_000).all(|key| table.get(key) == Some(key * key) && saved_table.get(key) == Some(key * key)));
    assert!(table.words.as_ptr() != saved_table.words.as_ptr());
    Ok(())
}
