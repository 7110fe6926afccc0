//! Takes the samples: owns the memory, the clock, and the rest of the budget.
//!
//! Before each sample, an untimed clear writes all lines of its block past the cache (for a copy, of both blocks), so
//! every candidate starts cold. Candidates alternate, [`ROUNDS`] times. If the [budget](BUDGET) is spent before the
//! candidates of a decision have figures, the default wins.

use core::sync::atomic::{Ordering, fence};

use super::{
    candidates::{Candidate, Candidates},
    decision::{BLOCK, SIZES, Samples},
};
use crate::{
    kernel::Kernel,
    kernels::{Use, Work},
    order::Target,
};

/// Number of blocks that the samples rotate over: four blocks are enough to evict the previous sample's lines; more
/// blocks would cost page faults and budget.
const BLOCKS: usize = 4;

/// Bytes that the simulated program uses around the target.
const NEAR: usize = 64 << 10;

/// No sample begins after this many nanoseconds.
pub(super) const BUDGET: u64 = 8_000_000;

/// Samples of each candidate in each step.
const ROUNDS: usize = 2;

/// Takes samples on memory that it owns.
pub(super) struct Stage {
    /// The memory: aligned to 4 KiB, valid for reads and writes of `blocks` times [`BLOCK`] bytes, and used by no other
    /// code.
    memory: *mut u8,
    /// Number of blocks: at least two, since a copy needs two.
    blocks: usize,
    /// The index of the next sample's block, below `blocks`.
    next: usize,
    random: u64,
    clock: fn() -> u64,
    begun: u64,
}

impl Stage {
    /// Creates a stage; `None` if the memory is less than two blocks.
    ///
    /// # Safety
    ///
    /// As long as the stage lives, `memory` is aligned to 4 KiB and valid for reads and writes of `len` bytes, and no
    /// other code accesses it.
    pub(super) unsafe fn new(memory: *mut u8, len: usize, clock: fn() -> u64) -> Option<Stage> {
        let blocks = (len / BLOCK).min(BLOCKS);
        let stage = || Stage { memory, blocks, next: 0, random: 0x9e37_79b9_7f4a_7c15, clock, begun: clock() };
        (blocks >= 2).then(stage)
    }

    pub(super) fn spent(&self) -> u64 {
        (self.clock)().saturating_sub(self.begun)
    }

    fn is_over(&self) -> bool {
        self.spent() >= BUDGET
    }

    /// Takes the samples of the candidates that `wanted` selects. The candidates alternate, so that a change of the
    /// machine's speed affects all alike.
    pub(super) fn rounds(&mut self, mut works: [&mut Candidates; 2], wanted: impl Fn(&Candidate) -> bool) {
        for _ in 0..ROUNDS {
            for candidates in &mut works {
                let (what, used) = (candidates.what, candidates.used);
                for candidate in candidates.all_mut().iter_mut().filter(|candidate| wanted(candidate)) {
                    if self.is_over() {
                        return;
                    }
                    // SAFETY: the whole block.
                    candidate.samples.push(unsafe { self.sample(what, used, candidate.kernel, BLOCK) });
                }
            }
        }
    }

    /// Times of the best kernel and of the cached one for each of [`SIZES`]; `None` if both are the same kernel or the
    /// budget ends.
    pub(super) fn small(&mut self, candidates: &Candidates) -> Option<[(u64, u64); SIZES.len()]> {
        let kernels = [candidates.best(), Kernel::cached()];
        if kernels[0] == kernels[1] {
            return None;
        }
        let mut samples = [[Samples::NONE; 2]; SIZES.len()];
        // Smaller blocks get one round more than a whole block: their times are noisier, and their samples cost less.
        for _ in 0..ROUNDS + 1 {
            // The earlier steps have measured the last size.
            for (size, samples) in SIZES.into_iter().zip(&mut samples).take(SIZES.len() - 1) {
                for (kernel, samples) in kernels.into_iter().zip(samples) {
                    if self.is_over() {
                        return None;
                    }
                    // SAFETY: each size is that of a block or a smaller power of two from 128 KiB up.
                    samples.push(unsafe { self.sample(candidates.what, candidates.used, kernel, size) });
                }
            }
        }
        let mut pairs = [(0, 1); SIZES.len()];
        for (pair, [kernel, cached]) in pairs.iter_mut().zip(&samples).take(SIZES.len() - 1) {
            *pair = (kernel.decisive()?, cached.decisive()?);
        }
        Some(pairs)
    }

    /// Nanoseconds that one operation on `len` cold bytes and the following use of these bytes take together.
    ///
    /// # Safety
    ///
    /// `len` is a positive multiple of 4 KiB and at most [`BLOCK`].
    unsafe fn sample(&mut self, what: Work, used: Use, kernel: Kernel, len: usize) -> u64 {
        let (to, from) = (self.take(), self.take());
        // The cooler writes past the cache, if this machine has a primitive that does so.
        let cooler = Kernel::for_clear();
        let cooler = cooler.straight(cooler.far());
        let offset = self.random(len);
        let target = Target::At(offset);
        // SAFETY: two different blocks of memory that the stage alone uses; only the first `len` bytes are accessed.
        unsafe {
            cooler.clear(to, len, target);
            if what == Work::Copy {
                cooler.clear(from, len, target);
            }
            let begun = self.fenced_now();
            match what {
                Work::Clear => kernel.clear(to, len, target),
                Work::Copy => kernel.copy(to, from, len, target),
            }
            match used {
                Use::Near => use_near(to, len, offset),
                Use::Whole => use_whole(to, len),
            }
            self.fenced_now().saturating_sub(begun)
        }
    }

    /// Returns the next block.
    fn take(&mut self) -> *mut u8 {
        let block = self.memory.wrapping_add(self.next * BLOCK);
        self.next = (self.next + 1) % self.blocks;
        block
    }

    /// A pseudo-random offset below `len`; every calibration gets the same sequence.
    fn random(&mut self, len: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % len
    }

    /// The time after all earlier stores are complete, not merely issued.
    fn fenced_now(&self) -> u64 {
        fence(Ordering::SeqCst);
        (self.clock)()
    }
}

/// Reads and writes a word in each line of the 64 KiB around `offset`.
///
/// # Safety
///
/// `block` is aligned and valid for reads and writes of `len` bytes, a multiple of 64; `offset` is below `len`.
unsafe fn use_near(block: *mut u8, len: usize, offset: usize) {
    const LINE: usize = 64;
    let begin = offset - offset % NEAR;
    for line in (begin..len.min(begin + NEAR)).step_by(LINE) {
        // SAFETY: the first word of a line in the block.
        unsafe {
            let word = block.add(line).cast::<u64>();
            word.write_volatile(word.read_volatile().wrapping_add(1));
        }
    }
}

/// Writes every word of the block.
///
/// # Safety
///
/// `block` is aligned and valid for writes of `len` bytes, a multiple of 8.
unsafe fn use_whole(block: *mut u8, len: usize) {
    for index in 0..len / 8 {
        // SAFETY: a word of the block.
        unsafe { block.cast::<u64>().add(index).write_volatile(1) };
    }
}
