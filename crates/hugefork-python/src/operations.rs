//! Operations: groups of writes; a fork, snapshot or reset contains all writes of an operation or
//! none.

use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Groups of writes that belong together, such as a put of a key and a value.
///
/// A snapshot captures all threads' writes at one moment, so it may contain the first write of a group without the
/// second. Forks, snapshots and resets of arrays that use an `Operations` (`pool.empty(…, operations=…)`) wait until no
/// thread is inside a ``with operations:`` block, and threads that want to enter wait meanwhile. Use the same
/// `Operations` for all arrays that are written together.
///
/// Operations nest. An operation belongs to a thread: leave it on the thread that has entered it, and do not hold it
/// over an ``await`` or a ``yield``. Enter the operation first, then take locks that other threads take during an
/// operation. Do not block during an operation: after `patience` seconds, a snapshot that waits for it raises
/// `OperationGoesOnError` and has changed nothing. A thread that takes a snapshot during its own operation gets
/// `InsideOperationError`. An exception or the end of the thread leaves the operation; the writes done so far remain.
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

    /// Begins an operation. A thread that waits for a snapshot releases the interpreter's lock, because threads with an
    /// open operation need that lock to end it.
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
