//! Figures: `hf_pool_stats`, `hf_region_stats`, `hf_fault_stats`, `hf_lazy_freed`.
//!
//! The fields are the engine's, with the names of the engine. Times are nanoseconds. A new field comes at the end.

use std::ffi::c_int;
use std::time::Duration;

use hugefork::{FaultStats, LazyFreed, PoolStats, RegionStats};

use crate::boundary::run;
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{hf_pool, hf_region};
use crate::pool_options::HF_NONE;
use crate::versioned::{self, Versioned};

/// `PoolStats` without the faults.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_pool_stats {
    size: usize,
    blocks: usize,
    blocks_free: usize,
    blocks_reserved: usize,
    blocks_zeroed_free: usize,
    bytes_huge: usize,
    bytes_base: usize,
    not_collapsed: u64,
    supply_running: usize,
    supply_blocks_ahead: u64,
    supply_time_ns: u64,
    supply_blocks_late: u64,
    supply_stopped: u64,
    stock_running: usize,
    stock_blocks: u64,
    stock_time_ns: u64,
    pressure_running: usize,
    pressure_events: u64,
    pressure_bytes_reclaimed: u64,
    pressure_bytes_trimmed: u64,
    blocks_leaked: usize,
    regions: usize,
    metadata_bytes: usize,
    mappings: usize,
    mappings_limit: usize,
    supply_blocks_given_back: u64,
}

// SAFETY: `repr(C)`, begins with its size; numbers of one size.
unsafe impl Versioned for hf_pool_stats {
    const TYPE: &'static str = "hf_pool_stats";
    const FIRST: usize = 200;
}

/// `RegionStats` without the faults.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_region_stats {
    size: usize,
    blocks: usize,
    blocks_present: usize,
    blocks_shared: usize,
    blocks_lazy: usize,
    blocks_split: usize,
    blocks_overlaid: usize,
    pages_private: usize,
    blocks_reserved: usize,
    blocks_revoked: usize,
    bytes_lazy: usize,
    cow_bytes: usize,
    mappings: usize,
    metadata_bytes: usize,
}

// SAFETY: `repr(C)`, begins with its size; numbers of one size.
unsafe impl Versioned for hf_region_stats {
    const TYPE: &'static str = "hf_region_stats";
    const FIRST: usize = 112;
}

/// `FaultStats`, of the histogram the percentiles that people look at.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_fault_stats {
    size: usize,
    demand_zero: u64,
    copied: u64,
    reused: u64,
    overlaid: u64,
    raced: u64,
    failed: u64,
    blocks_zeroed_before: u64,
    blocks_cleared: u64,
    blocks_copied: u64,
    bytes_cleared: u64,
    bytes_copied: u64,
    snapshots: u64,
    bytes_cancelled: u64,
    blocks_reclaimed: u64,
    blocks_revoked: u64,
    longest_pause_ns: u64,
    paused_ns: u64,
    pages_written_back: u64,
    blocks_written_back: u64,
    blocks_promoted: u64,
    handler_count: u64,
    handler_p50_ns: u64,
    handler_p90_ns: u64,
    handler_p99_ns: u64,
    handler_p99_9_ns: u64,
    handler_p100_ns: u64,
    resets: u64,
    pages_put_back: u64,
    blocks_exchanged: u64,
}

// SAFETY: `repr(C)`, begins with its size; numbers of one size.
unsafe impl Versioned for hf_fault_stats {
    const TYPE: &'static str = "hf_fault_stats";
    const FIRST: usize = 216;
}

/// `LazyFreed`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_lazy_freed {
    size: usize,
    freed: usize,
    already: usize,
    shared: usize,
    pinned: usize,
    indivisible: usize,
    revoked: usize,
    unaligned: usize,
}

// SAFETY: `repr(C)`, begins with its size; numbers of one size.
unsafe impl Versioned for hf_lazy_freed {
    const TYPE: &'static str = "hf_lazy_freed";
    const FIRST: usize = 64;
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl From<PoolStats> for hf_pool_stats {
    fn from(stats: PoolStats) -> hf_pool_stats {
        hf_pool_stats {
            size: size_of::<hf_pool_stats>(),
            blocks: stats.blocks,
            blocks_free: stats.blocks_free,
            blocks_reserved: stats.blocks_reserved,
            blocks_zeroed_free: stats.blocks_zeroed_free,
            bytes_huge: stats.bytes_huge.unwrap_or(HF_NONE),
            bytes_base: stats.bytes_base.unwrap_or(HF_NONE),
            not_collapsed: stats.not_collapsed,
            supply_running: usize::from(stats.supply.running),
            supply_blocks_ahead: stats.supply.blocks_ahead,
            supply_time_ns: nanoseconds(stats.supply.time),
            supply_blocks_late: stats.supply.blocks_late,
            supply_stopped: stats.supply.stopped,
            supply_blocks_given_back: stats.supply.blocks_given_back,
            stock_running: usize::from(stats.stock.running),
            stock_blocks: stats.stock.blocks,
            stock_time_ns: nanoseconds(stats.stock.time),
            pressure_running: usize::from(stats.pressure.running),
            pressure_events: stats.pressure.events,
            pressure_bytes_reclaimed: stats.pressure.bytes_reclaimed,
            pressure_bytes_trimmed: stats.pressure.bytes_trimmed,
            blocks_leaked: stats.blocks_leaked,
            regions: stats.regions,
            metadata_bytes: stats.metadata_bytes,
            mappings: stats.mappings,
            mappings_limit: stats.mappings_limit,
        }
    }
}

impl From<RegionStats> for hf_region_stats {
    fn from(stats: RegionStats) -> hf_region_stats {
        hf_region_stats {
            size: size_of::<hf_region_stats>(),
            blocks: stats.blocks,
            blocks_present: stats.blocks_present,
            blocks_shared: stats.blocks_shared,
            blocks_lazy: stats.blocks_lazy,
            blocks_split: stats.blocks_split,
            blocks_overlaid: stats.blocks_overlaid,
            pages_private: stats.pages_private,
            blocks_reserved: stats.blocks_reserved,
            blocks_revoked: stats.blocks_revoked,
            bytes_lazy: stats.bytes_lazy,
            cow_bytes: stats.cow_bytes,
            mappings: stats.mappings,
            metadata_bytes: stats.metadata_bytes,
        }
    }
}

impl From<FaultStats> for hf_fault_stats {
    fn from(faults: FaultStats) -> hf_fault_stats {
        let at = |percent| nanoseconds(faults.handler.percentile(percent));
        hf_fault_stats {
            size: size_of::<hf_fault_stats>(),
            demand_zero: faults.demand_zero,
            copied: faults.copied,
            reused: faults.reused,
            overlaid: faults.overlaid,
            raced: faults.raced,
            failed: faults.failed,
            blocks_zeroed_before: faults.blocks_zeroed_before,
            blocks_cleared: faults.blocks_cleared,
            blocks_copied: faults.blocks_copied,
            bytes_cleared: faults.bytes_cleared,
            bytes_copied: faults.bytes_copied,
            snapshots: faults.snapshots,
            bytes_cancelled: faults.bytes_cancelled,
            blocks_reclaimed: faults.blocks_reclaimed,
            blocks_revoked: faults.blocks_revoked,
            longest_pause_ns: nanoseconds(faults.longest_pause),
            paused_ns: nanoseconds(faults.paused),
            pages_written_back: faults.pages_written_back,
            blocks_written_back: faults.blocks_written_back,
            blocks_promoted: faults.blocks_promoted,
            handler_count: faults.handler.count(),
            handler_p50_ns: at(50.0),
            handler_p90_ns: at(90.0),
            handler_p99_ns: at(99.0),
            handler_p99_9_ns: at(99.9),
            handler_p100_ns: at(100.0),
            resets: faults.resets,
            pages_put_back: faults.pages_put_back,
            blocks_exchanged: faults.blocks_exchanged,
        }
    }
}

impl From<LazyFreed> for hf_lazy_freed {
    fn from(freed: LazyFreed) -> hf_lazy_freed {
        hf_lazy_freed {
            size: size_of::<hf_lazy_freed>(),
            freed: freed.freed,
            already: freed.already,
            shared: freed.shared,
            pinned: freed.pinned,
            indivisible: freed.indivisible,
            revoked: freed.revoked,
            unaligned: freed.unaligned,
        }
    }
}

/// Fills in what the program wants to know of `freed`; of nothing, if the call fails.
///
/// # Safety
/// `to` is null or points to as many bytes as its first field says, which can be written to.
pub(crate) unsafe fn lazy_freed(
    to: *mut hf_lazy_freed,
    call: impl FnOnce() -> Result<LazyFreed, Failure>,
) -> Result<(), Failure> {
    if to.is_null() {
        return call().map(|_| ());
    }
    // SAFETY: the caller's promise. What cannot be filled in is found before the call.
    unsafe { versioned::write(to, &LazyFreed::default().into())? };
    // SAFETY: as above.
    unsafe { versioned::write(to, &call()?.into()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_get_stats(pool: *const hf_pool, stats: *mut hf_pool_stats) -> c_int {
    // SAFETY: the caller's promise.
    run(|| unsafe { versioned::write(stats, &handle::get(pool)?.pool.stats().into()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_get_fault_stats(pool: *const hf_pool, stats: *mut hf_fault_stats) -> c_int {
    // SAFETY: the caller's promise.
    run(|| unsafe { versioned::write(stats, &handle::get(pool)?.pool.stats().faults.into()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_get_stats(region: *const hf_region, stats: *mut hf_region_stats) -> c_int {
    // SAFETY: the caller's promise.
    run(|| unsafe { versioned::write(stats, &handle::get(region)?.stats().into()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_get_fault_stats(region: *const hf_region, stats: *mut hf_fault_stats) -> c_int {
    // SAFETY: the caller's promise.
    run(|| unsafe { versioned::write(stats, &handle::get(region)?.stats().faults.into()) })
}
