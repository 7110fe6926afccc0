//! Snapshots, each of one region.

use std::ffi::c_int;
use std::sync::Arc;

use hugefork::Changes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::interrupt::BETWEEN_SIGNALS;
use crate::shared::{Memory, Shared};

/// The contents of a region at one moment. A snapshot has the buffer protocol, read-only.
#[pyclass(frozen, weakref, module = "hugefork._native")]
pub(crate) struct RegionSnapshot {
    snapshot: Shared<hugefork::Snapshot>,
    nbytes: usize,
    id: u64,
}

impl RegionSnapshot {
    pub(crate) fn new(snapshot: hugefork::Snapshot) -> RegionSnapshot {
        let (nbytes, id) = (snapshot.len(), snapshot.id().get());
        RegionSnapshot { snapshot: Shared::new("snapshot", snapshot), nbytes, id }
    }

    pub(crate) fn get(&self) -> Result<Arc<hugefork::Snapshot>, Failure> {
        self.snapshot.get()
    }
}

#[pymethods]
impl RegionSnapshot {
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Identifies the snapshot among all snapshots of this process; of two snapshots of one region, the later has the
    /// greater id.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// The address of the snapshot's first byte. The first call maps the snapshot.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<usize, Failure> {
        let snapshot = self.get()?;
        Ok(py.detach(|| snapshot.map().map(|bytes| bytes.as_ptr().addr()))?)
    }

    #[getter]
    fn exports(&self) -> usize {
        self.snapshot.exports()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.snapshot.is_closed()
    }

    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        self.snapshot.close(py)
    }

    fn is_revoked(&self) -> Result<bool, Failure> {
        Ok(self.get()?.is_revoked())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> Result<(), Failure> {
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("a snapshot cannot be written to: fork it").into());
        }
        let py = slf.py();
        let memory = |snapshot: &hugefork::Snapshot| {
            let bytes = py.detach(|| snapshot.map().map(|bytes| bytes.as_ptr().addr()))?;
            let address = std::ptr::with_exposed_provenance_mut(bytes);
            Ok(Memory { address, len: snapshot.len(), is_read_only: true })
        };
        // SAFETY: Python passes a view to fill; the snapshot is mapped as long as it lives.
        unsafe { slf.get().snapshot.export(slf.clone().into_any(), view, flags, memory) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.snapshot.release();
    }

    /// Copies bytes from `offset` on into all of `to`, a writable contiguous buffer of bytes. Fails if a part was
    /// revoked.
    fn read_at(&self, py: Python<'_>, offset: usize, to: PyBuffer<u8>) -> Result<(), Failure> {
        if to.readonly() || !to.is_c_contiguous() {
            return Err(PyBufferError::new_err("give a writable contiguous buffer of bytes").into());
        }
        let snapshot = self.get()?;
        let (address, len) = (to.buf_ptr().addr(), to.len_bytes());
        for done in (0..len).step_by(BETWEEN_SIGNALS) {
            py.detach(|| {
                let to = std::ptr::with_exposed_provenance_mut(address + done);
                // SAFETY: the buffer is valid while it is held, and it is writable. Its owner must not use it
                // meanwhile, as for any call that fills a buffer.
                let to = unsafe { std::slice::from_raw_parts_mut(to, BETWEEN_SIGNALS.min(len - done)) };
                snapshot.read_at(offset.saturating_add(done), to)
            })?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Byte ranges that differ from an older snapshot.
    fn changed_since(
        &self,
        py: Python<'_>,
        older: PyRef<'_, RegionSnapshot>,
        by: &str,
    ) -> Result<Vec<(usize, usize)>, Failure> {
        let (newer, older) = (self.get()?, older.get()?);
        py.detach(|| {
            let changes = newer.changed_since(&older)?;
            listed(&changes, by)
        })
    }
}

/// Lists changes by page, by block, or as written pages, as pairs.
pub(crate) fn listed(changes: &Changes<'_>, by: &str) -> Result<Vec<(usize, usize)>, Failure> {
    let ranges = match by {
        "page" => changes.pages(),
        "written" => changes.written(),
        _ => changes.blocks(),
    };
    ranges.map(|range| range.map(|range| (range.start, range.end)).map_err(Failure::from)).collect()
}
