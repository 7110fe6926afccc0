//! Writes one line on standard error, also from the fault handler: it neither allocates nor locks, and makes one
//! `write(2)` from a buffer. This raises no signal, whatever standard error is.
//!
//! A program that has closed descriptors 0 to 2 may have a file of its own as number 2, for example a database, which
//! the line would damage. Logs differ from such files: shells and programs open a log write-only, or for appending, or
//! unlink it (pytest). So a named file that can be read, too, and is not open for appending is the program's own, and
//! gets no line.

use core::fmt::{self, Write};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::stdio::stderr;

use super::mask::WriteSignalsTaken;

/// Longer lines are cut.
const LONGEST_LINE_BYTES: usize = 400;

/// The line so far.
struct Line {
    bytes: [u8; LONGEST_LINE_BYTES],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = LONGEST_LINE_BYTES.min(self.len + text.len());
        let part = &mut self.bytes[self.len..end];
        part.copy_from_slice(&text.as_bytes()[..part.len()]);
        self.len = end;
        Ok(())
    }
}

/// Writes one line. If that fails, there is no way to report it.
#[cold]
pub(crate) fn say(message: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [b'\n'; LONGEST_LINE_BYTES], len: 0 };
    let _ = write!(line, "hugefork: {message}");
    // One byte is kept for the newline.
    let end = line.len.min(LONGEST_LINE_BYTES - 1);
    line.bytes[end] = b'\n';
    write_out(&line.bytes[..=end]);
}

/// Writes one line and aborts.
#[cold]
pub(crate) fn say_and_abort(message: fmt::Arguments<'_>) -> ! {
    say(message);
    std::process::abort();
}

/// Whether descriptor 2 is a file or device with data of the program: one that can also be read, and is not open for
/// appending.
fn is_of_the_program() -> bool {
    let (Ok(stat), Ok(flags)) = (fstat(stderr()), fcntl_getfl(stderr())) else { return false };
    let has_name = stat.st_nlink > 0;
    let keeps_data = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => has_name,
        kind => kind == FileType::BlockDevice,
    };
    keeps_data && flags & OFlags::RWMODE == OFlags::RDWR && !flags.contains(OFlags::APPEND)
}

/// Writes a whole line, for [`say`] or for a caller whose stack has no room for a buffer.
pub(crate) fn write_out(line: &[u8]) {
    if is_of_the_program() {
        return;
    }
    let _signals = WriteSignalsTaken::new();
    let _ = rustix::io::write(stderr(), line);
}
