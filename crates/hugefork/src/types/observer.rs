//! Callbacks around changes of the memory behind an address: for holders of physical memory.

use std::ops::Range;

/// Called before and after each change of the memory behind a part of a region: first write, copy, discard, reclaim,
/// revocation. It is for programs that pass physical memory on (DMA, `io_uring` fixed buffers, GPU registration) and
/// must withdraw it before it changes, like Linux's mmu notifiers do for users inside the kernel. The memory of a
/// [pinned](crate::Region::pin) range does not change.
///
/// A snapshot or fork itself changes no memory; later writes do.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use std::ops::Range;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// #[derive(Default)]
/// struct Changes(AtomicUsize);
///
/// impl hugefork::Observer for Changes {
///     fn invalidate_start(&self, _: Range<usize>) {}
///     fn invalidate_end(&self, _: Range<usize>) {
///         self.0.fetch_add(1, Relaxed);
///     }
/// }
///
/// let changes = Arc::new(Changes::default());
/// let mut region = pool.region(4 << 20)?;
/// region.observe(changes.clone())?;
/// region.as_mut_slice()[0] = 1;
/// assert_eq!(changes.0.load(Relaxed), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Rules
/// Both methods run on the thread that causes the change, mostly **inside the `SIGSEGV` handler** and under locks of
/// hugefork. They must not allocate, lock, panic, or access a region in a way that faults. Atomics and a write to an
/// `eventfd` are fine. An end follows every start on the same thread, also when the change failed.
pub trait Observer: Send + Sync {
    /// The memory behind `range` (bytes of the region, whole base pages) is about to change: stop using it.
    fn invalidate_start(&self, range: Range<usize>);

    /// The change is over, or did not happen: the memory may be used again.
    fn invalidate_end(&self, range: Range<usize>);
}

/// A change in progress.
pub(crate) struct Changing<'a> {
    observer: Option<&'a dyn Observer>,
    range: Range<usize>,
}

impl<'a> Changing<'a> {
    pub(crate) fn start(observer: Option<&'a dyn Observer>, range: Range<usize>) -> Changing<'a> {
        if let Some(observer) = observer {
            observer.invalidate_start(range.clone());
        }
        Changing { observer, range }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.observer {
            observer.invalidate_end(self.range.clone());
        }
    }
}
