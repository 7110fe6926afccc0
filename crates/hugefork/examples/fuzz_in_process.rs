//! A fuzzer in one process: each input meets the same 256 MiB of state, because the state is put back after each.
//!
//! ```text
//! image ──fork──▶ instance   input 1 ─▶ reset ─▶ input 2 ─▶ reset ─▶ …        a reset costs what the input has written
//! ```
//! The target is an interpreter whose memory is the state. It counts words, and one sequence of words breaks it. The
//! fuzzer keeps each input that reached a new path, and finds that sequence.
//!
//! Run it with `cargo run --release -p hugefork --example fuzz_in_process`.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Instant;

use hugefork::{ByteSize, Pool, Region};

const STATE: usize = 256 << 20;
const ROUNDS: usize = 200_000;
const LONGEST: usize = 24;

/// What the interpreter knows.
const WORDS: [&[u8]; 4] = [b"set ", b"add ", b"jump ", b"end"];

/// The offset in the state at which the interpreter keeps its path so far, and the offset of the cells that programs
/// write to.
const PATH: usize = 0;
const CELLS: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    fuzz(STATE, ROUNDS)
}

/// Run by the tests, too, with less.
pub(crate) fn fuzz(len: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("fuzz").capacity(2 * len).build()?;
    let image = boot(&pool, len)?.snapshot()?;
    let mut instance = image.fork()?;
    let (mut random, mut kept, mut seen) = (Random(1), vec![Vec::new()], BTreeSet::new());
    let started = Instant::now();
    for round in 1..=rounds {
        let input = mutated(&kept[random.below(kept.len())], &mut random);
        let ran = interpret(instance.as_mut_slice(), &input);
        instance.reset_to(&image)?;
        match ran {
            Ok(path) if seen.insert(path) => kept.push(input),
            Ok(_) => {}
            Err(Broken) => {
                assert!(instance.as_mut_slice() == &image[..], "nothing is left of any input");
                let each = started.elapsed().as_secs_f64() * 1e6 / round as f64;
                let text = String::from_utf8_lossy(&input);
                println!("input {round} breaks it: {text:?}; {each:.1} us for each, with {} of state", ByteSize(len));
                return Ok(());
            }
        }
    }
    Err("no input was found".into())
}

/// A state that took long to reach.
fn boot(pool: &Pool, len: usize) -> Result<Region, hugefork::RegionError> {
    let mut state = pool.region(len)?;
    for (page, bytes) in state.as_mut_slice()[CELLS..].chunks_mut(4096).enumerate() {
        bytes.fill(page as u8);
    }
    Ok(state)
}

/// The error of an interpreter that has reached the state which it must never reach.
struct Broken;

/// Runs a program. Returns the path that it took, as a number.
fn interpret(state: &mut [u8], program: &[u8]) -> Result<u64, Broken> {
    let mut rest = program;
    while let Some(word) = WORDS.iter().position(|word| rest.starts_with(word)) {
        rest = &rest[WORDS[word].len()..];
        let path = u64::from_le_bytes(state[PATH..PATH + 8].try_into().expect("eight bytes"));
        let path = path % (1 << 40) * 5 + word as u64 + 1;
        state[PATH..PATH + 8].copy_from_slice(&path.to_le_bytes());
        // Every word writes to some cells all over the state.
        for nth in 0..4 {
            let cell = CELLS + (path as usize % (1 << 20) * 7919 + nth * 104_729) * 4099 % (state.len() - CELLS);
            state[cell] ^= word as u8 + 1;
        }
        // set, jump, add, end.
        if path == ((5 + 3) * 5 + 2) * 5 + 4 {
            return Err(Broken);
        }
    }
    Ok(u64::from_le_bytes(state[PATH..PATH + 8].try_into().expect("eight bytes")))
}

/// A variant of an input: one word longer, with one byte changed, or cut off.
fn mutated(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut input = input.to_vec();
    match random.below(4) {
        0 if !input.is_empty() => {
            let at = random.below(input.len());
            input[at] = random.below(256) as u8;
        }
        1 => input.truncate(random.below(input.len() + 1)),
        _ => input.extend_from_slice(WORDS[random.below(WORDS.len())]),
    }
    input.truncate(LONGEST);
    input
}

/// The generator of Marsaglia, "xorshift".
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
