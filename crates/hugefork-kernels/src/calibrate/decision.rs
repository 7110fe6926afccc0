//! Decides whether one time is so much smaller than another that its candidate wins.
//!
//! The default wins unless another candidate is clearly faster, and a single sample decides
//! nothing. These are pure functions of times; `stage` measures the times.

use crate::kernels::Use;

/// The size of the blocks on which candidates are compared.
pub(super) const BLOCK: usize = 2 << 20;

/// Block sizes among which `nt_from` is chosen; the last is [`BLOCK`].
pub(super) const SIZES: [usize; 4] = [128 << 10, 256 << 10, 512 << 10, BLOCK];

/// A candidate needs this many samples to win: a single sample may have been interrupted.
const DECISIVE: usize = 2;

/// A time above this many hundredths of another may differ only by the noise of a shared machine. This constant decides
/// the block size from which stores are non-temporal.
const NOISE: u64 = 97;

/// A candidate wins if it takes less than this many hundredths of the best earlier candidate's time.
pub(super) const fn clearly_faster(used: Use) -> u64 {
    match used {
        // This margin is larger than noise requires, because samples on 8 MiB do not show the cost of full queues to
        // memory: with blocks spread over 1 GiB, full queues after wide stores cost the window 3 to 4 µs of 25.
        Use::Near => 88,
        // The calibration's blocks fit in the last-level cache, so cached stores do not pay for the lines that they
        // evict. In the calibration, `rep stosb` and 2 MiB of stores take 73 µs, and the non-temporal kernel and the
        // stores 84; with blocks spread over 1 GiB, these times are 119 and 92. So only a machine on which one of the
        // two kinds of stores is really slow should leave the default (Skylake-SP, non-temporal clears).
        Use::Whole => 75,
    }
}

/// Index of the smallest figure that is below `hundredths` of the first figure; 0 if no figure is below that, or if the
/// first figure is `None`.
pub(super) fn choose(figures: &[Option<u64>], hundredths: u64) -> usize {
    let Some(Some(mut least)) = figures.first().copied() else { return 0 };
    let mut chosen = 0;
    for (index, figure) in figures.iter().enumerate() {
        if let Some(figure) = *figure
            && is_below(figure, least, hundredths)
        {
            (chosen, least) = (index, figure);
        }
    }
    chosen
}

fn is_below(figure: u64, other: u64, hundredths: u64) -> bool {
    u128::from(figure) * 100 < u128::from(other) * u128::from(hundredths)
}

/// The smallest of [`SIZES`] from which on the first time of each pair is clearly smaller. A size above all of
/// [`SIZES`] if the first time is not clearly smaller even for the last size.
pub(super) fn smallest(pairs: [(u64, u64); SIZES.len()]) -> usize {
    let mut from = BLOCK + 1;
    for (size, (kernel, cached)) in SIZES.into_iter().zip(pairs).rev() {
        if !is_below(kernel, cached, NOISE) {
            break;
        }
        from = size;
    }
    from
}

/// The least of several times of the same operation. A disturbance can only make a sample longer, so more samples make
/// the least time more exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples {
    least: u64,
    taken: usize,
}

impl Samples {
    pub(super) const NONE: Samples = Samples { least: u64::MAX, taken: 0 };

    pub(super) fn push(&mut self, time: u64) {
        self.least = self.least.min(time);
        self.taken += 1;
    }

    /// The least time; `None` without a sample.
    pub(super) fn least(&self) -> Option<u64> {
        (self.taken > 0).then_some(self.least)
    }

    /// The least time; `None` if there are fewer samples than [`DECISIVE`].
    pub(super) fn decisive(&self) -> Option<u64> {
        (self.taken >= DECISIVE).then_some(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_wins_unless_another_is_clearly_faster() {
        let choose = |figures: &[Option<u64>]| choose(figures, 97);
        assert_eq!(choose(&[Some(100), Some(97), Some(99)]), 0);
        assert_eq!(choose(&[Some(100), Some(96), Some(94)]), 1);
        assert_eq!(choose(&[Some(100), Some(98), Some(96)]), 2);
        assert_eq!(choose(&[Some(100), None, Some(50), None]), 2);
        // The default has no time, so no other candidate can win.
        assert_eq!(choose(&[None, Some(1)]), 0);
        assert_eq!(choose(&[]), 0);
        assert_eq!(choose(&[Some(u64::MAX), Some(u64::MAX / 2)]), 1);
    }

    #[test]
    fn small_blocks_are_those_below_the_last_size_that_gains_nothing() {
        let fast = (90, 100);
        let same = (98, 100);
        assert_eq!(smallest([fast; 4]), SIZES[0]);
        assert_eq!(smallest([same, fast, fast, fast]), SIZES[1]);
        assert_eq!(smallest([fast, same, fast, fast]), SIZES[2]);
        assert_eq!(smallest([fast, fast, fast, same]), BLOCK + 1);
    }

    #[test]
    fn one_sample_decides_nothing_and_the_least_of_two_counts() {
        let mut samples = Samples::NONE;
        samples.push(7);
        assert_eq!((samples.least(), samples.decisive()), (Some(7), None));
        samples.push(9);
        assert_eq!(samples.decisive(), Some(7));
    }
}
