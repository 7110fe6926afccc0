//! [`ScopedAllocator`]: a `#[global_allocator]` that a thread switches to a heap.
//!
//! Freed memory goes back to where it lies. Each heap that has served as a global allocator stays for ever, so a list
//! of them, which only grows, finds the one of an address.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use super::allocator::Heap;
use crate::region::state::is_this_thread_between;

thread_local! {
    /// The heap that serves the thread's allocations; null if none does.
    static CURRENT: Cell<*const Heap> = const { Cell::new(ptr::null()) };
}

/// The heap that was the last to serve for the first time.
static HEAPS: AtomicPtr<Heap> = AtomicPtr::new(ptr::null_mut());

/// A `#[global_allocator]` that serves a thread from a [`Heap`] inside of [`Heap::scope`], and from another allocator
/// elsewhere.
///
/// ```
/// use hugefork::{Heap, Pool, ScopedAllocator};
/// #[global_allocator]
/// static ALLOCATOR: ScopedAllocator<std::alloc::System> = ScopedAllocator::over(std::alloc::System);
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder().capacity(16 << 20).build()?;
/// let heap: &'static Heap = Box::leak(Box::new(pool.heap(8 << 20)?));
/// let names = heap.scope(|| vec!["in the heap".to_string()]); // all that std allocates here
/// let saved = heap.snapshot()?;
/// drop(names); // anywhere, and by any thread
/// # Ok(())
/// # }
/// ```
///
/// Memory goes back to where it lies, and grows there: a `String` of a heap stays in the heap, inside and outside of
/// scopes. Outside of all scopes, the costs are one load of a thread's variable for each allocation, and one comparison
/// of addresses for each heap that has served, when memory is freed.
#[derive(Debug, Default)]
pub struct ScopedAllocator<A> {
    outside: A,
}

impl<A> ScopedAllocator<A> {
    /// An allocator that takes memory from `outside`, unless a thread is in a scope.
    pub const fn over(outside: A) -> ScopedAllocator<A> {
        ScopedAllocator { outside }
    }
}

/// Serves the thread from another heap, until it is dropped.
struct Switched {
    before: *const Heap,
}

impl Switched {
    fn to(heap: *const Heap) -> Switched {
        Switched { before: CURRENT.replace(heap) }
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Calls `body` outside of all scopes: a cut keeps operations out, so the thread that makes it must not allocate from
/// the heap.
pub(super) fn outside<T>(body: impl FnOnce() -> T) -> T {
    let _switched = Switched::to(ptr::null());
    body()
}

impl Heap {
    /// Calls `body`. Allocations of this thread meanwhile lie in the heap, if the program's `#[global_allocator]` is a
    /// [`ScopedAllocator`]. Scopes nest, the innermost counts. Other threads are not affected, nor are those that
    /// `body` starts.
    ///
    /// Everything that std and other crates allocate meanwhile lies there as well, such as the buffer of standard
    /// output at the first `println!`, or the record of a thread that is started. Before a [reset](Heap::reset_to) that
    /// must be gone, so make such things outside. And the reverse: make inside what is stored in the heap. Otherwise
    /// the heap has pointers to other memory, which may be gone when a reset or a child goes back to an older state.
    ///
    /// ```standalone_crate
    /// use std::collections::HashMap;
    /// use std::sync::LazyLock;
    /// use hugefork::{Children, Heap, Pool, Region, Rooted, ScopedAllocator};
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: ScopedAllocator<std::alloc::System> = ScopedAllocator::over(std::alloc::System);
    /// static HEAP: LazyLock<Heap> = LazyLock::new(|| {
    ///     let pool = Pool::builder().capacity(64 << 20).children(Children::Inherit).build().unwrap();
    ///     pool.heap(32 << 20).unwrap() // a handle keeps its pool
    /// });
    /// static STORE: LazyLock<Rooted<'static, HashMap<String, Vec<u8>>>> =
    ///     LazyLock::new(|| HEAP.put(HEAP.scope(HashMap::new)));
    ///
    /// fn set(key: &str, value: &[u8]) {
    ///     // `write` is an operation and a lock in one: a snapshot has the whole insert or none of it. The old value
    ///     // is dropped inside.
    ///     STORE.write(|store| HEAP.scope(|| drop(store.insert(key.to_owned(), value.to_vec()))));
    /// }
    ///
    /// /// Saves the store as it is now, while other threads go on.
    /// fn save() -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    ///     let saved = HEAP.snapshot()?;
    ///     // The child has the map as it was at the snapshot. It could write a file instead.
    ///     let work = || STORE.read(|store| store.values().flatten().copied().collect());
    ///     // SAFETY: the child uses no lock that another thread may hold. That of `STORE` lies in the heap, and that
    ///     // of the C library's allocator is free in a child. `HEAP` and `STORE` were made before.
    ///     let child = unsafe { Region::in_child(&[(HEAP.region(), &saved)], work)? };
    ///     Ok(child.wait()?)
    /// }
    ///
    /// std::thread::scope(|threads| {
    ///     for key in ["one", "two"] {
    ///         threads.spawn(|| set(key, &[1, 2, 3]));
    ///     }
    /// });
    /// assert_eq!(save()?, [1, 2, 3, 1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<T>(&'static self, body: impl FnOnce() -> T) -> T {
        self.serve();
        let _switched = Switched::to(self);
        body()
    }

    /// Adds the heap to the list of those that serve, unless it is there.
    fn serve(&'static self) {
        // Two threads must not add it at once.
        static ADDING: Mutex<()> = Mutex::new(());
        let is_listed = || of_address(self.space.base().as_ptr()).is_some();
        if is_listed() {
            return;
        }
        let _locked = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_listed() {
            self.next.store(HEAPS.load(Ordering::Relaxed), Ordering::Relaxed);
            HEAPS.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
        }
    }
}

/// The heap in which memory lies, if it has ever served.
#[inline]
fn of_address(at: *const u8) -> Option<&'static Heap> {
    let mut next = HEAPS.load(Ordering::Acquire);
    // SAFETY: heaps in the list are `'static`.
    while let Some(heap) = unsafe { next.as_ref() } {
        if heap.contains(at) {
            return Some(heap);
        }
        next = heap.next.load(Ordering::Relaxed);
    }
    None
}

fn null_if_none(at: Option<NonNull<u8>>) -> *mut u8 {
    at.map_or(ptr::null_mut(), NonNull::as_ptr)
}

// SAFETY: each call goes to the allocator that has made the allocation, and a new one to one of them.
unsafe impl<A: GlobalAlloc> GlobalAlloc for ScopedAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a heap that serves is `'static`; the caller ensures that the size is not zero.
        match unsafe { CURRENT.get().as_ref() } {
            // The engine's own allocations in the middle of a cut: a fork's, or the text of an error.
            Some(heap) if !is_this_thread_between() => null_if_none(heap.allocate_sized(layout)),
            // SAFETY: as above.
            Some(_) | None => unsafe { self.outside.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if CURRENT.get().is_null() {
            // SAFETY: the caller ensures that the size is not zero.
            return unsafe { self.outside.alloc_zeroed(layout) };
        }
        // SAFETY: as above; the memory has the layout's size.
        unsafe {
            let at = self.alloc(layout);
            if !at.is_null() {
                at.write_bytes(0, layout.size());
            }
            at
        }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match (of_address(at), NonNull::new(at)) {
            // SAFETY: it was allocated from this heap, and the caller vouches for the rest.
            (Some(heap), Some(at)) => unsafe { heap.free(at, layout) },
            // SAFETY: it lies in no heap that has served, so `outside` has allocated it.
            _ => unsafe { self.outside.dealloc(at, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match (of_address(at), NonNull::new(at)) {
            // SAFETY: as above; the caller ensures that the new layout is one.
            (Some(heap), Some(at)) => null_if_none(unsafe {
                heap.reallocate(at, layout, Layout::from_size_align_unchecked(size, layout.align()))
            }),
            // SAFETY: as above.
            _ => unsafe { self.outside.realloc(at, layout, size) },
        }
    }
}
