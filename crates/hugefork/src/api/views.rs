//! The bytes of regions and snapshots as more than `&mut [u8]` and `&[u8]`.
//!
//! | writers | a region as | by |
//! |---|---|---|
//! | one | `&mut [T]` | `Region::slice_of_mut` (values.rs) |
//! | any number, beside snapshots | `&[AtomicU64]` | [`Region::as_atomic_u64s`] |
//! | any number, beside snapshots | `Values<T>` | `Region::values_of` (values.rs) |
//! | several, each to a part, beside snapshots | `Values<T>` each | `Region::writers_of` (values.rs) |
//!
//! Soundness: all exclusive slices come from `Region::bytes_mut`, and while one lives the borrow
//! checker excludes everything that changes bytes. Shared access to memory that others write is
//! atomic, with one width only, since atomic accesses of different widths to the same bytes are a
//! data race in Rust's memory model. Forks and snapshots change no byte of the region, and no code
//! writes to the blocks of a snapshot. The exception is a device that was given the address
//! earlier, by a system call to which a slice was lent. So while a slice of a region lives, no
//! snapshot is taken; words and values do not exclude snapshots.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::region::Region;
use super::snapshot::Snapshot;
use crate::types::error::RegionError;

impl Region {
    /// All bytes as atomic words of 8 bytes, for any number of threads that read and write, while others fork and
    /// snapshot. A first write faults like any other.
    ///
    /// A fork or snapshot never contains a part of a word, and if it contains a write, it contains every write that
    /// happened before it. Two kinds of pages are exceptions: pages that are [pinned](Region::pin) at that moment, and
    /// pages into which a file is being read ([`Region::read_from`]). A fork or snapshot may contain any of the words
    /// that are written there. (In hugetlb pools the exceptions cover the blocks of such pages.) [`Region::read_from`]
    /// and [`Region::discard`] change bytes, not words.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::atomic::Ordering::Relaxed;
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// let counters = pool.region(2 << 20)?;
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| counters.as_atomic_u64s()[17].fetch_add(1, Relaxed));
    ///     }
    /// });
    /// let saved = counters.snapshot()?;
    /// counters.as_atomic_u64s()[17].store(0, Relaxed);
    /// assert_eq!(saved[17 * 8..][..8], 4u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// In a child of `fork(2)` that does not inherit the region.
    pub fn as_atomic_u64s(&self) -> &[AtomicU64] {
        if let Err(error) = self.check_memory() {
            panic!("a region cannot be borrowed: {error}");
        }
        let (base, count) = (self.as_ptr().cast(), self.len() / size_of::<AtomicU64>());
        // SAFETY: blocks are aligned to more than a word, and the range is mapped while `self` is borrowed. Safe code
        // that shares the region accesses its bytes only here, in words; users of `as_mut_ptr` are responsible for
        // races with these.
        unsafe { std::slice::from_raw_parts(base, count) }
    }
}

impl Snapshot {
    /// Writes the bytes of `range` to `to`: a file, a socket, a compressor. It copies them first in pieces of up to 1
    /// MiB, like [`Snapshot::read_at`]. So it maps nothing, and a revoked part gives an error instead of a `SIGBUS`. A
    /// program that shows its progress calls it for one part after the other.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// # let region = pool.region(2 << 20)?;
    /// let snapshot = region.snapshot()?;
    /// let mut saved = Vec::new(); // or a file
    /// snapshot.write_to(&mut saved, 0..snapshot.len())?;
    /// assert_eq!(saved.len(), region.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `to`, and those of [`Snapshot::read_at`] inside an [`io::Error`]
    /// ([`ErrorCode::of`](crate::ErrorCode::of) returns its code). A part may have been written by then.
    pub fn write_to(&self, mut to: impl Write, range: Range<usize>) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        RegionError::check_range(&range, self.len())?;
        let mut piece = vec![0; range.len().min(PIECE)];
        for start in range.clone().step_by(PIECE) {
            let now = &mut piece[..range.end.min(start + PIECE) - start];
            self.read_at(start, now)?;
            to.write_all(now)?;
        }
        Ok(())
    }

    /// The bytes of `range` as an [`io::Read`], for compressors, hashes and `io::copy`. Like [`Snapshot::read_at`], it
    /// maps nothing, and a revoked part gives an error instead of a `SIGBUS`. For a program without a full pool
    /// `&snapshot[..]` is an `io::Read`, too, and copies nothing.
    ///
    /// The other way, from any `io::Read` into a region that is not shared, is `read_exact` or `io::copy` to
    /// [`Region::as_mut_slice`]; [`Region::read_from`] reads descriptors while others take snapshots.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// # let mut region = pool.region(2 << 20)?;
    /// # let mut copy = pool.region(2 << 20)?;
    /// region.as_mut_slice()[5] = 1;
    /// let snapshot = region.snapshot()?;
    /// let count = std::io::copy(&mut snapshot.reader(0..4096)?, &mut copy.as_mut_slice())?;
    /// assert_eq!((count, copy.as_mut_slice()[5]), (4096, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]. Reads return the errors of [`Snapshot::read_at`] inside an [`io::Error`].
    pub fn reader(&self, range: Range<usize>) -> Result<SnapshotReader<'_>, RegionError> {
        RegionError::check_range(&range, self.len())?;
        Ok(SnapshotReader { snapshot: self, rest: range })
    }
}

/// Reads a range of a snapshot; made by [`Snapshot::reader`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// # let snapshot = pool.region(2 << 20)?.snapshot()?;
/// use std::io::Read;
/// let mut bytes = Vec::new();
/// snapshot.reader(100..200)?.read_to_end(&mut bytes)?;
/// assert_eq!(bytes, [0; 100]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SnapshotReader<'a> {
    snapshot: &'a Snapshot,
    rest: Range<usize>,
}

impl Read for SnapshotReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = to.len().min(self.rest.len());
        self.snapshot.read_at(self.rest.start, &mut to[..count])?;
        self.rest.start += count;
        Ok(count)
    }
}
