//! [`SystemError`]: a failed system call, whose message the fault handler can write, too.

use std::error::Error;
use std::fmt;
use std::io;

/// A system call that failed, with the kernel's answer. Converted to an [`io::Error`], it is kept inside, and the kind
/// is the one that the standard library gives such an answer.
///
/// It prints as `mmap failed: out of memory (ENOMEM)` and allocates nothing, because the fault handler writes it too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::RegionError;
/// let region = pool.region(2 << 20)?;
/// let file = std::fs::File::open("/proc/self/exe")?; // not open for writing
/// match region.write_to(&file, 0..1).unwrap_err().reason {
///     RegionError::System(refused) => assert_eq!((refused.call(), refused.raw_os_error()), ("write", 9)), // EBADF
///     other => panic!("{other}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemError {
    call: &'static str,
    errno: i32,
}

impl SystemError {
    pub(crate) const fn new(call: &'static str, errno: rustix::io::Errno) -> SystemError {
        SystemError { call, errno: errno.raw_os_error() }
    }

    /// For a call that the caller of the engine makes. An error without a number becomes `EIO`.
    pub(crate) fn from_io(call: &'static str, error: &io::Error) -> SystemError {
        SystemError { call, errno: error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()) }
    }

    /// The name of the call, as in its manual page.
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// The kernel's answer, an `errno`.
    pub const fn raw_os_error(&self) -> i32 {
        self.errno
    }

    pub(crate) fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno).kind()
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ANSWERS.iter().find(|(errno, ..)| *errno == self.errno) {
            Some((_, name, words)) => write!(f, "{} failed: {words} ({name})", self.call),
            None => write!(f, "{} failed: error {}", self.call, self.errno),
        }
    }
}

impl Error for SystemError {}

impl From<SystemError> for io::Error {
    fn from(error: SystemError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// Error numbers that callers treat in a way of their own.
pub(crate) mod answer {
    pub(crate) use libc::{
        EAGAIN as NOT_READY, EBADF as BAD_DESCRIPTOR, ECHILD as NOT_INHERITED, EFAULT as BAD_ADDRESS,
        EINTR as INTERRUPTED, ENOMEM as OUT_OF_MEMORY, EOPNOTSUPP as NOT_KEPT, ESPIPE as NO_OFFSETS,
    };

    // The numbers that stand for hugefork's own errors, for callers that understand only an `errno`.
    pub(crate) use libc::{EBUSY, EDEADLK, EEXIST, EINVAL, EIO, ENOMEM, EOPNOTSUPP};
}

/// The error numbers of hugefork's calls, and the most common ones of transfers. libc's own messages may allocate.
#[rustfmt::skip]
const ANSWERS: [(i32, &str, &str); 36] = [
    (libc::EPERM, "EPERM", "operation not permitted"),
    (libc::ENOENT, "ENOENT", "no such file or directory"),
    (libc::ESRCH, "ESRCH", "no such process or thread"),
    (libc::EINTR, "EINTR", "interrupted by a signal"),
    (libc::EIO, "EIO", "input/output error"),
    (libc::ENXIO, "ENXIO", "no such device or address"),
    (libc::EBADF, "EBADF", "bad file descriptor"),
    (libc::EAGAIN, "EAGAIN", "resource temporarily unavailable"),
    (libc::ENOMEM, "ENOMEM", "out of memory"),
    (libc::EACCES, "EACCES", "permission denied"),
    (libc::EFAULT, "EFAULT", "bad address"),
    (libc::EBUSY, "EBUSY", "busy"),
    (libc::EEXIST, "EEXIST", "exists already"),
    (libc::ENODEV, "ENODEV", "no such device"),
    (libc::ENOTDIR, "ENOTDIR", "is no directory"),
    (libc::EISDIR, "EISDIR", "is a directory"),
    (libc::EINVAL, "EINVAL", "invalid argument"),
    (libc::ENFILE, "ENFILE", "too many open files in the system"),
    (libc::EMFILE, "EMFILE", "too many open files in the process: raise RLIMIT_NOFILE, ulimit -n"),
    (libc::ENOTTY, "ENOTTY", "not known to this kernel, or not for such a file"),
    (libc::EFBIG, "EFBIG", "file too large: raise RLIMIT_FSIZE, ulimit -f, or take another file system"),
    (libc::ENOSPC, "ENOSPC", "no space left"),
    (libc::ESPIPE, "ESPIPE", "has no offsets"),
    (libc::EROFS, "EROFS", "read-only file system"),
    (libc::EPIPE, "EPIPE", "nobody reads the other end"),
    (libc::ENOSYS, "ENOSYS", "not known to this kernel"),
    (libc::EOVERFLOW, "EOVERFLOW", "value too large"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP", "not supported"),
    (libc::EMSGSIZE, "EMSGSIZE", "message too long"),
    (libc::ENOBUFS, "ENOBUFS", "no buffer space left"),
    (libc::ENOTCONN, "ENOTCONN", "not connected"),
    (libc::ECONNRESET, "ECONNRESET", "connection reset"),
    (libc::ETIMEDOUT, "ETIMEDOUT", "timed out"),
    (libc::ESTALE, "ESTALE", "the file is gone from its server"),
    (libc::EDQUOT, "EDQUOT", "quota exceeded"),
    (libc::EHWPOISON, "EHWPOISON", "the memory is broken"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_prints_in_words_and_by_name() {
        let refused = SystemError::new("mmap", rustix::io::Errno::NOMEM);
        assert_eq!(refused.to_string(), "mmap failed: out of memory (ENOMEM)");
        let rare = SystemError { call: "ioctl", errno: 113 };
        assert_eq!(rare.to_string(), "ioctl failed: error 113");
    }

    #[test]
    fn an_io_error_keeps_the_call_and_has_the_kind_of_the_answer() {
        let refused = SystemError::new("mmap", rustix::io::Errno::NOMEM);
        let error = io::Error::from(refused);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&refused));
    }
}
