//! The native half of the Python package `hugefork`: the engine, behind objects that Python can hold.
//!
//! What users see is written in Python (`python/hugefork`), over this module, `hugefork._native`. It knows bytes and
//! ranges of bytes, and nothing of arrays, shapes and types of elements.
//!
//! | file | does |
//! |---|---|
//! | `failure` | turns errors of the engine into exceptions |
//! | `shared` | objects that are closed only when nobody has a view of their memory |
//! | `options` | words for what the engine lets choose |
//! | `pool`, `region`, `snapshot`, `pin`, `operations` | the objects |
//! | `export` | snapshots for other processes |
//! | `checksum` | that of the files of a checkpoint |
//! | `interrupt` | Ctrl-C in calls that take long |
//! | `stats` | figures, as dictionaries |
//! | `allocator` | numpy's memory from a pool (NEP 49) |
//!
//! Whatever may take long lets go of the interpreter's lock meanwhile.

mod allocator;
mod checksum;
mod export;
mod failure;
mod interrupt;
mod operations;
mod options;
mod pin;
mod pool;
mod region;
mod shared;
mod snapshot;
mod stats;

/// The engine. Use the package `hugefork`.
#[pyo3::pymodule(name = "_native", gil_used = false)]
mod native {
    #[pymodule_export]
    use super::allocator::NumpyAllocator;
    #[pymodule_export]
    use super::checksum::crc32_of_file;
    #[pymodule_export]
    use super::export::{Export, Imported};
    #[pymodule_export]
    use super::failure::error_codes;
    #[pymodule_export]
    use super::operations::Operations;
    #[pymodule_export]
    use super::pin::Pin;
    #[pymodule_export]
    use super::pool::{Pool, parse_size};
    #[pymodule_export]
    use super::region::{Region, fork_all, reinstall_fault_handler, reset_all, snapshot_all};
    #[pymodule_export]
    use super::snapshot::RegionSnapshot;
}
