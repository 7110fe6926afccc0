//! Statistics: `hf_pool_stats`, `hf_region_stats`, `hf_fault_stats`, `hf_lazy_freed`.
//!
//! The fields are the engine's, under the engine's names. Times are nanoseconds. New fields are
//! added at the end.

use std::ffi::c_int;
use std::time::Duration;

use hugefork::{FaultStats, LazyFreed, PoolStats, RegionStats};

use crate::boundary::run;
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{hf_pool, hf_region};
use crate::pool_options::HF_NONE;
use crate::versioned::{self, Versioned};

/// Defines structs of the header from the engine's figures. Each field is named here once, with its value.
macro_rules! figures {
    ($($(#[$what:meta])* $name:ident, $first:literal, $of:ident: $engine:ty {
        $($field:ident: $type:ty = $figure:expr,)*
    })*) => {$(
        $(#[$what])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        #[allow(non_camel_case_types)]
        pub(crate) struct $name {
            size: usize,
            $($field: $type,)*
        }

        // SAFETY: `repr(C)`, begins with its size; all fields are numbers of one size.
        unsafe impl Versioned for $name {
            const TYPE: &'static str = stringify!($name);
            const FIRST_SIZE: usize = $first;
        }

        impl From<$engine> for $name {
            fn from($of: $engine) -> $name {
                $name { size: size_of::<$name>(), $($field: $figure,)* }
            }
        }
    )*};
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

figures! {
    /// `PoolStats` without the faults.
    hf_pool_stats, 208, stats: PoolStats {
        blocks: usize = stats.blocks,
        blocks_free: usize = stats.blocks_free,
        blocks_reserved: usize = stats.blocks_reserved,
        blocks_zeroed_free: usize = stats.blocks_zeroed_free,
        bytes_huge: usize = stats.bytes_huge.unwrap_or(HF_NONE),
        bytes_base: usize = stats.bytes_base.unwrap_or(HF_NONE),
        not_collapsed: u64 = stats.not_collapsed,
        supply_running: usize = usize::from(stats.supply.running),
        supply_blocks_ahead: u64 = stats.supply.blocks_ahead,
        supply_time_ns: u64 = nanoseconds(stats.supply.time),
        supply_blocks_late: u64 = stats.supply.blocks_late,
        supply_stopped: u64 = stats.supply.stopped,
        stock_running: usize = usize::from(stats.stock.running),
        stock_blocks: u64 = stats.stock.blocks,
        stock_time_ns: u64 = nanoseconds(stats.stock.time),
        pressure_running: usize = usize::from(stats.pressure.running),
        pressure_events: u64 = stats.pressure.events,
        pressure_bytes_reclaimed: u64 = stats.pressure.bytes_reclaimed,
        pressure_bytes_trimmed: u64 = stats.pressure.bytes_trimmed,
        blocks_leaked: usize = stats.blocks_leaked,
        regions: usize = stats.regions,
        metadata_bytes: usize = stats.metadata_bytes,
        mappings: usize = stats.mappings,
        mappings_limit: usize = stats.mappings_limit,
        supply_blocks_given_back: u64 = stats.supply.blocks_given_back,
        pages_held: usize = stats.pages_held,
        blocks_of_pages: usize = stats.blocks_of_pages,
        pages_in_views: usize = stats.pages_in_views,
    }

    /// `RegionStats` without the faults.
    hf_region_stats, 112, stats: RegionStats {
        blocks: usize = stats.blocks,
        blocks_present: usize = stats.blocks_present,
        blocks_shared: usize = stats.blocks_shared,
        blocks_lazy: usize = stats.blocks_lazy,
        blocks_split: usize = stats.blocks_split,
        blocks_cow_mapped: usize = stats.blocks_cow_mapped,
        pages_private: usize = stats.pages_private,
        blocks_reserved: usize = stats.blocks_reserved,
        blocks_revoked: usize = stats.blocks_revoked,
        bytes_lazy: usize = stats.bytes_lazy,
        cow_bytes: usize = stats.cow_bytes,
        mappings: usize = stats.mappings,
        metadata_bytes: usize = stats.metadata_bytes,
    }

    /// `FaultStats`; of its histogram, the common percentiles.
    hf_fault_stats, 216, faults: FaultStats {
        demand_zero: u64 = faults.demand_zero,
        copied: u64 = faults.copied,
        reused: u64 = faults.reused,
        cow_mapped: u64 = faults.cow_mapped,
        raced: u64 = faults.raced,
        failed: u64 = faults.failed,
        blocks_zeroed_before: u64 = faults.blocks_zeroed_before,
        blocks_cleared: u64 = faults.blocks_cleared,
        blocks_copied: u64 = faults.blocks_copied,
        bytes_cleared: u64 = faults.bytes_cleared,
        bytes_copied: u64 = faults.bytes_copied,
        snapshots: u64 = faults.snapshots,
        bytes_cancelled: u64 = faults.bytes_cancelled,
        blocks_reclaimed: u64 = faults.blocks_reclaimed,
        blocks_revoked: u64 = faults.blocks_revoked,
        longest_pause_ns: u64 = nanoseconds(faults.longest_pause),
        paused_ns: u64 = nanoseconds(faults.paused),
        pages_written_back: u64 = faults.pages_written_back,
        blocks_written_back: u64 = faults.blocks_written_back,
        blocks_promoted: u64 = faults.blocks_promoted,
        handler_count: u64 = faults.handler.count(),
        handler_p50_ns: u64 = nanoseconds(faults.handler.percentile(50.0)),
        handler_p90_ns: u64 = nanoseconds(faults.handler.percentile(90.0)),
        handler_p99_ns: u64 = nanoseconds(faults.handler.percentile(99.0)),
        handler_p99_9_ns: u64 = nanoseconds(faults.handler.percentile(99.9)),
        handler_p100_ns: u64 = nanoseconds(faults.handler.percentile(100.0)),
        resets: u64 = faults.resets,
        pages_put_back: u64 = faults.pages_put_back,
        blocks_exchanged: u64 = faults.blocks_exchanged,
        held_by_promotion_count: u64 = faults.held_by_promotion.count(),
        held_by_promotion_p99_ns: u64 = nanoseconds(faults.held_by_promotion.percentile(99.0)),
        held_by_promotion_p100_ns: u64 = nanoseconds(faults.held_by_promotion.percentile(100.0)),
        held_by_write_back_count: u64 = faults.held_by_write_back.count(),
        held_by_write_back_p99_ns: u64 = nanoseconds(faults.held_by_write_back.percentile(99.0)),
        held_by_write_back_p100_ns: u64 = nanoseconds(faults.held_by_write_back.percentile(100.0)),
    }

    /// `LazyFreed`.
    hf_lazy_freed, 64, freed: LazyFreed {
        freed: usize = freed.freed,
        already: usize = freed.already,
        shared: usize = freed.shared,
        pinned: usize = freed.pinned,
        indivisible: usize = freed.indivisible,
        revoked: usize = freed.revoked,
        unaligned: usize = freed.unaligned,
    }
}

/// Runs `call` and stores its result at `to`, unless that is null; zeros if the call fails.
///
/// # Safety
/// `to` is null, or writable for as many bytes as its first field says.
pub(crate) unsafe fn lazy_freed(
    to: *mut hf_lazy_freed,
    call: impl FnOnce() -> Result<LazyFreed, Failure>,
) -> Result<(), Failure> {
    if to.is_null() {
        return call().map(|_| ());
    }
    // SAFETY: the caller vouches for `to`. A bad `size` is found before the call.
    unsafe { versioned::write(to, &LazyFreed::default().into())? };
    // SAFETY: as above.
    unsafe { versioned::write(to, &call()?.into()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_get_stats(pool: *const hf_pool, stats: *mut hf_pool_stats) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { versioned::write(stats, &handle::get(pool)?.pool.stats().into()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_get_fault_stats(pool: *const hf_pool, stats: *mut hf_fault_stats) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { versioned::write(stats, &handle::get(pool)?.pool.stats().faults.into()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_get_stats(region: *const hf_region, stats: *mut hf_region_stats) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { versioned::write(stats, &handle::get(region)?.stats().into()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_get_fault_stats(region: *const hf_region, stats: *mut hf_fault_stats) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { versioned::write(stats, &handle::get(region)?.stats().faults.into()) })
}
