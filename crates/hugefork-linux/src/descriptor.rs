//! Descriptors of our own.

use core::mem::ManuallyDrop;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// An open file. std closes its own by libc, which touches `errno` and may be stood in for by somebody else.
///
/// What is made of one is public where it may get another number ([`Pagemap`](crate::pagemap_scan::Pagemap) and
/// others). It has to be the same file then: the numbers of calls mean something else to others.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl Descriptor {
    /// It stays open, and belongs to whoever has the number.
    pub fn into_raw(self) -> RawFd {
        let mut descriptor = ManuallyDrop::new(self);
        // SAFETY: neither is used again.
        unsafe { ManuallyDrop::take(&mut descriptor.0) }.into_raw_fd()
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(file: OwnedFd) -> Descriptor {
        Descriptor(ManuallyDrop::new(file))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it is ours, and not used again.
        unsafe { rustix::io::close(self.0.as_raw_fd()) };
    }
}
