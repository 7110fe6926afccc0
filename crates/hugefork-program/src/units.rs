//! Sizes in bytes.

/// A base page.
pub(crate) const BASE_PAGE: usize = 4 << 10;

/// A huge page, which is a block.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
