//! Pools: `hf_pool`.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use crate::boundary::{ask, number, run};
use crate::choices::number_of;
use crate::failure::check_not_null;
use crate::handle;
use crate::kinds::{PoolHandle, hf_pool};
use crate::pool_options::hf_pool_options;
use crate::versioned;

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_create(options: *const hf_pool_options, out: *mut *mut hf_pool) -> c_int {
    run(|| {
        let make = || {
            check_not_null(options, "options")?;
            // SAFETY: the caller vouches for the arguments.
            let options = unsafe { versioned::read(options)? };
            // SAFETY: the caller vouches for the arguments.
            Ok(PoolHandle::new(unsafe { options.builder()? }.build()?))
        };
        // SAFETY: the caller vouches for the arguments.
        unsafe { handle::give(out, make) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_close(pool: *mut hf_pool) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(pool) };
}

/// A text of a pool, valid as long as its handle. Null if there is no such text, or if the call fails.
///
/// # Safety
/// As `handle::get`.
unsafe fn text_of(pool: *const hf_pool, of: impl FnOnce(&PoolHandle) -> Option<&CString>) -> *const c_char {
    ask(ptr::null(), || {
        // SAFETY: the caller vouches for the arguments.
        let pool = unsafe { handle::get(pool)? };
        Ok(of(pool).map_or(ptr::null(), |text| text.as_ptr()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_name(pool: *const hf_pool) -> *const c_char {
    // SAFETY: the caller vouches for the arguments.
    unsafe { text_of(pool, |pool| Some(&pool.name)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_block_size(pool: *const hf_pool) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(pool)? }.pool.block_size().bytes()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_capacity(pool: *const hf_pool) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(pool)? }.pool.capacity()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_backing(pool: *const hf_pool) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    number(|| number_of(unsafe { handle::get(pool)? }.pool.backing()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_fallback_reason(pool: *const hf_pool) -> *const c_char {
    // SAFETY: the caller vouches for the arguments.
    unsafe { text_of(pool, |pool| pool.fallback_reason.as_ref()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_has_page_grain(pool: *const hf_pool) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    number(|| Ok(c_int::from(unsafe { handle::get(pool)? }.pool.has_page_grain())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_no_page_grain(pool: *const hf_pool) -> *const c_char {
    // SAFETY: the caller vouches for the arguments.
    unsafe { text_of(pool, |pool| pool.no_page_grain.as_ref()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_clear_kernel(pool: *const hf_pool) -> *const c_char {
    // SAFETY: the caller vouches for the arguments.
    unsafe { text_of(pool, |pool| Some(&pool.clear_kernel)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_copy_kernel(pool: *const hf_pool) -> *const c_char {
    // SAFETY: the caller vouches for the arguments.
    unsafe { text_of(pool, |pool| Some(&pool.copy_kernel)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_reclaim(pool: *mut hf_pool, bytes: usize, reclaimed: *mut usize) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(reclaimed, || Ok(handle::get(pool)?.pool.reclaim(bytes)?)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pool_trim(pool: *mut hf_pool, trimmed: *mut usize) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(trimmed, || Ok(handle::get(pool)?.pool.trim()?)) })
}
