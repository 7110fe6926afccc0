//! Distributions of times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for each power of two of nanoseconds, up to more than 8 s. So a percentile is at most 25 % too high.
const STEPS: u32 = 4;
const BUCKETS: usize = 128;

fn bucket_of(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(u64::from(STEPS));
    let octave = value.ilog2();
    let step = (value >> (octave - STEPS.ilog2())) & u64::from(STEPS - 1);
    (((octave - STEPS.ilog2()) * STEPS) as usize + step as usize).min(BUCKETS - 1)
}

/// The end of a bucket: its last nanosecond plus one.
fn bucket_end(bucket: usize) -> u64 {
    let (octave, step) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
    (u64::from(STEPS) + step + 1) << octave
}

/// A distribution of times to which any thread may add.
#[derive(Debug)]
pub(crate) struct Recording([AtomicU64; BUCKETS]);

impl Default for Recording {
    fn default() -> Self {
        Recording([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Recording {
    pub(crate) fn record(&self, nanoseconds: u64) {
        self.0[bucket_of(nanoseconds)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram { counts: std::array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed)) }
    }
}

/// A distribution of times.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let region = pool.region(4 << 20)?;
/// region.as_atomic_u64s()[0].store(1, std::sync::atomic::Ordering::Relaxed);
/// let times = region.stats().faults.handler;
/// assert_eq!(times.count(), 1);
/// println!("half of the faults took at most {:?}, all {:?}", times.percentile(50.0), times.percentile(100.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS] }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} times, median {:?}, p99 {:?}", self.count(), self.percentile(50.0), self.percentile(99.0))
    }
}

impl Histogram {
    /// Adds the times of another distribution.
    pub(crate) fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// The number of times that were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that `percent` per cent of all recorded times do not exceed, rounded up to the end of its bucket (at
    /// most 25 % more). Zero if nothing was recorded.
    pub fn percentile(&self, percent: f64) -> Duration {
        let wanted = ((self.count() as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(bucket_end(bucket));
            }
        }
        Duration::ZERO
    }

    /// Each bucket that holds times: its upper end, and how many it holds.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (Duration::from_nanos(bucket_end(bucket)), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket() {
        for nanoseconds in (4..5_000).chain([1 << 20, (1 << 20) + 1, 999_999_999, 7_000_000_000]) {
            let bucket = bucket_of(nanoseconds);
            assert!(nanoseconds < bucket_end(bucket), "{nanoseconds}");
            assert!(bucket == 0 || nanoseconds >= bucket_end(bucket - 1), "{nanoseconds}");
            assert!(bucket_end(bucket) * 4 <= nanoseconds * 5 + 4, "{nanoseconds} is within 25 %");
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_of_what_was_recorded() {
        let counters = Recording::default();
        for _ in 0..99 {
            counters.record(25_000);
        }
        counters.record(1_000_000);
        let handler = counters.read();
        assert_eq!(handler.count(), 100);
        assert!((25_000..32_000).contains(&(handler.percentile(50.0).as_nanos() as u64)));
        assert!(handler.percentile(99.0) < Duration::from_micros(32));
        assert!(handler.percentile(100.0) >= Duration::from_millis(1));
        assert_eq!(Histogram::default().percentile(50.0), Duration::ZERO);
    }
}
