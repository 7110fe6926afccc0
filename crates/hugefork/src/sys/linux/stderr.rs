//! Writes one line on standard error, also from the fault handler: without allocating or locking, from a buffer on the
//! stack with one `write(2)`.

use core::fmt::{self, Write};

use rustix::stdio::stderr;

/// Longer lines are cut.
const LINE: usize = 400;

/// The line so far. It borrows its bytes, because without optimisation the stack would hold them twice.
struct Line<'a> {
    bytes: &'a mut [u8; LINE],
    len: usize,
}

impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Byte by byte, because without optimisation a copy of slices goes deep into the stack.
        for &byte in text.as_bytes() {
            if self.len < LINE {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
        Ok(())
    }
}

/// Writes one line. If that fails, nobody can be told.
#[cold]
#[inline(never)] // Its buffer is not to lie on the stack below a fault that needs no line.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    // One byte is kept for the newline.
    let mut bytes = [b'\n'; LINE];
    let mut line = Line { bytes: &mut bytes, len: 0 };
    let _ = write!(line, "hugefork: {message}");
    let end = line.len.min(LINE - 1);
    bytes[end] = b'\n';
    let _ = rustix::io::write(stderr(), &bytes[..=end]);
}

/// Writes a line as it is, if the stack has no room for a buffer.
pub(crate) fn say_plainly(line: &'static str) {
    let _ = rustix::io::write(stderr(), line.as_bytes());
}
