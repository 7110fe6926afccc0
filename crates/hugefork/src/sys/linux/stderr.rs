//! One line on standard error, also from the fault handler: no allocation, no lock, a buffer on the stack and one `write(2)`.

use core::fmt::{self, Write};

use rustix::stdio::stderr;

/// Longer lines are cut.
const LINE: usize = 400;

struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.len().min(LINE - self.len);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

/// Writes one line. If that fails, nobody is left to tell.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    // One byte is kept for the end of the line.
    let mut line = Line { bytes: [b'\n'; LINE], len: 0 };
    let _ = write!(line, "hugefork: {message}");
    let end = line.len.min(LINE - 1);
    line.bytes[end] = b'\n';
    let _ = rustix::io::write(stderr(), &line.bytes[..=end]);
}

/// Writes a line as it is, where the stack has no room for a buffer.
pub(crate) fn say_plainly(line: &'static str) {
    let _ = rustix::io::write(stderr(), line.as_bytes());
}
