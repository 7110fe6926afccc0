//! [`Export`]: a snapshot for other processes, without a copy or as a sealed one.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use super::pool::{Pool, check_owner};
use super::snapshot::Snapshot;
use crate::mem::pinned::PinnedBox;
use crate::snapshot::core::SnapshotCore;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::share::{Descriptor, Unsealed};
use crate::types::error::RegionError;
use crate::types::extents::Extents;

/// A snapshot that other processes can map: a descriptor, and a list that maps the bytes of the snapshot to offsets in
/// its file.
///
/// The other process gets the descriptor like any other (inherited, or over a Unix socket) and the [`Extents`] as text.
/// It maps the snapshot by [`Imported::map`](crate::Imported::map), or without hugefork by `mmap(2)`, `MAP_PRIVATE` and
/// the offsets of each extent. Its writes copy single pages and are private to it. So many processes share the memory
/// of one snapshot.
///
/// A page that the snapshot holds in place of a page of a shared block ([`Snapshot`]) is an extent of its own, and
/// splits its block into further extents, so it adds two. A mapping for each would soon exceed the process's limit:
/// [`Imported`](crate::Imported) maps the blocks, and copies single pages. A program without hugefork can do the same,
/// or read with `pread(2)`.
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
/// # Lifetime
/// An export holds the blocks and pages of the snapshot, which may be dropped. After the export is dropped, they may be
/// overwritten, and processes that still map them see the new bytes; nothing worse happens to them. If the exporting
/// process ends, the memory does not change as long as any process has the descriptor or maps it.
///
/// An export is never revoked ([`Snapshot::is_revoked`]), since the other process could not be informed. If the pool is
/// full and a write needs a block that an export holds, the write fails. With [`CopyGrain::Auto`](crate::CopyGrain) and
/// single pages the write succeeds by copying a page.
///
/// # Access
/// The descriptor of [`Snapshot::export`] is read-only. No process can use it to write, to map writable and shared, to
/// punch holes, or to change the length; and it cannot be reopened for writing (mode 0444). It gives access to *all*
/// memory of the pool: other regions, and old contents of free blocks. So use one pool for each trust domain, or
/// [`Snapshot::export_copy`]. A process with the user id of the one that built the pool can change the mode of the file
/// and then open it for writing, as it can write to this process's memory (`ptrace(2)`); so can root. Reads outside of
/// the extents allocate memory for holes in the pool.
///
/// A copy's descriptor is sealed (`F_SEAL_WRITE`, `fcntl(2)`): no process can ever change it, not even root.
///
/// # Threads, `fork(2)`
/// Any thread may use it. A child of `fork(2)` has the descriptor and may map it; dropping the export in the child has
/// no effect. A child of `exec` gets it only if it is passed on: it is `O_CLOEXEC`.
pub struct Export {
    file: Descriptor,
    extents: Extents,
    /// Holds the blocks and pages, unless the export is a copy.
    _core: Option<PinnedBox<SnapshotCore<Linux>>>,
    pool: Pool,
}

impl Export {
    /// The list of extents; all other bytes are zeros.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The pool of its blocks, or the pool that they were copied from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl AsFd for Export {
    /// The descriptor, for reading.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Snapshot {
    /// Exports the snapshot to other processes without copying it. Takes some 80 us, and some nanoseconds for each
    /// block and each page held in place of a block's page. [`Export`] describes the access of other processes, and the
    /// blocks that it holds.
    ///
    /// # Errors
    /// [`RegionError::NotExportable`] for a pool that was built without [`exports(true)`](crate::PoolBuilder::exports),
    /// if `/proc` is not mounted, or if the process has no descriptor left. [`RegionError::Revoked`] if a part was
    /// revoked. [`RegionError::ForkedChild`].
    pub fn export(&self) -> Result<Export, RegionError> {
        check_owner()?;
        let core = self.core().keep()?;
        let sys = &self.pool().core.sys;
        let file = sys.open_for_reading().map_err(|source| RegionError::NotExportable { source })?;
        let extents = core.extents(sys.page_size());
        let core = Some(core).filter(|_| !seeded!("export-frees-its-blocks-early"));
        Ok(Export { file, extents, _core: core, pool: self.pool().clone() })
    }

    /// Exports a copy, which gives access to nothing else and which no process can ever change. It takes memory of its
    /// own (a sealed memfd of base pages; none for pages of zeros) and some 0.3 s for each GiB, and holds no block of
    /// the pool.
    ///
    /// # Errors
    /// [`RegionError::Revoked`] if a part was revoked. [`RegionError::System`] if the machine has too little memory, or
    /// `RLIMIT_FSIZE` is too low. [`RegionError::ForkedChild`].
    pub fn export_copy(&self) -> Result<Export, RegionError> {
        self.export_copy_with(|_| {})
    }

    /// Like [`Snapshot::export_copy`]. After each 64 MiB it calls `progress` with the number of finished bytes.
    ///
    /// # Errors
    /// Those of [`Snapshot::export_copy`].
    ///
    /// # Panics
    /// If `progress` panics, which ends the work and drops the copy.
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
        Ok(Export { file: copy.seal()?, extents, _core: None, pool: self.pool().clone() })
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
