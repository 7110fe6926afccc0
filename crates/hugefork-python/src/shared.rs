//! A value of the engine that a Python object owns until it is closed.
//!
//! ```text
//!   open ── export ──▶ open, n exports ── release ──▶ open ── close ──▶ closed
//!                        └─ close: BufferError
//! ```
//! Invariant: while there are exports, the value exists. So the memory that a view shows is valid.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::failure::Failure;

/// A value of the engine, such as a region, that a Python object owns until it is closed. When the object is closed,
/// calls that are still running on the value complete normally.
pub(crate) struct Shared<T: Send + Sync> {
    state: Mutex<Exported<T>>,
    /// The name of the value's kind in messages.
    noun: &'static str,
}

struct Exported<T> {
    value: Option<Arc<T>>,
    exports: usize,
}

impl<T: Send + Sync> Shared<T> {
    pub(crate) fn new(noun: &'static str, value: T) -> Shared<T> {
        Shared { state: Mutex::new(Exported { value: Some(Arc::new(value)), exports: 0 }), noun }
    }

    /// A value with one view, for which the caller calls [`Shared::release`].
    pub(crate) fn viewed(noun: &'static str, value: Arc<T>) -> Shared<T> {
        Shared { state: Mutex::new(Exported { value: Some(value), exports: 1 }), noun }
    }

    fn state(&self) -> MutexGuard<'_, Exported<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Result<Arc<T>, Failure> {
        // The lock is released first: creating the error runs Python code, which may switch to a thread that wants the
        // lock.
        let value = self.state().value.clone();
        value.ok_or_else(|| self.is_closed_error().into())
    }

    fn is_closed_error(&self) -> PyErr {
        let text = format!("this {} is closed: make a new one", self.noun);
        Python::attach(|py| {
            let class = py.import("hugefork._errors").and_then(|errors| errors.getattr("ClosedError"));
            class.and_then(|class| class.call1((text,))).map_or_else(|error| error, PyErr::from_value)
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().value.is_none()
    }

    /// Number of living views of the value's memory.
    pub(crate) fn exports(&self) -> usize {
        self.state().exports
    }

    /// Drops the value, without the interpreter's lock.
    pub(crate) fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        let mut state = self.state();
        if state.exports > 0 {
            let text = format!(
                "this {} has {} live view(s) (arrays, memoryviews): delete them before it is closed, or only delete it",
                self.noun, state.exports
            );
            return Err(PyBufferError::new_err(text).into());
        }
        let value = state.value.take();
        drop(state);
        py.detach(|| drop(value));
        Ok(())
    }

    /// Fills `view` with the memory that `memory` returns, and holds the value until the view is released.
    ///
    /// # Safety
    /// Python has passed `view` for this request. The memory that `memory` returns is valid as long as the value
    /// exists, and it is writable unless it is declared read-only.
    pub(crate) unsafe fn export(
        &self,
        owner: Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        memory: impl FnOnce(&T) -> Result<Memory, Failure>,
    ) -> Result<(), Failure> {
        let py = owner.py();
        let value = self.get()?;
        let memory = memory(&value)?;
        let mut state = self.state();
        if state.value.is_none() {
            drop(state);
            return Err(self.is_closed_error().into());
        }
        let (len, readonly) = (memory.len as isize, c_int::from(memory.is_read_only));
        // SAFETY: the caller vouches for the memory. The view holds a reference to the owner, which the call takes.
        let answer = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), memory.address, len, readonly, flags) };
        if answer != 0 {
            return Err(PyErr::fetch(py).into());
        }
        state.exports += 1;
        Ok(())
    }

    /// Called when a view of [`Shared::export`] or [`Shared::viewed`] is released.
    pub(crate) fn release(&self) {
        self.state().exports -= 1;
    }
}

/// The memory of a value.
pub(crate) struct Memory {
    pub(crate) address: *mut c_void,
    pub(crate) len: usize,
    pub(crate) is_read_only: bool,
}

impl<T: Send + Sync> Drop for Shared<T> {
    /// No code uses the value any more, and no view exists, since each view holds a reference to the object. Unmapping
    /// runs without the interpreter's lock.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = state.value.take() {
            Python::attach(|py| py.detach(move || drop(value)));
        }
    }
}
