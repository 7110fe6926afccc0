//! Un-copy: private pages that equal what the block below has are dropped, while others hold the block too.
//!
//! ```text
//!   which pages are private? ─▶ keep writers off ─▶ compare some with the block's ─▶ drop those that equal ─▶ resume
//! ```
//! A program that counts references, such as CPython, writes to what it only reads: the counts go up and down again,
//! and what was copied for that equals what was there before. Nobody writes to what others hold too, so the block stays
//! as it is meanwhile.

use super::quiesce::Quiesced;
use crate::ranges::runs;
use crate::region::state::RegionCore;
use crate::sys::racing::PageBytes;
use crate::sys::{PageRun, Sys};
use crate::table::transition::Held;
use crate::units::{BASE_PAGE, EntryIndex};

/// So many pages are compared at once: a writer there waits for about 0.1 ms, with what it takes to keep him off.
const COMPARED_AT_ONCE: usize = 64;

impl<S: Sys> RegionCore<S> {
    /// Drops the private pages over a block that others hold too, where they equal the block's. Gives how many. The
    /// caller has blocked the program's signals.
    pub(crate) fn uncopy(&self, index: EntryIndex) -> usize {
        let bytes = self.bytes_of(&(index.0..index.0 + 1));
        let (mut dropped, mut at) = (0, bytes.start);
        while at < bytes.end {
            // What cannot be done now stays copied.
            let Some((some, next)) = self.uncopy_some(index, at) else { break };
            (dropped, at) = (dropped + some, next);
        }
        dropped
    }

    /// The same for the first of its private pages from `at` on. Also gives where to go on.
    fn uncopy_some(&self, index: EntryIndex, at: usize) -> Option<(usize, usize)> {
        let only = index.0..index.0 + 1;
        let bytes = self.bytes_of(&only);
        let window = self.table.try_lock(index)?;
        let publishing = self.lock.shared();
        let entry = self.table.get(index);
        let block = entry.block().filter(|_| entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo)?;
        if self.prepared.has(index) {
            return None;
        }
        let mut private = [PageRun::default(); COMPARED_AT_ONCE];
        let scanned = self.pool().sys.private_pages(self.addresses.part(&(at..bytes.end)), &mut private).ok()?;
        if scanned.runs == 0 {
            return Some((0, at + scanned.looked_at));
        }
        let memory = self.pool().offset(block)..self.pool().offset(block) + bytes.len();
        // Asked before anybody waits: as a rule, all of a block has memory.
        let is_full = self.pool().sys.next_memory(memory.clone()) == Some(memory.clone());
        let quiesced = Quiesced::begin(self, &window, publishing, only, &self.counters.held_by_write_back);
        let mut quiesced = quiesced.ok()?;
        let place = quiesced.place();
        let is_equal = |page: usize| {
            let page = page * BASE_PAGE..(page + 1) * BASE_PAGE;
            let offset = memory.start + (page.start - bytes.start);
            // What has no memory below would get some for a look at it.
            if !is_full && self.pool().sys.next_memory(offset..offset + BASE_PAGE).is_none() {
                return false;
            }
            // SAFETY: within the direct map, a page that has memory. Nobody writes to it: this region shows it through
            // the CoW mapping only, and so do the others; to write pages back into it, or to empty it, takes the lock
            // of the window, which is held here.
            let below = unsafe { &*self.pool().direct(block).add(page.start - bytes.start).cast::<PageBytes>() };
            let part = self.addresses.part_at(place, &page);
            // SAFETY: it shows the CoW mapping until that is unparked below, and writers are kept off it.
            unsafe { !self.pool().sys.shown_differs(part, below) }
        };
        let (mut dropped, mut next, mut rest) = (0, at, COMPARED_AT_ONCE);
        for run in &private[..scanned.runs] {
            let pages = self.offsets_of(run).start / BASE_PAGE..self.offsets_of(run).end / BASE_PAGE;
            let pages = pages.start..pages.end.min(pages.start + rest);
            for equal in runs(pages.clone(), is_equal) {
                let equal = equal.start * BASE_PAGE..equal.end * BASE_PAGE;
                if self.drop_private(place, &equal).is_ok() {
                    dropped += equal.len() / BASE_PAGE;
                }
            }
            (next, rest) = (pages.end * BASE_PAGE, rest - pages.len());
            if rest == 0 {
                break;
            }
        }
        quiesced.unpark();
        quiesced.done();
        Some((dropped, next))
    }
}
