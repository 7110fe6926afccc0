//! Writes one line on standard error, also from the fault handler: without allocating or locking, from a buffer with
//! one `write(2)`.

use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

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
    say_in(&mut [b'\n'; LINE], message);
}

fn say_in(bytes: &mut [u8; LINE], message: fmt::Arguments<'_>) {
    let mut line = Line { bytes, len: 0 };
    let _ = write!(line, "hugefork: {message}");
    // One byte is kept for the newline.
    let end = line.len.min(LINE - 1);
    line.bytes[end] = b'\n';
    let _ = rustix::io::write(stderr(), &line.bytes[..=end]);
}

/// The buffer of the last line, for whoever aborts first.
struct Last {
    bytes: UnsafeCell<[u8; LINE]>,
    is_taken: AtomicBool,
}

// SAFETY: the bytes are used by the one who has taken them.
unsafe impl Sync for Last {}

/// Writes one line and aborts. A thread may have little left of its stack here, so the buffer does not lie there.
#[cold]
#[inline(never)] // As above.
pub(crate) fn say_and_abort(message: fmt::Arguments<'_>) -> ! {
    static LAST: Last = Last { bytes: UnsafeCell::new([b'\n'; LINE]), is_taken: AtomicBool::new(false) };
    if !LAST.is_taken.swap(true, Ordering::Relaxed) {
        // SAFETY: only who has found it free comes here, so once.
        say_in(unsafe { &mut *LAST.bytes.get() }, message);
    }
    std::process::abort();
}

/// Writes a line as it is, if the stack has no room for a buffer.
pub(crate) fn say_plainly(line: &'static str) {
    let _ = rustix::io::write(stderr(), line.as_bytes());
}
