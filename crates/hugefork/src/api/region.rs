//! [`Region`]: memory that the program reads and writes. hugefork handles its write faults.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::operations::check_cut;
use super::pinned::{OwnedPin, Pinned};
use super::pool::{Pool, check_owner, check_owner_and_addresses};
use super::routed::Routed;
use super::snapshot::{Snapshot, before_any_is_lost};
use super::stats::RegionStats;
use super::steps::in_steps;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::region::free::LazyFreed;
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::linux::memory::Linux;
use crate::types::advice::Advice;
use crate::types::children::Children;
use crate::types::error::{RegionError, ResetError};
use crate::types::observer::Observer;
use crate::types::options::{RegionOptions, Reserve};
use crate::types::snapshot_id::SnapshotId;

/// A range of memory that is zero at first. [`Region::fork`] and [`Region::snapshot`] copy it in microseconds.
///
/// Reads never involve hugefork. The first write to a block does: hugefork provides zeroed memory, and the write
/// continues. The first write after each fork or snapshot does, too: hugefork copies the block, or lets the kernel copy
/// each page that is written from then on ([`CopyGrain`](crate::CopyGrain)).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let mut table = pool.region(4 << 20)?;
/// table.as_mut_slice()[100] = 1; // a fault: the block gets zeroed memory
/// let before = table.snapshot()?;
/// table.as_mut_slice()[100] = 2; // a fault: from now on the kernel copies the pages that are written
/// table.as_mut_slice()[5000] = 3; // no fault that hugefork sees
/// assert_eq!((before[100], before[5000]), (1, 0));
/// let faults = table.stats().faults;
/// assert_eq!((faults.demand_zero, faults.cow_mapped + faults.copied), (1, 1)); // copied, where single pages cannot be
/// # Ok(())
/// # }
/// ```
///
/// # Threads
/// Any number of threads may write to a region through [`Region::as_mut_ptr`] while others fork or snapshot it. As with
/// any memory, the program must prevent two threads from writing to the same bytes at once. [`Region::as_atomic_u64s`]
/// and [`Region::writers`] ensure that by their types.
///
/// A thread that blocks all signals, as threads of many servers do, ends the process at its first write to a block, by
/// a `SIGSEGV` without a message: the kernel does not deliver a blocked signal for a fault. Unblock `SIGSEGV` in the
/// thread (`pthread_sigmask`) before it writes; making a region or fork unblocks it in the calling thread. If that is
/// impossible, and the process may handle faults of system calls, use a region with [`RegionOptions::calls_wait`] and
/// [populate](Region::populate) it: its writes raise no signal until some of it is discarded or lazily freed.
///
/// # Signal handlers
/// A signal handler may read a region, and may read and write [pinned](Region::pin) ranges. It must not call methods or
/// write elsewhere, because it may have interrupted a thread that holds a lock which the write needs.
///
/// # System calls that write
/// The kernel does not deliver its own page faults to the program: `read(2)` into a block that is not writable yet
/// fails with `EFAULT`. [`Region::read_from`] reads files, pipes and stream sockets nevertheless, also while other
/// threads fork and snapshot. For other calls [pin](Region::pin) the buffer, or call [`Region::prepare_write`] on it
/// while no thread forks or snapshots the region. System calls that read from a region always work.
///
/// # Mappings
/// Memory at the addresses of regions and snapshots belongs to hugefork: do not change it with `madvise`, `mprotect`,
/// `mremap`, `munmap` or `mmap` with `MAP_FIXED`. The kernel allows most of these calls. `MADV_DONTNEED` and
/// `MADV_GUARD_INSTALL` lose data written after a snapshot; `MADV_REMOVE` zeroes snapshots and forks; `MADV_DOFORK`
/// gives children memory that changes; and a changed protection is lost at the next snapshot or first write. To free
/// memory, use [`Region::discard`] instead of `MADV_DONTNEED` or `MADV_REMOVE`, and [`Region::lazy_free`] instead of
/// `MADV_FREE`. `mlock`, `MADV_WILLNEED`, `MADV_COLD`, `MADV_PAGEOUT` and `MADV_POPULATE_READ` are harmless. In debug
/// builds, if the kernel reports written pages, a fork or snapshot panics when written pages are missing.
///
/// # When the pool is full
/// A write that finds no free block drops lazily freed blocks of any region of the pool. If there are none, and forks
/// or snapshots share the written block, hugefork revokes it from them, and the write continues
/// ([`Snapshot::is_revoked`]). If one of them has a reservation ([`Reserve::Full`]), the block is not revoked, and the
/// write fails.
///
/// # When a write cannot be given memory
/// The engine prints one line with the reason to standard error, and the thread gets `SIGBUS` at the address of the
/// write, as for a mapped file on a full disk. A `SIGBUS` handler may free memory and return: the write is tried again.
///
/// # `fork(2)`
/// A child of `fork(2)` has the regions of pools that are built with [`Children::Inherit`](crate::Children), as plain
/// memory at the same addresses. Methods there return [`RegionError::ForkedChild`], except those that return addresses
/// or slices of the region.
///
/// A child has no other region. Methods that return its slices without a `Result` panic there, and an access raises a
/// fault with a message.
pub struct Region {
    held: EngineArc<Routed>,
}

impl Region {
    pub(crate) fn new(pool: Pool, core: PinnedBox<RegionCore<Linux>>) -> Region {
        Region { held: Routed::new(pool, core) }
    }

    pub(super) fn core(&self) -> &RegionCore<Linux> {
        self.held.core()
    }

    /// Length in bytes, a multiple of the block size.
    #[allow(clippy::len_without_is_empty)] // A region is never empty.
    pub fn len(&self) -> usize {
        self.core().len()
    }

    /// The pool that it takes its blocks from.
    pub fn pool(&self) -> &Pool {
        &self.held.pool
    }

    /// The first byte, for reads, aligned to the block size. See [`Region::as_mut_ptr`].
    pub fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    /// The first byte, aligned to the block size. The pointer is valid for [`Region::len`] bytes as long as the region
    /// lives. A child of `fork(2)` has memory there only if the pool is built with
    /// [`Children::Inherit`](crate::Children).
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.held.at(0).as_ptr()
    }

    /// All bytes, for a caller with exclusive access to the region. [`Region::writers`] gives parts to several threads,
    /// and [`Region::as_atomic_u64s`] gives the whole region to any number of threads.
    ///
    /// Like every exclusive slice of a region, it cancels [lazy frees](Region::lazy_free) anywhere in the region that
    /// are not dropped yet, so that no bytes change while the slice is used.
    ///
    /// # Panics
    /// In a child of `fork(2)` that does not inherit the region.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.bytes_mut() {
            Ok(bytes) => bytes,
            Err(error) => panic!("a region cannot be borrowed: {error}"),
        }
    }

    /// Whether this process has the memory of the region: it owns the region, or may have inherited it. If the fork has
    /// failed to give it to a child, an access raises a fault there.
    pub(super) fn check_memory(&self) -> Result<(), RegionError> {
        check_owner().or_else(|error| match self.pool().children() {
            Children::Inherit => Ok(()),
            Children::HaveNothing => Err(error),
        })
    }

    /// Every exclusive slice of a region comes from here, so this function establishes its preconditions.
    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8], RegionError> {
        self.check_memory()?;
        // The parent's snapshot holds all memory of a child, so none of it is dropped there.
        if check_owner().is_ok() {
            self.core().keep_all();
        }
        // SAFETY: the range is readable and, through faults, writable for as long as `self` is borrowed. Other code
        // could only reach it through `as_mut_ptr`, whose users promise not to write during an exclusive borrow.
        // Changes of the mapping preserve every byte, with two exceptions: `discard` needs `self`; and there is no
        // lazily freed memory now, nor can there be any while `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) })
    }

    /// Gets memory for every block now, so that no first write faults later. A block without memory takes as long as
    /// its first write would.
    ///
    /// # Errors
    /// [`RegionError::PoolFull`], [`RegionError::OutOfMemory`], [`RegionError::TooManyMappings`],
    /// [`RegionError::Revoked`] if a block of this fork was revoked, [`RegionError::System`],
    /// [`RegionError::ForkedChild`]. The work done so far is not undone.
    pub fn populate(&self) -> Result<(), RegionError> {
        check_owner()?;
        self.core().populate(0..self.len())
    }

    /// Like [`Region::populate`], with up to `threads` threads, at least one. After each 64 MiB, or each block if
    /// blocks are larger, one of them calls `progress` with the number of finished bytes. For regions of many gigabytes
    /// and for blocks of 1 GiB.
    ///
    /// # Errors
    /// Those of [`Region::populate`]; the first one ends the work of all threads.
    ///
    /// # Panics
    /// If `progress` panics, which also ends the work of all threads.
    pub fn populate_with(&self, threads: usize, progress: impl Fn(usize) + Sync) -> Result<(), RegionError> {
        const STEP: usize = 64 << 20;
        check_owner()?;
        let done = AtomicUsize::new(0);
        in_steps(self.len(), STEP.max(self.pool().block_size().bytes()), threads, |part| {
            self.core().populate(part.clone())?;
            progress(done.fetch_add(part.len(), Ordering::Relaxed) + part.len());
            Ok(())
        })
    }

    /// Makes all blocks that `range` (in bytes) touches writable now, so that a system call can write there. Until the
    /// next fork, snapshot or [reset](Region::reset_to) of this region, no write in the range fails or faults, with one
    /// exception: in a full pool, the parent of a fork may revoke a shared block from the fork
    /// ([`Region::is_revoked`]). While another thread pins, reads into or discards a part of the same blocks, a system
    /// call that writes there may fail.
    ///
    /// If single pages can be copied ([`CopyGrain`](crate::CopyGrain)), this call does not copy memory shared with
    /// forks and snapshots; the kernel copies it as it is written, and the call takes some 0.3 ms for each GiB.
    /// Otherwise the call copies shared blocks, at some 0.1 ms for each 2 MiB. Blocks that were never written get their
    /// memory.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], and those of [`Region::populate`].
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().prepare_write(range)
    }

    /// Drops the contents of `range` (in bytes), which reads as zeros from then on. Blocks wholly inside the range go
    /// back to the pool, unless they are pinned: those are zeroed in place. In a block that lies partly inside, the
    /// bytes in the range are zeroed. Forks and snapshots are not affected.
    ///
    /// No other thread may use the range meanwhile. Takes one system call for each 2 GiB.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]. A shared block that lies partly inside the range is copied first, with the errors
    /// of [`Region::populate`]; some of the range may be zero by then. [`RegionError::NotReservable`]: the range is
    /// zero, but a region with a reservation could not reserve blocks again in place of those that forks and snapshots
    /// hold.
    pub fn discard(&self, range: Range<usize>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().discard(range)
    }

    /// Allows hugefork to drop the contents of `range` (in bytes) when memory is short. Until then the range reads as
    /// before. A write to a block cancels the permission for that block and preserves its contents. A block of which
    /// only a part was lazily freed is treated page by page (4 KiB). Dropped contents read as zeros.
    ///
    /// Contents are dropped, oldest first, when a write, region, fork or snapshot finds no free block, when the program
    /// calls [`Pool::reclaim`], or by a [pressure watcher](crate::PoolBuilder::reclaim_under_pressure). The call skips
    /// blocks that a fork or snapshot holds, pinned blocks, and parts of blocks on hugetlb, which cannot be split. It
    /// rounds the ends of the range inward to base pages. The result counts the bytes by outcome.
    ///
    /// Takes some nanoseconds a block and one write-protection for each 2 GiB. Other threads may use the range
    /// meanwhile. A write that races with the call comes either before it or after it.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::TooManyMappings`], [`RegionError::System`],
    /// [`RegionError::ForkedChild`]. Some of the range may have been lazily freed by then; nothing is lost.
    pub fn lazy_free(&self, range: Range<usize>) -> Result<LazyFreed, RegionError> {
        check_owner()?;
        self.core().lazy_free(range)
    }

    /// Cancels [`Region::lazy_free`] for contents that are not dropped yet, as a write would. Returns the number of
    /// bytes. A block that was lazily freed as a whole is cancelled as a whole.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::ForkedChild`].
    pub fn cancel_lazy_free(&self, range: Range<usize>) -> Result<usize, RegionError> {
        check_owner()?;
        self.core().cancel_lazy_free(range)
    }

    /// Makes the blocks that `range` (in bytes) touches writable, and does not move them until the guard is dropped.
    /// This is for users of physical memory (DMA, `io_uring` fixed buffers, `process_vm_writev(2)`), and for system
    /// calls that write.
    ///
    /// **A write to pinned pages during a fork, a snapshot or a reset may be in it or not, word by word**: of two
    /// writes to pinned pages it may contain the second without the first, including plain stores. All other writes,
    /// also to other pages of the same blocks, are captured at one moment. Pinned pages are the 4 KiB pages that
    /// `range` touches; in hugetlb pools, whole blocks.
    ///
    /// These pages are writable at every moment. The other pages of their blocks are not: during a fork, snapshot or
    /// reset, a system call that writes there fails with `EFAULT`, as elsewhere in the region. A fork or snapshot
    /// copies a pinned block at once instead of sharing it, which takes some 0.1 ms longer for each 2 MiB, and two more
    /// mappings meanwhile for each run of pinned pages. Reclaim skips pinned blocks.
    ///
    /// A pin counts as a continuing write: lazy free skips pinned blocks. A block can have 255 pins at a time.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::TooManyPins`], and those of [`Region::prepare_write`]. Nothing is
    /// pinned then.
    pub fn pin(&self, range: Range<usize>) -> Result<Pinned<'_>, RegionError> {
        self.held.pin(range.clone())?;
        Ok(Pinned { region: &self.held, range })
    }

    /// Like [`Region::pin`], with a guard that borrows nothing. It keeps the memory of the region alive until it is
    /// dropped, even if the region is dropped first. [`OwnedPin`] has the rules.
    ///
    /// # Errors
    /// Those of [`Region::pin`].
    pub fn pin_owned(&self, range: Range<usize>) -> Result<OwnedPin, RegionError> {
        self.held.pin(range.clone())?;
        Ok(OwnedPin { region: self.held.clone(), range })
    }

    /// Calls `observer` around every change of the memory behind this region, see [`Observer`]. Its forks have none.
    ///
    /// # Errors
    /// [`RegionError::AlreadyObserved`]: a region has one observer, which cannot be changed. Blocks that forks and
    /// snapshots share by page ([`CopyGrain`](crate::CopyGrain)) are copied whole first, since the kernel's copies of
    /// pages cannot be observed; this gives the errors of [`Region::prepare_write`]. In that case the observer is set
    /// nevertheless, and the region should be dropped.
    pub fn observe(&self, observer: Arc<dyn Observer>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().observer.set(observer).map_err(|_| RegionError::AlreadyObserved)?;
        self.core().end_cow_mappings()
    }

    /// Whether a part of this fork was revoked. That happens when the pool is full and the parent writes to a block
    /// that both share, unless the fork was made with [`Reserve::Full`]. Any access to that part raises `SIGBUS` with a
    /// message, and never reads zeros. A [discard](Region::discard) turns the part into new memory.
    pub fn is_revoked(&self) -> bool {
        self.core().accounts.revoked.load(Ordering::Acquire) > 0
    }

    /// Makes a writable copy of this region as it is now. Both share each block until one of them writes to it, and
    /// neither sees the other's writes.
    ///
    /// Threads that write meanwhile wait: some nanoseconds for each block, and one write-protection. The cut is
    /// consistent: if the copy contains a write, it contains every write that happened before it. But the cut may fall
    /// between two writes of one operation; [`Operations`](crate::Operations) prevent that. The call takes longer if
    /// pages were copied since the last one ([`CopyGrain`](crate::CopyGrain)): it writes them back first, at about 2 us
    /// a page, while other threads go on writing. Where other forks or snapshots still hold a block, a snapshot copies
    /// the pages that were written since the last snapshot into the pool, and compares the block's other private pages
    /// with that snapshot's. A fork instead copies the whole block, which takes 150 us and a block of the pool; so does
    /// a snapshot if a quarter of the block's pages are private. [`Region::prepare_snapshot`] does all that beforehand.
    ///
    /// # Errors
    /// [`RegionError::TooManyMappings`], [`RegionError::OutOfAddresses`], [`RegionError::Revoked`] if this region is a
    /// fork of which a part was revoked, [`RegionError::PoolFull`] and [`RegionError::OutOfMemory`] if pinned or split
    /// blocks, or pages to be written back, need memory, [`RegionError::System`], [`RegionError::ForkedChild`]. With
    /// operations also [`RegionError::InsideOperation`] and [`RegionError::OperationGoesOn`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        self.fork_with(RegionOptions::new())
    }

    /// Like [`Region::fork`], with a reservation or a limit of its own.
    ///
    /// # Errors
    /// Those of [`Region::fork`], and [`RegionError::NotReservable`].
    pub fn fork_with(&self, options: RegionOptions) -> Result<Region, RegionError> {
        check_owner_and_addresses()?;
        check_cut([self.core()].into_iter())?;
        let core =
            before_any_is_lost(|| self.core().freeze_for_fork(), |frozen| RegionCore::of_snapshot(&frozen, options))?;
        Ok(Region::new(self.pool().clone(), core))
    }

    /// Does in advance the work of the next fork or snapshot before its pause. That call then takes little more than
    /// its pause. This call writes pages that were copied since the last fork or snapshot
    /// ([`CopyGrain`](crate::CopyGrain)) into blocks, or captures them if older snapshots hold those blocks. If the
    /// program's `snapshot()` runs under a lock that other threads wait for, call this right before taking that lock.
    /// The contents do not change, and the call is optional.
    ///
    /// Other threads go on writing meanwhile; forks, snapshots and resets of the region wait. It takes about 2 us a
    /// page, or the times in [`Region::fork`] for blocks that other forks or snapshots still hold. Writes between this
    /// call and the snapshot are left to the snapshot. The effect of [`Region::prepare_write`] is not lost, and no
    /// block is revoked for this call.
    ///
    /// # Errors
    /// [`RegionError::PoolFull`], [`RegionError::OutOfMemory`], [`RegionError::TooManyMappings`],
    /// [`RegionError::System`], [`RegionError::ForkedChild`]: some pages are left for the next fork or snapshot. With
    /// operations also [`RegionError::InsideOperation`]: cuts, and all threads that want to enter, would wait for this
    /// call.
    pub fn prepare_snapshot(&self) -> Result<(), RegionError> {
        check_owner_and_addresses()?;
        check_cut([self.core()].into_iter())?;
        self.core().prepare_snapshot()
    }

    /// Makes a read-only copy of this region as it is now. Like [`Region::fork`], but it makes no mappings until it is
    /// read.
    ///
    /// It captures all threads' *writes* at one moment, except writes to [pinned](Region::pin) pages. If an operation
    /// makes several writes, such as a `put` of a key and a value, the snapshot may contain some without the others;
    /// [`Operations`](crate::Operations) prevent that.
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn snapshot(&self) -> Result<Snapshot, RegionError> {
        self.snapshot_with(RegionOptions::new())
    }

    /// Like [`Region::snapshot`], with options: no part of a snapshot with [`Reserve::Full`] is ever revoked. No block
    /// is reserved for it, so a write of the region to a shared block fails loudly if the pool is full.
    ///
    /// # Errors
    /// Those of [`Region::fork`], and [`RegionError::LimitOnSnapshot`] if the options limit the cost of copies: a
    /// snapshot is not written to.
    pub fn snapshot_with(&self, options: RegionOptions) -> Result<Snapshot, RegionError> {
        check_owner_and_addresses()?;
        if options.limit.is_some() {
            return Err(RegionError::LimitOnSnapshot);
        }
        check_cut([self.core()].into_iter())?;
        let keep = |frozen: PinnedBox<SnapshotCore<Linux>>| {
            if options.reserve == Reserve::Full {
                frozen.make_irrevocable().inspect_err(|_| self.core().forget(&frozen))?;
            }
            Ok(frozen)
        };
        Ok(Snapshot::new(self.pool().clone(), before_any_is_lost(|| self.core().freeze(), keep)?))
    }

    /// The region's base: the last snapshot that was taken of it, or the snapshot that it was forked from or reset to,
    /// whichever is latest. `None` for a region that began as zeros and has had no snapshot yet. A region that was
    /// forked from another region starts with that region's base. Later writes do not change it.
    pub fn origin(&self) -> Option<SnapshotId> {
        self.core().accounts.origin.get()
    }

    /// Resets the region to the bytes of `snapshot`: all later writes are lost. The time is proportional to the amount
    /// written since, not to the size. It serves loops that start from the same state each time, such as a fuzzer, or a
    /// server that resets an instance after each request, and searches that return to a branching point.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(32 << 20).build()?;
    /// let mut state = pool.region(8 << 20)?;
    /// state.as_mut_slice()[..5].copy_from_slice(b"begin");
    /// let beginning = state.snapshot()?;
    /// for round in 0..3 {
    ///     state.as_mut_slice()[round] = b'X';
    ///     state.reset_to(&beginning)?;
    ///     assert_eq!(&state.as_mut_slice()[..5], b"begin");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The snapshot may be any of the same pool and length: a later or an earlier one of this region, or one of its
    /// parent or of its forks. It does not change. If it is another region's snapshot, the shared blocks are like those
    /// of a fork: in a full pool, that region may revoke them ([`Region::is_revoked`]), unless this region was made
    /// with [`Reserve::Full`].
    ///
    /// # Costs
    /// Pages that were written since the snapshot ([`CopyGrain`](crate::CopyGrain)) get their old bytes back, at 0.2 to
    /// 0.8 us each if they were also written before the last reset, and 11 to 19 us if not. They remain the process's
    /// own memory, and the next writes to them take no fault. Pages that are not written any more are returned to the
    /// kernel after some resets. Blocks that were copied, discarded or written for the first time are exchanged for the
    /// snapshot's, at some microseconds for each run of neighbours; a block that is written in every round keeps its
    /// memory and gets the old bytes back. If only a few of its pages are written, the next writes to it are by page. A
    /// block that was unwritten in the snapshot is replaced by a shared block of zeros; it goes back to the pool when
    /// the region no longer uses it and a block is needed. To this add some nanoseconds for each block of the region.
    /// If pages were copied since the last reset, the kernel is asked for them: 10 to 50 us for each GiB.
    ///
    /// # Threads
    /// Other threads may write meanwhile. A write comes either before the reset and is lost, or after it and remains.
    /// The cut is consistent like that of a snapshot: if a write is lost, so is every write that happened before it. It
    /// covers one region; [`Region::reset_all`] covers several.
    ///
    /// * In a process without other threads (apart from hugefork's own), no thread has to wait.
    /// * If only single pages differ, and they are in one mapping, the reset happens at one moment, also for readers.
    ///   Writers wait for some microseconds afterwards. This takes 20 us more.
    /// * If blocks differ, or are pinned, writers wait until the reset is done. Readers do not: they may find some
    ///   pages reset and others not yet. This takes some 50 us more, and 3 to 4 us for each page.
    ///
    /// In the last case the kernel visits all mapped memory; with [`CopyGrain::Page`](crate::CopyGrain::Page) and
    /// [`calls_wait`](RegionOptions::calls_wait), reads and system calls wait, too, as during a snapshot. In the second
    /// case system calls that write may fail (`EFAULT`) in these microseconds, unless `calls_wait` is set.
    ///
    /// [Pinned](Region::pin) ranges do not move and get the old bytes. Writes by the user of a pin during the reset may
    /// remain or be lost. [Lazy frees](Region::lazy_free) are cancelled.
    ///
    /// # Writes that are not a thread's
    /// * A request of `io_uring` that completes during the call writes in the thread that submitted it, between any two
    ///   instructions of the call. Each of its bytes remains or is lost. Bytes that remain are lost at the next reset.
    /// * Writes of another *process* to these addresses (`process_vm_writev(2)`, `/proc/PID/mem`, a debugger, a process
    ///   by `clone(CLONE_VM)`) raise no fault in this process. A reset finds them in pages that were written since the
    ///   snapshot, and wherever this process has taken a fault since the last reset. Elsewhere it may miss them.
    ///
    /// # Errors
    /// [`ResetError`], with the length of the part that equals the snapshot. Before any change:
    /// [`RegionError::AnotherPool`], [`RegionError::AnotherLength`], [`RegionError::Revoked`] if a part of the
    /// snapshot was revoked, [`RegionError::PoolFull`] and [`RegionError::OutOfMemory`] if the snapshot holds only
    /// pages of a block and a whole block is not available, [`RegionError::ForkedChild`], and with
    /// [`Operations`](crate::Operations) [`RegionError::InsideOperation`] and [`RegionError::OperationGoesOn`].
    /// [`RegionError::TooManyMappings`] and [`RegionError::System`]: the pages behind `done` are as [`ResetError`]
    /// says, and another call completes the reset. [`RegionError::NotReservable`]: the region equals the snapshot,
    /// but a region with a reservation could not reserve blocks again in place of those that its forks and
    /// snapshots hold.
    pub fn reset_to(&self, snapshot: &Snapshot) -> Result<(), ResetError> {
        let may_reset = check_owner().and_then(|()| check_cut([self.core()].into_iter()));
        may_reset.map_err(|reason| ResetError { done: 0, reason })?;
        self.core().reset_to(snapshot.core())
    }

    /// Announces the program's use of each block after its first write. The hint decides which bytes remain in the
    /// cache, and whether a fault prepares the next blocks too. It takes effect at the next fault, in all threads.
    pub fn advise(&self, advice: Advice) {
        self.core().habits.advise(advice);
    }

    /// Statistics of the region. Takes some nanoseconds a block.
    pub fn stats(&self) -> RegionStats {
        RegionStats::of(self.core())
    }
}

impl Pool {
    /// Makes a region of `len` bytes that reads as zeros. The first write to a block takes it from the pool;
    /// [`Region::populate`] takes all blocks at once.
    ///
    /// Regions may together be larger than the pool. A write that finds no block left fails loudly.
    ///
    /// # Regions that grow
    /// A region has one length. State that grows takes a region as long as it may ever become, and uses its beginning:
    /// memory is taken as it is written, and [`Region::discard`] returns it. Each unused GiB costs addresses, and with
    /// blocks of 2 MiB 12 KiB of [metadata](crate::RegionStats::metadata_bytes), some 10 us a snapshot and 20 us a
    /// reset. The capacity, and so the length, can be all memory of the machine.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(1 << 30).build()?;
    /// let mut log = pool.region(1 << 30)?; // or 500 GiB
    /// let mut len = 0;
    /// for entry in ["first", "second"] {
    ///     log.as_mut_slice()[len..][..entry.len()].copy_from_slice(entry.as_bytes());
    ///     len += entry.len();
    /// }
    /// assert_eq!(log.stats().blocks_present, 1); // 2 MiB of memory
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// * [`RegionError::Length`]: `len` is zero or not a multiple of the block size.
    /// * [`RegionError::LargerThanPool`]: it could never be filled.
    /// * [`RegionError::TooManyMappings`], [`RegionError::OutOfAddresses`]: a limit of the process.
    /// * [`RegionError::System`]: the kernel refused a call.
    /// * [`RegionError::ForkedChild`]: this process is a `fork(2)` child of the one that built the pool.
    pub fn region(&self, len: usize) -> Result<Region, RegionError> {
        self.region_with(len, RegionOptions::new())
    }

    /// Like [`Pool::region`], with a reservation or a limit on the cost of forks and snapshots.
    ///
    /// # Errors
    /// Those of [`Pool::region`], and [`RegionError::NotReservable`].
    pub fn region_with(&self, len: usize, options: RegionOptions) -> Result<Region, RegionError> {
        check_owner_and_addresses()?;
        if len > self.capacity() {
            return Err(RegionError::LargerThanPool { pool: self.name().to_owned(), len, capacity: self.capacity() });
        }
        self.block_size().check_len(len)?;
        Ok(Region::new(self.clone(), RegionCore::zeros(&self.core, len, options)?))
    }
}

impl Snapshot {
    /// Makes a region with the contents of this snapshot.
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        self.fork_with(RegionOptions::new())
    }

    /// Like [`Snapshot::fork`], with a reservation or a limit of its own.
    ///
    /// # Errors
    /// Those of [`Region::fork`], and [`RegionError::NotReservable`].
    pub fn fork_with(&self, options: RegionOptions) -> Result<Region, RegionError> {
        check_owner_and_addresses()?;
        let core = before_any_is_lost(|| self.core().duplicate(), |frozen| RegionCore::of_snapshot(&frozen, options))?;
        Ok(Region::new(self.pool().clone(), core))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("at", &self.as_ptr())
            .field("len", &self.len())
            .field("pool", &self.pool().name())
            .finish_non_exhaustive()
    }
}
