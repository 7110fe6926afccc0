//! A cache of strings that a child of `fork(2)` saves, while a thread goes on writing. Beside it, the time that plain
//! `fork(2)` takes with the same entries in the memory of the process.
//! `cargo run --release -p hugefork --example string_cache [ENTRIES]`

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use allocator_api2::vec::Vec as HeapVec;
use hashbrown::{DefaultHashBuilder, HashMap};
use hugefork::{Children, Heap, Pool};

type Text<'h> = HeapVec<u8, &'h Heap>;
type Cache<'h> = HashMap<Text<'h>, Text<'h>, DefaultHashBuilder, &'h Heap>;

const VALUE: usize = 1000;

fn key(nth: u64) -> String {
    format!("user:{nth:016}")
}

fn value(round: u64) -> [u8; VALUE] {
    let mut value = [b'.'; VALUE];
    value[..8].copy_from_slice(&round.to_le_bytes());
    value
}

fn text<'h>(heap: &'h Heap, bytes: &[u8]) -> Text<'h> {
    let mut text = HeapVec::with_capacity_in(bytes.len(), heap);
    text.extend_from_slice(bytes);
    text
}

/// Forks a child that runs `body`. Returns it, and the time that the call has taken in this process.
fn fork(body: impl FnOnce() -> std::io::Result<()>) -> (i32, Duration) {
    let begun = Instant::now();
    // SAFETY: the child calls only what it may: locks of the C library are free there, and it ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(body().is_err())) };
    }
    (child, begun.elapsed())
}

fn wait_for(child: i32) -> Result<(), Box<dyn Error>> {
    let mut status = -1;
    // SAFETY: writes the status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if status == 0 { Ok(()) } else { Err(format!("a child has ended with {status}").into()) }
}

fn save(cache: &Cache<'_>, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    cache.iter().try_for_each(|(key, value)| file.write_all(key).and_then(|()| file.write_all(value)))?;
    file.flush()
}

/// The writer goes from key to key. So at one moment some first keys have a round, and all others the one before.
fn check(entries: u64, path: &Path) -> Result<(), Box<dyn Error>> {
    let (mut file, mut rounds) = (BufReader::new(File::open(path)?), vec![None; entries as usize]);
    let mut record = vec![0; key(0).len() + VALUE];
    while file.read_exact(&mut record).is_ok() {
        let (key, value) = record.split_at(record.len() - VALUE);
        let nth: usize = std::str::from_utf8(key)?.trim_start_matches("user:").parse()?;
        rounds[nth] = Some(u64::from_le_bytes(value[..8].try_into()?));
    }
    let rounds: Vec<u64> = rounds.into_iter().collect::<Option<_>>().ok_or("an entry is missing")?;
    let is_one_moment = rounds.is_sorted_by(|one, next| one >= next) && rounds[0] <= rounds[rounds.len() - 1] + 1;
    is_one_moment.then_some(()).ok_or_else(|| "the file is not of one moment".into())
}

/// Saves `saves` times. Prints how long this process waits for each fork.
pub(crate) fn run(entries: u64, saves: usize, path: &Path) -> Result<(), Box<dyn Error>> {
    let len = (entries as usize * 2500).next_multiple_of(2 << 20).max(16 << 20);
    let pool = Pool::builder().name("cache").capacity(2 * len).children(Children::Inherit).build()?;
    let heap = pool.heap(len)?;
    let cache = heap.put(Cache::new_in(&heap));
    let set = |nth, round| cache.write(|map| map.insert(text(&heap, key(nth).as_bytes()), text(&heap, &value(round))));
    (0..entries).for_each(|nth| drop(set(nth, 0)));

    let (written, is_over) = (AtomicU64::new(entries), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let nth = written.fetch_add(1, Ordering::Relaxed);
                set(nth % entries, nth / entries);
                std::thread::sleep(Duration::from_micros(50)); // some 10 000 writes a second
            }
        });
        let all = (0..saves).try_for_each(|_| {
            let before = written.load(Ordering::Relaxed);
            let (child, took) = fork(|| cache.read(|cache| save(cache, path)));
            wait_for(child)?;
            let beside = written.load(Ordering::Relaxed) - before;
            println!("{entries} entries: fork {took:?}, {beside} writes while the child saved them");
            check(entries, path)
        });
        is_over.store(true, Ordering::Relaxed);
        all
    })?;

    let plain: HashMap<_, _> = (0..entries).map(|nth| (key(nth), value(0).to_vec())).collect();
    drop(cache);
    drop((heap, pool));
    let (child, took) = fork(|| Ok(()));
    println!("{} entries outside of a heap: fork {took:?}", plain.len());
    wait_for(child)
}

fn main() -> Result<(), Box<dyn Error>> {
    let entries = std::env::args().nth(1).map_or(Ok(200_000), |entries| entries.parse())?;
    let path = std::env::temp_dir().join(format!("hugefork-cache-{}", std::process::id()));
    run(entries, 5, &path)?;
    Ok(std::fs::remove_file(&path)?)
}
