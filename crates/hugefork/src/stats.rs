//! What happened: counters that faults write and users read.
//!
//! Each region has one [`Counters`]; a pool's figures are the sum over its regions, living and dropped. Counting costs a
//! fault a dozen relaxed additions on lines that its thread just used, and two clock readings for the histogram.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::own::Counted;
use crate::pool::{PressureStats, StockStats, SupplyStats};
use crate::sync::SignalsBlocked;

/// Counters of one region.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) demand_zero: AtomicU64,
    pub(crate) copied: AtomicU64,
    pub(crate) reused: AtomicU64,
    pub(crate) raced: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) blocks_zeroed_before: AtomicU64,
    pub(crate) blocks_cleared: AtomicU64,
    pub(crate) blocks_copied: AtomicU64,
    pub(crate) bytes_cleared: AtomicU64,
    pub(crate) bytes_copied: AtomicU64,
    pub(crate) snapshots: AtomicU64,
    pub(crate) longest_pause: AtomicU64,
    pub(crate) bytes_cancelled: AtomicU64,
    pub(crate) blocks_reclaimed: AtomicU64,
    pub(crate) blocks_revoked: AtomicU64,
    handler: Buckets,
}

#[derive(Debug)]
struct Buckets([AtomicU64; BUCKETS]);

impl Default for Buckets {
    fn default() -> Self {
        Buckets([const { AtomicU64::new(0) }; BUCKETS])
    }
}

/// Adds `more` to a counter.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    /// Notes how long one fault took, from the first line of the handler to the last.
    pub(crate) fn record_handler(&self, nanoseconds: u64) {
        count(&self.handler.0[bucket_of(nanoseconds)], 1);
    }

    fn read(&self) -> FaultStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FaultStats {
            demand_zero: get(&self.demand_zero),
            copied: get(&self.copied),
            reused: get(&self.reused),
            raced: get(&self.raced),
            failed: get(&self.failed),
            blocks_zeroed_before: get(&self.blocks_zeroed_before),
            blocks_cleared: get(&self.blocks_cleared),
            blocks_copied: get(&self.blocks_copied),
            bytes_cleared: get(&self.bytes_cleared),
            bytes_copied: get(&self.bytes_copied),
            snapshots: get(&self.snapshots),
            bytes_cancelled: get(&self.bytes_cancelled),
            blocks_reclaimed: get(&self.blocks_reclaimed),
            blocks_revoked: get(&self.blocks_revoked),
            longest_pause: Duration::from_nanos(get(&self.longest_pause)),
            handler: Histogram { counts: std::array::from_fn(|bucket| get(&self.handler.0[bucket])) },
        }
    }
}

/// Counters of a pool's regions: those that live, and the sum over those that were dropped.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: std::sync::Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    live: Vec<Counted<Counters>>,
    dropped: FaultStats,
}

impl Registry {
    pub(crate) fn register(&self) -> Counted<Counters> {
        let counters = Counted::new(Counters::default());
        let _signals = SignalsBlocked::new();
        self.lock().live.push(counters.clone());
        counters
    }

    pub(crate) fn retire(&self, counters: &Counted<Counters>) {
        let _signals = SignalsBlocked::new();
        let mut inner = self.lock();
        inner.live.retain(|live| !live.is(counters));
        inner.dropped.add(&counters.read());
    }

    /// Number of living regions, and the sum over all there ever were.
    pub(crate) fn sum(&self) -> (usize, FaultStats) {
        let _signals = SignalsBlocked::new();
        let inner = self.lock();
        let mut sum = inner.dropped.clone();
        for counters in &inner.live {
            sum.add(&counters.read());
        }
        (inner.live.len(), sum)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registered> {
        // Nothing panics under this lock; if it did, the counts would still be counts.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Reads the counters of one region.
pub(crate) fn read(counters: &Counters) -> FaultStats {
    counters.read()
}

/// What the faults of a region, or of all regions of a pool, came to. Counts only grow; they are read one after the
/// other while faults go on, so sums may be off by the faults in flight.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FaultStats {
    /// First writes: the block was given, zeroed.
    pub demand_zero: u64,
    /// Writes to a block that a fork or snapshot holds: it was copied.
    pub copied: u64,
    /// Writes to a block that nobody else holds any more: it was made writable, without a copy.
    pub reused: u64,
    /// Faults that found the work done by another thread when their turn came.
    pub raced: u64,
    /// Faults that could not be resolved: the pool, the machine's memory or the mapping budget was used up.
    pub failed: u64,
    /// Blocks that were zero already: cleared by the kernel when it gave them, or by the zeroed stock.
    pub blocks_zeroed_before: u64,
    /// Blocks that hugefork cleared.
    pub blocks_cleared: u64,
    /// Blocks that hugefork copied.
    pub blocks_copied: u64,
    /// Bytes that hugefork cleared.
    pub bytes_cleared: u64,
    /// Bytes that hugefork copied.
    pub bytes_copied: u64,
    /// Forks and snapshots taken.
    pub snapshots: u64,
    /// Bytes that were lazily freed and written to again, or taken back, before they were dropped.
    pub bytes_cancelled: u64,
    /// Lazily freed blocks that were dropped.
    pub blocks_reclaimed: u64,
    /// Blocks that these regions took away from their forks and snapshots.
    pub blocks_revoked: u64,
    /// The longest time for which a fork or snapshot kept writers waiting.
    pub longest_pause: Duration,
    /// Time spent in the fault handler, per fault, clearing and copying included.
    pub handler: Histogram,
}

impl FaultStats {
    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.demand_zero + self.copied + self.reused + self.raced + self.failed
    }

    fn add(&mut self, other: &FaultStats) {
        self.demand_zero += other.demand_zero;
        self.copied += other.copied;
        self.reused += other.reused;
        self.raced += other.raced;
        self.failed += other.failed;
        self.blocks_zeroed_before += other.blocks_zeroed_before;
        self.blocks_cleared += other.blocks_cleared;
        self.blocks_copied += other.blocks_copied;
        self.bytes_cleared += other.bytes_cleared;
        self.bytes_copied += other.bytes_copied;
        self.snapshots += other.snapshots;
        self.bytes_cancelled += other.bytes_cancelled;
        self.blocks_reclaimed += other.blocks_reclaimed;
        self.blocks_revoked += other.blocks_revoked;
        self.longest_pause = self.longest_pause.max(other.longest_pause);
        for (mine, theirs) in self.handler.counts.iter_mut().zip(&other.handler.counts) {
            *mine += theirs;
        }
    }
}

/// [`Region::stats`](crate::Region::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegionStats {
    /// Blocks that the region spans.
    pub blocks: usize,
    /// Blocks that it holds, alone or with others.
    pub blocks_present: usize,
    /// Of those, blocks that a fork or snapshot may hold too: the next write to one copies or reuses it.
    pub blocks_shared: usize,
    /// Of those present, blocks that were lazily freed as a whole.
    pub blocks_lazy: usize,
    /// Blocks that were lazily freed in part.
    pub blocks_split: usize,
    /// Blocks that are set aside for it ([`Reserve::Full`](crate::Reserve::Full)).
    pub blocks_reserved: usize,
    /// Blocks that were taken away from it.
    pub blocks_revoked: usize,
    /// Bytes that were lazily freed and not dropped yet, pages of split blocks among them.
    pub bytes_lazy: usize,
    /// Bytes that its forks and snapshots alone hold, having been written or discarded here since. What
    /// [`RegionOptions::max_cow_bytes`](crate::RegionOptions::max_cow_bytes) limits.
    pub cow_bytes: usize,
    /// Mappings (VMAs) that the region takes, as the engine counts them.
    pub mappings: usize,
    /// Bytes of the region's page table.
    pub metadata_bytes: usize,
    /// Its faults.
    pub faults: FaultStats,
}

/// [`Pool::stats`](crate::Pool::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Blocks of the pool.
    pub blocks: usize,
    /// Blocks that nobody holds and that are set aside for nobody.
    pub blocks_free: usize,
    /// Blocks that nobody holds and that are set aside for regions, forks and snapshots.
    pub blocks_reserved: usize,
    /// Free blocks that are zero and have memory: a first write takes one of them without clearing.
    pub blocks_zeroed_free: usize,
    /// Bytes of memory that the pool has in huge pages now, as the kernel maps them, those of free blocks among them. `None`
    /// where the kernel does not tell (before Linux 6.7).
    pub bytes_huge: Option<usize>,
    /// All other bytes of memory that it has now, in base pages of 4 KiB. Zero is what a pool of huge pages should say: if not,
    /// memory was too fragmented for them, [`Region::lazy_free`](crate::Region::lazy_free) of parts of blocks has split some, or
    /// memory was just being got.
    pub bytes_base: Option<usize>,
    /// 2 MiB that the kernel refused to make one page of, where the pool has to ask for that
    /// ([`HugeBy::Collapse`](crate::HugeBy)): they are in base pages.
    pub not_collapsed: u64,
    /// How blocks got their memory.
    pub supply: SupplyStats,
    /// What the background zeroing came to.
    pub stock: StockStats,
    /// What watching for memory pressure came to.
    pub pressure: PressureStats,
    /// Blocks whose release the kernel refused: out of use until the process ends, never handed out again.
    pub blocks_leaked: usize,
    /// Living regions.
    pub regions: usize,
    /// Bytes of metadata for the pool's blocks. The page tables of regions come on top, see [`RegionStats`].
    pub metadata_bytes: usize,
    /// Mappings (VMAs) that regions of all pools of the process take, as the engine counts them.
    pub mappings: usize,
    /// What the process allows them together.
    pub mappings_limit: usize,
    /// Faults of all regions that the pool ever had.
    pub faults: FaultStats,
}

/// Four buckets to each power of two of nanoseconds, up to more than 8 s; a percentile is at most 25 % too high.
const STEPS: u32 = 4;
const BUCKETS: usize = 128;

fn bucket_of(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(u64::from(STEPS));
    let octave = value.ilog2();
    let step = (value >> (octave - STEPS.ilog2())) & u64::from(STEPS - 1);
    (((octave - STEPS.ilog2()) * STEPS) as usize + step as usize).min(BUCKETS - 1)
}

/// One past the last nanosecond of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let (octave, step) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
    (u64::from(STEPS) + step + 1) << octave
}

/// A distribution of times.
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
    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that `percent` per cent of all recorded ones do not exceed, rounded up to the end of its bucket (at
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

    /// Each bucket that something fell into: its upper end and how many.
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
        let counters = Counters::default();
        for _ in 0..99 {
            counters.record_handler(25_000);
        }
        counters.record_handler(1_000_000);
        let handler = counters.read().handler;
        assert_eq!(handler.count(), 100);
        assert!((25_000..32_000).contains(&(handler.percentile(50.0).as_nanos() as u64)));
        assert!(handler.percentile(99.0) < Duration::from_micros(32));
        assert!(handler.percentile(100.0) >= Duration::from_millis(1));
        assert_eq!(Histogram::default().percentile(50.0), Duration::ZERO);
    }
}
