//! The last error of a thread: its text and `errno`.
//!
//! The text lies in a buffer of a fixed size in the thread's static memory, so this crate allocates nothing for it: an
//! allocator on top of hugefork may have no memory left, or hold its own lock during the call. The engine allocates for
//! a few texts, such as those of refused system calls.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::fmt::{self, Write};

use crate::words::in_words_of_c;

/// The size of the buffer with its terminating zero. The texts of the engine have up to 400 bytes, and names and paths.
const SIZE: usize = 1024;

/// A text for C. A zero byte in it becomes `?`, and the text ends before the first character that finds no room.
struct Text {
    bytes: [u8; SIZE],
    len: usize,
}

impl Text {
    const EMPTY: Text = Text { bytes: [0; SIZE], len: 0 };

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = SIZE - 1 - self.len;
        let taken = more.floor_char_boundary(room);
        let to = &mut self.bytes[self.len..][..taken];
        to.copy_from_slice(&more.as_bytes()[..taken]);
        to.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
        self.len += taken;
        // An error ends the formatting, so that no shorter piece follows the one that was cut.
        if taken == more.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

struct Last {
    text: Text,
    errno: c_int,
}

thread_local! {
    // Without a destructor, so a thread that is ending has it, too.
    static LAST: RefCell<Last> = const { RefCell::new(Last { text: Text::EMPTY, errno: 0 }) };
}

/// Makes this the thread's last error; `text` is in the engine's words.
pub(crate) fn set(text: fmt::Arguments<'_>, errno: c_int) {
    let mut of_engine = Text::EMPTY;
    // A text that is too long is cut.
    let _ = of_engine.write_fmt(text);
    LAST.with_borrow_mut(|last| {
        *last = Last { text: Text::EMPTY, errno };
        let _ = write!(last.text, "{}", in_words_of_c(of_engine.as_str()));
    });
}

#[unsafe(no_mangle)]
extern "C" fn hf_last_error() -> *const c_char {
    // The buffer always ends with a zero byte.
    LAST.with_borrow(|last| last.text.bytes.as_ptr().cast())
}

#[unsafe(no_mangle)]
extern "C" fn hf_last_errno() -> c_int {
    LAST.with_borrow(|last| last.errno)
}

#[cfg(test)]
pub(crate) fn last_text() -> String {
    // SAFETY: the text ends with a zero byte.
    let text = unsafe { std::ffi::CStr::from_ptr(hf_last_error()) };
    text.to_str().unwrap().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: fmt::Arguments<'_>) -> String {
        set(text, 0);
        last_text()
    }

    #[test]
    fn a_text_with_a_zero_byte_is_not_cut() {
        assert_eq!(said(format_args!("a{}b", '\0')), "a?b");
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_the_next_is_whole() {
        let long = "x".repeat(SIZE - 3);
        assert_eq!(said(format_args!("{long}{}{}", 'é', 'y')), format!("{long}é"));
        assert_eq!(said(format_args!("{long}{}{}", '€', 'y')), long);
        assert_eq!(said(format_args!("short")), "short");
    }

    #[test]
    fn the_text_of_a_thread_stays_at_one_address() {
        set(format_args!("one"), 1);
        let at = hf_last_error();
        std::thread::spawn(|| {
            assert_eq!((said(format_args!("two")).as_str(), hf_last_errno()), ("two", 0));
        })
        .join()
        .unwrap();
        assert_eq!((last_text().as_str(), hf_last_errno()), ("one", 1));
        set(format_args!("three"), 3);
        assert_eq!(at, hf_last_error());
    }
}
