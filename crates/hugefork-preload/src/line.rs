//! A line of text on the stack, for places where nothing may be allocated.

use std::fmt::{self, Write};
use std::os::fd::{BorrowedFd, RawFd};

/// The longest line; what does not fit is cut off.
const LEN: usize = 512;

/// The line.
pub(crate) struct Line {
    bytes: [u8; LEN],
    used: usize,
}

impl Line {
    /// `text`, and the end of the line.
    pub(crate) fn new(text: fmt::Arguments<'_>) -> Line {
        let mut line = Line { bytes: [0; LEN], used: 0 };
        // It never fails: what does not fit is cut off.
        let _ = line.write_fmt(text);
        line.used = line.used.min(LEN - 1);
        line.bytes[line.used] = b'\n';
        line.used += 1;
        line
    }

    /// Writes it in one call. A reader that has gone is no matter.
    pub(crate) fn write_to(&self, number: RawFd) {
        // SAFETY: whatever the number leads to, or nothing; the caller has chosen it.
        let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(number) }, &self.bytes[..self.used]);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.len().min(LEN - self.used);
        self.bytes[self.used..self.used + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.used += fits;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_whatever_their_length() {
        let line = Line::new(format_args!("{} forks", 3));
        assert_eq!(&line.bytes[..line.used], b"3 forks\n");
        let long = "x".repeat(1000);
        let line = Line::new(format_args!("{long}"));
        assert_eq!((line.used, line.bytes[LEN - 1]), (LEN, b'\n'));
    }
}
