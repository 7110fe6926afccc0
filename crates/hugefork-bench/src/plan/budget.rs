//! `--time-budget`: how much of a case fits into its share of the time.
//!
//! ```text
//! share   what is left, divided by the cases that are left
//! sizes   1GiB 512MiB 256MiB … down to four times the last-level cache; only --size, if that was given
//! ```
//!
//! A round of the smallest size shows what a round costs, and so decides the size. The warm-up round at that size
//! decides how many rounds are run. There are never fewer than [`COUNTED_MINIMUM`] rounds (or `--runs`), and the size
//! is never so small that caches decide the figures. A case that does not fit even so is left out.

use std::time::{Duration, Instant};

use crate::plan::COUNTED_MINIMUM;

/// The time that a run may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) total: Duration,
    pub(crate) ends: Instant,
    /// Cases that have not run yet, including this one.
    pub(crate) cases: u32,
}

impl Budget {
    /// The time that all remaining cases may use.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.ends.saturating_duration_since(now)
    }

    /// The time that this case may use.
    pub(crate) fn share(&self, now: Instant) -> Duration {
        self.left(now) / self.cases.max(1)
    }
}

/// The fewest rounds that give a figure.
pub(crate) fn fewest(runs: usize) -> usize {
    runs.min(COUNTED_MINIMUM)
}

/// The largest of `sizes` whose warm-up and fewest rounds fit into `share`. `sizes` begin with the largest, and a round
/// of the last takes `smallest`.
pub(crate) fn size(sizes: &[usize], smallest: Duration, share: Duration, runs: usize) -> usize {
    let last = sizes.last().copied().unwrap_or_default();
    let fits = |size: usize| smallest.as_secs_f64() * (size as f64 / last as f64) * (fewest(runs) + 1) as f64;
    sizes.iter().copied().find(|size| fits(*size) <= share.as_secs_f64()).unwrap_or(last)
}

/// How many rounds fit into `share` if one takes `round`; none if not even the fewest fit into what is `left`.
pub(crate) fn rounds(round: Duration, share: Duration, left: Duration, runs: usize) -> Option<usize> {
    let fit = (share.as_secs_f64() / round.as_secs_f64().max(1e-9)) as usize;
    let least = fewest(runs);
    (fit >= least || round * least as u32 <= left).then(|| fit.clamp(least, runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rounds_are_cut_down_to_five_and_not_further() {
        assert_eq!(rounds(s(1), s(100), s(100), 7), Some(7));
        assert_eq!(rounds(s(1), s(6), s(100), 20), Some(6));
        assert_eq!(rounds(s(1), s(2), s(100), 20), Some(5), "beyond its share, but not beyond what is left");
        assert_eq!(rounds(s(1), s(2), s(4), 20), None);
        assert_eq!(rounds(s(1), s(2), s(4), 3), Some(3), "the user wants no more");
        assert_eq!(rounds(s(0), s(0), s(0), 3), Some(3));
    }

    #[test]
    fn the_largest_size_that_fits_is_taken() {
        let sizes = [1024, 512, 256];
        assert_eq!(size(&sizes, s(1), s(24), 5), 1024);
        assert_eq!(size(&sizes, s(1), s(23), 5), 512);
        assert_eq!(size(&sizes, s(1), s(6), 9), 256);
        assert_eq!(size(&sizes, s(1), s(1), 5), 256, "there is no smaller one");
    }
}
