//! Statistics as dictionaries. The keys are the field names of the dataclasses in
//! `python/hugefork/_stats.py`.

use std::time::Duration;

use hugefork::{FaultStats, LazyFreed, PoolStats, RegionStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Puts each `name: value` into a dictionary.
macro_rules! put {
    ($dict:expr, $($name:literal: $value:expr),* $(,)?) => { $($dict.set_item($name, $value)?;)* };
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

pub(crate) fn of_pool<'py>(py: Python<'py>, stats: &PoolStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    put!(dict,
        "blocks": stats.blocks, "blocks_free": stats.blocks_free, "blocks_reserved": stats.blocks_reserved,
        "blocks_zeroed_free": stats.blocks_zeroed_free, "blocks_leaked": stats.blocks_leaked,
        "pages_held": stats.pages_held, "blocks_of_pages": stats.blocks_of_pages, "pages_in_views": stats.pages_in_views,
        "bytes_huge": stats.bytes_huge, "bytes_base": stats.bytes_base, "not_collapsed": stats.not_collapsed,
        "supply_running": stats.supply.running, "supply_blocks_ahead": stats.supply.blocks_ahead,
        "supply_seconds": seconds(stats.supply.time), "supply_blocks_late": stats.supply.blocks_late,
        "supply_stopped": stats.supply.stopped, "supply_blocks_given_back": stats.supply.blocks_given_back,
        "stock_running": stats.stock.running, "stock_blocks": stats.stock.blocks,
        "stock_seconds": seconds(stats.stock.time),
        "pressure_running": stats.pressure.running, "pressure_events": stats.pressure.events,
        "pressure_bytes_reclaimed": stats.pressure.bytes_reclaimed,
        "pressure_bytes_trimmed": stats.pressure.bytes_trimmed,
        "regions": stats.regions, "metadata_bytes": stats.metadata_bytes,
        "mappings": stats.mappings, "mappings_limit": stats.mappings_limit,
    );
    put_faults(&dict, &stats.faults)?;
    Ok(dict)
}

pub(crate) fn of_region<'py>(py: Python<'py>, stats: &RegionStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    put!(dict,
        "blocks": stats.blocks, "blocks_present": stats.blocks_present, "blocks_shared": stats.blocks_shared,
        "blocks_lazy": stats.blocks_lazy, "blocks_split": stats.blocks_split,
        "blocks_cow_mapped": stats.blocks_cow_mapped, "pages_private": stats.pages_private,
        "blocks_reserved": stats.blocks_reserved, "blocks_revoked": stats.blocks_revoked,
        "bytes_lazy": stats.bytes_lazy, "cow_bytes": stats.cow_bytes,
        "mappings": stats.mappings, "metadata_bytes": stats.metadata_bytes,
    );
    put_faults(&dict, &stats.faults)?;
    Ok(dict)
}

fn put_faults(dict: &Bound<'_, PyDict>, faults: &FaultStats) -> PyResult<()> {
    put!(dict,
        "faults": faults.faults(), "faults_demand_zero": faults.demand_zero, "faults_copied": faults.copied,
        "faults_reused": faults.reused, "faults_cow_mapped": faults.cow_mapped, "faults_raced": faults.raced,
        "faults_failed": faults.failed, "blocks_zeroed_before": faults.blocks_zeroed_before,
        "blocks_cleared": faults.blocks_cleared, "blocks_copied": faults.blocks_copied,
        "bytes_cleared": faults.bytes_cleared, "bytes_copied": faults.bytes_copied, "snapshots": faults.snapshots,
        "bytes_cancelled": faults.bytes_cancelled, "blocks_reclaimed": faults.blocks_reclaimed,
        "blocks_taken_away": faults.blocks_revoked, "longest_pause_seconds": seconds(faults.longest_pause),
        "paused_seconds": seconds(faults.paused), "pages_written_back": faults.pages_written_back,
        "blocks_written_back": faults.blocks_written_back, "blocks_promoted": faults.blocks_promoted,
        "resets": faults.resets, "pages_put_back": faults.pages_put_back, "blocks_exchanged": faults.blocks_exchanged,
        "handler_p50_seconds": seconds(faults.handler.percentile(50.0)),
        "handler_p99_seconds": seconds(faults.handler.percentile(99.0)),
        "held_by_promotion_p99_seconds": seconds(faults.held_by_promotion.percentile(99.0)),
        "held_by_write_back_p99_seconds": seconds(faults.held_by_write_back.percentile(99.0)),
    );
    Ok(())
}

pub(crate) fn of_lazy_free<'py>(py: Python<'py>, came: &LazyFreed) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    put!(dict,
        "freed": came.freed, "already": came.already, "shared": came.shared, "pinned": came.pinned,
        "indivisible": came.indivisible, "revoked": came.revoked, "unaligned": came.unaligned,
    );
    Ok(dict)
}
