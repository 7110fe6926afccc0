//! [`SystemError`]: a system call that failed, in words that the fault handler may write too.

use std::error::Error;
use std::fmt;
use std::io;

/// A system call that failed, by name, with what the kernel answered. As an [`io::Error`] it keeps both, and has the kind that
/// the standard library gives such an answer.
///
/// Prints as `mmap failed: ENOMEM (12)`, without allocating: the fault handler writes it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemError {
    call: &'static str,
    errno: i32,
}

impl SystemError {
    pub(crate) const fn new(call: &'static str, errno: rustix::io::Errno) -> SystemError {
        SystemError { call, errno: errno.raw_os_error() }
    }

    /// The call, as its manual page is named.
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// The kernel's answer, an `errno`.
    pub const fn raw_os_error(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.call)?;
        match NAMES.iter().find(|(errno, _)| *errno == self.errno) {
            Some((errno, name)) => write!(f, "{name} ({errno})"),
            None => write!(f, "errno {}", self.errno),
        }
    }
}

impl Error for SystemError {}

impl From<SystemError> for io::Error {
    fn from(error: SystemError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

impl SystemError {
    pub(crate) fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno).kind()
    }
}

macro_rules! names {
    ($($name:ident)*) => { [$((libc::$name, stringify!($name))),*] };
}

/// The answers that hugefork's calls get, and the most common ones of transfers. libc's `strerror` may allocate.
const NAMES: [(i32, &str); 30] = names! {
    EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EISDIR EINVAL ENFILE EMFILE EFBIG
    ENOSPC ESPIPE EROFS EPIPE ENOSYS EOVERFLOW EOPNOTSUPP ENOTCONN ECONNRESET ETIMEDOUT EDQUOT EHWPOISON
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_prints_by_name_and_number() {
        let refused = SystemError::new("mmap", rustix::io::Errno::NOMEM);
        assert_eq!(refused.to_string(), "mmap failed: ENOMEM (12)");
        let rare = SystemError { call: "ioctl", errno: 113 };
        assert_eq!(rare.to_string(), "ioctl failed: errno 113");
    }

    #[test]
    fn an_io_error_keeps_the_call_and_has_the_kind_of_the_answer() {
        let refused = SystemError::new("mmap", rustix::io::Errno::NOMEM);
        let error = io::Error::from(refused);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&refused));
    }
}
