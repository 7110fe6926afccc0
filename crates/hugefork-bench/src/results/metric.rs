//! Metrics, each with its name, its unit and its better direction, and single values of metrics.
//!
//! If only one case has a metric, the file of that case defines it.

/// A property that is measured. Names and units are stable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    name: &'static str,
    unit: &'static str,
    better: Better,
    /// Values below this one are noise; a ratio counts them as this value.
    least: f64,
}

/// The better direction of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times and sizes.
    Lower,
    /// Rates.
    Higher,
}

impl Metric {
    /// Bytes that all tasks together write in a second.
    pub const THROUGHPUT: Metric = Metric { better: Better::Higher, ..Metric::new("throughput", "GiB/s") };

    /// The time for creating areas and tasks.
    pub const CREATE: Metric = Metric::new("create", "ms");

    /// Half of all values are no larger than this.
    pub const P50: Metric = Metric::new("p50", "us");

    /// 99 of 100 values are no larger than this.
    pub const P99: Metric = Metric::new("p99", "us");

    /// 999 of 1000 values are no larger than this.
    pub const P999: Metric = Metric::new("p99.9", "us");

    /// The largest value.
    pub const MAX: Metric = Metric::new("max", "us");

    /// CPU time, user and system, of all threads of the process and of its children.
    pub const CPU: Metric = Metric::new("cpu", "ms");

    /// Memory that a snapshot adds. The kernel counts in batches, so that less than a MiB is noise.
    pub const MEMORY: Metric = Metric { least: 1.0, ..Metric::new("memory", "MiB") };

    /// A metric whose smaller values are better.
    pub(crate) const fn new(name: &'static str, unit: &'static str) -> Metric {
        Metric { name, unit, better: Better::Lower, least: 0.0 }
    }

    /// The name in results.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The unit in results.
    pub fn unit(self) -> &'static str {
        self.unit
    }

    /// The better direction.
    pub fn better(self) -> Better {
        self.better
    }

    /// How many times better `ours` is than `theirs`; less than 1 if `ours` is worse, and `None` if one of the values
    /// is 0.
    pub fn ratio(self, ours: f64, theirs: f64) -> Option<f64> {
        let [ours, theirs] = [ours, theirs].map(|value| value.max(self.least));
        let ratio = match self.better {
            Better::Lower => theirs / ours,
            Better::Higher => ours / theirs,
        };
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

/// One measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// The metric.
    pub metric: Metric,
    /// The value, in the metric's unit.
    pub value: f64,
}

impl Measure {
    /// The value `value` of the metric `metric`.
    pub(crate) fn new(metric: Metric, value: f64) -> Measure {
        Measure { metric, value }
    }

    /// The values of a list, in its order.
    pub(crate) fn all<const N: usize>(values: [(Metric, f64); N]) -> Vec<Measure> {
        values.into_iter().map(|(metric, value)| Measure::new(metric, value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_1_is_better_and_noise_is_no_ratio() {
        assert_eq!(Metric::CPU.ratio(2.0, 6.0), Some(3.0));
        assert_eq!(Metric::THROUGHPUT.ratio(30.0, 20.0), Some(1.5));
        assert_eq!(Metric::MEMORY.ratio(0.0, 0.3), Some(1.0), "both are below the noise");
        assert_eq!(Metric::MEMORY.ratio(0.1, 256.0), Some(256.0));
        assert_eq!((Metric::CPU.ratio(0.0, 5.0), Metric::CPU.ratio(5.0, 0.0)), (None, None));
    }
}
