//! [`Imported`]: another process's export, mapped in this process.

use std::fmt;
use std::iter::once;
use std::os::fd::AsFd;

use super::placing::Placing;
use crate::sys::linux::share::{PrivateMemory, Stretch, guarantees_of};
use crate::sys::{SystemError, answer};
use crate::types::error::ImportError;
use crate::types::extents::{Extent, Extents};

/// Another process's snapshot at an address of this process. Writes copy single pages and are private to this process.
///
/// It needs no pool, and works in any process that has the descriptor and the [`Extents`] of an
/// [`Export`](crate::Export), also in a child of `fork(2)`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).exports(true).build()?;
/// # let mut state = pool.region(4 << 20)?;
/// # state.as_mut_slice()[..5].copy_from_slice(b"hello");
/// # let export = state.snapshot()?.export()?;
/// # let (descriptor, text) = (&export, export.extents().to_string());
/// use hugefork::{Extents, Imported};
/// let extents: Extents = text.parse()?; // from a pipe, a file, the command line
/// let imported = Imported::map(descriptor, &extents)?; // inherited, or from a socket
/// let mut found = [0; 5];
/// imported.read_at(0, &mut found)?;
/// assert_eq!(&found, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// # Changes
/// The exporting process does not change the memory as long as it has its [`Export`](crate::Export). When it drops
/// that, bytes that this process has not written to may change. So they are available as `&[u8]` only if no process can
/// change them ([`Imported::sealed`]), or to callers who promise that ([`Imported::bytes`]).
pub struct Imported {
    memory: PrivateMemory,
    is_sealed: bool,
    /// Whether a load may find a missing page.
    may_lack_pages: bool,
}

impl Imported {
    /// Maps the extents, with one mapping for each and one for each gap between two of them, and zeros in the gaps. It
    /// takes some 2 us for each, and no memory. Single pages between parts of a block are copied instead, each in some
    /// 6 us to 4 KiB of this process's memory, and take no mapping. The address is a multiple of 2 MiB, or of
    /// [`Extents::page_size`] if that is larger. The descriptor may be closed afterwards.
    ///
    /// A descriptor of a file that may shrink is refused, unless it cannot be sealed: that of a pool in a [tmpfs of its
    /// own](crate::Granted::ShmemOwnTmpfs), which only processes of its user can shrink. In that case
    /// [`Imported::read_at`] returns an error for missing bytes, and a plain load raises `SIGBUS`. A hugetlb file with
    /// missing pages is refused, too. If the pool has hugetlb pages, a write takes a whole reserved page of the system,
    /// and raises `SIGBUS` if none is left.
    ///
    /// # Errors
    /// [`ImportError::NotAnExport`], [`ImportError::TooShort`], [`ImportError::OtherPages`],
    /// [`ImportError::TooManyMappings`], [`ImportError::NoPages`], [`ImportError::System`].
    pub fn map(descriptor: impl AsFd, extents: &Extents) -> Result<Imported, ImportError> {
        let fd = descriptor.as_fd();
        let guarantees = guarantees_of(fd)?.ok_or(ImportError::NotAnExport)?;
        if (extents.file_len() as u64) > guarantees.len {
            return Err(ImportError::TooShort { needed: extents.file_len(), len: guarantees.len });
        }
        if let Some(page) = guarantees.hugetlb.filter(|page| !extents.page_size().is_multiple_of(*page)) {
            // The kernel would map more than the extents, over the memory after them.
            return Err(ImportError::OtherPages { page: extents.page_size(), of_file: page });
        }
        let refused = |source: SystemError| match source.raw_os_error() {
            answer::OUT_OF_MEMORY => ImportError::TooManyMappings { extents: extents.iter().len(), source },
            _ => ImportError::System(source),
        };
        let Placing { mapped, copied } = Placing::of(extents, guarantees.memory);
        let stretches = stretches(extents.len(), &mapped);
        let mut memory = PrivateMemory::of(fd, extents.page_size(), stretches.clone()).map_err(refused)?;
        if guarantees.hugetlb.is_some() {
            memory.get_pages(stretches).map_err(no_pages)?;
        }
        for Extent { offset, file_offset, len } in copied {
            memory.copy_in(fd, offset..offset + len, file_offset).map_err(no_pages)?;
        }
        // No process can remove pages from a sealed file.
        let may_lack_pages = guarantees.may_shrink || guarantees.hugetlb.is_some() && !guarantees.is_sealed;
        Ok(Imported { memory, is_sealed: guarantees.is_sealed, may_lack_pages })
    }

    /// Length in bytes, the same as the snapshot's.
    #[allow(clippy::len_without_is_empty)] // A snapshot is never empty.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// The first byte, for reads.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    /// The first byte. The pointer is valid for [`Imported::len`] bytes as long as this lives.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.at()
    }

    /// Copies the bytes from `offset` on into `to`. If the exporting process has hugetlb pages, or a tmpfs of its own,
    /// the kernel copies them (`process_vm_readv(2)`), since that process may have dropped its
    /// [`Export`](crate::Export) and freed the pages.
    ///
    /// # Errors
    /// [`ImportError::OutOfRange`] unless `offset..offset + to.len()` lies inside. [`ImportError::NoPages`] and
    /// [`ImportError::System`] if the kernel cannot copy; then some bytes of `to` may have changed.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), ImportError> {
        let end = offset.saturating_add(to.len());
        if end > self.len() {
            return Err(ImportError::OutOfRange { start: offset, end, len: self.len() });
        }
        if self.may_lack_pages {
            return self.memory.try_read(offset, to).map_err(no_pages);
        }
        self.memory.read(offset, to);
        Ok(())
    }

    /// The bytes, if no other process can ever change them: those of an export that is a copy
    /// ([`Snapshot::export_copy`](crate::Snapshot::export_copy)). Users of [`Imported::as_mut_ptr`] in this process
    /// must not change them during the borrow.
    pub fn sealed(&self) -> Option<&[u8]> {
        // SAFETY: all of it is readable, no process can write to the file, and code in this process that writes by
        // pointer is responsible for it.
        self.is_sealed.then(|| unsafe { self.bytes() })
    }

    /// The bytes.
    ///
    /// # Safety
    /// For the duration of the borrow: the exporting process keeps its [`Export`](crate::Export), unless it is a copy;
    /// no process shrinks its file (a read of freed hugetlb pages, or past the end, raises `SIGBUS`); no process with
    /// the right to write to its memory does so ([`Export`](crate::Export) says which ones have it); and no code in
    /// this process writes by [`Imported::as_mut_ptr`].
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: all of it is readable as long as this lives; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The bytes, writable. A write copies the page to this process's memory.
    ///
    /// # Safety
    /// As for [`Imported::bytes`].
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }
}

/// The reason why the mapped bytes cannot be read.
fn no_pages(source: SystemError) -> ImportError {
    match source.raw_os_error() {
        answer::BAD_ADDRESS | answer::OUT_OF_MEMORY => ImportError::NoPages { source },
        _ => ImportError::System(source),
    }
}

/// The mapped extents, and the zeros between them and up to `len`.
fn stretches(len: usize, mapped: &[Extent]) -> impl Iterator<Item = Stretch> + Clone {
    let ends = once(0).chain(mapped.iter().map(|extent| extent.offset + extent.len));
    let next = mapped.iter().copied().map(Some).chain(once(None));
    let of = move |(end, next): (usize, Option<Extent>)| {
        let hole = Stretch { len: next.map_or(len, |extent| extent.offset) - end, file_offset: None };
        let extent = next.map(|extent| Stretch { len: extent.len, file_offset: Some(extent.file_offset) });
        [Some(hole).filter(|hole| hole.len > 0), extent].into_iter().flatten()
    };
    ends.zip(next).flat_map(of)
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported")
            .field("at", &self.as_ptr())
            .field("len", &self.len())
            .field("is_sealed", &self.is_sealed)
            .finish_non_exhaustive()
    }
}
