//! Options of a pool: `hf_pool_options`.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use hugefork::{BlockSize, Pool, PoolBuilder, PressureWatch, ZeroedStock};

use crate::choices::chosen;
use crate::failure::Failure;
use crate::versioned::Versioned;

/// `HF_NONE`: a size that means "none".
pub(crate) const HF_NONE: usize = usize::MAX;

#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_pool_options {
    size: usize,
    name: *const c_char,
    capacity: usize,
    block_size: usize,
    backing: c_int,
    fallback: c_int,
    commit: c_int,
    core_dump: c_int,
    obtain_ahead: usize,
    zeroed_low: usize,
    zeroed_high: usize,
    zeroed_cpu_percent: c_int,
    reclaim_under_pressure: c_int,
    pressure_file: *const c_char,
    pressure_stall_us: u64,
    pressure_window_us: u64,
    pressure_step: usize,
    swap: c_int,
    exports: c_int,
    children: c_int,
    unused: c_int,
}

// SAFETY: `repr(C)`, begins with its size; pairs of `c_int` leave no padding; all fields may be zero.
unsafe impl Versioned for hf_pool_options {
    const TYPE: &'static str = "hf_pool_options";
    const FIRST_SIZE: usize = 112;
}

/// A string of the program; `None` for a null pointer.
///
/// # Safety
/// `text` is null or ends with a zero byte.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller vouches for the arguments.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

impl hf_pool_options {
    /// # Safety
    /// Its strings are null or end with a zero byte.
    pub(crate) unsafe fn builder(&self) -> Result<PoolBuilder, Failure> {
        let mut builder = Pool::builder()
            .capacity(self.capacity)
            .backing(chosen(self.backing)?)
            .fallback(chosen(self.fallback)?)
            .commit(chosen(self.commit)?)
            .core_dump(chosen(self.core_dump)?)
            .swap(chosen(self.swap)?)
            .children(chosen(self.children)?);
        builder = match self.exports {
            0 => builder,
            1 => builder.exports(true),
            other => {
                return Err(Failure::bad_value(format_args!(
                    "`exports` of hf_pool_options is {other}: take 0 or 1, or begin with HF_POOL_OPTIONS_INIT"
                )));
            }
        };
        if self.unused != 0 {
            return Err(Failure::bad_value(format_args!(
                "`unused` of hf_pool_options is {}: set it to 0",
                self.unused
            )));
        }
        // SAFETY: the caller vouches for the arguments.
        if let Some(name) = unsafe { string(self.name) } {
            builder = builder.name(name.to_string_lossy());
        }
        if self.block_size != 0 {
            builder = builder.block_size(BlockSize::new(self.block_size)?);
        }
        builder = match self.obtain_ahead {
            0 => builder,
            HF_NONE => builder.obtain_ahead(0),
            bytes => builder.obtain_ahead(bytes),
        };
        if let Some(stock) = self.zeroed_stock()? {
            builder = builder.zeroed_stock(stock);
        }
        // SAFETY: the caller vouches for the arguments.
        if let Some(watch) = unsafe { self.pressure_watch()? } {
            builder = builder.reclaim_under_pressure(watch);
        }
        Ok(builder)
    }

    fn zeroed_stock(&self) -> Result<Option<ZeroedStock>, Failure> {
        match (self.zeroed_low, self.zeroed_high, self.zeroed_cpu_percent) {
            (0, 0, 0) => Ok(None),
            (_, 0, _) => Err(Failure::bad_value(format_args!("a zeroed stock of 0 bytes: set `zeroed_high`"))),
            (low, high, 0) => Ok(Some(ZeroedStock::keep(low, high))),
            (low, high, percent) => match u32::try_from(percent) {
                Ok(percent @ 1..=100) => Ok(Some(ZeroedStock::keep(low, high).cpu_percent(percent))),
                _ => Err(Failure::bad_value(format_args!("{percent} per cent of a CPU: take 1 to 100, or 0 for 25"))),
            },
        }
    }

    /// # Safety
    /// The name of the file is null or ends with a zero byte.
    unsafe fn pressure_watch(&self) -> Result<Option<PressureWatch>, Failure> {
        // SAFETY: the caller vouches for the arguments.
        let file = unsafe { string(self.pressure_file) };
        let times = (self.pressure_stall_us, self.pressure_window_us);
        match self.reclaim_under_pressure {
            0 if file.is_some() || times != (0, 0) || self.pressure_step != 0 => {
                return Err(Failure::bad_value(format_args!(
                    "a pressure watch that is off: set `reclaim_under_pressure` to 1"
                )));
            }
            0 => return Ok(None),
            1 => {}
            other => {
                return Err(Failure::bad_value(format_args!("`reclaim_under_pressure` is {other}: set it to 0 or 1")));
            }
        }
        let file = file.map(|file| Path::new(OsStr::from_bytes(file.to_bytes())));
        let mut watch = file.map_or_else(PressureWatch::new, PressureWatch::file);
        watch = match times {
            (0, 0) => watch,
            (0, _) | (_, 0) => {
                return Err(Failure::bad_value(format_args!(
                    "a stall without a window, or a window without a stall: set both"
                )));
            }
            (stall, window) => watch.stall(Duration::from_micros(stall), Duration::from_micros(window)),
        };
        Ok(Some(if self.pressure_step == 0 { watch } else { watch.step(self.pressure_step) }))
    }
}
