//! [`Rooted`]: a value in a heap, with a lock.

use std::fmt;
use std::sync::{PoisonError, RwLock};

use allocator_api2::boxed::Box;

use super::allocator::Heap;

/// A value in a [`Heap`], for any number of readers or one writer at a time.
///
/// The value, and the lock, lie in the heap. So a [reset](Heap::reset_to) takes them back, and a child of `fork(2)` has
/// them. Drops the value when it is dropped itself.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Children, Pool};
/// let pool = Pool::builder().capacity(16 << 20).children(Children::Inherit).build()?;
/// let heap = pool.heap(8 << 20)?;
/// let names = heap.put(allocator_api2::vec::Vec::new_in(&heap));
/// names.write(|names| names.push(7));
/// // SAFETY: the child calls only what a child of one thread may call.
/// let child = unsafe { libc::fork() };
/// if child == 0 {
///     let status = i32::from(names.read(|names| names.as_slice() != [7]));
///     names.write(|names| names.push(8)); // in its own copy
///     unsafe { libc::_exit(status) };
/// }
/// names.write(|names| names.clear()); // the child does not see this
/// let mut status = -1;
/// unsafe { libc::waitpid(child, &mut status, 0) };
/// assert_eq!(status, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Rules
/// * **Reading and writing are operations** of the heap ([`Operations`](crate::Operations)), so no snapshot contains a
///   lock that is taken. A snapshot waits for them, and new ones wait for the snapshot. So keep them short: a long read
///   belongs in a child.
/// * **No nesting**: a closure that reads or writes the same value again may wait for its own thread, as with
///   [`RwLock`].
/// * **A panic** in `write` leaves the value as it is then, and the next caller finds it so.
pub struct Rooted<'h, T> {
    value: Box<RwLock<T>, &'h Heap>,
}

impl Heap {
    /// Moves a value into the heap. Its own parts lie there if they were allocated there: make collections with `&heap`
    /// as their allocator.
    ///
    /// If the heap is full, calls [`handle_alloc_error`](std::alloc::handle_alloc_error), as a `Box` does.
    pub fn put<T>(&self, value: T) -> Rooted<'_, T> {
        Rooted { value: Box::new_in(RwLock::new(value), self) }
    }
}

impl<T> Rooted<'_, T> {
    /// Calls `body` with the value, beside other readers. Waits for a writer.
    pub fn read<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        let _inside = Box::allocator(&self.value).operation();
        body(&self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `body` with the value, alone. Waits for readers and for a writer. A snapshot has all that it changes, in
    /// the value and in the heap, or nothing.
    ///
    /// The result of `body` leaves the operation. If it owns memory in the heap, as the old value that `insert`
    /// returns, drop it inside: `write(|map| drop(map.insert(key, value)))`. Otherwise a snapshot may have that memory
    /// and nothing that leads to it, and a reset by another thread may take the memory before the result is dropped.
    pub fn write<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let _inside = Box::allocator(&self.value).operation();
        body(&mut self.value.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> fmt::Debug for Rooted<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rooted").finish_non_exhaustive()
    }
}
