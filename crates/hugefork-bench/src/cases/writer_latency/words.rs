//! The words that a sample writes, epoch by epoch, and what they must hold.
//!
//! The words of an area are dealt out to the epochs by their index modulo 4. So no word is written in two epochs, and
//! those of index 0 always hold what they held at first. What is written in an epoch is there in every later one.

use crate::cases::list::List;
use crate::error::BenchError;
use crate::measure::random::Random;
use crate::memory::kernel_memory::HUGE_PAGE;
use crate::plan::writes::{Pattern, Writes};

/// The area holds `p[i] = i + BIAS` at first.
pub(super) const BIAS: u64 = 1;

/// What a word holds before it is written.
pub(super) fn before(offset: usize) -> u64 {
    (offset / 8) as u64 + BIAS
}

/// What is written to it.
pub(super) fn after(offset: usize) -> u64 {
    !before(offset)
}

/// The most writes before a snapshot.
const BEFORE: usize = 1_000;

/// Of so many neighbouring blocks, clustered writes hit one.
const CLUSTER: usize = 16;

/// Bytes from a word of an epoch to its next.
const STRIDE: usize = 4 * 8;

/// The words of a sample.
pub(super) struct Words {
    size: usize,
    /// Offsets of the blocks that are written, if it is not all of them.
    hot: Option<Vec<usize>>,
    pattern: Pattern,
    /// Offsets of the words that are written after the snapshot.
    now: List<usize>,
    /// Those of the epoch before, unless this is the first.
    previous: List<usize>,
    is_first: bool,
    /// Those that are written before the snapshot, with what they hold already.
    earlier: List<usize>,
    /// Nanoseconds of each write.
    pub(super) latencies: List<u32>,
}

impl Words {
    /// Lists for an area of `size` bytes.
    pub(super) fn new(size: usize, writes: Writes) -> Result<Words, BenchError> {
        let count = writes.density.writes(size);
        Ok(Words {
            size,
            hot: None,
            pattern: writes.pattern,
            now: List::new(count)?,
            previous: List::new(count)?,
            is_first: true,
            earlier: List::new(count.min(BEFORE))?,
            latencies: List::new(count)?,
        })
    }

    /// Draws what all epochs of a sample have alike.
    pub(super) fn begin(&mut self, targets: &mut Random) {
        let blocks = self.size / HUGE_PAGE;
        let one_of = |group: usize, targets: &mut Random| {
            let first = group * CLUSTER;
            (first + targets.below(CLUSTER.min(blocks - first))) * HUGE_PAGE
        };
        self.hot = match self.pattern {
            Pattern::Random => None,
            Pattern::Clustered => Some((0..blocks.div_ceil(CLUSTER)).map(|group| one_of(group, targets)).collect()),
        };
        self.is_first = true;
    }

    /// Draws the words of an epoch, counted from 1.
    pub(super) fn draw(&mut self, epoch: usize, targets: &mut Random) {
        assert!(epoch > 0 && epoch * 8 < STRIDE, "there are words for three epochs");
        self.is_first = epoch == 1;
        std::mem::swap(&mut self.now, &mut self.previous);
        let (size, hot) = (self.size, self.hot.as_deref());
        self.now.as_mut_slice().fill_with(|| word(size, hot, epoch, targets));
        self.earlier.as_mut_slice().fill_with(|| word(size, hot, 0, targets));
    }

    /// The words to write after the snapshot.
    pub(super) fn now(&self) -> &[usize] {
        self.now.as_slice()
    }

    /// The words to write before it.
    pub(super) fn earlier(&self) -> &[usize] {
        self.earlier.as_slice()
    }

    /// The words to write after the snapshot, and a place for the nanoseconds of each.
    pub(super) fn writing(&mut self) -> (&[usize], &mut [u32]) {
        (self.now.as_slice(), self.latencies.as_mut_slice())
    }

    /// Checks that a snapshot, which `read` reads at an offset, holds what the area held. It allocates nothing: forked
    /// children call it.
    pub(super) fn check_kept(&self, read: impl Fn(usize) -> u64) -> Result<(), BenchError> {
        check(self.now(), before, &read)?;
        if self.is_first { Ok(()) } else { check(self.previous.as_slice(), after, &read) }
    }

    /// Checks that the area holds what was written, in this epoch and in the one before.
    pub(super) fn check_written(&self, read: impl Fn(usize) -> u64) -> Result<(), BenchError> {
        check(self.now(), after, &read)?;
        if self.is_first { Ok(()) } else { check(self.previous.as_slice(), after, &read) }
    }

    /// The number of different pieces of `len` bytes that the writes go to.
    pub(super) fn distinct(&self, len: usize) -> usize {
        let mut pieces: Vec<usize> = self.now().iter().map(|offset| offset / len).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces.len()
    }
}

/// A word of `epoch`, in the whole area or in one of the blocks at `hot`.
fn word(size: usize, hot: Option<&[usize]>, epoch: usize, targets: &mut Random) -> usize {
    let (start, len) = match hot {
        None => (0, size),
        Some(hot) => (hot[targets.below(hot.len())], HUGE_PAGE),
    };
    start + targets.below(len / STRIDE) * STRIDE + epoch * 8
}

fn check(offsets: &[usize], expected: fn(usize) -> u64, read: impl Fn(usize) -> u64) -> Result<(), BenchError> {
    for &offset in offsets {
        let (found, expected) = (read(offset), expected(offset));
        if found != expected {
            return Err(BenchError::WrongContents { offset, found, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::writes::Density;

    const SIZE: usize = 128 << 20;

    fn words(pattern: Pattern) -> Words {
        Words::new(SIZE, Writes { pattern, ..Writes::first(Density::DENSE) }).unwrap()
    }

    fn blocks(offsets: &[usize]) -> BTreeSet<usize> {
        offsets.iter().map(|offset| offset / HUGE_PAGE).collect()
    }

    #[test]
    fn clustered_writes_are_as_many_and_hit_one_block_of_every_sixteen() {
        let mut targets = Random::new(5);
        let (mut random, mut clustered) = (words(Pattern::Random), words(Pattern::Clustered));
        for words in [&mut random, &mut clustered] {
            words.begin(&mut targets);
            words.draw(1, &mut targets);
        }
        assert_eq!(random.now().len(), clustered.now().len());
        assert_eq!(blocks(random.now()).len(), SIZE / HUGE_PAGE);
        let first = blocks(clustered.now());
        assert_eq!(first.iter().map(|block| block / CLUSTER).collect::<Vec<_>>(), [0, 1, 2, 3]);
        clustered.draw(2, &mut targets);
        assert_eq!(blocks(clustered.now()), first, "the same blocks in every epoch");
        assert!(blocks(clustered.earlier()).is_subset(&first));
    }

    #[test]
    fn no_word_is_written_in_two_epochs_and_each_is_checked_in_the_next() {
        let mut targets = Random::new(5);
        let mut words = words(Pattern::Random);
        let mut area = vec![0u64; SIZE / 8];
        area.iter_mut().enumerate().for_each(|(index, word)| *word = before(index * 8));
        words.begin(&mut targets);
        for epoch in 1..=3 {
            words.draw(epoch, &mut targets);
            assert!(words.earlier().iter().all(|&offset| area[offset / 8] == before(offset)));
            words.check_kept(|offset| area[offset / 8]).unwrap();
            for &offset in words.now() {
                area[offset / 8] = after(offset);
            }
            words.check_written(|offset| area[offset / 8]).unwrap();
            assert!(words.check_kept(|offset| area[offset / 8]).is_err());
        }
        let lost = words.previous.as_slice()[0];
        area[lost / 8] = before(lost);
        assert!(words.check_written(|offset| area[offset / 8]).is_err());
    }
}
