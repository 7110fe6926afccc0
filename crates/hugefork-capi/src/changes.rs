//! Changes since a snapshot: `hf_changes`.

use std::any::Any;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use hugefork::{Changed, Changes, RegionError, Snapshot};

use crate::boundary::{number, run};
use crate::choices::{HF_CHANGES_BY_BLOCK, HF_CHANGES_BY_PAGE, HF_CHANGES_WRITTEN};
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{hf_region, hf_snapshot, kinds};

kinds! {
    hf_changes = Finding, b"hf_chang";
}

/// An iterator over changed ranges, and the objects that it compares.
pub(crate) struct Finding {
    /// Borrows from the two fields below; the first field, so that it is dropped before them.
    found: Mutex<Changed<'static>>,
    _newer: Arc<dyn Any + Send + Sync>,
    older: Arc<Snapshot>,
}

impl Finding {
    fn new<N: Send + Sync + 'static>(
        newer: &Arc<N>,
        older: &Arc<Snapshot>,
        changed_since: impl FnOnce(&'static N, &'static Snapshot) -> Result<Changes<'static>, RegionError>,
        by: c_int,
    ) -> Result<Finding, Failure> {
        let (newer, older) = (newer.clone(), older.clone());
        // SAFETY: the `Arc`s own both objects as long as this struct lives, and `found` is dropped first. No borrow of
        // it is handed out.
        let changes = unsafe { changed_since(&*Arc::as_ptr(&newer), &*Arc::as_ptr(&older))? };
        let found = match by {
            HF_CHANGES_BY_BLOCK => changes.blocks(),
            HF_CHANGES_BY_PAGE => changes.pages(),
            HF_CHANGES_WRITTEN => changes.written(),
            other => {
                return Err(Failure::bad_value(format_args!(
                    "{other} is no exactness of changes: take HF_CHANGES_BY_BLOCK, HF_CHANGES_BY_PAGE or HF_CHANGES_WRITTEN"
                )));
            }
        };
        Ok(Finding { found: Mutex::new(found), _newer: newer, older })
    }

    /// The offset and length of the next range.
    fn next(&self) -> Result<Option<(usize, usize)>, Failure> {
        // Fails in a child of fork(2), where a missing thread may hold the lock.
        self.older.changed_since(&self.older)?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let range = found.next().transpose()?;
        Ok(range.map(|range| (range.start, range.len())))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_changed_since(
    region: *const hf_region,
    older: *const hf_snapshot,
    by: c_int,
    out: *mut *mut hf_changes,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let make =
        || unsafe { Finding::new(handle::get(region)?, handle::get(older)?, hugefork::Region::changed_since, by) };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_changed_since(
    snapshot: *const hf_snapshot,
    older: *const hf_snapshot,
    by: c_int,
    out: *mut *mut hf_changes,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { Finding::new(handle::get(snapshot)?, handle::get(older)?, Snapshot::changed_since, by) };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_changes_next(changes: *mut hf_changes, offset: *mut usize, len: *mut usize) -> c_int {
    number(|| {
        // SAFETY: the caller vouches for the arguments.
        let (offset, len) = unsafe {
            let null = |name| move || Failure::null(name);
            (offset.as_mut().ok_or_else(null("offset"))?, len.as_mut().ok_or_else(null("len"))?)
        };
        (*offset, *len) = (0, 0);
        // SAFETY: the caller vouches for the arguments.
        let Some(range) = (unsafe { handle::get(changes)? }).next()? else { return Ok(0) };
        (*offset, *len) = range;
        Ok(1)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_changes_close(changes: *mut hf_changes) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(changes) };
}
