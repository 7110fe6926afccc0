//! Counters that faults write and users read.
//!
//! Each region has one [`Counters`]. The figures of a pool are the sum over its regions, living and dropped. To count
//! costs a fault a dozen relaxed additions on cache lines that its thread has just used, and two clock readings for the
//! histogram.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::histogram::{Histogram, Recording};
use crate::mem::EngineArc;
use crate::sync::SignalsBlocked;

/// What is the same for each count: faults add to it, users read it, and a pool sums it up.
macro_rules! counts {
    ($($name:ident)*) => {
        /// Counters of one region.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) longest_pause: AtomicU64,
            pub(crate) paused: AtomicU64,
            pub(crate) held_by_promotion: Recording,
            pub(crate) held_by_write_back: Recording,
            handler: Recording,
        }

        impl Counters {
            pub(crate) fn read(&self) -> FaultStats {
                FaultStats {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    longest_pause: Duration::from_nanos(self.longest_pause.load(Ordering::Relaxed)),
                    paused: Duration::from_nanos(self.paused.load(Ordering::Relaxed)),
                    held_by_promotion: self.held_by_promotion.read(),
                    held_by_write_back: self.held_by_write_back.read(),
                    handler: self.handler.read(),
                }
            }
        }

        impl FaultStats {
            fn add(&mut self, other: &FaultStats) {
                $(self.$name += other.$name;)*
                self.longest_pause = self.longest_pause.max(other.longest_pause);
                self.paused += other.paused;
                self.held_by_promotion.add(&other.held_by_promotion);
                self.held_by_write_back.add(&other.held_by_write_back);
                self.handler.add(&other.handler);
            }
        }
    };
}

counts! {
    demand_zero copied reused cow_mapped raced failed
    blocks_zeroed_before blocks_cleared blocks_copied bytes_cleared bytes_copied snapshots
    pages_written_back blocks_written_back blocks_promoted resets pages_put_back blocks_exchanged
    bytes_cancelled blocks_reclaimed blocks_revoked
}

/// Adds `more` to a counter.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    /// Notes how long one fault took, from the first line of the handler to the last.
    pub(crate) fn record_handler(&self, nanoseconds: u64) {
        self.handler.record(nanoseconds);
    }
}

/// The counters of a pool's living regions, and the sum over those that were dropped.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: std::sync::Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    live: Vec<EngineArc<Counters>>,
    dropped: FaultStats,
}

impl Registry {
    pub(crate) fn register(&self) -> EngineArc<Counters> {
        let counters = EngineArc::new(Counters::default());
        let _signals = SignalsBlocked::new();
        self.lock().live.push(counters.clone());
        counters
    }

    pub(crate) fn retire(&self, counters: &EngineArc<Counters>) {
        let _signals = SignalsBlocked::new();
        let mut inner = self.lock();
        inner.live.retain(|live| !live.is(counters));
        inner.dropped.add(&counters.read());
    }

    /// The number of living regions, and the sum over all that ever lived.
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
        // Nothing panics under this lock. If something did, the counts would still be valid.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What the faults of a region, or of all regions of a pool, have done. Counts only grow. They are read one after
/// another while faults go on, so sums may be off by the faults under way.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::{CopyGrain, RegionOptions};
/// let mut region = pool.region_with(4 << 20, RegionOptions::new().copy_grain(CopyGrain::Block))?;
/// region.as_mut_slice().fill(1);
/// let saved = region.snapshot()?;
/// region.as_mut_slice()[0] = 2; // one byte, and a copy of the block
/// let faults = region.stats().faults;
/// assert_eq!((faults.blocks_copied, faults.bytes_copied), (1, 2 << 20));
/// # drop(saved);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FaultStats {
    /// First writes: the block was given, zeroed.
    pub demand_zero: u64,
    /// Writes to a block that a fork or snapshot held: it was copied.
    pub copied: u64,
    /// Writes to a block that nobody else held any more: it was made writable without a copy.
    pub reused: u64,
    /// Writes to a block that a fork or snapshot held, from which on the kernel copies the pages that are written,
    /// there and in the neighbours: [`CopyGrain::Page`](crate::CopyGrain).
    pub cow_mapped: u64,
    /// Faults whose work another thread had done before their turn came.
    pub raced: u64,
    /// Faults that could not be resolved: the pool, the machine's memory or the mapping budget was used up.
    pub failed: u64,
    /// Blocks that were zero already: the kernel cleared them when it gave them, or the zeroed stock did.
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
    /// Bytes that were lazily freed and then written to or kept before they were dropped.
    pub bytes_cancelled: u64,
    /// Lazily freed blocks that were dropped.
    pub blocks_reclaimed: u64,
    /// Blocks that these regions took away from their forks and snapshots.
    pub blocks_revoked: u64,
    /// The longest time for which a fork or snapshot kept writers waiting.
    pub longest_pause: Duration,
    /// The time for which forks and snapshots kept writers waiting, in all.
    pub paused: Duration,
    /// Pages that the kernel had copied at writes ([`CopyGrain::Page`](crate::CopyGrain)) and that went back into
    /// blocks.
    pub pages_written_back: u64,
    /// The blocks that they went into.
    pub blocks_written_back: u64,
    /// Blocks that were copied in the background, because so many of their pages had been.
    pub blocks_promoted: u64,
    /// How often a region was [reset](crate::Region::reset_to).
    pub resets: u64,
    /// Pages of 4 KiB that had been written since the snapshot and that a reset gave their old bytes back, or dropped
    /// where other threads were held meanwhile.
    pub pages_put_back: u64,
    /// Blocks in whose place a reset has shown those of the snapshot.
    pub blocks_exchanged: u64,
    /// For how long blocks that were copied in the background, because so many of their pages had been, were held
    /// meanwhile: whoever used one waited, system calls too. Empty where nobody may be made to wait
    /// ([`RegionOptions::calls_wait`](crate::RegionOptions::calls_wait)).
    pub held_by_promotion: Histogram,
    /// The same, where pages went back into blocks.
    pub held_by_write_back: Histogram,
    /// Time that each fault spent in the fault handler, including clears and copies.
    pub handler: Histogram,
}

impl FaultStats {
    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.demand_zero + self.copied + self.reused + self.cow_mapped + self.raced + self.failed
    }
}
