//! [`Region`]: memory that the program reads and writes, and whose write faults hugefork resolves.

use std::fmt;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::operations::check_cut;
use super::pinned::{OwnedPin, Pinned};
use super::pool::{Pool, check_owner, check_owner_and_addresses};
use super::routed::Routed;
use super::snapshot::{Snapshot, before_any_is_lost};
use super::stats::RegionStats;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::region::free::LazyFreed;
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::linux::memory::Linux;
use crate::types::advice::Advice;
use crate::types::error::{RegionError, ResetError};
use crate::types::observer::Observer;
use crate::types::options::{RegionOptions, Reserve};
use crate::types::snapshot_id::SnapshotId;

/// A range of memory that is zero at first. [`Region::fork`] and [`Region::snapshot`] copy it in microseconds.
///
/// Reads never involve hugefork. The first write to a block does: hugefork gives it zeroed memory, and the write goes
/// on. So does the first write after each fork or snapshot: the block is copied, or from then on each page that is
/// written ([`CopyGrain`](crate::CopyGrain)).
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
/// any memory, the program sees to it that no two threads write the same bytes at once. [`Region::as_atomic_u64s`] and
/// [`Region::writers`] do that by their types.
///
/// A thread that blocks all signals, as threads of many servers do, ends the process at its first write to a block, by
/// a bare `SIGSEGV`: the kernel delivers no blocked signal for a fault, so nobody can say why. Have it unblock
/// `SIGSEGV` (`pthread_sigmask`) before it writes; a thread that makes a region or fork has it unblocked from then on.
/// Where that cannot be, and the process may handle faults of system calls, a region with [`RegionOptions::calls_wait`]
/// that is [populated](Region::populate) takes no signal for a write, until some of it is discarded or lazily freed.
///
/// # Signal handlers
/// A signal handler may read a region, and may read and write what is [pinned](Region::pin). It must not call methods
/// or write elsewhere: it may have interrupted a thread that holds a lock which the write needs.
///
/// # System calls that write
/// The kernel does not deliver a page fault of its own to the program: `read(2)` into a block that is not yet writable
/// fails with `EFAULT`. [`Region::read_from`] reads files, pipes and stream sockets all the same, also beside threads
/// that fork and snapshot. For other calls [pin](Region::pin) the buffer, or call [`Region::prepare_write`] on it while
/// nobody forks or snapshots the region. System calls that read from a region always work.
///
/// # Mappings
/// Memory at the addresses of regions and snapshots is hugefork's: change nothing there by `madvise`, `mprotect`,
/// `mremap`, `munmap` or `mmap` with `MAP_FIXED`. The kernel refuses little of it. `MADV_DONTNEED` and
/// `MADV_GUARD_INSTALL` lose what was written after a snapshot, `MADV_REMOVE` makes zeros of snapshots and forks,
/// `MADV_DOFORK` gives children memory that changes, and a protection is gone with the next snapshot or first write.
/// Give memory back by [`Region::discard`] in place of `MADV_DONTNEED` or `MADV_REMOVE`, and by [`Region::lazy_free`]
/// in place of `MADV_FREE`. `mlock`, `MADV_WILLNEED`, `MADV_COLD`, `MADV_PAGEOUT` and `MADV_POPULATE_READ` harm
/// nothing. In debug builds, where the kernel tells which pages were written, a fork or snapshot panics if it finds
/// that some are gone.
///
/// # When the pool is full
/// A write that finds no free block drops lazily freed blocks of any region of the pool. If there are none, and forks
/// or snapshots share the block that is written to, hugefork takes it away from them, and the write goes on
/// ([`Snapshot::is_revoked`]). Where one of them has a reservation ([`Reserve::Full`]), nobody loses the block, and the
/// write fails.
///
/// # When a write cannot be given memory
/// One line on standard error says why, and the thread gets `SIGBUS` at the address that it wrote to, as it would from
/// a mapped file on a full disk. A `SIGBUS` handler may make room and return: the write is tried again.
///
/// # `fork(2)`
/// A child of `fork(2)` has no regions. Methods there return [`RegionError::ForkedChild`], or panic where they hand out
/// memory without a `Result`; an access is a fault with a line that says why.
pub struct Region {
    held: EngineArc<Routed>,
}

/// Has all threads that populate a region end their work if one of them panics.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
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

    /// The first byte, aligned to the block size. The pointer is good for [`Region::len`] bytes for as long as the
    /// region lives, in this process only: in a child of `fork(2)` nothing is there.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.held.at(0).as_ptr()
    }

    /// All bytes, for the one who has the region to itself. [`Region::writers`] gives parts to several threads, and
    /// [`Region::as_atomic_u64s`] gives all of it to all.
    ///
    /// Like every exclusive slice of a region, it takes back what was [lazily freed](Region::lazy_free) anywhere in the
    /// region and is not dropped yet, so that nothing changes while the slice is used.
    ///
    /// # Panics
    /// In a child of `fork(2)`, which has no regions.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.bytes_mut() {
            Ok(bytes) => bytes,
            Err(error) => panic!("a region cannot be borrowed: {error}"),
        }
    }

    /// Every exclusive slice of a region comes from here, so what must be so while one lives is made so here.
    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8], RegionError> {
        check_owner()?;
        self.core().keep_all();
        // SAFETY: the range is readable and, through faults, writable for as long as `self` is borrowed. Others could
        // only reach it through `as_mut_ptr`, whose users answer for not writing while it is borrowed exclusively.
        // Changes of what is mapped keep every byte, but for two: `discard` needs `self`; and what was lazily freed, of
        // which there is nothing now, and can be nothing new while `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) })
    }

    /// Gives every block its memory now, so that no first write faults later. A block that has none takes as long as
    /// its first write would.
    ///
    /// # Errors
    /// [`RegionError::PoolFull`], [`RegionError::OutOfMemory`], [`RegionError::TooManyMappings`],
    /// [`RegionError::Revoked`] if a block of this fork was taken away, [`RegionError::System`],
    /// [`RegionError::ForkedChild`]. What has been done by then stays.
    pub fn populate(&self) -> Result<(), RegionError> {
        check_owner()?;
        self.core().populate(0..self.len())
    }

    /// As [`Region::populate`], on up to `threads` threads, at least one. After each 64 MiB, or each block if blocks
    /// are larger, one of them calls `progress` with the bytes that are done. For regions of many gigabytes and for
    /// blocks of 1 GiB.
    ///
    /// # Errors
    /// Those of [`Region::populate`]; the first one ends the work of all threads.
    ///
    /// # Panics
    /// If `progress` does, which ends the work of all threads, too.
    pub fn populate_with(&self, threads: usize, progress: impl Fn(usize) + Sync) -> Result<(), RegionError> {
        const STEP: usize = 64 << 20;
        check_owner()?;
        let step = STEP.max(self.pool().block_size().bytes());
        let (next, done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let work = || -> Result<(), RegionError> {
            let _ends_all = EndsAll(&failed);
            while !failed.load(Ordering::Relaxed) {
                let start = next.fetch_add(step, Ordering::Relaxed);
                if start >= self.len() {
                    break;
                }
                let end = self.len().min(start + step);
                self.core().populate(start..end).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                progress(done.fetch_add(end - start, Ordering::Relaxed) + end - start);
            }
            Ok(())
        };
        // No more than there is work for. The system may have room for fewer; then those that there are do it.
        let threads = threads.min(self.len().div_ceil(step));
        std::thread::scope(|scope| {
            let helper = |_| std::thread::Builder::new().spawn_scoped(scope, work);
            let helpers: Vec<_> = (1..threads).map_while(|nth| helper(nth).ok()).collect();
            let mine = work();
            let others = helpers.into_iter().map(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            mine.and(others.reduce(Result::and).unwrap_or(Ok(())))
        })
    }

    /// Makes all blocks that `range` (in bytes) touches writable now, so that a system call can write there. Until the
    /// next fork, snapshot or [reset](Region::reset_to) of this region, no write in the range fails or comes to
    /// hugefork. The one exception is that of all writes to what a fork shares with its parent: in a full pool, the
    /// parent may take that away ([`Region::is_revoked`]). While another thread pins, reads into or discards a part of
    /// the same blocks, a system call that writes there may fail.
    ///
    /// Where single pages can be copied ([`CopyGrain`](crate::CopyGrain)), what forks and snapshots share is not copied
    /// by this call, but by the kernel as it is written: preparing takes some 0.3 ms for each GiB. Otherwise it is
    /// copied here, at some 0.1 ms for each 2 MiB. Never written blocks get their memory.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], and those of [`Region::populate`].
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().prepare_write(range)
    }

    /// Drops the contents of `range` (in bytes), which reads as zeros from then on. Blocks that lie wholly inside go
    /// back to the pool, unless they are pinned: those are set to zero where they are. Of a block that lies partly
    /// inside, the bytes in the range are set to zero. Forks and snapshots keep what they have.
    ///
    /// Nobody else may use the range meanwhile. Takes one system call for each 2 GiB.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]. Where a block that lies partly inside is shared, it is copied first, with the
    /// errors of [`Region::populate`]; some of the range may have become zero by then. [`RegionError::NotReservable`]:
    /// the range is zero, but a region with a reservation could not set blocks aside again in place of those that forks
    /// and snapshots keep.
    pub fn discard(&self, range: Range<usize>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().discard(range)
    }

    /// Allows hugefork to drop the contents of `range` (in bytes) when memory is short. Until then the range reads as
    /// before. A write to a block takes the permission back for that block and keeps its contents. A block of which
    /// only a part was lazily freed is treated page by page (4 KiB). What was dropped reads as zeros.
    ///
    /// Contents are dropped, oldest first, when a write, region, fork or snapshot finds no free block, when the program
    /// calls [`Pool::reclaim`], or by a [pressure watcher](crate::PoolBuilder::reclaim_under_pressure). The call skips
    /// blocks that a fork or snapshot holds, pinned blocks, and parts of blocks on hugetlb, which cannot be split. It
    /// rounds the ends of the range inward to base pages. The result says what came of each byte.
    ///
    /// Takes some nanoseconds a block and one write-protection for each 2 GiB. Others may use the range meanwhile. A
    /// write that races with the call comes either before it or after it.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::TooManyMappings`], [`RegionError::System`],
    /// [`RegionError::ForkedChild`]. Some of the range may have been lazily freed by then; nothing is lost.
    pub fn lazy_free(&self, range: Range<usize>) -> Result<LazyFreed, RegionError> {
        check_owner()?;
        self.core().lazy_free(range)
    }

    /// Takes back what [`Region::lazy_free`] allowed for what is not dropped yet, as a write would. Returns how many
    /// bytes that were. A block that was lazily freed as a whole is taken back as a whole.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::ForkedChild`].
    pub fn cancel_lazy_free(&self, range: Range<usize>) -> Result<usize, RegionError> {
        check_owner()?;
        self.core().cancel_lazy_free(range)
    }

    /// Makes the blocks that `range` (in bytes) touches writable and keeps them where they are until the guard is
    /// dropped: for those who use their physical memory (DMA, `io_uring` fixed buffers, `process_vm_writev(2)`), and
    /// for system calls that write.
    ///
    /// **What is written to pinned pages while a fork, a snapshot or a reset is made may be in it or not, word by
    /// word**: of two writes to pinned pages it may have the second and lack the first, whoever makes them, stores too.
    /// With writes elsewhere they are of one moment, also with those to other pages of the same blocks. Pages are those
    /// of 4 KiB that `range` touches; of hugetlb pools, whole blocks.
    ///
    /// Those pages stay writable at every moment. The other pages of their blocks do not: while a cut is made, a system
    /// call that writes there fails with `EFAULT`, as elsewhere in the region. A fork or snapshot copies a pinned block
    /// at once instead of sharing it, which takes some 0.1 ms longer for each 2 MiB, and two mappings more meanwhile
    /// for each run of pinned pages; reclaim leaves it alone.
    ///
    /// A pin is a write that goes on: lazy free skips pinned blocks. A block can have 255 pins at a time.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::TooManyPins`], and those of [`Region::prepare_write`]. Nothing is
    /// pinned then.
    pub fn pin(&self, range: Range<usize>) -> Result<Pinned<'_>, RegionError> {
        self.held.pin(range.clone())?;
        Ok(Pinned::new(&self.held, range))
    }

    /// As [`Region::pin`], with a guard that borrows nothing. It keeps the memory of the region until it is dropped,
    /// even if the region is dropped before. [`OwnedPin`] has the rules.
    ///
    /// # Errors
    /// Those of [`Region::pin`].
    pub fn pin_owned(&self, range: Range<usize>) -> Result<OwnedPin, RegionError> {
        self.held.pin(range.clone())?;
        Ok(OwnedPin::new(self.held.clone(), range))
    }

    /// Has `observer` told around every change of the memory behind this region, see [`Observer`]. Its forks have none.
    ///
    /// # Errors
    /// [`RegionError::AlreadyObserved`]: a region has one observer, for good. What forks and snapshots share by page
    /// ([`CopyGrain`](crate::CopyGrain)) is copied as blocks first, since the kernel tells nobody of its copies: those
    /// of [`Region::prepare_write`]. The region has its observer then, all the same, and should be dropped.
    pub fn observe(&self, observer: Arc<dyn Observer>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().observer.set(observer).map_err(|_| RegionError::AlreadyObserved)?;
        self.core().end_cow_mappings()
    }

    /// Whether the parent of this fork has taken a part of it away. That happens when the pool is empty and the parent
    /// writes to what both share, unless the fork was made with [`Reserve::Full`]. Any access to that part is a
    /// `SIGBUS` and a line that says why, never zeros. A [discard](Region::discard) makes it new memory.
    pub fn is_revoked(&self) -> bool {
        self.core().accounts.revoked.load(Ordering::Acquire) > 0
    }

    /// A copy of this region as it is now. Either can be written to without the other changing; both share each block
    /// until one of them writes to it.
    ///
    /// Threads that write meanwhile wait: some nanoseconds for each block, and one write-protection. The cut is
    /// consistent: if a write is in the copy, so is every write that happened before it, but it may come between two
    /// writes of one operation ([`Operations`](crate::Operations) keep it from that). The call itself takes longer
    /// where pages were copied since the last one ([`CopyGrain`](crate::CopyGrain)): it writes them back first, at
    /// about 2 us a page, while others go on writing. Over a block that other forks or snapshots still hold, a snapshot
    /// copies out the pages that were written since the last one, and compares the rest of its private pages with what
    /// that has; a fork, and a snapshot where a quarter of the block's pages are private, takes 150 us a block, and a
    /// block of the pool. [`Region::prepare_snapshot`] does all that beforehand.
    ///
    /// # Errors
    /// [`RegionError::TooManyMappings`], [`RegionError::OutOfAddresses`], [`RegionError::Revoked`] if this region is a
    /// fork that has lost a part, [`RegionError::PoolFull`] and [`RegionError::OutOfMemory`] if pinned or split blocks,
    /// or pages to be written back, need memory, [`RegionError::System`], [`RegionError::ForkedChild`]. With operations
    /// also [`RegionError::InsideOperation`] and [`RegionError::OperationGoesOn`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        self.fork_with(RegionOptions::new())
    }

    /// As [`Region::fork`], with a reservation or a limit of its own.
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

    /// Does now what the next fork or snapshot would do before its pause, so that this takes little more than the
    /// pause: pages that were copied since the last one ([`CopyGrain`](crate::CopyGrain)) go into blocks, or are
    /// captured where older snapshots hold those. For a program
    /// whose `snapshot()` runs under a lock that others wait for, this is to be called right before that lock is taken.
    /// Nothing changes but where bytes lie, and it need not be called.
    ///
    /// Others go on writing meanwhile, and forks, snapshots and resets of the region wait. It takes about 2 us a page,
    /// or what [`Region::fork`] says of blocks that other forks or snapshots still hold. What is written between this
    /// and the snapshot is left to the latter; what [`Region::prepare_write`] has promised stays as it is, and nobody
    /// gives up a block for this.
    ///
    /// # Errors
    /// [`RegionError::PoolFull`], [`RegionError::OutOfMemory`], [`RegionError::TooManyMappings`],
    /// [`RegionError::System`], [`RegionError::ForkedChild`]. Then some pages are left to the next fork or snapshot.
    /// With operations also [`RegionError::InsideOperation`]: cuts, and all who want to enter, would wait for this.
    pub fn prepare_snapshot(&self) -> Result<(), RegionError> {
        check_owner_and_addresses()?;
        check_cut([self.core()].into_iter())?;
        self.core().prepare_snapshot()
    }

    /// A copy of this region as it is now that nobody can write to. It is like [`Region::fork`], but makes no mappings
    /// until somebody looks at it.
    ///
    /// It is one moment of every thread's *writes*, but for those to [pinned](Region::pin) pages. Of an operation that
    /// takes several, a `put` of a key and a value, it may have some and lack the others:
    /// [`Operations`](crate::Operations) keep that away.
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn snapshot(&self) -> Result<Snapshot, RegionError> {
        self.snapshot_with(RegionOptions::new())
    }

    /// As [`Region::snapshot`], with a promise: nothing of a snapshot with [`Reserve::Full`] is ever taken away. No
    /// block is set aside for it, so a write of the region to what both share fails loudly if the pool is full.
    ///
    /// # Errors
    /// Those of [`Region::fork`], and [`RegionError::LimitOnSnapshot`] if the options limit what copies may cost: a
    /// snapshot is not written to.
    pub fn snapshot_with(&self, options: RegionOptions) -> Result<Snapshot, RegionError> {
        check_owner_and_addresses()?;
        if options.limit.is_some() {
            return Err(RegionError::LimitOnSnapshot);
        }
        check_cut([self.core()].into_iter())?;
        let kept = |frozen: PinnedBox<SnapshotCore<Linux>>| match options.reserve {
            Reserve::Full => match frozen.make_irrevocable() {
                Ok(()) => Ok(frozen),
                Err(error) => {
                    self.core().forget(&frozen);
                    Err(error)
                }
            },
            Reserve::None => Ok(frozen),
        };
        Ok(Snapshot::new(self.pool().clone(), before_any_is_lost(|| self.core().freeze(), kept)?))
    }

    /// The snapshot that the region is at: the last that was taken of it, or the one that it was forked from or set to,
    /// whichever came last. `None` for a region that began as zeros and has had no snapshot yet. A region that was
    /// forked from another region is where that was. What was written since makes no difference.
    pub fn origin(&self) -> Option<SnapshotId> {
        self.core().accounts.origin.get()
    }

    /// Gives the region the bytes of `snapshot`: all that was written since is gone. It takes time in proportion to
    /// what was written, not to what there is: for a loop that begins from the same state each time, such as a fuzzer's
    /// or a server's that resets an instance after each request, and for a search that goes back to where it has
    /// branched.
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
    /// parent or of its forks. The snapshot stays as it is. What the region has from the snapshot of another region is
    /// like what a fork has from its parent: in a full pool, that region may take it back
    /// ([`Region::is_revoked`]), unless this one was made with [`Reserve::Full`].
    ///
    /// # What it costs
    /// Pages that were written since the snapshot ([`CopyGrain`](crate::CopyGrain)) get their old bytes back, at 0.2 to
    /// 0.8 us each if they were written before the last reset, too, and 11 to 19 us if not, and stay the process's own
    /// memory: the next writes to them take no fault. Those that are not written any more go back to the kernel after
    /// some resets.
    /// Blocks that were copied, discarded or written for the first time are exchanged for the snapshot's, at some
    /// microseconds for each run of neighbours; one that is written to again and again keeps its memory and gets the
    /// old bytes back. If few of its pages are written, the next writes to it are by page. If nobody had written there
    /// before the snapshot, the snapshot shares a block of zeros with the region for that, which goes back to the pool
    /// when the region has left it and a block is needed. Besides, a reset takes some nanoseconds for each block of the
    /// region. Where pages were copied since the last reset, the kernel is asked which: 10 to 50 us for each GiB.
    ///
    /// # Threads
    /// Others may write meanwhile. A write either comes before the reset and is gone, or after it and stays. The cut is
    /// consistent, as that of a snapshot: if a write is gone, so is every write that happened before it.
    /// It is a cut of one region: for several there is [`Region::reset_all`].
    ///
    /// * In a process without other threads, hugefork's own not counted, nobody has to wait.
    /// * If only single pages differ, and they are in one mapping, it happens at one moment, also for readers. Writers
    ///   wait for some microseconds afterwards. This takes 20 us more.
    /// * If blocks differ, or are pinned, writers wait until all is done. This takes some 50 us more, and 3 to 4 us for
    ///   each page.
    ///
    /// In the last case the kernel has to look at all that is mapped; with [`CopyGrain::Page`](crate::CopyGrain::Page)
    /// and [`calls_wait`](RegionOptions::calls_wait), reads and system calls wait, too, as at a snapshot. In the second
    /// case system calls that write may fail (`EFAULT`) in these microseconds, unless they are to wait.
    ///
    /// What is [pinned](Region::pin) stays where it is and gets the old bytes. As a snapshot does not have what the
    /// user of a pin writes meanwhile, so here it may stay or be gone. What was [lazily freed](Region::lazy_free) is
    /// taken back.
    ///
    /// # What is not a thread
    /// * A request of `io_uring` that ends during the call writes in the thread that asked for it, between any two
    ///   instructions of the call. Each of its bytes stays or is gone. What stays is gone after the next reset.
    /// * What another *process* writes to these addresses (`process_vm_writev(2)`, `/proc/PID/mem`, a debugger, one of
    ///   `clone(CLONE_VM)`) is no fault of this one. A reset finds it in pages that were written since the snapshot,
    ///   and wherever this process has taken a fault since the last reset. Elsewhere it may be overlooked.
    ///
    /// # Errors
    /// [`ResetError`], which says how much of the region is as the snapshot. Before anything has changed:
    /// [`RegionError::AnotherPool`], [`RegionError::AnotherLength`], [`RegionError::Revoked`] if a part of the snapshot
    /// was taken away, [`RegionError::PoolFull`] and [`RegionError::OutOfMemory`] if the snapshot has only pages of a
    /// block and there is none for the whole of it, [`RegionError::ForkedChild`], and with
    /// [`Operations`](crate::Operations) [`RegionError::InsideOperation`] and [`RegionError::OperationGoesOn`].
    /// [`RegionError::TooManyMappings`] and
    /// [`RegionError::System`]: each page (4 KiB) is as before or as the snapshot, and another call goes on there.
    /// [`RegionError::NotReservable`]: all is as the snapshot, but a region with a reservation could not set blocks
    /// aside again in place of those that its forks and snapshots keep.
    pub fn reset_to(&self, snapshot: &Snapshot) -> Result<(), ResetError> {
        let may_reset = check_owner().and_then(|()| check_cut([self.core()].into_iter()));
        may_reset.map_err(|reason| ResetError { done: 0, reason })?;
        self.core().reset_to(snapshot.core())
    }

    /// Tells hugefork how the program will use each block after its first write. That decides what stays in the cache,
    /// and whether a fault prepares the next blocks too. Takes effect at the next fault, in all threads.
    pub fn advise(&self, advice: Advice) {
        self.core().habits.advise(advice);
    }

    /// Counts, and bytes of memory. Takes some nanoseconds a block.
    pub fn stats(&self) -> RegionStats {
        RegionStats::of(self.core())
    }
}

impl Pool {
    /// A region of `len` bytes that reads as zeros. It takes a block from the pool when that is first written to, or
    /// all of them by [`Region::populate`].
    ///
    /// Regions may together be larger than the pool. The write that then finds no block left fails loudly.
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

    /// As [`Pool::region`], with a reservation or a limit on what forks and snapshots may cost.
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
    /// A region that starts as this snapshot.
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        self.fork_with(RegionOptions::new())
    }

    /// As [`Snapshot::fork`], with a reservation or a limit of its own.
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
