//! Incremental checkpoints: each has only the pages that differ from the previous one, and all of them together restore
//! the state exactly.
//!
//! ```text
//! checkpoint   | parent id, own id | count | start, end | start, end | …   then the bytes of these ranges
//! ```
//! Run it with `cargo run --release -p hugefork --example incremental_checkpoint FOLDER`.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;

use hugefork::{Pool, Region, Snapshot};

const LEN: usize = 64 << 20;
const CHECKPOINTS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("name a folder for the checkpoints")?;
    run(Path::new(&folder))
}

/// Run by the tests, too.
pub(crate) fn run(folder: &Path) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("state").capacity(4 * LEN).build()?;
    let mut state = pool.region(LEN)?;
    let mut last = state.snapshot()?; // zeros: the first checkpoint is what differs from them
    for number in 0..CHECKPOINTS {
        work(&mut state, number);
        let now = state.snapshot()?;
        let bytes = save(&now, &last, &folder.join(format!("checkpoint-{number}")))?;
        println!("checkpoint {number}: {bytes} of {LEN} bytes");
        last = now;
    }

    let mut restored = pool.region(LEN)?;
    for number in 0..CHECKPOINTS {
        restore(&mut restored, &folder.join(format!("checkpoint-{number}")))?;
    }
    assert!(restored.as_mut_slice() == &last[..]);
    // The same check by `changed_since`, which is faster where most blocks are the same.
    assert_eq!(restored.changed_since(&last)?.pages().count(), 0);
    println!("restored exactly");
    Ok(())
}

/// Changes something.
fn work(state: &mut Region, number: usize) {
    let bytes = state.as_mut_slice();
    for nth in 0..200 {
        let at = (nth * 7919 + number * 104_729) * 4099 % (LEN - 8);
        bytes[at..at + 8].copy_from_slice(&(nth as u64).to_ne_bytes());
    }
    bytes[number << 20..][..100_000].fill(number as u8 + 1);
}

/// Writes the pages that differ between two snapshots. Returns their number of bytes.
fn save(now: &Snapshot, last: &Snapshot, path: &Path) -> Result<usize, Box<dyn Error>> {
    let ranges: Vec<Range<usize>> = now.changed_since(last)?.pages().collect::<Result<_, _>>()?;
    let mut file = BufWriter::new(File::create(path)?);
    let numbers = [last.id().get(), now.id().get(), ranges.len() as u64];
    let bounds = ranges.iter().flat_map(|range| [range.start as u64, range.end as u64]);
    for number in numbers.into_iter().chain(bounds) {
        file.write_all(&number.to_le_bytes())?;
    }
    for range in &ranges {
        now.write_to(&mut file, range.clone())?;
    }
    file.into_inner()?.sync_all()?;
    Ok(ranges.iter().map(ExactSizeIterator::len).sum())
}

/// Puts the bytes of one checkpoint over the state that earlier checkpoints have restored.
fn restore(state: &mut Region, path: &Path) -> io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    let mut number = || -> io::Result<usize> {
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes) as usize)
    };
    let (_parent, _own, count) = (number()?, number()?, number()?);
    let ranges = (0..count).map(|_| Ok(number()?..number()?)).collect::<io::Result<Vec<Range<usize>>>>()?;
    for range in ranges {
        file.read_exact(&mut state.as_mut_slice()[range])?;
    }
    Ok(())
}
