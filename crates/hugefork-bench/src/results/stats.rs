//! Median, least and greatest of a set of samples. There is no mean: one disturbed run in five moves a mean, and not a
//! median.

use statrs::statistics::{Data, Max, Min, OrderStatistics};

/// A set of samples in three figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Least sample.
    pub min: f64,
    /// Median: the middle one, or the mean of the middle two.
    pub median: f64,
    /// Greatest sample.
    pub max: f64,
}

impl Summary {
    /// Sums up `samples`; none if there are none.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut data = Data::new(samples.to_vec());
        (!samples.is_empty()).then(|| Summary { min: data.min(), median: data.median(), max: data.max() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_to_nothing() {
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn odd_and_even_numbers_of_samples() {
        assert_eq!(Summary::of(&[3.0]), Some(Summary { min: 3.0, median: 3.0, max: 3.0 }));
        assert_eq!(Summary::of(&[9.0, 1.0, 5.0]), Some(Summary { min: 1.0, median: 5.0, max: 9.0 }));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 100.0]), Some(Summary { min: 1.0, median: 3.0, max: 100.0 }));
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        assert_eq!(Summary::of(&[10.0, 10.0, 10.0, 10.0, 1e9]).map(|s| s.median), Some(10.0));
    }
}
