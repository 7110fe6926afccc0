//! Snapshots for other processes: `hf_export`.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use hugefork::{Export, RegionError, Snapshot};

use crate::boundary::{ask, number, run};
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{PoolHandle, hf_pool, hf_snapshot, kinds, text};

kinds! {
    hf_export = ExportHandle, b"hfexport";
}

/// An export, with its extents as a text for C.
pub(crate) struct ExportHandle {
    export: Export,
    extents: CString,
}

/// Exports a snapshot with `export` and creates a handle at `out`.
///
/// # Safety
/// `snapshot` fulfils the contract of `handle::get`, `out` that of `handle::give`.
unsafe fn give(
    snapshot: *const hf_snapshot,
    out: *mut *mut hf_export,
    export: impl FnOnce(&Snapshot) -> Result<Export, RegionError>,
) -> c_int {
    let make = || {
        // SAFETY: the caller vouches for the arguments.
        let export = export(unsafe { handle::get(snapshot)? })?;
        Ok(ExportHandle { extents: text(&export.extents().to_string()), export })
    };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_export(snapshot: *const hf_snapshot, out: *mut *mut hf_export) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe { give(snapshot, out, Snapshot::export) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_export_copy(snapshot: *const hf_snapshot, out: *mut *mut hf_export) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe { give(snapshot, out, Snapshot::export_copy) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_close(exported: *mut hf_export) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(exported) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_fd(exported: *const hf_export) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    number(|| Ok(unsafe { handle::get(exported)? }.export.as_fd().as_raw_fd()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_extents(exported: *const hf_export) -> *const c_char {
    // SAFETY: the caller vouches for the arguments.
    ask(ptr::null(), || Ok(unsafe { handle::get(exported)? }.extents.as_ptr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_extent(
    exported: *const hf_export,
    nth: usize,
    offset: *mut usize,
    file_offset: *mut usize,
    len: *mut usize,
) -> c_int {
    number(|| {
        // SAFETY: the caller vouches for the arguments.
        let extents = unsafe { handle::get(exported)? }.export.extents();
        let extent = extents.iter().nth(nth);
        let numbers = extent.map_or([0; 3], |extent| [extent.offset, extent.file_offset, extent.len]);
        for ((name, to), number) in
            [("offset", offset), ("file_offset", file_offset), ("len", len)].into_iter().zip(numbers)
        {
            // SAFETY: the caller vouches for the arguments.
            *unsafe { to.as_mut() }.ok_or_else(|| Failure::null(name))? = number;
        }
        Ok(c_int::from(extent.is_some()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_len(exported: *const hf_export) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(exported)? }.export.extents().len()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_page_size(exported: *const hf_export) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(exported)? }.export.extents().page_size()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_export_pool(exported: *const hf_export, out: *mut *mut hf_pool) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(PoolHandle::new(handle::get(exported)?.export.pool().clone()))) })
}
