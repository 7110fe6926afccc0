//! A simulation that keeps every frame, and goes back and forth through thousands of frames. The screen shows the cost.
//!
//! ```text
//! step ─▶ snapshot ─▶ step ─▶ snapshot ─▶ …      each holds the pages that its step has written
//!            ▲                   ▲
//!            └────── jump ───────┘               copies the pages that differ
//! ```
//! The world has 256 MiB ([`life`]), and a step writes a few pages of it. So a thousand frames take some megabytes, and
//! a thousand copies would take 256 GiB.
//!
//! `cargo run --release -p hugefork --example scrub` records 3 000 frames, plays them back and forth, and obeys some
//! keys; `-- 10000` records 10 000. Without a terminal it records, jumps to frames at random and checks each: `cargo
//! run --release -p hugefork --example scrub | cat`.

mod life;
mod screen;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use hugefork::{Pool, Region, RegionError, ResetError, Snapshot};
use life::{LEN, SIDE, TILE_BYTES};
use screen::{Key, Screen};

/// The capacity of the pool. The pool takes memory only as frames need it.
const CAPACITY: usize = LEN + (4 << 30);
/// The recording ends when the pool has less free memory than this: the next writes need some.
const LEFT: usize = 64 << 20;

/// One recorded frame, kept as a snapshot.
struct Frame {
    snapshot: Snapshot,
    /// What the snapshot took.
    ms: f64,
    /// Bytes that this frame holds and no earlier frame does.
    bytes: usize,
    /// A checksum of the world, computed when the frame was recorded.
    sum: u64,
}

struct Film {
    pool: Pool,
    world: Region,
    frames: Vec<Frame>,
    /// The frame that the world is at.
    at: usize,
    /// For each tile that has ever changed: the checksum of its cells in the first frame.
    changed: BTreeMap<usize, u64>,
    /// Memory in use before the first snapshot.
    before: usize,
    /// What the last jump took.
    jump_ms: f64,
}

impl Film {
    fn new() -> Result<Film, Box<dyn Error>> {
        let pool = Pool::builder().name("film").capacity(CAPACITY).build()?;
        let mut world = pool.region(LEN)?;
        life::begin(world.as_mut_slice());
        let (frames, changed) = (Vec::new(), BTreeMap::new());
        let mut film = Film { pool, world, frames, at: 0, changed, before: 0, jump_ms: 0.0 };
        film.before = film.in_use();
        film.keep()?;
        Ok(film)
    }

    /// Makes one step from the last frame, and keeps the result as a frame. False if too little memory is left.
    fn record(&mut self) -> Result<bool, RegionError> {
        if self.pool.stats().blocks_free * self.pool.block_size().bytes() < LEFT {
            return Ok(false);
        }
        let changed = &mut self.changed;
        life::step(self.world.as_mut_slice(), |tile, before| {
            changed.entry(tile).or_insert_with(|| checksum(tile, before));
        });
        self.keep()?;
        Ok(true)
    }

    fn keep(&mut self) -> Result<(), RegionError> {
        let held = self.pool.stats().pages_held;
        let started = Instant::now();
        let snapshot = self.world.snapshot()?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let bytes = self.pool.stats().pages_held.saturating_sub(held) * TILE_BYTES;
        self.at = self.frames.len();
        let sum = self.sum();
        self.frames.push(Frame { snapshot, ms, bytes, sum });
        Ok(())
    }

    /// Resets the world to another frame, which copies the pages that differ.
    fn jump(&mut self, to: usize) -> Result<(), ResetError> {
        let started = Instant::now();
        self.world.reset_to(&self.frames[to].snapshot)?;
        self.at = to;
        self.jump_ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(())
    }

    /// Changes the future at this frame: adds random cells in the middle, and drops the frames after this one.
    fn throw(&mut self, seed: u64) -> Result<(), RegionError> {
        self.frames.truncate(self.at + 1);
        // All tiles in the middle have changed before, so `changed` has them already.
        life::thicket(self.world.as_mut_slice(), seed);
        self.record().map(|_| ())
    }

    /// Whether the world is as it was when this frame was recorded.
    fn is_as_recorded(&mut self) -> bool {
        self.sum() == self.frames[self.at].sum
    }

    /// A checksum of the world minus that of the first frame, so tiles that have never changed add nothing.
    fn sum(&mut self) -> u64 {
        let bytes = self.world.as_mut_slice();
        self.changed.iter().fold(0, |sum: u64, (&tile, &first)| {
            let now = checksum(tile, &bytes[tile * TILE_BYTES..][..TILE_BYTES]);
            sum.wrapping_add(now).wrapping_sub(first)
        })
    }

    fn summary(&self) -> String {
        let count = self.frames.len();
        let summary = format!("{count} frames of {} hold {}", size(LEN), size(self.held()));
        match self.pool.no_page_grain() {
            None => format!("{summary}; copies of it would be {}", size(count * LEN)),
            Some(why) => format!("{summary}: whole blocks of 2 MiB, not pages, because {why}"),
        }
    }

    /// Bytes of memory in use: used blocks of the pool, and private pages of the process.
    fn in_use(&self) -> usize {
        let stats = self.pool.stats();
        let blocks = stats.blocks - stats.blocks_free - stats.blocks_reserved;
        blocks * self.pool.block_size().bytes() + self.world.stats().pages_private * TILE_BYTES
    }

    /// What all frames hold.
    fn held(&self) -> usize {
        self.in_use().saturating_sub(self.before)
    }
}

/// A checksum of the cells of a tile, which also depends on the tile's number.
fn checksum(tile: usize, cells: &[u8]) -> u64 {
    let words = cells.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    words.fold(tile as u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn main() -> Result<(), Box<dyn Error>> {
    let number = std::env::args().nth(1);
    let count = match number.as_deref().map(str::parse) {
        None => None,
        Some(Ok(count @ 2..)) => Some(count),
        Some(_) => Err("that is no number of frames: say how many to record, two or more, such as 3000")?,
    };
    let Some(screen) = Screen::open()? else { return script(count.unwrap_or(1000)) };
    let mut film = Film::new()?;
    play(&screen, &mut film, count.unwrap_or(3000))?;
    drop(screen); // what is printed from now on stays
    println!("{}", film.summary());
    Ok(())
}

/// Records frames and checks random jumps, without a terminal. The tests run this with fewer frames.
pub(crate) fn script(count: usize) -> Result<(), Box<dyn Error>> {
    let mut film = Film::new()?;
    while film.frames.len() < count && film.record()? {}
    let count = film.frames.len();
    let mut times: Vec<f64> = film.frames.iter().map(|frame| frame.ms).collect();
    println!("{}", film.summary());
    println!("a snapshot took {:.3} ms, the longest {:.3}", median(&mut times), times[count - 1]);

    let mut random = life::Random(7);
    let mut times = Vec::new();
    for _ in 0..200 {
        film.jump(random.below(count))?;
        times.push(film.jump_ms);
        assert!(film.is_as_recorded(), "frame {} is not what it was", film.at);
    }
    println!("200 jumps, each to what was recorded: {:.3} ms, the longest {:.3}", median(&mut times), times[199]);
    println!("after them all frames hold {}", size(film.held()));

    // The checksum covers only tiles that have ever changed, so all bytes are compared once.
    assert!(film.world.as_mut_slice() == &film.frames[film.at].snapshot[..]);
    Ok(())
}

/// Frames recorded between two pictures.
const AT_ONCE: usize = 5;
/// The number of frames from one picture to the next during playback.
const PACE: isize = 7;
const BETWEEN_PICTURES: Duration = Duration::from_millis(16);

fn play(screen: &Screen, film: &mut Film, mut count: usize) -> Result<(), Box<dyn Error>> {
    let (mut random, mut pace, mut is_paused) = (life::Random(7), -PACE, false);
    loop {
        let last = film.frames.len() - 1;
        let is_recording = last + 1 < count;
        let to = match screen.key(BETWEEN_PICTURES)? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Pause) => {
                is_paused = !is_paused;
                None
            }
            Some(Key::Throw) => {
                film.throw(random.0)?;
                (count, is_paused) = (film.frames.len() + 1000, false);
                continue;
            }
            Some(Key::By(frames)) => Some(film.at.saturating_add_signed(frames)),
            Some(Key::First) => Some(0),
            Some(Key::Last) => Some(last),
            Some(Key::Anywhere) => Some(random.below(last + 1)),
            None => None,
        };
        if let Some(to) = to {
            // A jump pauses the playback and ends the recording.
            (count, is_paused) = (last + 1, true);
            film.jump(to.min(last))?;
        } else if !is_paused && is_recording {
            for _ in 0..AT_ONCE.min(count - film.frames.len()) {
                if !film.record()? {
                    count = film.frames.len();
                }
            }
        } else if !is_paused {
            // Back and forth.
            pace = if film.at == 0 {
                PACE
            } else if film.at == last {
                -PACE
            } else {
                pace
            };
            film.jump(film.at.saturating_add_signed(pace).min(last))?;
        }
        let is_live = is_recording && !is_paused;
        let lines = lines(film, count, screen.size().0, is_live);
        let bytes = film.world.as_mut_slice();
        let (columns, rows) = screen.size();
        let (left, top) = (SIDE / 2 - columns, SIDE / 2 - rows * 2);
        screen.show(&lines, |x, y| life::cell(bytes, left + x, top + y))?;
    }
}

/// What stands below the picture.
fn lines(film: &mut Film, count: usize, columns: usize, is_live: bool) -> Vec<String> {
    let frames = film.frames.len();
    let check = match (is_live, film.is_as_recorded()) {
        (true, _) => "recording",
        (false, true) => "as recorded",
        (false, false) => "NOT AS RECORDED",
    };
    let frame = &film.frames[film.at];
    let width = columns.saturating_sub(44);
    let filled = ((film.at + 1) * width).div_ceil(count).min(width);
    vec![
        format!(
            " frame {:>6} of {:<6} {}{}  {check}",
            film.at,
            frames - 1,
            "━".repeat(filled),
            "─".repeat(width - filled)
        ),
        format!(
            " this frame: snapshot {:.3} ms, {} KiB    last jump: {:.3} ms",
            frame.ms,
            frame.bytes >> 10,
            film.jump_ms
        ),
        format!(" all frames: {}, where copies of {} would be {}", size(film.held()), size(LEN), size(frames * LEN)),
        " space: pause  ←→: one frame  ↑↓: hundred  r: random  t: throw a stone  q: quit".to_owned(),
    ]
}

fn size(bytes: usize) -> String {
    match bytes >> 10 {
        kib @ ..10_000 => format!("{kib} KiB"),
        kib @ ..10_000_000 => format!("{:.1} MiB", kib as f64 / 1024.0),
        kib => format!("{:.1} GiB", kib as f64 / 1024.0 / 1024.0),
    }
}

/// Sorts, too.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
