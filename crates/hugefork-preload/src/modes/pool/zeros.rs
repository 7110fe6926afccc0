//! The device of zeros: before `MAP_ANONYMOUS` there was, programs had their private memory by mapping `/dev/zero`, and
//! some still have. A private mapping of it is anonymous memory to the kernel.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags, StatVfsMountFlags, fcntl_getfl, fstat, fstatvfs, major, minor};

use crate::BASE_PAGE;

/// Whether the kernel maps zeros if it is asked for private memory of a file; otherwise it has its reasons to refuse,
/// or the file contents of its own.
pub(super) fn are_mapped(file: c_int, offset: i64, len: usize) -> bool {
    // Behind the last address of any file, the kernel refuses.
    let is_within = usize::try_from(offset).is_ok_and(|offset| {
        offset.is_multiple_of(BASE_PAGE) && offset.checked_add(len).is_some_and(|end| end <= isize::MAX as usize)
    });
    if file < 0 || !is_within {
        return false;
    }
    // SAFETY: the number may be closed or another file's; `fstat` finds out.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    let is_device = fstat(file).is_ok_and(|known| {
        FileType::from_raw_mode(known.st_mode) == FileType::CharacterDevice
            && (major(known.st_rdev), minor(known.st_rdev)) == (1, 5)
    });
    let is_readable = |flags: OFlags| {
        [OFlags::RDONLY, OFlags::RDWR].contains(&(flags & OFlags::RWMODE)) && !flags.contains(OFlags::PATH)
    };
    is_device
        && fcntl_getfl(file).is_ok_and(is_readable)
        // What lies there can never be made executable.
        && fstatvfs(file).is_ok_and(|mount| !mount.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, open};
    use std::os::fd::AsRawFd;

    const LEN: usize = 4 << 20;

    /// Whether it is as the kernel says.
    fn is_as_mapped(path: &str, flags: OFlags, offset: i64) -> bool {
        let file = open(path, flags, Mode::empty()).unwrap();
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: a new mapping where the kernel likes.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, kind, file.as_raw_fd(), offset) };
        if mapped != libc::MAP_FAILED {
            // SAFETY: our own.
            unsafe { libc::munmap(mapped, LEN) };
        }
        (mapped != libc::MAP_FAILED) == are_mapped(file.as_raw_fd(), offset, LEN)
    }

    #[test]
    fn zeros_are_where_the_kernel_maps_them() {
        if fstatvfs(std::fs::File::open("/dev/zero").unwrap()).unwrap().f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return println!("skipped: /dev is mounted `noexec`");
        }
        for flags in [OFlags::RDONLY, OFlags::RDWR, OFlags::WRONLY, OFlags::PATH, OFlags::RDWR | OFlags::APPEND] {
            for offset in [0, BASE_PAGE as i64, 1, -1, -(BASE_PAGE as i64), i64::MAX] {
                assert!(is_as_mapped("/dev/zero", flags, offset), "{flags:?} at {offset}");
                assert!(is_as_mapped("/dev/null", flags, offset), "{flags:?} at {offset}");
            }
        }
        assert!(!are_mapped(-1, 0, LEN) && !are_mapped(i32::MAX, 0, LEN));
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!are_mapped(program.as_raw_fd(), 0, LEN), "a file");
    }
}
