//! Blocks that `prepare_write` has prepared: no write there faults until the next fork, snapshot or reset.
//!
//! Where they are shown by page, they are not write-protected until then: a system call that writes would fail
//! meanwhile.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::mem::{self, EngineBox};
use crate::table::Locked;
use crate::units::EntryIndex;

/// The prepared blocks of one region: a byte a block, allocated at the first call.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    marks: OnceLock<EngineBox<[AtomicU8]>>,
    any: AtomicBool,
}

impl Prepared {
    /// Makes room for `entries` entries. Allocates, so no lock may be held.
    pub(in crate::region) fn prepare(&self, entries: usize) {
        self.marks.get_or_init(|| mem::zeroed(entries));
    }

    /// Notes that writes to `entries` do not fault.
    pub(in crate::region) fn add(&self, _locked: Locked<'_>, entries: Range<usize>) {
        self.any.store(true, Ordering::Relaxed);
        let marks = self.marks.get().map_or(&[][..], |marks| &marks[entries]);
        marks.iter().for_each(|mark| mark.store(1, Ordering::Relaxed));
    }

    /// Whether writes to the block at `index` are prepared. Under its window's lock this stays so.
    pub(in crate::region) fn has(&self, index: EntryIndex) -> bool {
        let is_marked = |marks: &EngineBox<[AtomicU8]>| marks[index.0].load(Ordering::Relaxed) == 1;
        self.any.load(Ordering::Relaxed) && self.marks.get().is_some_and(is_marked)
    }

    /// Ends them all.
    pub(in crate::region) fn end(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            let marks = self.marks.get().map_or(&[][..], |marks| &marks[..]);
            marks.iter().for_each(|mark| mark.store(0, Ordering::Relaxed));
        }
    }

    /// Bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.marks.get().map_or(0, |marks| marks.len())
    }
}
