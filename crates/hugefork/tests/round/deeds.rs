//! The operations of the tenant in its quarter of the region, to which nobody else writes: every operation that drops
//! contents or keeps them in place. Add each new operation of regions to [`DEEDS`].

use core::sync::atomic::{AtomicBool, Ordering};
use std::ops::Range;

use hugefork::Region;

use super::watch::{Page, Watch};
use super::{PAGE, Plan, TENANT, count_of, had, stamp, word};
use crate::common::random::Random;

/// A thread that has a part of the region to itself.
pub(crate) struct Tenant<'a> {
    region: &'a Region,
    tenancy: Range<usize>,
    plan: &'a Plan,
    watch: &'a Watch,
    random: Random,
    pages: Vec<Page>,
}

/// An operation on some pages of the tenant, numbered from the start of its part.
type Deed = fn(&mut Tenant<'_>, Range<usize>);

const DEEDS: [Deed; 13] = [
    |tenant, pages| tenant.write(pages),
    |tenant, pages| tenant.write(pages),
    |tenant, pages| tenant.write(pages),
    |tenant, pages| tenant.write(pages),
    |tenant, pages| tenant.discard(pages),
    |tenant, pages| tenant.lazy_free(pages),
    |tenant, pages| tenant.lazy_free(pages),
    |tenant, pages| tenant.cancel_lazy_free(pages),
    |tenant, pages| tenant.prepare(pages),
    |tenant, pages| tenant.pin(pages),
    |tenant, pages| tenant.reclaim(pages),
    |tenant, pages| tenant.populate(pages),
    |tenant, pages| tenant.compare(pages),
];

impl<'a> Tenant<'a> {
    pub(super) fn new(region: &'a Region, tenancy: Range<usize>, plan: &'a Plan, watch: &'a Watch) -> Tenant<'a> {
        let pages = vec![Page { count: 0, may_be_zero: false }; tenancy.len() / PAGE];
        Tenant { region, tenancy, plan, watch, random: plan.random(TENANT), pages }
    }

    /// Does one operation after another until the round is over.
    pub(crate) fn live(mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let deed = DEEDS[self.random.below(DEEDS.len())];
            let pages = self.some_pages();
            deed(&mut self, pages);
            let pages = self.some_pages();
            self.check(pages);
            std::thread::yield_now();
        }
        self.check(0..self.pages.len());
    }

    /// Single pages, parts of blocks, whole blocks, or the whole part.
    fn some_pages(&mut self) -> Range<usize> {
        let (count, block) = (self.pages.len(), (self.plan.block.bytes() / PAGE).max(1));
        let start = self.random.below(count);
        match self.random.below(5) {
            0 => start..start + 1,
            1 | 2 => start..count.min(start + 1 + self.random.below(24)),
            3 => {
                let start = start / block * block;
                start..count.min(start + block * (1 + self.random.below(2)))
            }
            _ => 0..count,
        }
    }

    fn bytes(&self, pages: &Range<usize>) -> Range<usize> {
        self.tenancy.start + pages.start * PAGE..self.tenancy.start + pages.end * PAGE
    }

    /// Writes to some of these pages.
    fn write(&mut self, pages: Range<usize>) {
        let step = 1 + self.random.below(5);
        for page in pages.step_by(step).take(40) {
            let at = self.tenancy.start + page * PAGE;
            let count = (self.pages[page].count + 1) & 0xffff_ffff;
            let value = stamp(TENANT, at / PAGE, count);
            let written = Page { count, may_be_zero: false };
            self.watch.may_hold(page..page + 1, |_| written);
            word(self.region, at).store(value, Ordering::Relaxed);
            word(self.region, at + PAGE - 8).store(value, Ordering::Relaxed);
            self.watch.holds(page..page + 1, |_| written);
            self.pages[page] = written;
        }
    }

    fn discard(&mut self, pages: Range<usize>) {
        let zero = Page { count: 0, may_be_zero: false };
        self.watch.may_hold(pages.clone(), |_| zero);
        let is_done = had(self.region.discard(self.bytes(&pages)), self.plan).is_some();
        for page in &mut self.pages[pages.clone()] {
            *page = if is_done { zero } else { Page { may_be_zero: true, ..*page } };
        }
        self.watch.holds(pages, |page| self.pages[page]);
    }

    fn lazy_free(&mut self, pages: Range<usize>) {
        self.watch.may_hold(pages.clone(), |page| Page { may_be_zero: true, ..self.pages[page] });
        had(self.region.lazy_free(self.bytes(&pages)), self.plan);
        self.pages[pages.clone()].iter_mut().for_each(|page| page.may_be_zero = true);
        self.watch.holds(pages, |page| self.pages[page]);
    }

    fn cancel_lazy_free(&mut self, pages: Range<usize>) {
        had(self.region.cancel_lazy_free(self.bytes(&pages)), self.plan);
    }

    fn prepare(&mut self, pages: Range<usize>) {
        had(self.region.prepare_write(self.bytes(&pages)), self.plan);
    }

    fn pin(&mut self, pages: Range<usize>) {
        if !self.tenancy.start.is_multiple_of(self.plan.block.bytes()) {
            // A cut copies a pinned block while other threads write to it; here others would write to the same block.
            return;
        }
        let bytes = self.bytes(&pages);
        let Some(pinned) = had(self.region.pin(bytes), self.plan) else { return };
        self.write(pages.clone());
        self.check(pages);
        drop(pinned);
    }

    fn reclaim(&mut self, _: Range<usize>) {
        let pool = self.region.pool();
        had(pool.reclaim(1 << 20), self.plan);
        had(pool.trim(), self.plan);
    }

    fn populate(&mut self, _: Range<usize>) {
        had(self.region.populate(), self.plan);
    }

    /// Writes to some pages after a snapshot, and compares the region with the snapshot.
    fn compare(&mut self, pages: Range<usize>) {
        let Some(snapshot) = had(self.region.snapshot(), self.plan) else { return };
        self.write(pages.clone());
        let mut told = vec![false; self.region.len() / PAGE];
        let Some(changes) = had(self.region.changed_since(&snapshot), self.plan) else { return };
        for range in changes.pages() {
            let Some(range) = had(range, self.plan) else { return };
            told[range.start / PAGE..range.end / PAGE].fill(true);
        }
        for page in pages {
            let (at, mut before) = (self.tenancy.start + page * PAGE, [0; 8]);
            let is_there = had(snapshot.read_at(at, &mut before), self.plan).is_some();
            if !is_there || self.pages[page].may_be_zero {
                continue;
            }
            let (before, now) = (u64::from_ne_bytes(before), word(self.region, at).load(Ordering::Relaxed));
            assert_eq!(told[at / PAGE], before != now, "what is told of page {page}: {before:x} before, {now:x} now");
        }
    }

    fn check(&mut self, pages: Range<usize>) {
        for page in pages {
            let (at, Page { count, may_be_zero }) = (self.tenancy.start + page * PAGE, self.pages[page]);
            for at in [at, at + PAGE - 8] {
                let there = count_of(word(self.region, at).load(Ordering::Relaxed), TENANT, at / PAGE);
                assert!(there == count || (may_be_zero && there == 0), "page {page} shows {there} for {count}");
            }
        }
    }
}
