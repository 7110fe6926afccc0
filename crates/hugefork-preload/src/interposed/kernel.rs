//! System calls on behalf of the program, which set libc's `errno`. libc's own `syscall` would
//! return to the library, because that interposes it.

use std::ffi::{c_int, c_long, c_void};

use syscalls::{Errno, Sysno, syscall};

use crate::BASE_PAGE;

/// Makes a system call; returns its result, or -1 with `errno` set.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call(number: c_long, arguments: &[c_long]) -> c_long {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    let Some(number) = Sysno::new(number as usize) else { return failed(libc::ENOSYS) };
    // SAFETY: the caller vouches for the call.
    match unsafe { syscall!(number, a, b, c, d, e, f) } {
        Ok(answer) => answer as c_long,
        Err(errno) => failed(errno.into_raw()),
    }
}

/// `kernel!(libc::SYS_munmap, start, len)`: the call's result, or -1 with `errno` set.
macro_rules! kernel {
    ($number:expr $(, $argument:expr)*) => {
        $crate::interposed::kernel::call($number, &[$($argument as ::std::ffi::c_long),*])
    };
}

pub(crate) use kernel;

/// The error of the last failed call.
pub(crate) fn errno() -> c_int {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Reports a failure as libc does.
pub(crate) fn failed<T: From<i8>>(errno: c_int) -> T {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = errno };
    T::from(-1)
}

/// Runs `work` and restores `errno`, so that the program's thread finds its own value.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    let before = errno();
    let done = work();
    failed::<c_int>(before);
    done
}

/// Whether memory named by the program is readable. If not, the library leaves the call to the kernel, which reports
/// the error.
pub(crate) fn is_readable(start: usize, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let Some(last) = start.checked_add(len - 1) else { return false };
    let is_there = |address: usize| {
        let mut byte = 0_u8;
        let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: address as *mut c_void, iov_len: 1 };
        // SAFETY: writes one byte to `byte`.
        let read = unsafe {
            let (to, from) = (&raw const to, &raw const from);
            syscall!(Sysno::process_vm_readv, std::process::id(), to, 1, from, 1, 0)
        };
        read != Err(Errno::EFAULT)
    };
    // Checks one byte of each page.
    is_there(start) && (start / BASE_PAGE + 1..=last / BASE_PAGE).all(|page| is_there(page * BASE_PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_memory_is_detected() {
        let bytes = vec![1_u8; 3 * BASE_PAGE];
        let start = bytes.as_ptr() as usize;
        assert!(is_readable(start, bytes.len()) && is_readable(8, 0));
        assert!(!is_readable(8, 24) && !is_readable(usize::MAX - 7, 24));
        // SAFETY: a new mapping at an address of the kernel's choice; half of it is readable.
        let half = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), 2 * BASE_PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_eq!(libc::mprotect(start, BASE_PAGE, libc::PROT_READ), 0);
            start as usize
        };
        assert!(is_readable(half + BASE_PAGE - 8, 8) && !is_readable(half + BASE_PAGE - 8, 9));
    }

    #[test]
    fn results_and_errno_equal_libcs() {
        // SAFETY: neither call changes anything.
        unsafe {
            assert_eq!(kernel!(libc::SYS_getpgid, 0), i64::from(libc::getpgid(0)));
            assert_eq!((kernel!(libc::SYS_close, -1), *libc::__errno_location()), (-1, libc::EBADF));
        }
    }

    /// Such calls would return to the interposed `syscall`.
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
