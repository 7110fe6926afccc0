//! Ranks of a set of samples. There is no mean, because one disturbed run in five moves a mean, but not a
//! median.

/// A set of samples in three figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Least sample.
    pub min: f64,
    /// Median: the middle sample, or the mean of the middle two.
    pub median: f64,
    /// Greatest sample.
    pub max: f64,
}

impl Summary {
    /// The summary of `samples`; `None` if there are no samples.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let sorted = sorted(samples.to_vec());
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Summary { min, median, max })
    }
}

/// The values in ascending order.
pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The least value that at least the fraction `part` of all values do not exceed. `sorted` must not be empty.
pub(crate) fn nearest_rank(sorted: &[f64], part: f64) -> f64 {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_and_even_numbers_of_samples() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[3.0]), Some(Summary { min: 3.0, median: 3.0, max: 3.0 }));
        assert_eq!(Summary::of(&[9.0, 1.0, 5.0]), Some(Summary { min: 1.0, median: 5.0, max: 9.0 }));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 100.0]), Some(Summary { min: 1.0, median: 3.0, max: 100.0 }));
        assert_eq!(Summary::of(&[10.0, 10.0, 10.0, 10.0, 1e9]).map(|s| s.median), Some(10.0));
    }

    #[test]
    fn ranks_are_values_that_occurred() {
        let sorted: Vec<f64> = (1..=1000).map(f64::from).collect();
        for (part, value) in [(0.5, 500.0), (0.9, 900.0), (0.999, 999.0), (1.0, 1000.0), (0.0, 1.0)] {
            assert_eq!(nearest_rank(&sorted, part), value, "{part}");
        }
        assert_eq!(nearest_rank(&[7.0], 0.999), 7.0);
    }
}
