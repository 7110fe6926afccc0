//! Opens the files and directories of a checkpoint. Another program may have put anything in their place.

use std::fs;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{CheckpointError, at};

/// Opens a regular file. `open(2)` of a FIFO would wait for its other end without `O_NONBLOCK`, which changes nothing
/// for a regular file.
///
/// # Errors
/// [`CheckpointError::Altered`] if the file is not regular, and [`CheckpointError::Io`].
pub(crate) fn open(path: &Path, flags: OFlags) -> Result<fs::File, CheckpointError> {
    let why = "is a FIFO, device, socket or directory instead of a regular file: it was replaced; put the file back, or \
               take another directory";
    let altered = || CheckpointError::Altered { path: path.to_owned(), why: why.to_owned() };
    let file = match raw_open(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY) {
        // A socket, or a FIFO or device without its other end.
        Err(Errno::NXIO) => return Err(altered()),
        file => at(path, file.map_err(Into::into))?,
    };
    if at(path, file.metadata())?.is_file() { Ok(file) } else { Err(altered()) }
}

/// Opens a directory.
pub(crate) fn open_folder(path: &Path) -> Result<fs::File, CheckpointError> {
    at(path, raw_open(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(Into::into))
}

fn raw_open(path: &Path, flags: OFlags) -> Result<fs::File, Errno> {
    let mode = Mode::from_raw_mode(0o666);
    retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)).map(fs::File::from)
}
