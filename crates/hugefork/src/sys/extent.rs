//! Addresses with an owner: what the door to the system asks for before it changes what is mapped.

use core::marker::PhantomData;

/// A range of addresses that was set aside for one owner. Holding it is the proof that what is mapped there may be replaced: no two
/// extents overlap, and nothing else of the program is there.
#[derive(Debug)]
pub(crate) struct Extent {
    base: usize,
    len: usize,
}

/// A part of an [`Extent`], for as long as that is there.
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
    /// If they do not lie inside.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Part<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "a part of an extent lies inside of it");
        Part { at: self.base + offset, len, extent: PhantomData }
    }
}

impl Part<'_> {
    /// The first address.
    pub(crate) fn at(self) -> usize {
        self.at
    }

    /// Length in bytes.
    pub(crate) fn len(self) -> usize {
        self.len
    }
}
