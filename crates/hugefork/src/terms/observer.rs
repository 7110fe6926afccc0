//! Being told when other memory comes to stand behind an address: for holders of physical memory.

use std::ops::Range;

/// Told around every change of the memory that stands behind a part of a region: first write, copy, discard, reclaim,
/// revocation. For programs that hand physical memory to others (DMA, `io_uring` fixed buffers, GPU registration) and
/// must withdraw it before it changes, as Linux's mmu notifiers do for the kernel's own users. A
/// [pinned](crate::Region::pin) range does not change.
///
/// A snapshot or fork changes nothing by itself; the writes after it do.
///
/// # Rules
/// Both methods run on the thread that causes the change, mostly **inside the `SIGSEGV` handler** with hugefork's locks
/// held: they must not allocate, lock, panic, or touch a region in a way that faults; atomics and an `eventfd` write are
/// fine. Every start is followed by an end on the same thread, also when the change failed.
pub trait Observer: Send + Sync {
    /// The memory behind `range` (bytes of the region, whole base pages) is about to change: stop using it.
    fn invalidate_start(&self, range: Range<usize>);

    /// It has changed, or not: it may be looked up again.
    fn invalidate_end(&self, range: Range<usize>);
}

/// A change under way.
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
