//! Snapshots: `hf_snapshot`. Writing them to a descriptor is in `transfer`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use hugefork::SnapshotId;

use crate::boundary::{ask, number, run, to_fill};
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{PoolHandle, hf_pool, hf_region, hf_snapshot};
use crate::region_options::{self, hf_region_options};

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_close(snapshot: *mut hf_snapshot) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(snapshot) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_len(snapshot: *const hf_snapshot) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(snapshot)? }.len()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_id(snapshot: *const hf_snapshot) -> u64 {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(snapshot)? }.id().get()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_parent(snapshot: *const hf_snapshot) -> u64 {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(snapshot)? }.parent().map_or(0, SnapshotId::get)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_pool(snapshot: *const hf_snapshot, out: *mut *mut hf_pool) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(PoolHandle::new(handle::get(snapshot)?.pool().clone()))) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_map(snapshot: *const hf_snapshot, out: *mut *const c_void) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let out = unsafe { out.as_mut() }.ok_or_else(|| Failure::null("out"))?;
        *out = ptr::null();
        // SAFETY: the caller vouches for the arguments.
        *out = unsafe { handle::get(snapshot)? }.map()?.as_ptr().cast();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_read_at(
    snapshot: *const hf_snapshot,
    offset: usize,
    to: *mut c_void,
    len: usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let snapshot = unsafe { handle::get(snapshot)? };
        // SAFETY: the caller vouches for the arguments.
        let to = unsafe { to_fill(to, offset, len, snapshot.len())? };
        Ok(snapshot.read_at(offset, to)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_is_revoked(snapshot: *const hf_snapshot) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    number(|| Ok(c_int::from(unsafe { handle::get(snapshot)? }.is_revoked())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_fork(
    snapshot: *const hf_snapshot,
    options: *const hf_region_options,
    out: *mut *mut hf_region,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { Ok(Arc::new(handle::get(snapshot)?.fork_with(region_options::read(options)?)?)) };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}
