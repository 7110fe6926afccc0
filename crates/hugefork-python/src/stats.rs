//! Statistics as dictionaries. The keys are the field names of the dataclasses in
//! `python/hugefork/_stats.py`.

use hugefork::{LazyFreed, Metric, MetricUnit, PoolStats, RegionStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Puts each `name: value` into a dictionary.
macro_rules! put {
    ($dict:expr, $($name:literal: $value:expr),* $(,)?) => { $($dict.set_item($name, $value)?;)* };
}

/// Puts figures into a dictionary.
fn listed<'py>(py: Python<'py>, metrics: impl Iterator<Item = Metric>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for Metric { name, value, unit, .. } in metrics {
        match unit {
            MetricUnit::Seconds => dict.set_item(name, value)?,
            MetricUnit::Flag => dict.set_item(name, value != 0.0)?,
            _ => dict.set_item(name, value as u64)?,
        }
    }
    Ok(dict)
}

pub(crate) fn of_pool<'py>(py: Python<'py>, stats: &PoolStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = listed(py, stats.metrics())?;
    // The kernel may not report these.
    put!(dict, "bytes_huge": stats.bytes_huge, "bytes_base": stats.bytes_base);
    Ok(dict)
}

pub(crate) fn of_region<'py>(py: Python<'py>, stats: &RegionStats) -> PyResult<Bound<'py, PyDict>> {
    listed(py, stats.metrics())
}

pub(crate) fn of_lazy_free<'py>(py: Python<'py>, came: &LazyFreed) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    put!(dict,
        "freed": came.freed, "already": came.already, "shared": came.shared, "pinned": came.pinned,
        "indivisible": came.indivisible, "revoked": came.revoked, "unaligned": came.unaligned,
    );
    Ok(dict)
}
