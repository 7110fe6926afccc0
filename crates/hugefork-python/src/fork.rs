//! Forks of the interpreter (`os.fork`), which happen with its lock held.
//!
//! The engine takes the snapshot for the child inside `fork(2)`, and waits for operations there. A thread inside an
//! operation needs the interpreter's lock to leave it. So the operations are waited for before, without the lock.

use std::cell::RefCell;

use hugefork::BeforeFork;
use pyo3::prelude::*;

use crate::failure::Failure;

thread_local! {
    /// Set from [`before_fork`] to [`after_fork`].
    static BEFORE: RefCell<Option<BeforeFork>> = const { RefCell::new(None) };
}

/// Waits for operations. No thread begins one until `after_fork` is called.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) -> Result<(), Failure> {
    Ok(py.detach(|| BeforeFork::wait().map(|before| BEFORE.set(Some(before))))?)
}

/// Called in the parent and in the child.
#[pyfunction]
pub(crate) fn after_fork() {
    BEFORE.set(None);
}
