//! A server of tokio saves its state while its tasks go on writing.
//!
//! Writes to a region are plain writes, so tasks do them anywhere. Three kinds of calls take longer than a task should
//! keep a thread of the runtime, and belong into `spawn_blocking`:
//!
//! | call | takes |
//! |---|---|
//! | `populate` | 0.3 s for each GiB, in which the kernel clears the memory. Later, no first write waits for that |
//! | `snapshot` | some 0.1 ms for each GiB, and longer where many pages were written since the last one |
//! | `save_since`, `load` | as long as the disk needs |
//!
//! Run it with `cargo run --release -p hugefork-checkpoint --example tokio_saves FOLDER`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hugefork::{OwnedValues, Pool, Region, Snapshot};
use hugefork_checkpoint::{Part, Saved, Since, load, save, save_since};
use tokio::task::{spawn_blocking, yield_now};

const LEN: usize = 64 << 20;
const TASKS: usize = 8;
const SAVES: usize = 4;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let folder = std::env::args_os().nth(1).ok_or("name a folder for the checkpoints")?;
    run(Path::new(&folder))
}

/// Run by the tests, too.
pub(crate) fn run(folder: &Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    runtime.block_on(serve(folder.to_owned()))
}

async fn serve(folder: PathBuf) -> Result<(), Failure> {
    let pool = Pool::builder().name("state").capacity(4 * LEN).build()?;
    let state = Arc::new(pool.region(LEN)?);
    let memory = state.clone();
    spawn_blocking(move || memory.populate()).await??;

    let counters = OwnedValues::<u64>::of(state.clone(), 0..LEN)?;
    let tasks: Vec<_> = (0..TASKS).map(|own| tokio::spawn(count(counters.clone(), own))).collect();

    let mut last = None;
    for number in 0..SAVES {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (state, to) = (state.clone(), folder.join(number.to_string()));
        last = Some(spawn_blocking(move || checkpoint(&state, &to, last)).await??);
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);

    let (saved, snapshot) = last.ok_or("nothing was saved")?;
    let directory = saved.directory().to_owned();
    let mut loaded = spawn_blocking(move || load(directory, &pool)).await??;
    let loaded = loaded.get_mut("counters").ok_or("it has no counters")?;
    assert!(*loaded.as_mut_slice() == snapshot[..]);
    println!("counted to {} when it was saved last", snapshot.slice_of::<u64>(0..8)?[0]);
    Ok(())
}

/// Takes a snapshot and saves the changes since the last save.
fn checkpoint(state: &Region, to: &Path, last: Option<(Saved, Snapshot)>) -> Result<(Saved, Snapshot), Failure> {
    let snapshot = state.snapshot()?;
    let part = Part::of("counters", &snapshot);
    let saved = match &last {
        Some((saved, older)) => save_since(to, &[part.since(older)], Since::Save(saved))?,
        None => save(to, &[part])?,
    };
    Ok((saved, snapshot))
}

/// A client's task: counts in memory of its own.
async fn count(counters: OwnedValues<u64>, own: usize) {
    for round in 0.. {
        let at = own + (round % 100 * 4096 + own * 64) % counters.values().len() / TASKS * TASKS;
        counters.values().update(at, |count| *count += 1);
        yield_now().await;
    }
}
