//! A swap file for a test.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;
const SWAP: usize = 64 << 20;

/// One test at a time has a swap file.
static ONE: Mutex<()> = Mutex::new(());

/// A swap file that is in use until this is dropped.
pub(crate) struct Swap(PathBuf, std::ffi::CString, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Swap {
    pub(crate) fn on() -> io::Result<Swap> {
        let path = std::env::temp_dir().join(format!("hugefork-swap-{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let swap = Swap(path, name, ONE.lock().unwrap_or_else(PoisonError::into_inner));
        fs::write(&swap.0, vec![0; SWAP])?;
        fs::set_permissions(&swap.0, fs::Permissions::from_mode(0o600))?;
        // The header as mkswap(8) writes it: version 1, the last page, no bad pages, and the magic at the end of the
        // first page.
        let file = File::options().write(true).open(&swap.0)?;
        let header = [1, (SWAP / PAGE - 1) as u32, 0].map(u32::to_ne_bytes).concat();
        file.write_all_at(&header, 1024)?;
        file.write_all_at(b"SWAPSPACE2", PAGE as u64 - 10)?;
        file.sync_all()?;
        // SAFETY: the call reads a path.
        if unsafe { libc::swapon(swap.1.as_ptr(), 0) } == 0 { Ok(swap) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: as above. The call fails if the file was never in use.
        unsafe { libc::swapoff(self.1.as_ptr()) };
        fs::remove_file(&self.0).unwrap();
    }
}
