//! Several threads write to their parts of a region. Meanwhile another thread saves a snapshot of the region to a file,
//! and then reads the file into a second region.
//!
//! Run it with `cargo run --release -p hugefork --example save_while_writing FILE`.

use std::error::Error;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hugefork::Pool;

const LEN: usize = 32 << 20;
const THREADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args_os().nth(1).ok_or("name a file that may be overwritten")?;
    save(File::options().read(true).write(true).create(true).truncate(true).open(name)?)
}

/// Run by the tests, too.
pub(crate) fn save(mut file: File) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("state").capacity(4 * LEN).build()?;
    let state = pool.region(LEN)?;

    // Each thread adds one to all words of its part, again and again.
    let (is_over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let saved = std::thread::scope(|scope| {
        let words = state.as_atomic_u64s();
        for part in words.chunks(words.len() / THREADS) {
            let (is_over, rounds) = (&is_over, &rounds);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    part.iter().for_each(|word| word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while rounds.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        let saved = state.snapshot().map_err(std::io::Error::from);
        // The threads write on meanwhile; the file gets the bytes of the snapshot.
        let written = saved.and_then(|saved| saved.write_to(&mut file, 0..LEN).map(|()| saved));
        is_over.store(true, Ordering::Relaxed);
        written
    })?;

    // `read_from` also works on a region that other threads snapshot meanwhile.
    let restored = pool.region(LEN)?;
    let found = restored.read_from_at(&file, 0..LEN, 0)?;
    assert_eq!(found, LEN);
    assert!(restored.snapshot()?[..] == saved[..]);
    println!("saved and restored {found} bytes, {} rounds in all", rounds.into_inner());
    Ok(())
}
