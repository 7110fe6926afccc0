//! [`Pinned`] and [`OwnedPin`]: ranges of a region that do not move.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::routed::Routed;
use crate::mem::EngineArc;

/// A pinned range of a borrowed region, see [`Region::pin`](crate::Region::pin).
///
/// While it lives, the borrow checker prevents the region from being dropped or borrowed as a slice. If a borrow is
/// impossible, use an [`OwnedPin`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::Read;
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let region = pool.region(2 << 20)?;
/// let pin = region.pin(0..4096)?;
/// let _saved = region.snapshot()?; // the pinned page stays writable, the snapshot has a copy of it
/// // SAFETY: the range is pinned, and nobody else uses it.
/// let buffer = unsafe { std::slice::from_raw_parts_mut(pin.as_mut_ptr(), pin.range().len()) };
/// std::fs::File::open("/dev/zero")?.read_exact(buffer)?; // no `EFAULT`
/// # Ok(())
/// # }
/// ```
#[must_use = "the range is pinned until this is dropped"]
pub struct Pinned<'a> {
    pub(super) region: &'a Routed,
    pub(super) range: Range<usize>,
}

impl Pinned<'_> {
    /// The pinned bytes of the region. The blocks that they touch do not move; the pages that they touch are always
    /// writable.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The first pinned byte. It is valid for reads, writes, system calls and devices while this pin lives, also while
    /// a fork or snapshot is taken.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.at(self.range.start).as_ptr()
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.region.unpin(&self.range);
    }
}

/// A pinned range that keeps its region alive, see [`Region::pin_owned`](crate::Region::pin_owned). It is for code that
/// cannot hold a borrow: a binding to another language, a request in flight, another thread.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let region = pool.region(2 << 20)?;
/// let pin = region.pin_owned(4096..8192)?;
/// let device = std::thread::spawn(move || {
///     // SAFETY: the memory is there until the pin is dropped, and nobody else uses it.
///     unsafe { pin.as_non_null().as_ptr().cast::<u8>().write_bytes(7, pin.range().len()) };
///     pin
/// });
/// drop(region); // its memory stays
/// let pin = device.join().expect("the device does not panic");
/// // SAFETY: as above.
/// assert_eq!(unsafe { pin.as_non_null().as_ref() }, [7; 4096]);
/// drop(pin); // now all of it goes back to the pool
/// assert_eq!(pool.stats().blocks_free, pool.stats().blocks);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
/// The pinned bytes are readable, writable and in place, and preserve their contents, until this is dropped. Only
/// [`Region::discard`](crate::Region::discard) changes them: it zeroes them in place.
///
/// If the [`Region`](crate::Region) is dropped first, **all** of its memory lives until the last of its owned pins is
/// dropped: its addresses, all of its blocks and contents, its reservation and its observer. Only memory that was
/// [lazily freed](crate::Region::lazy_free) before may still be dropped when memory is short. The region cannot be used
/// any more, but [`PoolStats::regions`](crate::PoolStats::regions) still counts it. To free the other blocks sooner,
/// discard them before dropping the region. Dropping the last pin frees everything; nothing is leaked. A pin that is
/// never dropped (`std::mem::forget`) keeps the memory for ever.
///
/// # Threads, signals, `fork(2)`
/// Any thread may use and drop it. As with [`Region::as_mut_ptr`](crate::Region::as_mut_ptr), a program that writes
/// through the pointer must prevent other uses of the same bytes at the same time, and slice borrows of the region. A
/// signal handler may read and write the pinned bytes, since they never fault. It must not drop a pin: that takes
/// locks, and dropping the last one unmaps the region and may wait for the pool's threads. In a child of `fork(2)` the
/// memory is missing, and a drop does nothing.
#[must_use = "the range is pinned until this is dropped"]
pub struct OwnedPin {
    pub(super) region: EngineArc<Routed>,
    pub(super) range: Range<usize>,
}

impl OwnedPin {
    /// The pinned bytes of the region. The blocks that they touch do not move; the pages that they touch are always
    /// writable.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The address and number of the pinned bytes. The pointer is valid until this is dropped.
    pub fn as_non_null(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.region.at(self.range.start), self.range.len())
    }
}

impl fmt::Debug for OwnedPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPin").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        self.region.unpin(&self.range);
    }
}
