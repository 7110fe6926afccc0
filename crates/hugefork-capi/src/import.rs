//! Imports of another process's export: `hf_import`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use hugefork::{Extents, Imported};

use crate::boundary::{ask, number, run, to_fill};
use crate::failure::check_not_null;
use crate::handle;
use crate::kinds::hf_import;
use crate::transfer::borrowed;

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_import_map(fd: c_int, extents: *const c_char, out: *mut *mut hf_import) -> c_int {
    let make = || {
        check_not_null(extents, "extents")?;
        // SAFETY: the caller vouches for a zero-terminated text.
        let extents: Extents = unsafe { CStr::from_ptr(extents) }.to_string_lossy().parse()?;
        // SAFETY: the caller vouches for the arguments.
        Ok(Imported::map(unsafe { borrowed(fd)? }, &extents)?)
    };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_import_close(imported: *mut hf_import) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(imported) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_import_address(imported: *const hf_import) -> *mut c_void {
    // SAFETY: the caller vouches for the arguments.
    ask(ptr::null_mut(), || Ok(unsafe { handle::get(imported)? }.as_mut_ptr().cast()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_import_len(imported: *const hf_import) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(imported)? }.len()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_import_read_at(
    imported: *const hf_import,
    offset: usize,
    to: *mut c_void,
    len: usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let imported = unsafe { handle::get(imported)? };
        // SAFETY: the caller vouches for the arguments.
        let to = unsafe { to_fill(to, offset, len, imported.len())? };
        Ok(imported.read_at(offset, to)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_import_is_sealed(imported: *const hf_import) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    number(|| Ok(c_int::from(unsafe { handle::get(imported)? }.sealed().is_some())))
}
