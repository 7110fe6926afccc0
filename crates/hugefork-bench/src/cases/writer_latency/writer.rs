//! The writer, which is the same for every subject: it takes the snapshot, writes, and times each write.

use super::words::{Words, after, before};
use crate::error::BenchError;
use crate::measure::affinity::Pinned;
use crate::measure::clock::{self, CpuTime, Stopwatch};
use crate::measure::work::{self, reader};
use crate::results::curve::{self, Curve, Mean, nearest_rank};
use crate::results::metric::{Measure, Metric};

/// Nine of ten writes take no longer than this.
const P90: Metric = Metric::new("p90", "us");

/// All writes together.
const WRITES: Metric = Metric::new("total", "ms");

/// What the snapshot takes from the program: the pause, and all writes.
pub(in crate::cases) const TAKEN: Metric = Metric::new("taken", "ms");

/// The call, and all writes.
const ALL: Metric = Metric::new("all", "ms");

/// What was measured of one epoch. The time of each write is in the list of the [`Words`].
pub(super) struct Written {
    /// Milliseconds of the call that took the snapshot.
    pub(super) call: f64,
    /// Milliseconds of all writes.
    total: f64,
    /// Nanoseconds of a write before the snapshot.
    before: f64,
    pub(super) minor_faults: usize,
    cpu: CpuTime,
}

/// Takes a snapshot, then writes, on `cpu`.
///
/// # Safety
/// `area` holds every offset of `words`, is aligned to 8, and nobody else accesses it; every write to it finds memory.
pub(super) unsafe fn run<T>(
    cpu: usize,
    area: *mut u8,
    words: &mut Words,
    take: impl FnOnce(&Words) -> Result<T, BenchError>,
) -> Result<(T, Written), BenchError> {
    let _pinned = Pinned::to(cpu)?;
    let mut earlier = Mean::default();
    let mut last = clock::now_fenced();
    for &offset in words.earlier() {
        // SAFETY: the word lies in the area, which holds this already.
        unsafe { work::first_write(area, offset, before(offset)) };
        let now = clock::now_fenced();
        earlier.add((now - last) as f64, (now - last) as f64);
        last = now;
    }
    let mut watch = Stopwatch::default();
    let (taken, call) = watch.time(|| take(words));
    let taken = taken?;
    let faults = clock::minor_faults();
    let ((), total) = watch.time(|| {
        let (offsets, latencies) = words.writing();
        let mut last = clock::now_fenced();
        for (&offset, latency) in offsets.iter().zip(latencies) {
            // SAFETY: the word lies in the area.
            unsafe { work::first_write(area, offset, after(offset)) };
            let now = clock::now_fenced();
            *latency = (now - last).min(u32::MAX.into()) as u32;
            last = now;
        }
    });
    let minor_faults = (clock::minor_faults() - faults) as usize;
    // SAFETY: by contract.
    words.check_written(unsafe { reader(area) })?;
    let before = earlier.value().unwrap_or(0.0);
    Ok((taken, Written { call, total, before, minor_faults, cpu: watch.cpu() }))
}

impl Written {
    /// Metrics and curves, where writers waited for `pause` milliseconds of the call.
    pub(super) fn told(&self, pause: f64, words: &Words) -> (Vec<Measure>, Vec<Curve>) {
        let mut sorted = words.latencies.as_slice().to_vec();
        let over_time = curve::over_time(self.before, pause * 1e6, &sorted);
        sorted.sort_unstable();
        let rank = |part| f64::from(nearest_rank(&sorted, part)) / 1e3;
        let values = [
            (TAKEN, pause + self.total),
            (Metric::PAUSE, pause),
            (Metric::P50, rank(0.5)),
            (P90, rank(0.9)),
            (Metric::P99, rank(0.99)),
            (Metric::P999, rank(0.999)),
            (Metric::MAX, rank(1.0)),
            (WRITES, self.total),
            (Metric::CALL, self.call),
            (ALL, self.call + self.total),
        ];
        (Measure::sample(values, self.cpu), vec![curve::by_percentile(&sorted), over_time])
    }
}
