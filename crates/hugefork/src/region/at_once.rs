//! A reset at one moment, beside threads that go on.
//!
//! ```text
//!   region  | block, private pages | ─▶ | block                  | ─▶ | read-only | ─▶ | block, private pages |
//!   apart   | nothing              |    | block, private pages   |                   | nothing              |
//!                                take      put back, while others      protect; pages     bring
//!                                          go on                       of since
//! ```
//! Where nothing differs from the snapshot but private pages over its blocks, all in one mapping, one call takes them
//! away. From that moment on the region is as the snapshot, for all who read or write, system calls too: what was
//! written before is gone, and what is written later stays. Nobody is held for it.
//!
//! The pages are to come back, so that the next write to them takes no fault. They are put back apart, while others go
//! on. Then writers are kept off for some microseconds. The pages that they have written since are copied over, and one
//! call shows all of them.
//!
//! Whatever fails after the first call, the region is reset: then what lies apart is dropped.

use std::ops::Range;

use super::reset::{Reset, Stop};
use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Right};
use crate::stats::counters::count;
use crate::sys::{Access, Shows, Sys, SystemError};
use crate::table::Entry;
use crate::units::{BASE_PAGE, EntryIndex};

/// What lies apart cannot come back.
struct Lost;

impl From<SystemError> for Lost {
    fn from(_: SystemError) -> Lost {
        Lost
    }
}

impl<S: Sys> Reset<'_, S> {
    /// Resets the region at one moment. False if that cannot be done, and then nothing has changed.
    pub(super) fn goes_at_once(&mut self) -> bool {
        let Some(run) = self.only_run().filter(|_| !self.frozen.is_revoked()) else { return false };
        if self.allow_writes().is_err() {
            return false;
        }
        let (region, bytes) = (self.region, self.region.bytes_of(&run));
        if !region.site().take_pages(self.locked, &run) {
            return false;
        }
        region.promises.end();
        region.books.origin.set(self.frozen.id);
        count(&region.counters.resets, 1);
        let came = self.come_back(&run);
        let (sys, apart) = (&region.pool().sys, region.addresses.part_at(Place::Apart, &bytes));
        // What is left apart is the mapping. It is a third of the cost to make it read-only, which is enough:
        // mlockall(2) would copy all of one that can be written to. If the kernel refuses, the next reset replaces it.
        let _ = match came {
            Ok(_) => sys.protect(apart, Access::Read),
            Err(Lost) => sys.show(apart, Shows::Hidden).map_err(|failure| failure.error),
        };
        self.known.seen_at = came.ok().flatten();
        true
    }

    /// The run of overlays that shows all that differs, if they can be one mapping and no other entry can be written to
    /// without a fault.
    fn only_run(&self) -> Option<Range<usize>> {
        let (region, table) = (self.region, &self.region.table);
        let are_usable = region.addresses.has_apart() && region.pool().sys.budget().fits(4);
        if !are_usable || region.pins.are_used() {
            return None;
        }
        let all = 0..table.len();
        if table.first_unlike(&self.frozen.entries, all.clone()) < all.end {
            return None;
        }
        let first = region.next_overlays(all.clone())?.start;
        let run = first..first + table.alike(first..all.end);
        let is_open = matches!(table.get(EntryIndex(first)), Entry::Overlaid(..));
        (is_open && region.next_overlays(run.end..all.end).is_none()).then_some(run)
    }

    /// Puts the pages back and brings them to where they belong. Says how many faults there were when all that are
    /// private were known, if they are.
    fn come_back(&mut self, run: &Range<usize>) -> Result<Option<u64>, Lost> {
        self.place = Place::Apart;
        let looked = self.look();
        let came = looked.and_then(|_| self.put_back());
        self.place = Place::Own;
        match came {
            Ok(()) => self.bring(run),
            Err(Stop::NoRoom(_)) => {
                let pages = self.count_apart(&self.region.bytes_of(run))?;
                self.known.wish_for(pages);
                Err(Lost)
            }
            Err(Stop::NoOrigin | Stop::At { .. }) => Err(Lost),
        }
    }

    /// How many private pages lie apart.
    fn count_apart(&mut self, bytes: &Range<usize>) -> Result<usize, SystemError> {
        let (addresses, sys, mut at, mut pages) = (&self.region.addresses, &self.region.pool().sys, bytes.start, 0);
        while at < bytes.end {
            let part = addresses.part_at(Place::Apart, &(at..bytes.end));
            let scanned = sys.private_pages(part, &mut self.known.runs)?;
            let lengths = self.known.runs[..scanned.runs].iter().map(|run| (run.end - run.start) as usize);
            (at, pages) = (at + scanned.looked_at, pages + lengths.sum::<usize>() / BASE_PAGE);
        }
        Ok(pages)
    }

    /// Keeps writers off, and shows the pages where they belong, with what others have written since.
    fn bring(&mut self, run: &Range<usize>) -> Result<Option<u64>, Lost> {
        let (region, locked) = (self.region, self.locked);
        let place = self.keep_off(run)?;
        let faults = region.pool().sys.minor_faults();
        let brought = self.copy_since(&region.bytes_of(run), place).and_then(|are_known| {
            region.site().bring_pages(locked, run)?;
            Ok(are_known.then_some(faults))
        });
        match (place, brought.is_ok()) {
            (Place::Aside, true) => region.site().let_go(run),
            (Place::Aside, false) => {
                region.site().put_back(locked, run);
                region.site().let_go(run);
            }
            (Place::Own | Place::Apart, true) => {}
            (Place::Own | Place::Apart, false) => region.open_again(locked, run.clone(), Place::Own),
        }
        Ok(brought?)
    }

    /// Keeps writers off the run, which has few private pages or none, and says where it lies from then on.
    fn keep_off(&self, run: &Range<usize>) -> Result<Place, Lost> {
        let (region, locked) = (self.region, self.locked);
        if region.shows_by_page() && region.holds(locked, run) {
            return Ok(Place::Aside);
        }
        let protected = region.site().reprotect(locked, region.bytes_of(run), Access::Read).map_err(|_| Lost)?;
        if protected.right() == Right::Unknown {
            region.open_again(locked, run.clone(), Place::Own);
        }
        protected.published(Recount::default()).map_err(|_| Lost)?;
        Ok(Place::Own)
    }

    /// Copies the pages that are private in `place` over those apart. False if there were any.
    fn copy_since(&mut self, bytes: &Range<usize>, place: Place) -> Result<bool, SystemError> {
        let (addresses, sys) = (&self.region.addresses, &self.region.pool().sys);
        let (mut at, mut are_none, mut page) = (bytes.start, true, [0; BASE_PAGE]);
        while at < bytes.end {
            let part = addresses.part_at(place, &(at..bytes.end));
            let scanned = sys.private_pages(part, &mut self.known.runs)?;
            for run in &self.known.runs[..scanned.runs] {
                let start = at + (run.start as usize - part.at());
                for one in (start..start + (run.end - run.start) as usize).step_by(BASE_PAGE) {
                    let one = one..one + BASE_PAGE;
                    are_none = false;
                    // SAFETY: writers are kept off, and the page is ours.
                    unsafe { sys.copy_shown(addresses.part_at(place, &one), page.as_mut_ptr()) };
                    // SAFETY: an overlay with the right to write, which nobody else knows of.
                    unsafe { sys.restore(addresses.part_at(Place::Apart, &one), Access::ReadWrite, page.as_ptr()) }?;
                }
            }
            at += scanned.looked_at;
        }
        Ok(are_none)
    }
}
