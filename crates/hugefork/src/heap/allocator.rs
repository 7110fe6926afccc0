//! [`Heap`]: a region with an allocator.

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::fmt;
use std::sync::Arc;

use super::scoped;
use super::space::{HEADER_LEN, MIN_LEN, Space, is_small};
use crate::api::operations::{Operation, Operations};
use crate::api::pool::Pool;
use crate::api::region::Region;
use crate::api::snapshot::Snapshot;
use crate::api::stats::RegionStats;
use crate::sys::linux::stderr::say;
use crate::types::error::{RegionError, ResetError};

/// A region with an allocator, for data that are full of pointers: maps, strings, trees.
///
/// `&Heap` is an allocator in the sense of the crate `allocator-api2`, of its versions 0.2 and 0.4. So `hashbrown` and
/// the `Vec` and `Box` of `allocator-api2` take it. There is no `String` with an allocator: `Box<[u8], &Heap>` serves
/// as a key that can be looked up by `&[u8]`. Std's own types, such as `HashMap<String, Vec<u8>>`, lie in a heap with
/// [`Heap::scope`], which shows how a child saves such a map without a pause. All that the allocator
/// knows lies in the region, too. So a reset takes the data and the allocator back together, and a child of `fork(2)`
/// has both ([`Children::Inherit`](crate::Children::Inherit)).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(16 << 20).build()?;
/// let heap = pool.heap(8 << 20)?;
/// let map = heap.put(hashbrown::HashMap::new_in(&heap));
/// map.write(|map| map.insert(1, "one"));
///
/// let saved = heap.snapshot()?; // of the map, of all that it points to, and of the allocator
/// map.write(|map| map.clear());
///
/// // SAFETY: nobody uses the heap meanwhile, and all that was made since is in the map.
/// unsafe { heap.reset_to(&saved)? };
/// assert_eq!(map.read(|map| map.get(&1).copied()), Some("one"));
/// # Ok(())
/// # }
/// ```
///
/// # Names without a lifetime
/// A collection in a heap borrows it. Where that is in the way, the heap can stay for ever: a `static` with a
/// [`LazyLock`](std::sync::LazyLock), or [`Box::leak`], gives a `&'static Heap`, which is an allocator that can be
/// copied and stored anywhere. There is no counted handle: collections would keep such handles in the heap, and a reset
/// would change their number.
///
/// # Allocations
/// Sizes and alignments are bytes. An alignment may be any power of two. A size of up to 8 KiB is rounded up to its
/// class: to 8 bytes up to 64, then by less than a quarter. Such an allocation takes constant time, no lock and no
/// atomic exchange. Its memory goes back to the thread that has allocated it, by one atomic exchange if another thread
/// frees it. Larger sizes take a lock and eight bytes more, and are found by size, not by search. Growing and shrinking
/// happens in place where possible.
///
/// A heap takes memory from its pool as it is used, and keeps freed memory for its own later use. A full heap returns
/// `AllocError`, or null as a global allocator: most collections then abort
/// ([`handle_alloc_error`](std::alloc::handle_alloc_error)). The first time, it also prints a line on standard error. A
/// heap can be full for one size and have room for another. If the *pool* is full, a write to the heap is what a write
/// to any region is then ([`Region`](crate::Region#when-the-pool-is-full)). So give the pool twice the memory that the
/// heap uses, and what older snapshots will hold: each holds the pages that were written before the next one. An insert
/// into a large hash map writes one page of the table and a part of another, so 100 inserts between two snapshots cost
/// about 500 KiB.
///
/// # Operations
/// Each allocation and each release is an [operation](Operations), and so is all of a
/// [`Rooted::read`](crate::Rooted::read) and [`Rooted::write`](crate::Rooted::write). [`Heap::operation`] encloses
/// more. A snapshot or reset waits for the operations in progress, and has all of each or nothing. Between two
/// operations of a thread it may come between two writes that belong together, as with any region.
///
/// A fork waits for the operations of all regions that the child gets. While it waits for *another* [`Operations`],
/// threads inside it may have to wait 10 ms for an allocation. Regions that share the operations of the heap
/// ([`Heap::operations`]) do without.
///
/// # Snapshots
/// A snapshot lies at other addresses than the heap. **Do not follow the pointers in a snapshot's bytes: they point to
/// the live heap.** The values of a snapshot can be read in two ways: in a child of `fork(2)`, which has the heap as it
/// was at the fork, and in this process after [`Heap::reset_to`].
///
/// # Children of `fork(2)`
/// With [`Children::Inherit`](crate::Children::Inherit), a child has the heap at its address, as it was between two
/// operations of all threads, and allocates from its own copy. If the thread that forks is inside an operation of the
/// heap, others may be, too. Then the child must not use the heap. Without `Inherit` a child must not use it either: an
/// access raises `SIGSEGV`, with a message.
///
/// # Threads, signals
/// Any thread may allocate and free. One thread for each 8 MiB of the heap but the first, and at most 63, allocate
/// without waiting for each other; the others share a lock. Freed memory of up to 8 KiB each that a thread leaves
/// behind at its end waits for the next thread that begins to use the heap. A signal handler must not allocate or free,
/// as with `malloc`.
pub struct Heap {
    pub(super) space: Space,
    len: usize,
    region: Arc<Region>,
    operations: Operations,
    has_said_full: AtomicBool,
    /// The next in the list of heaps that have served as global allocators (scoped.rs).
    pub(super) next: AtomicPtr<Heap>,
}

// SAFETY: a thread changes only shards that it has, other parts of the space under its locks, and memory that was
// allocated only for the caller.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Pool {
    /// Makes a heap of `len` bytes, or of 256 KiB if that is more. `len` must be a multiple of the block size. It takes
    /// addresses now, and memory as it is used.
    ///
    /// # Errors
    /// Those of [`Pool::region`].
    pub fn heap(&self, len: usize) -> Result<Heap, RegionError> {
        let region = Arc::new(self.region(if len == 0 { 0 } else { len.max(MIN_LEN) })?);
        // An error in a full pool, and no fault.
        region.prepare_write(0..HEADER_LEN)?;
        let operations = Operations::new();
        region.set_operations(&operations)?;
        let base = NonNull::new(region.as_mut_ptr()).expect("no region lies at address zero");
        // SAFETY: a new region is zeroed, aligned to its blocks, and in place as long as it lives. Nobody else has it.
        let space = unsafe { Space::lay_out(base, region.len()) };
        let (has_said_full, next) = (AtomicBool::new(false), AtomicPtr::new(ptr::null_mut()));
        Ok(Heap { space, len: region.len(), region, operations, has_said_full, next })
    }
}

impl Heap {
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // A heap is never empty: it has a header.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Enters an operation: no snapshot, reset or fork with children lies inside it, see [`Operations`].
    ///
    /// # Panics
    /// As [`Operations::enter`].
    #[inline]
    pub fn operation(&self) -> Operation<'_> {
        self.operations.enter()
    }

    /// The operations of the heap, for regions that are written together with it ([`Region::set_operations`]).
    pub fn operations(&self) -> &Operations {
        &self.operations
    }

    /// The heap at this moment, between two operations of all threads, as [`Region::snapshot`].
    ///
    /// # Errors
    /// Those of [`Region::snapshot`], among them [`RegionError::InsideOperation`].
    pub fn snapshot(&self) -> Result<Snapshot, RegionError> {
        scoped::outside(|| self.region.snapshot())
    }

    /// Takes the heap, with all that lies in it, back to a snapshot of it, between two operations of all threads. It
    /// costs what was written since ([`Region::reset_to`]).
    ///
    /// # Errors
    /// Those of [`Region::reset_to`]. After an error with progress the heap is a mixture. Then it must not be used
    /// until another call succeeds.
    ///
    /// # Safety
    /// A reset moves memory under all references to it, and no borrow says so: a collection that survives a reset
    /// borrows the heap itself, and so does the caller of this function. The caller ensures that, from the call on:
    ///
    /// * **References** into the heap from before the call are not used. That also holds for iterators, guards of locks
    ///   that lie in the heap, and running closures of [`Rooted::read`](crate::Rooted::read) and
    ///   [`Rooted::write`](crate::Rooted::write).
    /// * **Values outside of the heap that own memory in it**, as a `Vec` on the stack does, a
    ///   [`Rooted`](crate::Rooted), or memory of [`Heap::scope`], are used and dropped only if the snapshot has the
    ///   same memory for them. So they are older than the snapshot, and were not changed since: their parts outside of
    ///   the heap do not go back. All others are forgotten ([`std::mem::forget`]). A `Rooted` has no part that changes.
    ///   So each that is older than the snapshot, and was not dropped since, goes on.
    /// * **Values in the heap that own something outside**, such as a file or a `String` of another allocator, had the
    ///   same at the snapshot: a reset revives what was dropped, and loses what was made.
    pub unsafe fn reset_to(&self, snapshot: &Snapshot) -> Result<(), ResetError> {
        scoped::outside(|| self.region.reset_to(snapshot))
    }

    /// Its region, for calls that take several regions, such as [`Region::snapshot_all`] and [`Region::in_child`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use hugefork::{Children, Pool, Region};
    /// let pool = Pool::builder().capacity(16 << 20).children(Children::Inherit).build()?;
    /// let heap = pool.heap(8 << 20)?;
    /// let text = heap.put(*b"yesterday");
    /// let saved = heap.snapshot()?;
    /// text.write(|text| text.fill(0));
    /// // SAFETY: this process has one thread, and the call does not change the region.
    /// let child = unsafe { Region::in_child(&[(heap.region(), &saved)], || text.read(|text| text.to_vec()))? };
    /// assert_eq!(child.wait()?, b"yesterday");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The caller changes the region in no other way than a reset under the conditions of [`Heap::reset_to`]: it
    /// neither writes to it, nor frees, discards or reads into parts of it.
    pub unsafe fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Statistics of its region.
    pub fn stats(&self) -> RegionStats {
        self.region.stats()
    }

    /// Whether a pointer points into the heap.
    #[inline]
    pub fn contains<T>(&self, at: *const T) -> bool {
        at.addr().wrapping_sub(self.space.base().addr().get()) < self.len
    }

    #[inline]
    pub(super) fn allocate_sized(&self, layout: Layout) -> Option<NonNull<u8>> {
        if is_small(layout)
            && let Some((_inside, place)) = self.operations.enter_again()
            && self.space.is_own(place)
            && let Some(slot) = self.space.take_free_slot(place, layout)
        {
            return Some(slot);
        }
        self.allocate_otherwise(layout)
    }

    /// As [`Heap::allocate_sized`], on all threads and for all layouts. Calls are here, so that the caller needs no
    /// stack.
    #[cold]
    fn allocate_otherwise(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.size() == 0 {
            return NonNull::new(ptr::without_provenance_mut(layout.align()));
        }
        self.operations.within(|place| self.space.allocate(place, layout)).or_else(|| self.is_full_for(layout))
    }

    /// Says once that an allocation has failed: most programs end with a message that does not name the heap.
    #[cold]
    fn is_full_for(&self, layout: Layout) -> Option<NonNull<u8>> {
        if !self.has_said_full.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "pool `{}`: its heap of {} bytes is full: an allocation of {} bytes fails; make the heap longer (memory \
                 that it does not use costs nothing), or free some; this line comes once",
                self.region.pool().name(),
                self.len,
                layout.size()
            ));
        }
        None
    }

    /// # Safety
    /// The memory must be an allocation of this heap of this layout. Nobody may use it any more.
    #[inline]
    pub(super) unsafe fn free(&self, at: NonNull<u8>, layout: Layout) {
        if is_small(layout)
            && let Some((_inside, place)) = self.operations.enter_again()
            && self.space.is_own(place)
            // SAFETY: the caller vouches for the allocation.
            && unsafe { self.space.put_back_slot(place, at) }
        {
            return;
        }
        // SAFETY: as above.
        unsafe { self.free_otherwise(at, layout) }
    }

    /// As [`Heap::free`], on all threads and for all layouts.
    ///
    /// # Safety
    /// As for [`Heap::free`].
    #[cold]
    unsafe fn free_otherwise(&self, at: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller vouches for the allocation.
            self.operations.within(|place| unsafe { self.space.free(place, at, layout) });
        }
    }

    /// Makes an allocation one of layout `new`, in place or elsewhere, in one operation. The bytes that both have
    /// remain.
    ///
    /// # Safety
    /// As for [`Heap::free`]. If the result is `None`, the allocation is unchanged.
    pub(super) unsafe fn reallocate(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        if old.size() == 0 || new.size() == 0 {
            // SAFETY: no bytes remain, and the caller vouches for the allocation.
            return self.allocate_sized(new).inspect(|_| unsafe { self.free(at, old) });
        }
        let moved = self.operations.within(|place| {
            // SAFETY: the caller vouches for the allocation. The two do not overlap.
            unsafe {
                if self.space.resize(at, old, new) {
                    return Some(at);
                }
                let moved = self.space.allocate(place, new)?;
                at.copy_to_nonoverlapping(moved, old.size().min(new.size()));
                self.space.free(place, at, old);
                Some(moved)
            }
        });
        moved.or_else(|| self.is_full_for(new))
    }
}

/// `&Heap` as an allocator of one version of `allocator-api2`.
macro_rules! implement_allocator {
    ($version:ident) => {
        // SAFETY: an allocation stays in place until it is freed or the borrow of the heap ends; all copies of a
        // reference are the same allocator.
        unsafe impl $version::alloc::Allocator for &Heap {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                let at = self.allocate_sized(layout).ok_or($version::alloc::AllocError)?;
                Ok(NonNull::slice_from_raw_parts(at, layout.size()))
            }

            #[inline]
            unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller vouches for the allocation.
                unsafe { self.free(at, layout) }
            }

            unsafe fn grow(
                &self,
                at: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: as above.
                let at = unsafe { self.reallocate(at, old, new) }.ok_or($version::alloc::AllocError)?;
                Ok(NonNull::slice_from_raw_parts(at, new.size()))
            }

            unsafe fn shrink(
                &self,
                at: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: as above.
                unsafe { self.grow(at, old, new) }
            }
        }
    };
}

implement_allocator!(allocator_api2);
implement_allocator!(allocator_api2_02);

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("len", &self.len()).finish_non_exhaustive()
    }
}
