//! Calls to the kernel on behalf of the program, with libc's `errno`. libc's own `syscall` would come back to the
//! library, which stands in for it.
//!
//! All of them are made by the library's `syscall` (doors/number.rs), past its table: whoever tells the program's calls
//! from the library's own, as tests do, tells them by that place.

use std::ffi::{c_int, c_long};

/// Added to a number: the call is the kernel's, whatever the library stands in for. The kernel does not see it, as it
/// looks at half of the word.
pub(crate) const PAST_THE_TABLE: c_long = 1 << 32;

unsafe extern "C" {
    /// The library's own where it is put into a program, else libc's, which takes the same.
    pub(crate) fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
}

/// `kernel!(libc::SYS_munmap, start, len)`: the answer of the call, or -1 and `errno`.
macro_rules! kernel {
    ($number:expr, $a:expr) => {
        kernel!($number, $a, 0)
    };
    ($number:expr, $a:expr, $b:expr) => {
        kernel!($number, $a, $b, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr) => {
        kernel!($number, $a, $b, $c, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        kernel!($number, $a, $b, $c, $d, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        kernel!($number, $a, $b, $c, $d, $e, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::kernel::syscall(
            $number | $crate::kernel::PAST_THE_TABLE,
            $a as ::std::ffi::c_long,
            $b as ::std::ffi::c_long,
            $c as ::std::ffi::c_long,
            $d as ::std::ffi::c_long,
            $e as ::std::ffi::c_long,
            $f as ::std::ffi::c_long,
        )
    };
}

pub(crate) use kernel;

/// As libc says that a call has failed.
pub(crate) fn failed(errno: c_int) -> c_long {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

#[cfg(test)]
mod tests {
    #[test]
    fn answers_are_those_of_libc() {
        // SAFETY: neither call changes anything.
        unsafe {
            assert_eq!(kernel!(libc::SYS_getpgid, 0), i64::from(libc::getpgid(0)));
            assert_eq!((kernel!(libc::SYS_close, -1), *libc::__errno_location()), (-1, libc::EBADF));
        }
    }

    /// Such a call would come back to the library for what that stands in for.
    #[test]
    fn nothing_calls_the_kernel_through_libc() {
        let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]").next().unwrap();
                assert!(!text.contains(concat!("libc::", "syscall(")), "{}: take `kernel!`", path.display());
            }
        }
    }
}
