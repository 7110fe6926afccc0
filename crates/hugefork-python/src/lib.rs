//! The native half of the Python package `hugefork`: the engine as Python objects.
//!
//! Users see the Python code (`python/hugefork`) above this module, `hugefork._native`. This module
//! handles bytes and ranges of bytes; arrays, shapes and element types exist only in the Python
//! code.
//!
//! | file | contents |
//! |---|---|
//! | `failure` | converts errors of the engine to exceptions |
//! | `shared` | objects that can be closed only when no view of their memory exists |
//! | `options` | converts words to options of the engine |
//! | `pool`, `region`, `snapshot`, `pin`, `operations` | the objects |
//! | `export` | snapshots for other processes |
//! | `checkpoint` | saves of checkpoints, and their manifests |
//! | `checksum` | the checksum of a checkpoint's files |
//! | `fork` | forks of the interpreter |
//! | `interrupt` | Ctrl-C in long calls |
//! | `stats` | statistics, as dictionaries |
//! | `allocator` | numpy's memory from a pool (NEP 49) |
//!
//! All calls that may take long release the interpreter's lock.

mod allocator;
mod checkpoint;
mod checksum;
mod export;
mod failure;
mod fork;
mod interrupt;
mod operations;
mod options;
mod pin;
mod pool;
mod region;
mod shared;
mod snapshot;
mod stats;

/// The engine. Use the package `hugefork` instead.
#[pyo3::pymodule(name = "_native", gil_used = false)]
mod native {
    #[pymodule_export]
    use super::allocator::{NumpyAllocator, region_of_numpy};
    #[pymodule_export]
    use super::checkpoint::{Saved, check_directory, read_checkpoint, save_checkpoint};
    #[pymodule_export]
    use super::checksum::crc32_of_file;
    #[pymodule_export]
    use super::export::{Export, Imported};
    #[pymodule_export]
    use super::failure::error_codes;
    #[pymodule_export]
    use super::fork::{after_fork, before_fork, fork_with};
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
    #[allow(non_upper_case_globals, reason = "Python names it so")]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
