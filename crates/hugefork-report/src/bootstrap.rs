//! How sure the ratio of two medians is: a bootstrap interval.
//!
//! Samples are drawn from both sets again and again, with replacement. The interval holds the middle 95 % of the ratios
//! of their medians. What is compared seeds the draws, so that the same files always give the same interval.

use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics};

/// The number of ratios that are drawn.
const DRAWS: usize = 4000;

/// With fewer samples on either side there is no interval: with three runs each, all of one side beat all of the other
/// by chance in one comparison of ten.
pub(crate) const FEWEST: usize = 4;

/// Where 95 % of the ratios lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// 2.5 % are lower.
    pub low: f64,
    /// 2.5 % are higher.
    pub high: f64,
}

impl Interval {
    /// Whether 1 is in it.
    pub fn holds_one(&self) -> bool {
        self.low <= 1.0 && 1.0 <= self.high
    }

    /// The interval of the inverse ratio.
    pub(crate) fn inverse(self) -> Interval {
        Interval { low: 1.0 / self.high, high: 1.0 / self.low }
    }
}

/// The interval of median(`b`) / median(`a`), drawn by `seed`. None if either set has fewer than four samples, or one
/// that is not positive: ratios would say nothing.
pub(crate) fn interval(a: &[f64], b: &[f64], seed: u64) -> Option<Interval> {
    if a.len().min(b.len()) < FEWEST || a.iter().chain(b).any(|sample| *sample <= 0.0) {
        return None;
    }
    let mut random = Random(seed);
    let (mut drawn_a, mut drawn_b) = (vec![0.0; a.len()], vec![0.0; b.len()]);
    let mut ratios: Vec<f64> = (0..DRAWS)
        .map(|_| {
            random.draw(a, &mut drawn_a);
            random.draw(b, &mut drawn_b);
            Data::new(&mut drawn_b[..]).median() / Data::new(&mut drawn_a[..]).median()
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let tail = DRAWS / 40;
    Some(Interval { low: ratios[tail], high: ratios[DRAWS - 1 - tail] })
}

/// A seed from names (FNV-1a).
pub(crate) fn seed<'a>(names: impl IntoIterator<Item = &'a str>) -> u64 {
    let bytes = names.into_iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn draw(&mut self, from: &[f64], into: &mut [f64]) {
        for slot in into {
            let index = (u128::from(self.next()) * from.len() as u128) >> 64;
            *slot = from[index as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_ratio_and_no_more_than_the_samples_allow() {
        let (a, b) = ([9.0, 10.0, 10.5, 11.0, 12.0], [19.0, 20.0, 20.5, 21.0, 30.0]);
        let found = interval(&a, &b, 1).unwrap();
        assert!(found.low >= 19.0 / 12.0 && found.high <= 30.0 / 9.0, "{found:?}");
        assert!(found.low < 20.5 / 10.5 && 20.5 / 10.5 < found.high, "{found:?}");
        assert!(!found.holds_one());
        assert!(interval(&a, &a, 1).unwrap().holds_one());
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(interval(&a, &b, 7), interval(&a, &b, 7));
        assert_ne!(seed(["ab", "c"]), seed(["a", "bc"]));
    }

    #[test]
    fn few_samples_and_zeros_have_none() {
        assert_eq!(interval(&[1.0; 3], &[2.0; 5], 0), None);
        assert_eq!(interval(&[], &[], 0), None);
        assert_eq!(interval(&[0.0, 1.0, 1.0, 1.0], &[1.0; 4], 0), None);
    }

    #[test]
    fn of_equal_machines_it_misses_one_seldom() {
        let mut random = Random(3);
        let mut samples = || -> Vec<f64> { (0..5).map(|_| 10.0 + random.next() as f64 / u64::MAX as f64).collect() };
        let missed = (0..200).filter(|seed| !interval(&samples(), &samples(), *seed).unwrap().holds_one()).count();
        assert!(missed <= 16, "{missed} of 200");
    }
}
