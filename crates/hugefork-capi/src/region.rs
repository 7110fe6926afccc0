//! Regions: `hf_region`.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::Arc;

use hugefork::{Region, Snapshot, SnapshotId};

use crate::boundary::{ask, number, range, run};
use crate::choices::chosen;
use crate::failure::{Failure, check_not_null};
use crate::handle;
use crate::kinds::{PoolHandle, hf_pool, hf_region, hf_snapshot};
use crate::region_options::{self, hf_region_options};
use crate::stats::{hf_lazy_freed, lazy_freed};

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_create(
    pool: *mut hf_pool,
    len: usize,
    options: *const hf_region_options,
    out: *mut *mut hf_region,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { Ok(Arc::new(handle::get(pool)?.pool.region_with(len, region_options::read(options)?)?)) };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_close(region: *mut hf_region) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(region) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_address(region: *const hf_region) -> *mut c_void {
    // SAFETY: the caller vouches for the arguments.
    ask(ptr::null_mut(), || Ok(unsafe { handle::get(region)? }.as_mut_ptr().cast()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_len(region: *const hf_region) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(region)? }.len()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_pool(region: *const hf_region, out: *mut *mut hf_pool) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(PoolHandle::new(handle::get(region)?.pool().clone()))) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_populate(region: *mut hf_region) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| Ok(unsafe { handle::get(region)? }.populate()?))
}

/// The program's callback for the progress of a long call, and the program's pointer for it.
#[derive(Clone, Copy)]
struct Progress {
    callback: Option<unsafe extern "C" fn(done: usize, user: *mut c_void)>,
    user: *mut c_void,
}

// SAFETY: the header says that any thread may call it.
unsafe impl Sync for Progress {}

impl Progress {
    fn report(&self, done: usize) {
        if let Some(callback) = self.callback {
            // SAFETY: the caller vouches for the callback; `user` is its pointer.
            unsafe { callback(done, self.user) };
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_populate_with(
    region: *mut hf_region,
    threads: usize,
    progress: Option<unsafe extern "C" fn(done: usize, user: *mut c_void)>,
    user: *mut c_void,
) -> c_int {
    let progress = Progress { callback: progress, user };
    let progress = &progress;
    // SAFETY: the caller vouches for the arguments.
    run(|| Ok(unsafe { handle::get(region)? }.populate_with(threads, |done| progress.report(done))?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_prepare_write(region: *mut hf_region, offset: usize, len: usize) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| Ok(unsafe { handle::get(region)? }.prepare_write(range(offset, len))?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_prepare_snapshot(region: *mut hf_region) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| Ok(unsafe { handle::get(region)? }.prepare_snapshot()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_discard(region: *mut hf_region, offset: usize, len: usize) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| Ok(unsafe { handle::get(region)? }.discard(range(offset, len))?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_lazy_free(
    region: *mut hf_region,
    offset: usize,
    len: usize,
    freed: *mut hf_lazy_freed,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments. A bad `freed` is found before anything is freed.
        unsafe { lazy_freed(freed, || Ok(handle::get(region)?.lazy_free(range(offset, len))?)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_cancel_lazy_free(
    region: *mut hf_region,
    offset: usize,
    len: usize,
    cancelled: *mut usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let call = || Ok(unsafe { handle::get(region)? }.cancel_lazy_free(range(offset, len))?);
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(cancelled, call) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_advise(region: *mut hf_region, advice: c_int) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        unsafe { handle::get(region)? }.advise(chosen(advice)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_is_revoked(region: *const hf_region) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    number(|| Ok(c_int::from(unsafe { handle::get(region)? }.is_revoked())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_fork(
    region: *mut hf_region,
    options: *const hf_region_options,
    out: *mut *mut hf_region,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { Ok(Arc::new(handle::get(region)?.fork_with(region_options::read(options)?)?)) };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_snapshot(
    region: *mut hf_region,
    options: *const hf_region_options,
    out: *mut *mut hf_snapshot,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { Ok(Arc::new(handle::get(region)?.snapshot_with(region_options::read(options)?)?)) };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, make) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_origin(region: *const hf_region) -> u64 {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(region)? }.origin().map_or(0, SnapshotId::get)))
}

/// Fails if a region occurs twice; `then` is the advice in the message.
fn check_named_once<'a>(regions: impl Iterator<Item = &'a Region>, then: &str) -> Result<(), Failure> {
    // Two handles may be of one region.
    let mut twice: Vec<_> = regions.map(Region::as_ptr).collect();
    twice.sort_unstable();
    match twice.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(Failure::bad_value(format_args!("a region is named twice: {then}"))),
        false => Ok(()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_snapshot_all(
    regions: *const *mut hf_region,
    count: usize,
    options: *const hf_region_options,
    out: *mut *mut hf_snapshot,
) -> c_int {
    run(|| {
        if count == 0 {
            return Ok(());
        }
        check_not_null(regions, "regions")?;
        check_not_null(out, "out")?;
        // SAFETY: the caller vouches for `count` elements in both arrays.
        let handles = unsafe { std::slice::from_raw_parts(regions, count) };
        // SAFETY: the caller vouches for the arguments.
        (0..count).for_each(|nth| unsafe { out.add(nth).write(ptr::null_mut()) });
        // SAFETY: the caller vouches for the arguments.
        let named = handles.iter().map(|handle| unsafe { handle::get(*handle) }.map(Arc::as_ref));
        let named: Vec<&Region> = named.collect::<Result<_, _>>()?;
        check_named_once(named.iter().copied(), "take one snapshot of it")?;
        // SAFETY: the caller vouches for the arguments.
        let made = Region::snapshot_all_with(&named, unsafe { region_options::read(options)? })?;
        made.into_iter().enumerate().try_for_each(|(nth, snapshot)| {
            // SAFETY: one of the `count` elements.
            unsafe { handle::give(out.add(nth), || Ok(Arc::new(snapshot))) }
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_reset_to(
    region: *mut hf_region,
    snapshot: *const hf_snapshot,
    done: *mut usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let call = || unsafe {
        let region = handle::get(region)?;
        region.reset_to(handle::get(snapshot)?)?;
        Ok(region.len())
    };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(done, call) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_reset_all(
    regions: *const *mut hf_region,
    snapshots: *const *const hf_snapshot,
    count: usize,
    done: *mut usize,
) -> c_int {
    let call = || {
        // SAFETY: the caller vouches for the arguments.
        let pairs = unsafe { pairs(regions, snapshots, count, "it can go back to one snapshot")? };
        Region::reset_all(&pairs)?;
        Ok(pairs.iter().map(|(region, _)| region.len()).sum())
    };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(done, call) })
}

/// Regions, each with the snapshot at the same index. No region may occur twice; `then` is the advice in the message.
///
/// # Safety
/// As for [`handle::get`], for `count` elements of both arrays.
unsafe fn pairs<'a>(
    regions: *const *mut hf_region,
    snapshots: *const *const hf_snapshot,
    count: usize,
    then: &str,
) -> Result<Vec<(&'a Region, &'a Snapshot)>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check_not_null(regions, "regions")?;
    check_not_null(snapshots, "snapshots")?;
    // SAFETY: the caller vouches for `count` elements in both arrays.
    let (regions, snapshots) =
        unsafe { (std::slice::from_raw_parts(regions, count), std::slice::from_raw_parts(snapshots, count)) };
    let pairs = regions.iter().zip(snapshots).map(|(region, snapshot)| {
        // SAFETY: the caller vouches for the arguments.
        unsafe { Ok((handle::get(*region)?.as_ref(), handle::get(*snapshot)?.as_ref())) }
    });
    let pairs: Vec<(&Region, &Snapshot)> = pairs.collect::<Result<_, Failure>>()?;
    check_named_once(pairs.iter().map(|(region, _)| *region), then)?;
    Ok(pairs)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_fork_with(
    regions: *const *mut hf_region,
    snapshots: *const *const hf_snapshot,
    count: usize,
    child: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let child = unsafe { child.as_mut() }.ok_or_else(|| Failure::null("child"))?;
        *child = -1;
        // SAFETY: the caller vouches for the arguments.
        let pairs = unsafe { pairs(regions, snapshots, count, "it can be as one snapshot") }?;
        // SAFETY: the caller answers for the child.
        let fork = || match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            number => Ok(number),
        };
        // SAFETY: as above.
        *child = unsafe { Region::fork_process_with(&pairs, fork) }?;
        Ok(())
    })
}
