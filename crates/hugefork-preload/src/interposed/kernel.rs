//! Calls to the kernel on behalf of the program, with libc's `errno`. libc's own `syscall` would come back to the
//! library, which stands in for it.

use std::ffi::{c_int, c_long, c_void};

use syscalls::{Errno, Sysno, syscall};

use crate::BASE_PAGE;

/// Makes a call: its answer, or -1 and `errno`.
///
/// # Safety
/// The call's.
pub(crate) unsafe fn call(number: c_long, arguments: &[c_long]) -> c_long {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    let Some(number) = Sysno::new(number as usize) else { return failed(libc::ENOSYS) };
    // SAFETY: the caller's.
    match unsafe { syscall!(number, a, b, c, d, e, f) } {
        Ok(answer) => answer as c_long,
        Err(errno) => failed(errno.into_raw()),
    }
}

/// `kernel!(libc::SYS_munmap, start, len)`: the answer of the call, or -1 and `errno`.
macro_rules! kernel {
    ($number:expr $(, $argument:expr)*) => {
        $crate::interposed::kernel::call($number, &[$($argument as ::std::ffi::c_long),*])
    };
}

pub(crate) use kernel;

/// Why the last call failed.
pub(crate) fn errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

/// As libc says that a call has failed.
pub(crate) fn failed<T: From<i8>>(errno: c_int) -> T {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    T::from(-1)
}

/// Does `work`, and leaves `errno` as it was: the program's thread is to find in it what it left there.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    let before = errno();
    let done = work();
    failed::<c_int>(before);
    done
}

/// Whether memory that the program names can be read, so that the kernel answers what cannot.
pub(crate) fn is_readable(start: usize, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let Some(last) = start.checked_add(len - 1) else { return false };
    let is_there = |address: usize| {
        let mut byte = 0_u8;
        let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: address as *mut c_void, iov_len: 1 };
        // SAFETY: writes one byte, to where there is one.
        let read = unsafe {
            let (to, from) = (&raw const to, &raw const from);
            syscall!(Sysno::process_vm_readv, std::process::id(), to, 1, from, 1, 0)
        };
        read != Err(Errno::EFAULT)
    };
    // A byte of each page.
    is_there(start) && (start / BASE_PAGE + 1..=last / BASE_PAGE).all(|page| is_there(page * BASE_PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_before_it_is_read() {
        let bytes = vec![1_u8; 3 * BASE_PAGE];
        let start = bytes.as_ptr() as usize;
        assert!(is_readable(start, bytes.len()) && is_readable(8, 0));
        assert!(!is_readable(8, 24) && !is_readable(usize::MAX - 7, 24));
        // SAFETY: a new mapping where the kernel likes, half of which can be read.
        let half = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), 2 * BASE_PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_eq!(libc::mprotect(start, BASE_PAGE, libc::PROT_READ), 0);
            start as usize
        };
        assert!(is_readable(half + BASE_PAGE - 8, 8) && !is_readable(half + BASE_PAGE - 8, 9));
    }

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
