//! The contents of a core dump of a program under `run --pool`.
//!
//! While children live, the program's memory is a private mapping of the pool's file, in the parent
//! and in the children. For such mappings, the kernel dumps only those written since they were
//! made, unless bit 2 of the process's dump filter is set, and by default it is not. So the library
//! sets it if private memory is dumped at all (bit 0). Children inherit the filter. Writing to each
//! mapping would work as well, but then the next fork would copy their page tables.

use std::io::{Cursor, Write};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{pwrite, read};

const PRIVATE: u32 = 1 << 0;
const PRIVATE_OF_FILES: u32 = 1 << 2;

/// Includes private file mappings in core dumps, if private memory is included.
pub(crate) fn have_private_files() {
    // If `/proc` is missing or not writable, dumps remain without them.
    let Ok(file) = open(c"/proc/self/coredump_filter", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let mut text = [0_u8; 16];
    let Ok(len) = read(&file, &mut text) else { return };
    let digits = std::str::from_utf8(&text[..len]).unwrap_or_default().trim();
    if let Some(with) = u32::from_str_radix(digits, 16).ok().and_then(with_private_files) {
        let mut text = Cursor::new([0_u8; 16]);
        let _ = write!(text, "{with:#x}");
        let len = text.position() as usize;
        let _ = pwrite(&file, &text.get_ref()[..len], 0);
    }
}

/// The filter to set; `None` if it is right already.
fn with_private_files(filter: u32) -> Option<u32> {
    (filter & (PRIVATE | PRIVATE_OF_FILES) == PRIVATE).then_some(filter | PRIVATE_OF_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_without_private_memory_remain_so() {
        assert_eq!([0x33, 0x37, 0x32, 0, 0x1].map(with_private_files), [Some(0x37), None, None, None, Some(0x5)]);
    }

    #[test]
    fn the_filter_is_set() {
        let filter = || std::fs::read_to_string("/proc/self/coredump_filter").unwrap();
        let before = filter();
        std::fs::write("/proc/self/coredump_filter", "0x33").unwrap();
        have_private_files();
        assert_eq!(filter().trim(), "00000037");
        std::fs::write("/proc/self/coredump_filter", format!("0x{}", before.trim())).unwrap();
    }
}
