//! [`InChild`]: work in a child of `fork(2)` that has older snapshots at the addresses of their regions.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

use super::cut::is_any_twice;
use super::pool::check_owner_and_addresses;
use super::region::Region;
use super::snapshot::Snapshot;
use crate::mem::{EngineVec, Own};
use crate::region::children;
use crate::sys::SystemError;
use crate::sys::linux::answer::Answer;
use crate::sys::linux::owner;
use crate::types::error::RegionError;

/// The kinds of an answer.
const RETURNED: u8 = 1;
const PANICKED: u8 = 2;

/// A child of `fork(2)` that was made by [`Region::in_child`]. As with [`std::process::Child`], the child goes on when
/// this is dropped, and remains a zombie after its end.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use hugefork::{Children, Pool, Region};
/// # let pool = Pool::builder().capacity(8 << 20).children(Children::Inherit).build()?;
/// # let region = pool.region(2 << 20)?;
/// # let saved = region.snapshot()?;
/// // SAFETY: this process has one thread.
/// let child = unsafe { Region::in_child(&[(&region, &saved)], || panic!("no disk")) }?;
/// assert!(child.id() > 0);
/// assert_eq!(child.wait().unwrap_err().to_string(), "the child has panicked: no disk");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "`wait` for it: the child remains a zombie otherwise"]
pub struct InChild {
    pid: i32,
    answer: Answer,
    /// Once it was waited for.
    ended: Option<ExitStatus>,
}

impl Region {
    /// Forks a child in which each region of `pairs` is as the snapshot beside it, at the region's own addresses.
    /// Pointers into the region hold there, so a child can save yesterday's hash map while this process goes on with
    /// today's. The child calls `work`, leaves its result for [`InChild::wait`], and ends without running destructors
    /// or `atexit` functions. The other regions of pools with [`Children::Inherit`](crate::Children::Inherit) are there
    /// as in any child.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use hugefork::{Children, Pool, Region};
    /// let pool = Pool::builder().capacity(64 << 20).children(Children::Inherit).build()?;
    /// let region = pool.region(2 << 20)?;
    /// let words = region.as_atomic_u64s();
    /// words[0].store(1, std::sync::atomic::Ordering::Relaxed);
    /// let yesterday = region.snapshot()?;
    /// words[0].store(2, std::sync::atomic::Ordering::Relaxed);
    /// // SAFETY: this process has one thread.
    /// let child = unsafe {
    ///     Region::in_child(&[(&region, &yesterday)], || words[0].as_ptr().read().to_le_bytes().into())?
    /// };
    /// words[0].store(3, std::sync::atomic::Ordering::Relaxed);
    /// assert_eq!(child.wait()?, 1u64.to_le_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The child has one thread, a copy of the calling one. If the process has others, a lock that one of them holds at
    /// the fork is held in the child for ever, so `work` may use no such lock. That of the C library's allocator is
    /// free in a child, other allocators say whether theirs is. References from before the fork lead to the memory of
    /// the snapshot: `work` must not rely on later contents. A value in the region may own memory outside of it, such
    /// as the bytes of a `String` that was made outside of [`Heap::scope`](crate::Heap::scope). This process may have
    /// freed such memory since the snapshot, so `work` must neither read nor drop it.
    ///
    /// # Costs
    /// Threads that write wait for the whole call of `fork(2)`, which copies the page tables of all memory outside of
    /// pools: 11 ms for 300 MiB of base pages (2-CPU EPYC VM, Linux 6.18), and .2 to .8 ms with little of it. So large
    /// data belong in pools.
    ///
    /// # Errors
    /// [`RegionError::NotExportable`] for a pool without [`Children::Inherit`](crate::Children::Inherit), or if the
    /// process has closed the pool's descriptor. [`RegionError::AnotherPool`], [`RegionError::AnotherLength`],
    /// [`RegionError::Revoked`], those of [`Region::snapshot_all`], and [`RegionError::System`] if `fork(2)` or
    /// `memfd_create(2)` fails. [`RegionError::ForkedChild`].
    ///
    /// # Panics
    /// If a region occurs twice.
    pub unsafe fn in_child(
        pairs: &[(&Region, &Snapshot)],
        work: impl FnOnce() -> Vec<u8>,
    ) -> Result<InChild, RegionError> {
        let answer = Answer::new()?;
        // SAFETY: the caller answers for the child.
        match fork_with(pairs, || unsafe { owner::fork() })? {
            0 => answer_and_end(&answer, work),
            pid => Ok(InChild { pid, answer, ended: None }),
        }
    }

    /// Calls `fork`, which forks this process in its own way: an interpreter has locks to look after. It returns 0 in
    /// the child and the child's number in the parent, and so does this function. The child has the snapshots as that
    /// of [`Region::in_child`] does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use hugefork::{Children, Pool, Region};
    /// # let pool = Pool::builder().capacity(8 << 20).children(Children::Inherit).build()?;
    /// # let region = pool.region(2 << 20)?;
    /// # let saved = region.snapshot()?;
    /// let fork = || match unsafe { libc::fork() } {
    ///     -1 => Err(std::io::Error::last_os_error()),
    ///     child => Ok(child),
    /// };
    /// // SAFETY: this process has one thread.
    /// match unsafe { Region::fork_process_with(&[(&region, &saved)], fork) }? {
    ///     0 => unsafe { libc::_exit(7) },
    ///     child => {
    ///         let mut status = 0;
    ///         unsafe { libc::waitpid(child, &raw mut status, 0) };
    ///         assert_eq!(libc::WEXITSTATUS(status), 7);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The contract of [`Region::in_child`], for all that the caller does in the child.
    ///
    /// # Errors
    /// Those of [`Region::in_child`]. If the child cannot have the snapshots, it has ended, and was waited for.
    ///
    /// # Panics
    /// If a region occurs twice.
    pub unsafe fn fork_process_with(
        pairs: &[(&Region, &Snapshot)],
        fork: impl FnOnce() -> io::Result<i32>,
    ) -> Result<i32, RegionError> {
        fork_with(pairs, || fork().map_err(|error| SystemError::from_io("fork", &error)))
    }
}

fn fork_with(
    pairs: &[(&Region, &Snapshot)],
    fork: impl FnOnce() -> Result<i32, SystemError>,
) -> Result<i32, RegionError> {
    check_owner_and_addresses()?;
    let mut cores = EngineVec::with_capacity_in(pairs.len(), Own);
    for (region, snapshot) in pairs {
        region.core().check_fits(snapshot.core())?;
        cores.push((region.core(), snapshot.core()));
    }
    assert!(!is_any_twice(pairs.iter().map(|(region, _)| *region)), "a region is named twice: it can have one content");
    children::fork_with(&cores, fork)
}

/// In the child.
fn answer_and_end(answer: &Answer, work: impl FnOnce() -> Vec<u8>) -> ! {
    let (kind, bytes) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(bytes) => (RETURNED, bytes),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
            (PANICKED, text.as_bytes().to_vec())
        }
    };
    owner::end(i32::from(answer.write(kind, &bytes).is_err()))
}

impl InChild {
    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Waits for the end of the child. Returns the bytes that its work has returned.
    ///
    /// # Errors
    /// If the work has panicked, with the text of the panic. If the child has ended in another way, or its work has
    /// closed all descriptors, with its exit status. If the answer cannot be read, because this process has closed all
    /// descriptors.
    pub fn wait(self) -> io::Result<Vec<u8>> {
        let status = self.ended.unwrap_or_else(|| ExitStatus::from_raw(owner::wait_for(self.pid)));
        self.result(status)
    }

    /// As [`InChild::wait`], but returns `None` at once if the child has not ended. Later calls return the same bytes
    /// or error again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use hugefork::{Children, Pool, Region};
    /// # let pool = Pool::builder().capacity(8 << 20).children(Children::Inherit).build()?;
    /// # let region = pool.region(2 << 20)?;
    /// # let saved = region.snapshot()?;
    /// // SAFETY: this process has one thread.
    /// let mut child = unsafe { Region::in_child(&[(&region, &saved)], || vec![7]) }?;
    /// let result = loop {
    ///     match child.try_wait()? {
    ///         Some(result) => break result,
    ///         None => std::thread::yield_now(), // or other work
    ///     }
    /// };
    /// assert_eq!(result, [7]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`InChild::wait`].
    pub fn try_wait(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.ended = self.ended.or_else(|| owner::try_wait_for(self.pid).map(ExitStatus::from_raw));
        self.ended.map(|status| self.result(status)).transpose()
    }

    fn result(&self, status: ExitStatus) -> io::Result<Vec<u8>> {
        match self.answer.read()? {
            Some((RETURNED, bytes)) if status.success() => Ok(bytes),
            Some((PANICKED, text)) => {
                Err(io::Error::other(format!("the child has panicked: {}", String::from_utf8_lossy(&text))))
            }
            _ => Err(io::Error::other(format!("the child has ended without an answer: {status}"))),
        }
    }
}
