//! Pins: ranges of a region that do not move and remain writable.

use std::sync::{Mutex, PoisonError};

use hugefork::OwnedPin;
use pyo3::prelude::*;

/// Holds a range of a region writable and in place, until the pin is released or collected.
#[pyclass(frozen, module = "hugefork")]
pub(crate) struct Pin {
    pin: Mutex<Option<OwnedPin>>,
    start: usize,
    stop: usize,
}

impl Pin {
    pub(crate) fn new(pin: OwnedPin) -> Pin {
        let range = pin.range();
        Pin { pin: Mutex::new(Some(pin)), start: range.start, stop: range.end }
    }
}

#[pymethods]
impl Pin {
    /// The pinned bytes of the region, as (start, stop).
    #[getter]
    fn range(&self) -> (usize, usize) {
        (self.start, self.stop)
    }

    /// Whether the pin was released.
    #[getter]
    fn released(&self) -> bool {
        self.pin.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Releases the pin. A second call does nothing.
    fn release(&self, py: Python<'_>) {
        let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(pin));
    }

    fn __enter__(slf: Py<Pin>) -> Py<Pin> {
        slf
    }

    #[pyo3(signature = (*_how))]
    fn __exit__(&self, py: Python<'_>, _how: &Bound<'_, pyo3::types::PyTuple>) {
        self.release(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.released() { ", released" } else { "" };
        format!("<hugefork.Pin of bytes {}..{}{state}>", self.start, self.stop)
    }
}
