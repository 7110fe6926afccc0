//! Operations: several writes of which a fork, snapshot or reset has all or none.

use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Operations: what several writes are for the program, such as a put of a key and a value.
///
/// A snapshot is one moment of every thread's writes, so it may have the first of them and lack the second. Forks,
/// snapshots and resets of arrays that were given an `Operations` (`pool.empty(…, operations=…)`) wait until no thread
/// is inside of ``with operations:``, and threads that want to enter wait meanwhile. Give one to all arrays that are
/// written to together.
///
/// Operations nest. They are a thread's: leave on the thread that has entered, and hold none over an ``await`` or a
/// ``yield``. Enter first, and then take locks that others take inside. Do not block inside: after `patience` seconds,
/// the snapshot raises `OperationGoesOnError`, and has done nothing. A snapshot on a thread that is inside itself
/// raises `InsideOperationError`. An exception leaves, with what was half written as it is, and so does the end of a
/// thread.
///
/// >>> import hugefork as hf
/// >>> operations = hf.Operations()
/// >>> pool = hf.Pool("64 MiB")
/// >>> accounts = pool.zeros(1000, "int64", operations=operations)
/// >>> with operations:                    # a snapshot has both or neither
/// ...     accounts[7] -= 5
/// ...     accounts[8] += 5
#[pyclass(frozen, module = "hugefork")]
pub(crate) struct Operations {
    pub(crate) operations: hugefork::Operations,
}

#[pymethods]
impl Operations {
    #[new]
    #[pyo3(signature = (*, patience = 10.0))]
    fn new(patience: f64) -> PyResult<Operations> {
        let patience = match Duration::try_from_secs_f64(patience) {
            Ok(patience) => patience,
            Err(_) if patience > 0.0 => Duration::MAX,
            Err(_) => return Err(PyValueError::new_err(format!("patience={patience}: give seconds, or math.inf"))),
        };
        Ok(Operations { operations: hugefork::Operations::with_patience(patience) })
    }

    /// Enters. Who waits lets others run, which may be inside and have to leave.
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        let (py, operations) = (slf.py(), &slf.operations);
        py.detach(|| std::mem::forget(operations.enter()));
        slf
    }

    #[pyo3(signature = (*_how))]
    fn __exit__(&self, _how: &Bound<'_, PyTuple>) -> PyResult<()> {
        match self.operations.leave() {
            true => Ok(()),
            false => {
                Err(PyRuntimeError::new_err("this thread is inside of no such operation: leave where you entered"))
            }
        }
    }

    fn __repr__(&self) -> String {
        "<hugefork.Operations>".to_owned()
    }
}
