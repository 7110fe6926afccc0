//! [`Export`]: a snapshot for other processes, without a copy or as a sealed one.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use super::pool::{Pool, check_owner};
use super::snapshot::Snapshot;
use crate::mem::pinned::PinnedBox;
use crate::snapshot::core::SnapshotCore;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::sys::linux::share::{Descriptor, Unsealed};
use crate::types::error::RegionError;
use crate::types::extents::Extents;

/// A snapshot that other processes can map: a descriptor, and which bytes of the snapshot lie where in it.
///
/// The other process gets the descriptor as it gets any other (inherited, or over a Unix socket) and the
/// [`Extents`] as text. Then [`Imported::map`](crate::Imported::map) maps it, or any program does with `mmap(2)`,
/// `MAP_PRIVATE` and each extent's offsets. What it writes there is copied page by page, and stays with it. So many
/// processes share the memory of one snapshot.
///
/// Pages that the snapshot holds over a block that others hold too ([`Snapshot`]) are extents of their own, so two for
/// each such page. A mapping for each would soon be more than a process may have: [`Imported`](crate::Imported) maps
/// the blocks, and copies single pages. A program that has no hugefork can do likewise, or read with `pread(2)`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::fd::AsFd;
/// use std::process::{Command, Stdio};
/// let pool = hugefork::Pool::builder().capacity(8 << 20).exports(true).build()?;
/// let mut state = pool.region(4 << 20)?;
/// state.as_mut_slice()[..5].copy_from_slice(b"hello");
/// let export = state.snapshot()?.export()?;
/// // A program that maps nothing can read it, too.
/// let start = export.extents().iter().next().unwrap().file_offset;
/// let mut child = Command::new("tail");
/// child.arg("--bytes").arg(format!("+{}", start + 1)).stdin(export.as_fd().try_clone_to_owned()?);
/// let mut child = child.stdout(Stdio::piped()).spawn()?;
/// let mut found = [0; 5];
/// std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut found)?;
/// assert_eq!(&found, b"hello");
/// # child.kill()?;
/// # child.wait()?;
/// # Ok(())
/// # }
/// ```
///
/// # How long it lasts
/// An export holds the blocks and pages of the snapshot, which may be dropped. When the export is dropped, they may be
/// written to again, and processes that still map them see that; nothing worse happens to them. If the exporting
/// process ends, the memory stays as it is for as long as anybody has the descriptor or maps it.
///
/// Nothing is ever taken away from an export ([`Snapshot::is_revoked`]), since nobody can tell the other process. A
/// write that finds the pool full, and would need a block that an export holds, fails as if no fork or snapshot could
/// give one. With [`CopyGrain::Auto`](crate::CopyGrain) and single pages it goes through all the same, by page.
///
/// # Who can see and change what
/// The descriptor of [`Snapshot::export`] is open for reading only. Through it nobody can write, map writable and
/// shared, punch holes, or change the length; and it cannot be opened anew for writing (mode 0444). It reaches *all* of
/// the pool: other regions, and what is left in free blocks. So have one pool for each trust domain, or give out
/// [`Snapshot::export_copy`]. A process with the user id of the one that built the pool can change the mode of the file
/// and then open it for writing, as it can write to this process's memory (`ptrace(2)`); so can root. Who reads outside
/// the extents makes holes in the pool's memory take memory.
///
/// A copy's descriptor is sealed (`F_SEAL_WRITE`, `fcntl(2)`): nobody can ever change it, not even root.
///
/// # Threads, `fork(2)`
/// Any thread may use it. A child of `fork(2)` has the descriptor and may map it; that it drops the export has no
/// effect. A child of `exec` has it only if it is handed on: it is `O_CLOEXEC`.
pub struct Export {
    file: Descriptor,
    extents: Extents,
    /// What keeps the blocks and pages, if it is no copy. Taken out only to be left behind in a `fork(2)` child.
    core: Option<PinnedBox<SnapshotCore<Linux>>>,
    pool: Pool,
}

impl Export {
    /// Which bytes lie where, and which are zeros.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The pool that its blocks belong to, or were copied from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl AsFd for Export {
    /// The descriptor, good for reading.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Snapshot {
    /// Has other processes read the snapshot where it is. Copies nothing: takes some 80 us, and some nanoseconds for
    /// each block and each page over one. [`Export`] says what others can do with it, and what it keeps the pool from.
    ///
    /// # Errors
    /// [`RegionError::NotExportable`] of a pool that was built without [`exports(true)`](crate::PoolBuilder::exports),
    /// where `/proc` is not mounted, or the descriptors of the process are used up.
    /// [`RegionError::Revoked`] if a part was taken away. [`RegionError::ForkedChild`].
    pub fn export(&self) -> Result<Export, RegionError> {
        check_owner()?;
        let core = self.core().keep()?;
        let sys = &self.pool().core.sys;
        let file = sys.open_for_reading().map_err(|source| RegionError::NotExportable { source })?;
        let extents = core.extents(sys.page_size());
        Ok(Export { file, extents, core: Some(core), pool: self.pool().clone() })
    }

    /// A copy for other processes, which shows them nothing else and which nobody can ever change. It is memory of its
    /// own (a sealed memfd of base pages), takes some 0.3 s for each GiB, and holds no block of the pool. Pages of
    /// zeros take none.
    ///
    /// # Errors
    /// [`RegionError::Revoked`] if a part was taken away. [`RegionError::System`] if the machine has not that much
    /// memory, or the process may not have it (`RLIMIT_FSIZE`). [`RegionError::ForkedChild`].
    pub fn export_copy(&self) -> Result<Export, RegionError> {
        self.export_copy_with(|_| {})
    }

    /// As [`Snapshot::export_copy`]. After each 64 MiB it calls `progress` with the bytes that are done.
    ///
    /// # Errors
    /// Those of [`Snapshot::export_copy`].
    ///
    /// # Panics
    /// If `progress` does, which ends the work; the copy is gone then.
    pub fn export_copy_with(&self, mut progress: impl FnMut(usize)) -> Result<Export, RegionError> {
        const STEP: usize = 64 << 20;
        check_owner()?;
        let copy = Unsealed::new(self.len())?;
        let tell = |done: usize| {
            if done.is_multiple_of(STEP) || done == self.len() {
                progress(done);
            }
        };
        let extents = self.core().copy_to(|bytes, offset| Ok(copy.write(bytes, offset)?), tell)?;
        Ok(Export { file: copy.seal()?, extents, core: None, pool: self.pool().clone() })
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("file", &self.file)
            .field("len", &self.extents.len())
            .field("extents", &self.extents.iter().len())
            .field("pool", &self.pool.name())
            .finish_non_exhaustive()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if owner::is_forked_child() {
            std::mem::forget(self.core.take());
        }
    }
}
