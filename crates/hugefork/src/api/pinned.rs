//! [`Pinned`] and [`OwnedPin`]: ranges of a region that stay where they are.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::routed::Routed;
use crate::mem::EngineArc;

/// A pinned range of a borrowed region, see [`Region::pin`](crate::Region::pin).
///
/// As long as it lives, the borrow checker keeps the region from being dropped and from being borrowed as a slice.
/// Where no borrow is possible, take an [`OwnedPin`].
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
    region: &'a Routed,
    range: Range<usize>,
}

impl<'a> Pinned<'a> {
    /// Of a range that was pinned.
    pub(super) fn new(region: &'a Routed, range: Range<usize>) -> Pinned<'a> {
        Pinned { region, range }
    }

    /// The pinned bytes of the region. The blocks that they touch stay where they are as a whole; the pages that they
    /// touch stay writable.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The first pinned byte. It is good for reads, writes, system calls and physical use while this lives, also while
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

/// A pinned range that keeps its region alive, see [`Region::pin_owned`](crate::Region::pin_owned). It is for those who
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
/// # What it keeps
/// The pinned bytes stay readable, writable and where they are, and keep what was written to them, until this is
/// dropped. Only [`Region::discard`](crate::Region::discard) changes them: it sets them to zero where they are.
///
/// If the [`Region`](crate::Region) is dropped first, **all** of its memory stays until the last of its owned pins is
/// dropped: its addresses, all of its blocks and its contents, its reservation and its observer. Only what was
/// [lazily freed](crate::Region::lazy_free) before may still be dropped when memory is short. Nothing can be asked
/// of it any more, but [`PoolStats::regions`](crate::PoolStats::regions) still counts it. To have the rest of the
/// blocks back sooner, discard the rest before the drop. The last pin that goes gives everything back; nothing is
/// leaked. A pin that is never dropped (`std::mem::forget`) keeps it all for ever.
///
/// # Threads, signals, `fork(2)`
/// Any thread may use and drop it. As with [`Region::as_mut_ptr`](crate::Region::as_mut_ptr), who writes through the
/// pointer sees to it that nobody else uses the same bytes at the same time, and that nobody borrows the region as a
/// slice meanwhile. A signal handler may read and write the pinned bytes, since they never fault. It must not drop a
/// pin: that takes locks, and the drop of the last one unmaps the region and may wait for the pool's threads. In a
/// child of `fork(2)` the memory is not there, and a drop does nothing.
#[must_use = "the range is pinned until this is dropped"]
pub struct OwnedPin {
    region: EngineArc<Routed>,
    range: Range<usize>,
}

impl OwnedPin {
    /// Of a range that was pinned.
    pub(super) fn new(region: EngineArc<Routed>, range: Range<usize>) -> OwnedPin {
        OwnedPin { region, range }
    }

    /// The pinned bytes of the region. The blocks that they touch stay where they are as a whole; the pages that they
    /// touch stay writable.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Where the pinned bytes are, and how many. The pointer is good until this is dropped.
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
