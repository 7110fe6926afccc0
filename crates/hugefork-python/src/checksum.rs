//! The checksum of a checkpoint's files.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::failure::Failure;
use crate::interrupt::BETWEEN_SIGNALS;

/// Bytes per read. So few bytes remain in the CPU's cache until the checksum has been computed from them.
const AT_ONCE: usize = 256 << 10;

/// zlib's CRC-32 of a whole file.
#[pyfunction]
pub(crate) fn crc32_of_file(py: Python<'_>, path: PathBuf) -> Result<u32, Failure> {
    let mut file = File::open(path)?;
    let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), vec![0; AT_ONCE]);
    loop {
        let mut part = (&mut file).take(BETWEEN_SIGNALS as u64);
        let is_over = py.detach(|| -> std::io::Result<bool> {
            while part.limit() > 0 {
                let count = part.read(&mut bytes)?;
                if count == 0 {
                    return Ok(true);
                }
                hasher.update(&bytes[..count]);
            }
            Ok(false)
        })?;
        if is_over {
            return Ok(hasher.finalize());
        }
        py.check_signals()?;
    }
}
