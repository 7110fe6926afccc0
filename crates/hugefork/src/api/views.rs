//! The bytes of regions and snapshots as more than `&mut [u8]` and `&[u8]`.
//!
//! | writers | a region as | by |
//! |---|---|---|
//! | one | `&mut [T]` | `Region::slice_of_mut` (values.rs) |
//! | several, each to a part | `&mut [u8]` each | [`Region::writers`] |
//! | any number, beside snapshots | `&[AtomicU64]` | [`Region::as_atomic_u64s`] |
//! | any number, beside snapshots | `Values<T>` | `Region::values_of` (values.rs) |
//! | several, each to a part, beside snapshots | `Values<T>` each | `Region::writers_of` (values.rs) |
//! | several, each to a part, beside snapshots | `&mut [u8]` each | [`Region::writers_and_snapshots`], `unsafe` |
//!
//! Soundness: all exclusive slices come from `Region::bytes_mut`, and while one lives the borrow
//! checker excludes everything that changes bytes. Shared access to memory that others write is
//! atomic, with one width only, since atomic accesses of different widths to the same bytes are a
//! data race in Rust's memory model. Forks and snapshots change no byte of the region, and no code
//! writes to the blocks of a snapshot. The exception is a device that was given the address
//! earlier, by a system call to which a slice was lent. So slices and snapshots together are
//! `unsafe`, and words are not.

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;

use super::region::Region;
use super::snapshot::Snapshot;
use super::stats::RegionStats;
use crate::types::error::{RegionError, ResetError};
use crate::types::options::RegionOptions;

impl Region {
    /// All bytes as atomic words of 8 bytes, for any number of threads that read and write, while others fork and
    /// snapshot. A first write faults like any other.
    ///
    /// A fork or snapshot never contains a part of a word, and if it contains a write, it contains every write that
    /// happened before it. The exception are writes to pages that are [pinned](Region::pin) at that moment, or into
    /// which a file is being read ([`Region::read_from`]): it may contain any of these words. (In hugetlb pools the
    /// exception covers the blocks of such pages.) [`Region::read_from`] and [`Region::discard`] change bytes, not
    /// words.
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

    /// Splits the region into disjoint parts, for as many threads. They begin and end at blocks, so that no two threads
    /// fault on the same block, and their lengths differ by at most a block. There are `count` of them, or fewer if the
    /// region has fewer blocks, but at least one.
    ///
    /// No other use of the region is possible while a part lives. To write while another thread takes snapshots, use
    /// [`Region::writers_of`], [`Region::values_of`], [`Region::as_atomic_u64s`] or, for slices,
    /// [`Region::writers_and_snapshots`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(32 << 20).build()?;
    /// let mut state = pool.region(8 << 20)?;
    /// std::thread::scope(|scope| -> Result<(), hugefork::RegionError> {
    ///     for (value, part) in (1..).zip(state.writers(4)?) {
    ///         scope.spawn(move || part.fill(value));
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(state.as_mut_slice()[(8 << 20) - 1], 4);
    /// # Ok(())
    /// # }
    /// ```
    /// ```compile_fail
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// # let mut state = pool.region(4 << 20)?;
    /// let parts = state.writers(2)?;
    /// state.discard(0..4096)?; // `state` is borrowed
    /// assert_eq!(parts[0][0], 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegionError::ForkedChild`].
    pub fn writers(&mut self, count: usize) -> Result<Vec<&mut [u8]>, RegionError> {
        let size = self.pool().block_size().bytes();
        let mut rest = self.bytes_mut()?;
        let blocks = rest.len() / size;
        let count = count.clamp(1, blocks);
        let parts = (0..count).map(|part| {
            let len = (blocks / count + usize::from(part < blocks % count)) * size;
            rest.split_off_mut(..len).expect("the lengths sum up to that of the region")
        });
        Ok(parts.collect())
    }

    /// The parts of [`Region::writers`], and a handle that takes forks and snapshots of the whole region while threads
    /// write to them. The cut is consistent, as always: for each thread it contains all writes up to one, and none
    /// after it. [`Region::writers_of`] needs no `unsafe`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(32 << 20).build()?;
    /// let mut state = pool.region(8 << 20)?;
    /// // SAFETY: the threads lend no part to a system call.
    /// let (snapshots, parts) = unsafe { state.writers_and_snapshots(4)? };
    /// let saved = std::thread::scope(|scope| {
    ///     for part in parts {
    ///         scope.spawn(|| part.fill(1));
    ///     }
    ///     snapshots.snapshot()
    /// })?;
    /// assert!(saved.iter().all(|&byte| byte <= 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegionError::ForkedChild`].
    ///
    /// # Safety
    /// While the handle is used, the program must not lend a part to a system call that may write past the page table:
    /// a read of a file that is open with `O_DIRECT` or lies on FUSE, `io_uring`, `process_vm_writev(2)`. Such a call
    /// could still write to blocks that a snapshot shares by then, and that are `&[u8]` there. Use
    /// [`Region::read_from`] and [`Region::pin`] for that. And no part may exist any more when the handle resets the
    /// region.
    pub unsafe fn writers_and_snapshots(
        &mut self,
        count: usize,
    ) -> Result<(Snapshotter<'_>, Vec<&mut [u8]>), RegionError> {
        let parts = self.writers(count)?;
        let parts = parts.into_iter().map(|part| {
            let part = ptr::from_mut(part);
            // SAFETY: `writers` has returned it, for as long as the result borrows the region. The handle beside it
            // accesses the region too, but offers nothing that changes its bytes.
            unsafe { &mut *part }
        });
        let parts = parts.collect();
        Ok((Snapshotter { region: self }, parts))
    }
}

/// Takes forks and snapshots of a region, and resets it, while threads write to its parts: see [`Region::writers_of`]
/// and [`Region::writers_and_snapshots`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::{RegionError, Snapshot, Snapshotter};
/// /// Runs beside the writers.
/// fn save(state: Snapshotter<'_>) -> Result<Snapshot, RegionError> {
///     println!("{} blocks", state.stats().blocks_present);
///     state.snapshot()
/// }
/// let mut state = pool.region(4 << 20)?;
/// // SAFETY: no part is lent to a system call.
/// let (snapshots, mut parts) = unsafe { state.writers_and_snapshots(2)? };
/// parts[1][7] = 1;
/// let saved = save(snapshots)?;
/// parts[1][7] = 2;
/// assert_eq!(saved[(2 << 20) + 7], 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Snapshotter<'a> {
    // Methods here must change no byte of the region, except by resets, and return no reference to any.
    pub(super) region: &'a Region,
}

impl Snapshotter<'_> {
    /// Like [`Region::snapshot`].
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn snapshot(&self) -> Result<Snapshot, RegionError> {
        self.region.snapshot()
    }

    /// Like [`Region::snapshot_with`].
    ///
    /// # Errors
    /// Those of [`Region::snapshot_with`].
    pub fn snapshot_with(&self, options: RegionOptions) -> Result<Snapshot, RegionError> {
        self.region.snapshot_with(options)
    }

    /// Like [`Region::fork`].
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        self.region.fork()
    }

    /// Like [`Region::fork_with`].
    ///
    /// # Errors
    /// Those of [`Region::fork_with`].
    pub fn fork_with(&self, options: RegionOptions) -> Result<Region, RegionError> {
        self.region.fork_with(options)
    }

    /// Like [`Region::reset_to`].
    ///
    /// # Errors
    /// Those of [`Region::reset_to`].
    pub fn reset_to(&self, snapshot: &Snapshot) -> Result<(), ResetError> {
        self.region.reset_to(snapshot)
    }

    /// Like [`Region::stats`].
    pub fn stats(&self) -> RegionStats {
        self.region.stats()
    }
}

impl fmt::Debug for Snapshotter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshotter").field("region", self.region).finish()
    }
}

impl Snapshot {
    /// Writes the bytes of `range` to `to`: a file, a socket, a compressor. It copies them first in pieces of up to 1
    /// MiB, like [`Snapshot::read_at`]. So it maps nothing, and a revoked part gives an error instead of a `SIGBUS`.
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
    pub fn write_to(&self, to: impl Write, range: Range<usize>) -> io::Result<()> {
        self.write_to_with(to, range, |_| ())
    }

    /// Like [`Snapshot::write_to`]. After each piece, it calls `progress` with the number of written bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// let snapshot = pool.region(2 << 20)?.snapshot()?;
    /// let all = snapshot.len();
    /// snapshot.write_to_with(std::io::sink(), 0..all, |done| println!("{} %", 100 * done / all))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Snapshot::write_to`].
    pub fn write_to_with(
        &self,
        mut to: impl Write,
        range: Range<usize>,
        mut progress: impl FnMut(usize),
    ) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        RegionError::check_range(&range, self.len())?;
        let mut piece = vec![0; range.len().min(PIECE)];
        for start in range.clone().step_by(PIECE) {
            let now = &mut piece[..range.end.min(start + PIECE) - start];
            self.read_at(start, now)?;
            to.write_all(now)?;
            progress(start - range.start + now.len());
        }
        Ok(())
    }
}
