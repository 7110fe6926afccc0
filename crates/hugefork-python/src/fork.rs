//! Forks of the interpreter (`os.fork`), which happen with its lock held.
//!
//! The engine takes the snapshot for the child inside `fork(2)`, and waits for operations there. A thread inside an
//! operation needs the interpreter's lock to leave it. So the operations are waited for before, without the lock.

use std::cell::RefCell;
use std::io;

use hugefork::BeforeFork;
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::region::Region;
use crate::snapshot::RegionSnapshot;

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

/// Calls `os.fork`, given as `fork`, for a child in which each region is as the snapshot beside it. The regions are
/// different.
#[pyfunction]
pub(crate) fn fork_with(
    pairs: Vec<(PyRef<'_, Region>, PyRef<'_, RegionSnapshot>)>,
    fork: &Bound<'_, PyAny>,
) -> Result<i32, Failure> {
    let pairs = pairs.iter().map(|(region, snapshot)| Ok((region.get()?, snapshot.get()?)));
    let pairs = pairs.collect::<Result<Vec<_>, Failure>>()?;
    let pairs: Vec<_> = pairs.iter().map(|(region, snapshot)| (&**region, &**snapshot)).collect();
    let mut raised = None;
    let fork = || {
        let child = fork.call0().and_then(|child| child.extract());
        child.map_err(|error| {
            raised = Some(error);
            io::ErrorKind::Other.into()
        })
    };
    // SAFETY: `os.fork` prepares the interpreter for the child, which goes on as any child in Python.
    let forked = unsafe { hugefork::Region::fork_process_with(&pairs, fork) };
    raised.map_or(Ok(()), Err)?;
    Ok(forked?)
}
