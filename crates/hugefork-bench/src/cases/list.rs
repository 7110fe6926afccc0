//! A list that children of `fork(2)` share with their parent. A fork copies no page tables for the list, and writes to
//! the list after a fork raise no fault. So a list of any length leaves the figures unchanged.

use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::BenchError;

/// A list of numbers of a fixed length, zeros at first.
pub(super) struct List<T> {
    start: NonNull<T>,
    len: usize,
}

/// Plain numbers, of which all bytes are values.
pub(super) trait Number: Copy + Default {}
impl Number for u32 {}
impl Number for usize {}

impl<T: Number> List<T> {
    /// A list of `len` zeros, in memory that is present and writable.
    pub(super) fn new(len: usize) -> Result<List<T>, BenchError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes; nothing else is touched.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes::<T>(len), access, MapFlags::SHARED) }
            .map_err(|errno| BenchError::system("mapping a list of words", errno))?;
        let mut list = List { start: NonNull::new(start.cast()).expect("the kernel maps nothing at address 0"), len };
        list.as_mut_slice().fill(T::default());
        Ok(list)
    }

    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: our own mapping of `len` numbers, which only `as_mut_slice` gives out for writing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably. Children only read the list.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody borrows any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes::<T>(self.len)) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The length of the mapping in bytes; at least one number, since a mapping cannot be empty.
fn bytes<T>(len: usize) -> usize {
    len.max(1) * size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_what_was_put_into_it_and_may_be_empty() {
        let mut list = List::<u32>::new(10_000).unwrap();
        assert!(list.as_slice().iter().all(|number| *number == 0));
        list.as_mut_slice()[9_999] = 7;
        assert_eq!((list.as_slice().len(), list.as_slice()[9_999]), (10_000, 7));
        assert!(List::<usize>::new(0).unwrap().as_slice().is_empty());
    }
}
