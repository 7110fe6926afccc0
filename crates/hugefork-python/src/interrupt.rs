//! Ctrl-C in long calls: Python checks for signals from time to time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pyo3::prelude::*;

use crate::failure::Failure;

/// Bytes copied between two checks for signals.
pub(crate) const BETWEEN_SIGNALS: usize = 64 << 20;

/// Runs a call without the interpreter's lock. [`look_after_signals`] may end the call.
pub(crate) fn interruptible<T: Send, E: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    match py.detach(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(came) => Ok(came?),
        Err(panic) => match panic.downcast::<PyErr>() {
            Ok(error) => Err((*error).into()),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// Checks for signals and then calls `then`; for any thread within [`interruptible`]. An exception of a signal handler
/// or of `then` ends the interruptible call.
pub(crate) fn look_after_signals(then: impl FnOnce(Python<'_>) -> PyResult<()>) {
    let looked = Python::attach(|py| {
        py.check_signals()?;
        then(py)
    });
    // A panic is the only way to end the work of all threads.
    looked.unwrap_or_else(|error| resume_unwind(Box::new(error)));
}
