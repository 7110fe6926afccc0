//! Figures that are a curve, not a single value: latency by percentile, cost by time since a snapshot.
//!
//! Every round gives one. The result holds the median of the rounds, place by place. The metrics beside a curve (`p50`,
//! `pause`, `total`, …) hold the samples of what it sums up.

use statrs::statistics::{Data, OrderStatistics};

/// What one round gives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// What the values are.
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    /// What it goes over.
    pub(crate) over: Over,
    /// Places, ascending, each with its value; no value where nothing happened. All rounds have the same places.
    pub(crate) points: Vec<(f64, Option<f64>)>,
}

/// What a curve goes over. Names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Of all writes, 0 to 100.
    Percentile,
    /// Milliseconds since the call that takes a snapshot. A value holds up to its place; 0 stands for all time before
    /// the call.
    Time,
}

impl Over {
    /// The name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Over::Percentile => "percentile",
            Over::Time => "time",
        }
    }
}

/// The median of `rounds`, place by place: of the rounds that have a value there, and only where at least half of them
/// do.
pub(crate) fn medians(rounds: &[Curve]) -> Vec<(f64, f64)> {
    let places = rounds.iter().map(|curve| curve.points.len()).min().unwrap_or(0);
    let median = |place: usize| {
        let values: Vec<f64> = rounds.iter().filter_map(|curve| curve.points[place].1).collect();
        let is_enough = !values.is_empty() && values.len() * 2 >= rounds.len();
        is_enough.then(|| (rounds[0].points[place].0, Data::new(values).median()))
    };
    (0..places).filter_map(median).collect()
}

/// The percentiles of a curve. Those too far out for the number of values are left out.
const PERCENTILES: [f64; 27] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 85.0, 90.0, 93.0, 95.0, 97.0, 98.0, 99.0, 99.3, 99.5,
    99.7, 99.8, 99.9, 99.95, 99.98, 99.99, 99.995, 99.999,
];

/// The curve of nanoseconds `sorted`, which are not empty, in microseconds by percentile. The last point is the
/// greatest value.
pub(crate) fn by_percentile(sorted: &[u32]) -> Curve {
    // A percentile that leaves out less than one value is the greatest value.
    let is_told = |percent: &f64| (100.0 - percent) * sorted.len() as f64 >= 99.9;
    let told = PERCENTILES.into_iter().filter(is_told).chain([100.0]);
    let value = |percent: f64| f64::from(nearest_rank(sorted, percent / 100.0)) / 1e3;
    let points = told.map(|percent| (percent, Some(value(percent)))).collect();
    Curve { metric: "latency", unit: "us", over: Over::Percentile, points }
}

/// The least value that `part` of all values do not exceed. `sorted` is not empty.
pub(crate) fn nearest_rank(sorted: &[u32], part: f64) -> u32 {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Ten steps to the next power of ten, rounded.
const STEPS: [f64; 10] = [1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0];

/// The powers of ten that the steps are multiplied by, in milliseconds: from 10 us to 80 s.
const DECADES: std::ops::RangeInclusive<i32> = -2..=4;

/// What a write costs by the time at which the program asks for it, as the mean over each stretch of time. What is
/// under way at that time counts with its whole length, so that within a pause the cost is the pause. `before` is that
/// mean before the snapshot; `pause` and the writes after it follow each other without a gap. All are in nanoseconds.
pub(crate) fn over_time(before: f64, pause: f64, writes: &[u32]) -> Curve {
    let ends: Vec<f64> = DECADES.flat_map(|power| STEPS.map(|step| rounded(step * 10f64.powi(power)))).collect();
    let mut stretches = vec![Mean::default(); ends.len()];
    let (mut stretch, mut now) = (0, 0.0);
    for length in std::iter::once(pause).chain(writes.iter().map(|length| f64::from(*length))) {
        let done = now + length;
        while now < done && stretch < ends.len() {
            let until = done.min(ends[stretch] * 1e6);
            stretches[stretch].add(until - now, length);
            now = until;
            if now >= ends[stretch] * 1e6 {
                stretch += 1;
            }
        }
        now = done;
    }
    let mut points = vec![(0.0, Some(before / 1e3))];
    points.extend(ends.iter().zip(&stretches).map(|(end, mean)| (*end, mean.value().map(|value| value / 1e3))));
    Curve { metric: "cost", unit: "us", over: Over::Time, points }
}

/// As files have it: without the digits that are only rounding errors.
fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1e6).round() / 1e6
}

/// The mean length of what is under way, weighted by time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    time: f64,
    weighted: f64,
}

impl Mean {
    /// Adds a stretch of `time` in which something of `length` is under way.
    pub(crate) fn add(&mut self, time: f64, length: f64) {
        self.time += time;
        self.weighted += time * length;
    }

    /// None if no time has passed.
    pub(crate) fn value(&self) -> Option<f64> {
        (self.time > 0.0).then(|| self.weighted / self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[Option<f64>]) -> Curve {
        let points = values.iter().enumerate().map(|(place, value)| (place as f64, *value)).collect();
        Curve { metric: "cost", unit: "us", over: Over::Time, points }
    }

    #[test]
    fn ranks_are_values_that_occurred() {
        let sorted: Vec<u32> = (1..=1000).collect();
        for (part, value) in [(0.5, 500), (0.9, 900), (0.99, 990), (0.999, 999), (1.0, 1000), (0.0, 1)] {
            assert_eq!(nearest_rank(&sorted, part), value, "{part}");
        }
        assert_eq!(nearest_rank(&[7], 0.999), 7);
    }

    #[test]
    fn percentiles_reach_as_far_as_there_are_values() {
        let sorted: Vec<u32> = (1..=5000).map(|value| value * 1000).collect();
        let points = by_percentile(&sorted).points;
        assert_eq!(points[points.len() - 2..], [(99.98, Some(4999.0)), (100.0, Some(5000.0))]);
        assert!(points.contains(&(50.0, Some(2500.0))));
        assert!(points.is_sorted_by(|(a, x), (b, y)| a < b && x <= y), "{points:?}");
        assert_eq!(by_percentile(&[3000]).points, [(100.0, Some(3.0))]);
    }

    #[test]
    fn within_a_pause_a_write_costs_the_pause() {
        // 20 us, then ten writes of 1 us each.
        let points = over_time(500.0, 20_000.0, &[1000; 10]).points;
        let at = |place: f64| points.iter().find(|(at, _)| *at == place).unwrap().1;
        assert_eq!(at(0.0), Some(0.5));
        assert_eq!(at(0.01), Some(20.0));
        assert_eq!(at(0.02), Some(20.0));
        assert_eq!(at(0.025), Some(1.0));
        assert_eq!(at(0.032), Some(1.0));
        assert_eq!(at(0.04), None, "nothing was written then");
    }

    #[test]
    fn of_a_stretch_that_two_share_it_is_the_mean_by_time() {
        // The first stretch is 10 us: 4 us of pause, 6 us of the one write.
        let points = over_time(1.0, 4_000.0, &[6_000]).points;
        let mean = points[1].1.unwrap();
        assert!((mean - (4.0 * 4.0 + 6.0 * 6.0) / 10.0).abs() < 1e-9, "{mean}");
        assert_eq!(over_time(1.0, 4_000.0, &[u32::MAX; 40]).points.last().unwrap().0, 80_000.0, "there is an end");
    }

    #[test]
    fn rounds_are_summed_up_place_by_place() {
        let rounds = [
            curve(&[Some(1.0), Some(5.0), None]),
            curve(&[Some(3.0), Some(7.0), None]),
            curve(&[Some(2.0), None, Some(1.0)]),
        ];
        assert_eq!(medians(&rounds), [(0.0, 2.0), (1.0, 6.0)]);
        assert!(medians(&[]).is_empty());
    }
}
