//! The sizes of pages on the machines that hugefork runs on.

/// A huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// A base page; 512 of them fit into a huge page.
pub(crate) const BASE_PAGE: usize = 4096;
