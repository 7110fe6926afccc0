//! What a cut knows of each region that it goes through.

use std::cell::{Cell, RefCell};

use super::ahead::Look;
use crate::mem::pinned::PinnedBox;
use crate::mem::{EngineVec, Own};
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::Sys;
use crate::units::EntryIndex;

/// A region, and the snapshot that is to hold its blocks.
pub(crate) struct Part<'a, S: Sys> {
    pub(crate) region: &'a RegionCore<S>,
    pub(crate) frozen: PinnedBox<SnapshotCore<S>>,
    /// Whether all pages of CoW mappings that are write-protected were looked at ahead.
    pub(crate) is_looked_at: bool,
    pub(crate) keeps: Keeps,
    /// While other threads have had as many page faults, nothing was written since it was captured.
    pub(super) faults: Cell<Option<u64>>,
    /// The entries that are captured behind the pause: CoW mappings that may have pages that were not looked at.
    pub(super) behind: RefCell<EngineVec<usize>>,
}

impl<'a, S: Sys> Part<'a, S> {
    pub(crate) fn new(
        region: &'a RegionCore<S>,
        frozen: PinnedBox<SnapshotCore<S>>,
        is_looked_at: bool,
        look: Option<&Look>,
    ) -> Part<'a, S> {
        let keeps = if look.is_some() { Keeps::Writable } else { Keeps::Protected };
        let (faults, behind) = (Cell::new(look.and_then(|look| look.faults)), RefCell::new(EngineVec::new_in(Own)));
        Part { region, frozen, is_looked_at, keeps, faults, behind }
    }

    /// Whether other threads may have had page faults since this was last asked.
    pub(super) fn are_more_faults(&self) -> bool {
        let now = self.region.pool().sys.faults_of_others();
        self.faults.replace(now) != now || now.is_none()
    }

    /// Notes that a CoW mapping, which is write-protected, may have pages that were not captured.
    pub(super) fn leave_for_later(&self, index: EntryIndex) {
        self.behind.borrow_mut().push(index.0);
    }
}

/// What happens in a cut to CoW mappings that can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// They are write-protected, and what has become private since the look ahead is copied.
    Protected,
    /// They stay as they are, but for those where a page was written since it was captured: these are write-protected,
    /// which takes 30 us for 2 MiB of private pages, and captured behind the pause.
    Writable,
}
