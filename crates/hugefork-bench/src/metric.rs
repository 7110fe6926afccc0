//! What is measured: metrics with their names, units and which way is better, and single values of them.

use crate::clock::CpuTime;

/// What is measured. Names and units are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Metric {
    /// The clear or copy itself.
    Op,
    /// The use that follows it.
    Use,
    /// Both, block by block.
    Total,
    /// How many times longer another CPU's walk through memory in its cache takes while blocks are cleared.
    VictimSlowdown,
    /// Fault and near use.
    Latency,
    /// The fault alone.
    Fault,
    /// The fault alone, less the same clear or copy done directly.
    Overhead,
    /// Bytes written a second, all tasks together.
    Throughput,
    /// Areas and tasks made.
    Create,
    /// Faults for each GiB written.
    FaultsPerGib,
    /// Time that the zeroing thread spent on what the sample used.
    Zeroing,
    /// The call that takes a fork or snapshot.
    Pause,
    /// The write that half of all writes are no slower than.
    P50,
    /// Likewise, nine of ten.
    P90,
    /// 99 of 100.
    P99,
    /// 999 of 1000.
    P999,
    /// The slowest write.
    Max,
    /// All writes together. In results it is `total` as well, in another unit.
    Writes,
    /// Bytes copied for each byte that was changed.
    Amplification,
    /// The call that marks memory as lazily freed.
    Mark,
    /// That, and a write to each block, which takes it back.
    MarkRewrite,
    /// From populated memory to memory that is free again.
    MarkReclaim,
    /// User time of the sample.
    User,
    /// System time of the sample.
    Sys,
    /// Cycles of the CPU, in user and kernel mode, of the whole sample with what is not timed in it.
    Cycles,
    /// Likewise, instructions.
    Instructions,
    /// Likewise, misses of the last-level cache.
    LlcMisses,
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
    /// Every metric.
    pub const ALL: [Metric; 27] = [
        Metric::Op,
        Metric::Use,
        Metric::Total,
        Metric::VictimSlowdown,
        Metric::Latency,
        Metric::Fault,
        Metric::Overhead,
        Metric::Throughput,
        Metric::Create,
        Metric::FaultsPerGib,
        Metric::Zeroing,
        Metric::Pause,
        Metric::P50,
        Metric::P90,
        Metric::P99,
        Metric::P999,
        Metric::Max,
        Metric::Writes,
        Metric::Amplification,
        Metric::Mark,
        Metric::MarkRewrite,
        Metric::MarkReclaim,
        Metric::User,
        Metric::Sys,
        Metric::Cycles,
        Metric::Instructions,
        Metric::LlcMisses,
    ];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Op => "op",
            Metric::Use => "use",
            Metric::Total | Metric::Writes => "total",
            Metric::VictimSlowdown => "victim_slowdown",
            Metric::Latency => "latency",
            Metric::Fault => "fault",
            Metric::Overhead => "overhead",
            Metric::Throughput => "throughput",
            Metric::Create => "create",
            Metric::FaultsPerGib => "faults_per_gib",
            Metric::Zeroing => "zeroing",
            Metric::Pause => "pause",
            Metric::P50 => "p50",
            Metric::P90 => "p90",
            Metric::P99 => "p99",
            Metric::P999 => "p99.9",
            Metric::Max => "max",
            Metric::Amplification => "amplification",
            Metric::Mark => "mark",
            Metric::MarkRewrite => "mark+rewrite",
            Metric::MarkReclaim => "mark+reclaim",
            Metric::User => "user",
            Metric::Sys => "sys",
            Metric::Cycles => "cycles",
            Metric::Instructions => "instructions",
            Metric::LlcMisses => "llc_misses",
        }
    }

    /// The unit in results.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Op | Metric::Use | Metric::Total | Metric::Latency | Metric::Fault | Metric::Overhead => "us",
            Metric::P50 | Metric::P90 | Metric::P99 | Metric::P999 | Metric::Max => "us",
            Metric::Throughput => "GiB/s",
            Metric::Create | Metric::Zeroing | Metric::Pause | Metric::Writes => "ms",
            Metric::Mark | Metric::MarkRewrite | Metric::MarkReclaim => "ms",
            Metric::VictimSlowdown | Metric::Amplification => "ratio",
            Metric::FaultsPerGib => "count",
            Metric::User | Metric::Sys => "s",
            Metric::Cycles | Metric::Instructions | Metric::LlcMisses => "M",
        }
    }

    /// Which way is better.
    pub fn better(self) -> Better {
        match self {
            Metric::Throughput => Better::Higher,
            _ => Better::Lower,
        }
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
        let cpu = [(Metric::User, time.user), (Metric::Sys, time.sys)];
        values.into_iter().chain(cpu).map(|(metric, value)| Measure::new(metric, value)).collect()
    }
}
