//! Ranges of addresses that have an owner. A call that changes mappings takes one of these as a proof of the right to
//! do so.

use core::marker::PhantomData;

/// A range of addresses that was set aside for one owner. It proves that the mappings there may be replaced: no two
/// extents overlap, and nothing else of the program lies there.
#[derive(Debug)]
pub(crate) struct Extent {
    base: usize,
    len: usize,
}

/// A part of an [`Extent`], which it borrows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    at: usize,
    len: usize,
    extent: PhantomData<&'a Extent>,
}

impl Extent {
    /// # Safety
    /// The range was set aside for this value alone, until it is released.
    pub(crate) unsafe fn new(base: usize, len: usize) -> Extent {
        Extent { base, len }
    }

    /// The first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `len` bytes from byte `offset` on.
    ///
    /// # Panics
    /// If these bytes do not lie inside the extent.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Part<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "a part of an extent lies inside it");
        Part { at: self.base + offset, len, extent: PhantomData }
    }
}

impl<'a> Part<'a> {
    /// `len` of the part's bytes from byte `offset` on.
    ///
    /// # Panics
    /// If these bytes do not lie inside the part.
    pub(crate) fn part(self, offset: usize, len: usize) -> Part<'a> {
        assert!(offset <= self.len && len <= self.len - offset, "a part of a part lies inside it");
        Part { at: self.at + offset, len, extent: PhantomData }
    }

    /// The first address.
    pub(crate) fn at(self) -> usize {
        self.at
    }

    /// Length in bytes.
    pub(crate) fn len(self) -> usize {
        self.len
    }
}
