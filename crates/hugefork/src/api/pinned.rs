//! [`Pinned`]: a range of a region that stays where it is.

use std::fmt;
use std::ops::Range;

use super::region::Region;

/// Blocks of a region that stay where they are until this is dropped, see [`Region::pin`].
#[must_use = "the range is pinned until this is dropped"]
pub struct Pinned<'a> {
    region: &'a Region,
    range: Range<usize>,
}

impl<'a> Pinned<'a> {
    pub(crate) fn new(region: &'a Region, range: Range<usize>) -> Pinned<'a> {
        Pinned { region, range }
    }

    /// The bytes asked for; the blocks that they touch are pinned as a whole.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The first of them: good for reading, writing, system calls and physical use while this lives, also while a fork or
    /// snapshot is being taken.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_mut_ptr().wrapping_add(self.range.start)
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.region.unpin(&self.range);
    }
}
