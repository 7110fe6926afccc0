//! What is measured: metrics, each with its name, its unit and which way is better, and single values of them.
//!
//! A metric of one case alone stands in the file of that case.

use crate::measure::clock::CpuTime;

/// What is measured. Names and units are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    name: &'static str,
    unit: &'static str,
    better: Better,
}

/// Whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

impl Metric {
    /// Bytes written a second, all tasks together.
    pub const THROUGHPUT: Metric = Metric { name: "throughput", unit: "GiB/s", better: Better::Higher };

    /// Making areas and tasks.
    pub const CREATE: Metric = Metric::new("create", "ms");

    /// The fault alone, less the same clear or copy done directly.
    pub const OVERHEAD: Metric = Metric::new("overhead", "us");

    /// Time that the zeroing thread spent on what the sample used.
    pub const ZEROING: Metric = Metric::new("zeroing", "ms");

    /// What a fork or snapshot keeps writers waiting.
    pub const PAUSE: Metric = Metric::new("pause", "ms");

    /// The whole call that takes a fork or snapshot.
    pub const CALL: Metric = Metric::new("call", "ms");

    /// Half of all writes take no longer than this.
    pub const P50: Metric = Metric::new("p50", "us");

    /// 99 of 100 writes take no longer than this.
    pub const P99: Metric = Metric::new("p99", "us");

    /// 999 of 1000 writes take no longer than this.
    pub const P999: Metric = Metric::new("p99.9", "us");

    /// The slowest write.
    pub const MAX: Metric = Metric::new("max", "us");

    /// Memory beyond the area itself, while a fork or snapshot is held that was written after.
    pub const EXTRA: Metric = Metric::new("extra", "MiB");

    /// User time of the sample.
    pub const USER: Metric = Metric::new("user", "s");

    /// System time of the sample.
    pub const SYS: Metric = Metric::new("sys", "s");

    /// Cycles of the CPU, in user and kernel mode, of the whole sample with what is not timed in it.
    pub const CYCLES: Metric = Metric::new("cycles", "M");

    /// Likewise, instructions.
    pub const INSTRUCTIONS: Metric = Metric::new("instructions", "M");

    /// Likewise, misses of the last-level cache.
    pub const LLC_MISSES: Metric = Metric::new("llc_misses", "M");

    /// One of which less is better.
    pub(crate) const fn new(name: &'static str, unit: &'static str) -> Metric {
        Metric { name, unit, better: Better::Lower }
    }

    /// The name in results.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The unit in results.
    pub fn unit(self) -> &'static str {
        self.unit
    }

    /// Which way is better.
    pub fn better(self) -> Better {
        self.better
    }
}

/// One measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Of what.
    pub metric: Metric,
    /// In the metric's unit.
    pub value: f64,
}

impl Measure {
    /// `value` of `metric`.
    pub(crate) fn new(metric: Metric, value: f64) -> Measure {
        Measure { metric, value }
    }

    /// A sample: these values, and the user and system time that it took.
    pub(crate) fn sample<const N: usize>(values: [(Metric, f64); N], time: CpuTime) -> Vec<Measure> {
        let cpu = [(Metric::USER, time.user), (Metric::SYS, time.sys)];
        values.into_iter().chain(cpu).map(|(metric, value)| Measure::new(metric, value)).collect()
    }
}
