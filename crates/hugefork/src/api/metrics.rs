//! Statistics as a list of figures, for programs that export metrics.

use std::time::Duration;

use super::stats::{PoolStats, RegionStats};
use crate::stats::counters::FaultStats;

/// A figure of [`PoolStats::metrics`] or [`RegionStats::metrics`], described as crates for metrics take it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::MetricKind;
/// let mut text = String::new(); // as Prometheus reads it
/// for metric in pool.stats().metrics() {
///     let kind = if metric.kind == MetricKind::Counter { "counter" } else { "gauge" };
///     let name = format!("hugefork_pool_{}", metric.name);
///     text += &format!("# HELP {name} {}\n# TYPE {name} {kind}\n", metric.help);
///     text += &format!("{name}{{pool=\"{}\"}} {}\n", pool.name(), metric.value);
/// }
/// assert!(text.contains("hugefork_pool_blocks_free{pool=\"unnamed\"} 4\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name: lower case and underscores. It never changes.
    pub name: &'static str,
    /// Its value. Counts up to 2^53 are exact.
    pub value: f64,
    /// The unit of the value.
    pub unit: MetricUnit,
    /// Whether it only grows.
    pub kind: MetricKind,
    /// One sentence without a full stop, in ASCII.
    pub help: &'static str,
}

/// The unit of a [`Metric`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::MetricUnit;
/// let bytes = pool.stats().metrics().filter(|metric| metric.unit == MetricUnit::Bytes).count();
/// assert!(bytes > 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricUnit {
    /// A number of things, which the name has.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// 1 or 0: yes or no.
    Flag,
}

/// Whether a [`Metric`] only grows.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::MetricKind;
/// assert!(pool.stats().metrics().any(|metric| (metric.name, metric.kind) == ("faults", MetricKind::Counter)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, from 0 at the beginning of the pool or region.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A value of the statistics as a number; `None` if it is not known.
trait Number {
    fn number(&self) -> Option<f64>;
}

macro_rules! figures {
    ($($of:ty: |$value:ident| $number:expr;)*) => { $(
        impl Number for $of {
            fn number(&self) -> Option<f64> {
                let $value = *self;
                $number
            }
        }
    )* };
}

figures! {
    u64: |value| Some(value as f64);
    usize: |value| Some(value as f64);
    bool: |value| Some(f64::from(u8::from(value)));
    Duration: |value| Some(value.as_secs_f64());
    Option<usize>: |value| value.map(|value| value as f64);
}

/// Lists figures: name, kind, unit, value, help.
macro_rules! list {
    ($($name:literal $kind:ident $unit:ident $value:expr, $help:literal;)*) => {
        [$($value.number().map(|value| Metric {
            name: $name, value, unit: MetricUnit::$unit, kind: MetricKind::$kind, help: $help,
        }),)*].into_iter().flatten()
    };
}

impl PoolStats {
    /// All figures, for a program that exports metrics. A figure that the kernel does not report is left out. Of
    /// histograms it has the median and the 99th percentile.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
        list! {
            "blocks" Gauge Count self.blocks, "Blocks of the pool";
            "blocks_free" Gauge Count self.blocks_free, "Blocks without a holder that are not reserved";
            "blocks_reserved" Gauge Count self.blocks_reserved, "Blocks without a holder that are reserved";
            "blocks_zeroed_free" Gauge Count self.blocks_zeroed_free, "Free blocks that are zero and have memory";
            "blocks_leaked" Counter Count self.blocks_leaked, "Blocks whose release the kernel refused";
            "pages_held" Gauge Count self.pages_held, "Pages of 4 KiB that snapshots hold in place of pages of blocks";
            "blocks_of_pages" Gauge Count self.blocks_of_pages, "Used blocks that contain these pages";
            "pages_in_views" Gauge Count self.pages_in_views, "Copies of such pages, made when snapshots were read";
            "bytes_huge" Gauge Bytes self.bytes_huge, "Memory of the pool in huge pages";
            "bytes_base" Gauge Bytes self.bytes_base, "Memory of the pool in pages of 4 KiB";
            "not_collapsed" Counter Count self.not_collapsed, "Times that the kernel refused to make a huge page";
            "supply_running" Gauge Flag self.supply.running, "Whether a thread obtains memory ahead";
            "supply_blocks_ahead" Counter Count self.supply.blocks_ahead, "Blocks whose memory was obtained ahead";
            "supply_seconds" Counter Seconds self.supply.time, "CPU time of the thread that obtains memory ahead";
            "supply_blocks_late" Counter Count self.supply.blocks_late, "Blocks whose memory was obtained at their use";
            "supply_stopped" Counter Count self.supply.stopped, "Times that the machine had no memory to spare";
            "supply_blocks_given_back" Counter Count self.supply.blocks_given_back, "Blocks obtained ahead in vain";
            "stock_running" Gauge Flag self.stock.running, "Whether a thread clears used blocks";
            "stock_blocks" Counter Count self.stock.blocks, "Blocks that this thread has cleared";
            "stock_seconds" Counter Seconds self.stock.time, "CPU time of the thread that clears blocks";
            "pressure_running" Gauge Flag self.pressure.running, "Whether a thread watches for a shortage of memory";
            "pressure_events" Counter Count self.pressure.events, "Shortages that the kernel has reported";
            "pressure_bytes_reclaimed" Counter Bytes self.pressure.bytes_reclaimed, "Lazily freed bytes dropped then";
            "pressure_bytes_trimmed" Counter Bytes self.pressure.bytes_trimmed, "Free memory returned to the system then";
            "regions" Gauge Count self.regions, "Living regions";
            "metadata_bytes" Gauge Bytes self.metadata_bytes, "Metadata of the blocks of the pool";
            "mappings" Gauge Count self.mappings, "Mappings that regions of all pools use";
            "mappings_limit" Gauge Count self.mappings_limit, "The limit of the process for mappings";
        }
        .chain(of_faults(&self.faults))
    }
}

impl RegionStats {
    /// All figures, like [`PoolStats::metrics`].
    pub fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
        list! {
            "blocks" Gauge Count self.blocks, "Blocks that the region spans";
            "blocks_present" Gauge Count self.blocks_present, "Blocks that it holds, alone or with others";
            "blocks_shared" Gauge Count self.blocks_shared, "Blocks that a fork or snapshot may hold too";
            "blocks_lazy" Gauge Count self.blocks_lazy, "Present blocks that were lazily freed as a whole";
            "blocks_split" Gauge Count self.blocks_split, "Blocks that were lazily freed in part";
            "blocks_cow_mapped" Gauge Count self.blocks_cow_mapped, "Blocks in which the kernel copies single pages";
            "pages_private" Gauge Count self.pages_private, "Pages of 4 KiB that the kernel has copied there";
            "blocks_reserved" Gauge Count self.blocks_reserved, "Blocks that are reserved for it";
            "blocks_revoked" Gauge Count self.blocks_revoked, "Blocks that were revoked from it";
            "bytes_lazy" Gauge Bytes self.bytes_lazy, "Bytes that were lazily freed and not dropped yet";
            "cow_bytes" Gauge Bytes self.cow_bytes, "Bytes that only its forks and snapshots hold";
            "mappings" Gauge Count self.mappings, "Mappings that it uses";
            "metadata_bytes" Gauge Bytes self.metadata_bytes, "Bytes of its page table";
        }
        .chain(of_faults(&self.faults))
    }
}

fn of_faults(faults: &FaultStats) -> impl Iterator<Item = Metric> + use<> {
    list! {
        "faults" Counter Count faults.faults(), "First writes to blocks, of all kinds";
        "faults_demand_zero" Counter Count faults.demand_zero, "First writes that got a zeroed block";
        "faults_copied" Counter Count faults.copied, "Writes to shared blocks that copied the block";
        "faults_reused" Counter Count faults.reused, "Writes to blocks that nobody else held any more";
        "faults_cow_mapped" Counter Count faults.cow_mapped, "Writes to shared blocks after which pages are copied";
        "faults_raced" Counter Count faults.raced, "Faults that another thread had resolved already";
        "faults_failed" Counter Count faults.failed, "Faults that could not be resolved";
        "blocks_zeroed_before" Counter Count faults.blocks_zeroed_before, "Blocks that were zero at their first write";
        "blocks_cleared" Counter Count faults.blocks_cleared, "Blocks that hugefork cleared";
        "blocks_copied" Counter Count faults.blocks_copied, "Blocks that hugefork copied";
        "bytes_cleared" Counter Bytes faults.bytes_cleared, "Bytes that hugefork cleared";
        "bytes_copied" Counter Bytes faults.bytes_copied, "Bytes that hugefork copied";
        "snapshots" Counter Count faults.snapshots, "Forks and snapshots taken";
        "bytes_cancelled" Counter Bytes faults.bytes_cancelled, "Lazily freed bytes that were used again";
        "blocks_reclaimed" Counter Count faults.blocks_reclaimed, "Lazily freed blocks that were dropped";
        "blocks_taken_away" Counter Count faults.blocks_revoked, "Blocks revoked from forks and snapshots";
        "longest_pause_seconds" Gauge Seconds faults.longest_pause, "The longest time that a cut stopped writers";
        "paused_seconds" Counter Seconds faults.paused, "The time that cuts stopped writers";
        "pages_written_back" Counter Count faults.pages_written_back, "Pages that were written back into blocks";
        "blocks_written_back" Counter Count faults.blocks_written_back, "Blocks into which they were written back";
        "blocks_promoted" Counter Count faults.blocks_promoted, "Blocks that were copied in the background";
        "resets" Counter Count faults.resets, "Resets to a snapshot";
        "pages_put_back" Counter Count faults.pages_put_back, "Pages that a reset gave their old bytes";
        "blocks_exchanged" Counter Count faults.blocks_exchanged, "Blocks that a reset replaced by the snapshot's";
        "handler_p50_seconds" Gauge Seconds faults.handler.percentile(50.0), "Median time of a fault in the handler";
        "handler_p99_seconds" Gauge Seconds faults.handler.percentile(99.0), "Its 99th percentile";
        "held_by_promotion_p99_seconds" Gauge Seconds faults.held_by_promotion.percentile(99.0),
            "99th percentile of the time that blocks were held while copied in the background";
        "held_by_write_back_p99_seconds" Gauge Seconds faults.held_by_write_back.percentile(99.0),
            "99th percentile of the time that blocks were held while pages were written back";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Pool;

    #[test]
    fn each_figure_has_a_name_of_its_own_and_a_help() {
        let pool = Pool::builder().capacity(4 << 20).build().unwrap();
        let mut region = pool.region(2 << 20).unwrap();
        region.as_mut_slice()[0] = 1;
        let (of_pool, of_region) = (pool.stats(), region.stats());
        for metrics in [of_pool.metrics().collect::<Vec<_>>(), of_region.metrics().collect()] {
            let names: BTreeSet<_> = metrics.iter().map(|metric| metric.name).collect();
            assert_eq!(names.len(), metrics.len());
            for metric in &metrics {
                let is_plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
                assert!(metric.name.bytes().all(is_plain), "{metric:?}");
                assert!(metric.help.is_ascii() && !metric.help.ends_with('.') && metric.value >= 0.0, "{metric:?}");
                let unit = |unit| metric.unit == unit;
                assert_eq!(unit(MetricUnit::Seconds), metric.name.ends_with("_seconds"), "{metric:?}");
                assert_eq!(unit(MetricUnit::Bytes), metric.name.contains("bytes"), "{metric:?}");
                assert_eq!(unit(MetricUnit::Flag), metric.name.ends_with("_running"), "{metric:?}");
            }
            let value = |name: &str| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
            assert_eq!(
                (value("faults_demand_zero"), value("faults"), value("blocks_nowhere")),
                (Some(1.0), Some(1.0), None)
            );
        }
    }
}
