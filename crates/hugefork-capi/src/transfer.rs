//! Transfers between descriptors and regions or snapshots.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd};

use hugefork::{Region, RegionError, TransferError};

use crate::boundary::{range, run};
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{hf_region, hf_snapshot};

/// Borrows the descriptor `fd`, which the program owns.
///
/// # Safety
/// The descriptor remains open as long as the result is used, if it is open at all.
pub(crate) unsafe fn borrowed<'fd>(fd: c_int) -> Result<BorrowedFd<'fd>, Failure> {
    if fd < 0 {
        return Err(Failure::bad_descriptor(fd));
    }
    // SAFETY: the caller vouches for the arguments.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A transfer between `fd` and a region.
///
/// # Safety
/// `region` fulfils the contract of `handle::get`, `fd` that of [`borrowed`], `done` that of [`count_done`].
unsafe fn transfer(
    region: *mut hf_region,
    fd: c_int,
    done: *mut usize,
    call: impl FnOnce(&Region, BorrowedFd<'_>) -> Result<usize, TransferError>,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(done, || Ok(call(handle::get(region)?, borrowed(fd)?)?)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_read_from(
    region: *mut hf_region,
    fd: c_int,
    offset: usize,
    len: usize,
    done: *mut usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe { transfer(region, fd, done, |region, fd| region.read_from(fd, range(offset, len))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_read_from_at(
    region: *mut hf_region,
    fd: c_int,
    offset: usize,
    len: usize,
    file_offset: u64,
    done: *mut usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe { transfer(region, fd, done, |region, fd| region.read_from_at(fd, range(offset, len), file_offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_write_to(
    region: *mut hf_region,
    fd: c_int,
    offset: usize,
    len: usize,
    done: *mut usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe { transfer(region, fd, done, |region, fd| region.write_to(fd, range(offset, len)).map(|()| len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_write_to_at(
    region: *mut hf_region,
    fd: c_int,
    offset: usize,
    len: usize,
    file_offset: u64,
    done: *mut usize,
) -> c_int {
    let write =
        |region: &Region, fd: BorrowedFd<'_>| region.write_to_at(fd, range(offset, len), file_offset).map(|()| len);
    // SAFETY: the caller vouches for the arguments.
    unsafe { transfer(region, fd, done, write) }
}

/// A file that counts the bytes written to it.
struct Counting {
    file: ManuallyDrop<File>,
    written: usize,
}

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_snapshot_write_to(
    snapshot: *const hf_snapshot,
    fd: c_int,
    offset: usize,
    len: usize,
    done: *mut usize,
) -> c_int {
    let call = || {
        // SAFETY: the caller vouches for the arguments.
        let snapshot = unsafe { handle::get(snapshot)? };
        if fd < 0 {
            return Err(Failure::bad_descriptor(fd));
        }
        // SAFETY: the program owns the descriptor; `ManuallyDrop` prevents its closing.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let mut counting = Counting { file, written: 0 };
        let result = snapshot.write_to(&mut counting, range(offset, len));
        result.map(|()| counting.written).map_err(|error| of_write(&error).after(counting.written))
    };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::store(done, call) })
}

/// The snapshot's error, or the descriptor's.
fn of_write(error: &io::Error) -> Failure {
    let of_snapshot = error.get_ref().and_then(|inner| inner.downcast_ref::<RegionError>());
    match of_snapshot {
        Some(error) => error.clone().into(),
        None => Failure::system("write", error),
    }
}
