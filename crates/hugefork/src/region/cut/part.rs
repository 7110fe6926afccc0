//! The state of a cut for each of its regions.

use std::cell::{Cell, RefCell};

use crate::mem::pinned::PinnedBox;
use crate::mem::{EngineVec, Own};
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::Sys;
use crate::units::EntryIndex;

/// The result of the scans ahead.
pub(crate) struct Look {
    /// The number of page faults that other threads had had when the last scan began, if that is known. All private
    /// pages have marks by now, so while that number stays the same, no page was written.
    pub(super) faults: Option<u64>,
}

/// A region, and the snapshot that gets its blocks.
pub(crate) struct Part<'a, S: Sys> {
    pub(super) region: &'a RegionCore<S>,
    pub(crate) frozen: PinnedBox<SnapshotCore<S>>,
    /// Whether all pages of write-protected CoW mappings were scanned ahead.
    pub(super) is_looked_at: bool,
    pub(super) keeps: Keeps,
    /// The number of page faults of other threads at the last check. While it stays the same, nothing was written since
    /// the pages were captured.
    pub(super) faults: Cell<Option<u64>>,
    /// The entries that are captured behind the pause: CoW mappings that may have pages that no scan has found.
    pub(super) behind: RefCell<EngineVec<usize>>,
}

impl<'a, S: Sys> Part<'a, S> {
    pub(crate) fn new(
        region: &'a RegionCore<S>,
        frozen: PinnedBox<SnapshotCore<S>>,
        look: Option<Look>,
    ) -> Part<'a, S> {
        let keeps = if look.is_some() { Keeps::Writable } else { Keeps::Protected };
        let (faults, behind) = (Cell::new(look.and_then(|look| look.faults)), RefCell::new(EngineVec::new_in(Own)));
        Part { region, frozen, is_looked_at: true, keeps, faults, behind }
    }

    /// Whether other threads may have had page faults since the last call.
    pub(super) fn are_more_faults(&self) -> bool {
        let now = self.region.pool().sys.faults_of_others();
        self.faults.replace(now) != now || now.is_none()
    }

    /// Notes that a write-protected CoW mapping may have pages that were not captured.
    pub(super) fn leave_for_later(&self, index: EntryIndex) {
        self.behind.borrow_mut().push(index.0);
    }
}

/// The way in which a cut treats writable CoW mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// It write-protects them, and copies the pages that have become private since the scans ahead.
    Protected,
    /// It leaves them writable, except those with a page that was written since it was captured. The cut write-protects
    /// these, which takes 30 us for 2 MiB of private pages, and captures them behind the pause.
    Writable,
}
