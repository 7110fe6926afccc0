//! Counters that faults write and users read.
//!
//! Each region has one [`Counters`]. The figures of a pool are the sum over its regions, living and dropped. For its
//! counts a fault makes a dozen relaxed additions to cache lines that its thread has just used, and reads the clock
//! twice for the histogram.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::histogram::{Histogram, Recording};
use crate::mem::EngineArc;
use crate::sync::SignalsBlocked;

/// The code that is the same for each count: declaring it, reading it, and summing it up.
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
            pub(crate) handler: Recording,
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

/// Counts of the work of faults, of one region or of all regions of a pool. Counts only grow. They are read one after
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
    /// First writes: hugefork gave the region a zeroed block.
    pub demand_zero: u64,
    /// Writes to a block that a fork or snapshot held: hugefork copied the block.
    pub copied: u64,
    /// Writes to a block that nobody else held any more: hugefork made it writable without a copy.
    pub reused: u64,
    /// Writes to a block that a fork or snapshot held, after which the kernel copies each page at its first write, in
    /// this block and in its neighbours: [`CopyGrain::Page`](crate::CopyGrain).
    pub cow_mapped: u64,
    /// Faults whose work another thread did first.
    pub raced: u64,
    /// Faults that could not be resolved: the pool, the machine's memory or the mapping budget was used up.
    pub failed: u64,
    /// Blocks that needed no clearing at the fault: they were fresh from the kernel, or came from the zeroed stock.
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
    /// Lazily freed bytes that the program wrote to or kept before they were dropped.
    pub bytes_cancelled: u64,
    /// Lazily freed blocks that were dropped.
    pub blocks_reclaimed: u64,
    /// Blocks that these regions took away from their forks and snapshots.
    pub blocks_revoked: u64,
    /// The longest time for which one fork or snapshot made writers wait.
    pub longest_pause: Duration,
    /// The total time for which forks and snapshots made writers wait.
    pub paused: Duration,
    /// Pages that the kernel had copied at writes ([`CopyGrain::Page`](crate::CopyGrain)) and that hugefork wrote back
    /// into blocks.
    pub pages_written_back: u64,
    /// The blocks that such pages were written back into.
    pub blocks_written_back: u64,
    /// Blocks that hugefork copied in the background because many of their pages had been copied.
    pub blocks_promoted: u64,
    /// Resets of a region ([`Region::reset_to`](crate::Region::reset_to)).
    pub resets: u64,
    /// Pages of 4 KiB, written since the snapshot, to which a reset gave their old bytes back. A reset that held other
    /// threads meanwhile dropped the pages instead; these count too.
    pub pages_put_back: u64,
    /// Blocks that a reset replaced by the snapshot's.
    pub blocks_exchanged: u64,
    /// Times for which a block was held while hugefork copied it in the background (see
    /// [`blocks_promoted`](Self::blocks_promoted)). Threads and system calls that touched it waited. Empty where
    /// hugefork may make nobody wait ([`RegionOptions::calls_wait`](crate::RegionOptions::calls_wait)).
    pub held_by_promotion: Histogram,
    /// Times for which a block was held while pages were written back into it.
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
