//! The sizes of pages on the machines that hugefork runs on.

/// A huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The pages that huge pages are made of.
pub(crate) const BASE_PAGE: usize = 4096;
