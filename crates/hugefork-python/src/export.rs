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

/// A snapshot of a region that other processes can map as long as this object lives.
#[pyclass(frozen, module = "hugefork._native")]
pub(crate) struct Export {
    export: Shared<hugefork::Export>,
}

#[pymethods]
impl Export {
    /// Exports a snapshot, or a sealed copy of it.
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

    /// The descriptor, which belongs to this object.
    fn fileno(&self) -> Result<c_int, Failure> {
        Ok(self.export.get()?.as_fd().as_raw_fd())
    }

    /// The list of extents as text for `Imported`: the places in the file of all parts of the snapshot.
    fn extents(&self) -> Result<String, Failure> {
        Ok(self.export.get()?.extents().to_string())
    }

    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        self.export.close(py)
    }
}

/// Another process's export, mapped copy-on-write. The object has the buffer protocol, writable: writes are private to
/// this process.
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
        // SAFETY: Python passes a view to fill; the mapping is valid as long as this object lives.
        unsafe { slf.get().memory.export(slf.clone().into_any(), view, flags, memory) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.memory.release();
    }
}
