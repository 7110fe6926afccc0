//! Snapshots for other processes.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::interrupt::{interruptible, look_after_signals};
use crate::region::borrowed;
use crate::shared::{Memory, Shared};
use crate::snapshot::RegionSnapshot;

/// A snapshot of a region that other processes can map, for as long as this is there.
#[pyclass(frozen, module = "hugefork._native")]
pub(crate) struct Export {
    export: Shared<hugefork::Export>,
}

#[pymethods]
impl Export {
    /// Of a snapshot, or of a sealed copy of it.
    #[new]
    fn new(py: Python<'_>, snapshot: PyRef<'_, RegionSnapshot>, copy: bool) -> Result<Export, Failure> {
        let snapshot = snapshot.get()?;
        let export = if copy {
            interruptible(py, || snapshot.export_copy_with(|_| look_after_signals(|_| Ok(()))))?
        } else {
            py.detach(|| snapshot.export())?
        };
        Ok(Export { export: Shared::new("export", export) })
    }

    /// The descriptor, which stays that of this.
    fn fileno(&self) -> Result<c_int, Failure> {
        Ok(self.export.get()?.as_fd().as_raw_fd())
    }

    /// Which bytes lie where in it, as text for `Imported`.
    fn extents(&self) -> Result<String, Failure> {
        Ok(self.export.get()?.extents().to_string())
    }

    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        self.export.close(py)
    }
}

/// What another process has exported, mapped copy-on-write. It has the buffer protocol, writable: what is written stays
/// here.
#[pyclass(frozen, module = "hugefork._native")]
pub(crate) struct Imported {
    memory: Shared<hugefork::Imported>,
}

#[pymethods]
impl Imported {
    #[new]
    fn new(py: Python<'_>, fd: c_int, extents: &str) -> Result<Imported, Failure> {
        let (fd, extents) = (borrowed(fd)?, extents.parse::<hugefork::Extents>()?);
        let memory = py.detach(|| hugefork::Imported::map(fd, &extents))?;
        Ok(Imported { memory: Shared::new("import", memory) })
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> Result<(), Failure> {
        let memory = |memory: &hugefork::Imported| {
            Ok(Memory { address: memory.as_mut_ptr().cast(), len: memory.len(), is_read_only: false })
        };
        // SAFETY: Python gives a view to fill; what is mapped stays while it lives.
        unsafe { slf.get().memory.export(slf.clone().into_any(), view, flags, memory) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.memory.release();
    }
}
