//! Transfers between descriptors and regions: like `read(2)`, `write(2)` and their kin, but they do
//! not stop at memory that is not writable.
//!
//! The kernel does not deliver its own page faults to a program: a system call that meets a block
//! which is not writable ends there, with a short count or with `EFAULT`. Calling
//! [`Region::prepare_write`] first does not help if another thread takes snapshots, since a
//! snapshot in between makes the block read-only again. So each piece is prepared and read,
//! repeatedly; after several snapshots in between it is pinned, since pinned blocks are always
//! writable.
//!
//! That is enough for pipes and stream sockets. With another descriptor, a call that fails may lose a message. Or a
//! device may write to the physical page, past its write-protection, when a snapshot shares it already. So for such a
//! descriptor the piece is pinned from the start, and a snapshot gets copies of its blocks.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use super::pool::check_owner;
use super::region::Region;
use crate::sys::linux::descriptor::{self, Moves};
use crate::sys::{SystemError, answer};
use crate::types::error::{RegionError, TransferError};
use crate::units::HUGE_PAGE;

/// Bytes prepared for the first call, and the minimum later: the capacity of a pipe. Later pieces are as large as the
/// last read, up to [`HUGE_PAGE`] if the source is fast enough: bytes that are prepared but not read were made writable
/// in vain.
const FIRST_PREPARED_BYTES: usize = 64 << 10;

/// After this many successive calls that read nothing because the memory was not writable, the piece is pinned.
const VAIN_CALLS_BEFORE_PIN: u32 = 3;

/// After this many, the memory is not the reason: the descriptor itself returns this error.
const VAIN_CALLS: u32 = 100;

impl Region {
    /// Reads from `fd` into `range` (in bytes) until it is full or the file ends. Returns the number of bytes read.
    /// Other threads may fork and snapshot the region meanwhile: unlike a `read(2)` after [`Region::prepare_write`],
    /// this call neither fails nor returns early because of that. It continues after signals.
    ///
    /// **A snapshot that is taken meanwhile contains some of the bytes of `range`**, in no order. Other threads' writes
    /// outside of the pages that `range` touches (in hugetlb pools, the blocks) are captured at one moment all the
    /// same.
    ///
    /// # Costs for other threads
    /// None while it waits for a pipe or stream socket (TCP, Unix). While it reads any other descriptor, it
    /// [pins](Region::pin) up to 2 MiB of the range at a time, and a snapshot taken then copies their blocks.
    ///
    /// # Lost data
    /// Files, pipes and stream sockets lose nothing: bytes that the kernel could not copy are delivered by the next
    /// call. Descriptors that deliver *messages* (datagram, seqpacket and raw sockets, `eventfd`, `timerfd`,
    /// `signalfd`, `inotify`, some devices) drop bytes that could not be copied; and since this method fills the range,
    /// it would concatenate messages. Read those with system calls of your own, into a pinned range or into other
    /// memory.
    ///
    /// # Races
    /// The kernel writes like another thread. Other threads must not use the range meanwhile, as with
    /// [`Region::as_mut_ptr`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// let region = pool.region(2 << 20)?;
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// let found = region.read_from(&file, 0..4)?;
    /// assert_eq!((found, &region.snapshot()?[..4]), (4, &b"\x7fELF"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TransferError`], with the number of bytes read before. Its reason is [`RegionError::System`] if the call
    /// failed (`EAGAIN` for a non-blocking descriptor without data), [`RegionError::OutOfRange`], or an error of
    /// [`Region::prepare_write`].
    pub fn read_from(&self, fd: impl AsFd, range: Range<usize>) -> Result<usize, TransferError> {
        self.fill(fd.as_fd(), range, None)
    }

    /// Like [`Region::read_from`], from byte `offset` of a file on. The file's position does not change (`pread(2)`).
    ///
    /// # Errors
    /// Those of [`Region::read_from`].
    pub fn read_from_at(&self, fd: impl AsFd, range: Range<usize>, offset: u64) -> Result<usize, TransferError> {
        self.fill(fd.as_fd(), range, Some(offset))
    }

    /// Writes all of `range` (in bytes) to `fd`. That copies nothing and takes no memory, unless the kernel may read
    /// the pages later (`O_DIRECT`, files of FUSE and 9P, sockets with TLS): then it [pins](Region::pin) a few blocks
    /// at a time. To write the bytes of one moment, use a [snapshot](crate::Snapshot::write_to).
    ///
    /// # Errors
    /// [`TransferError`], with the number of bytes written before. Its reason is [`RegionError::Revoked`] if the range
    /// contains a revoked part of this fork, [`RegionError::System`] if the call failed, or
    /// [`RegionError::OutOfRange`]; if it pins, also the errors of [`Region::pin`].
    pub fn write_to(&self, fd: impl AsFd, range: Range<usize>) -> Result<(), TransferError> {
        self.drain(fd.as_fd(), range, None)
    }

    /// Like [`Region::write_to`], to byte `offset` of a file on. The file's position does not change (`pwrite(2)`).
    ///
    /// # Errors
    /// Those of [`Region::write_to`].
    pub fn write_to_at(&self, fd: impl AsFd, range: Range<usize>, offset: u64) -> Result<(), TransferError> {
        self.drain(fd.as_fd(), range, Some(offset))
    }

    fn fill(&self, fd: BorrowedFd<'_>, range: Range<usize>, offset: Option<u64>) -> Result<usize, TransferError> {
        let (mut done, mut vain, mut step) = (0, 0, FIRST_PREPARED_BYTES);
        let stop = |done, reason| Err(TransferError { done, reason });
        if let Err(reason) = check_owner().and_then(|()| RegionError::check_range(&range, self.len())) {
            return stop(done, reason);
        }
        let moves = Moves::of_reads(fd);
        while done < range.len() {
            let start = range.start + done;
            let (unpinned, end) = match moves {
                Moves::Bytes => (VAIN_CALLS_BEFORE_PIN, (start / step + 1) * step),
                // There is room for the longest message of a pipe.
                Moves::PagesOrMessages => (0, start + step),
            };
            let piece = start..range.end.min(end);
            let asked = piece.len();
            let offset = offset.map(|offset| offset.saturating_add(done as u64));
            match self.read_piece(fd, piece, offset, vain >= unpinned) {
                Ok(Ok(0)) => break,
                Ok(Ok(count)) => {
                    (done, vain) = (done + count, 0);
                    let keeps_up = count == asked;
                    step = if keeps_up { 2 * step } else { count.next_power_of_two() }
                        .clamp(FIRST_PREPARED_BYTES, HUGE_PAGE);
                }
                Ok(Err(refused)) => match refused.raw_os_error() {
                    answer::INTERRUPTED => {}
                    answer::BAD_ADDRESS if vain < VAIN_CALLS => vain += 1,
                    _ => return stop(done, refused.into()),
                },
                Err(reason) => return stop(done, reason),
            }
        }
        Ok(done)
    }

    /// Makes one call. The outer error is the region's.
    fn read_piece(
        &self,
        fd: BorrowedFd<'_>,
        piece: Range<usize>,
        offset: Option<u64>,
        pinned: bool,
    ) -> Result<Result<usize, SystemError>, RegionError> {
        let _pin = if pinned {
            Some(self.pin(piece.clone())?)
        } else {
            self.core().prepare_blocks(piece.clone()).map(|()| None)?
        };
        let at = self.as_mut_ptr().wrapping_add(piece.start);
        // SAFETY: `piece` lies inside the region; it is not borrowed exclusively while `self` is borrowed.
        Ok(unsafe { descriptor::read(fd, at, piece.len(), offset) })
    }

    fn drain(&self, fd: BorrowedFd<'_>, range: Range<usize>, offset: Option<u64>) -> Result<(), TransferError> {
        let mut done = 0;
        let stop = |done, reason| Err(TransferError { done, reason });
        if let Err(reason) = check_owner().and_then(|()| RegionError::check_range(&range, self.len())) {
            return stop(done, reason);
        }
        let moves = Moves::of_writes(fd);
        while done < range.len() {
            let start = range.start + done;
            let at = self.as_ptr().wrapping_add(start);
            let offset = offset.map(|offset| offset.saturating_add(done as u64));
            let (len, pin) = match moves {
                Moves::Bytes => (range.len() - done, None),
                Moves::PagesOrMessages => {
                    let piece = start..range.end.min((start / HUGE_PAGE + 1) * HUGE_PAGE);
                    match self.pin(piece.clone()) {
                        Ok(pin) => (piece.len(), Some(pin)),
                        Err(reason) => return stop(done, reason),
                    }
                }
            };
            // SAFETY: part of the rest of `range`, which lies inside the region.
            let written = unsafe { descriptor::write(fd, at, len, offset) };
            drop(pin);
            match written {
                Ok(0) => return stop(done, descriptor::WROTE_NOTHING.into()),
                Ok(count) => done += count,
                Err(refused) => match refused.raw_os_error() {
                    answer::INTERRUPTED => {}
                    answer::BAD_ADDRESS if self.is_revoked() => return stop(done, RegionError::Revoked),
                    _ => return stop(done, refused.into()),
                },
            }
        }
        Ok(())
    }
}
