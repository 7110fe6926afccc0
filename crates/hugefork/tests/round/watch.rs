//! The times of writes, for checks of cuts: a cut must show the state of one moment between its begin and its end, and
//! not an older state that is consistent too.
//!
//! ```text
//!   clock   ── 7 ── 8 ─────────── 9 ───── 10 ──── 11 ──▶
//!   tenant     │    └ writes page 5: count 3 ┘
//!   cutter     └──── cut ───────── (9 to 11) ──────┘      page 5 of it has count 2 or 3
//! ```

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::{Layout, PAGE, TENANT, WRITERS, count_of};
use crate::common::random::Random;

/// Number of a page's last states that are remembered.
const REMEMBERED: usize = 8;
/// Number of the tenant's pages that are checked in a cut.
const LOOKED_AT: usize = 1024;

/// The contents of a page of the tenant, at its beginning and at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) count: u64,
    /// Whether it may read as zero instead, because it was lazily freed or a discard failed.
    pub(super) may_be_zero: bool,
}

/// A state that a page may have had from one moment to another.
#[derive(Debug)]
struct Held {
    page: Page,
    from: u64,
    until: u64,
}

#[derive(Debug, Default)]
struct Past {
    held: VecDeque<Held>,
    /// The moment before which earlier states are forgotten.
    known_from: u64,
}

/// The known states of the writers and of the tenant, with their times.
pub(super) struct Watch {
    clock: AtomicU64,
    /// For each writer, the number of writes that it has completed.
    done: [AtomicU64; WRITERS],
    /// The number that is handed on next.
    pub(super) token: AtomicU64,
    tenancy: Range<usize>,
    past: Mutex<Vec<Past>>,
}

/// The known state before a cut, or after it.
pub(super) struct Moment {
    time: u64,
    done: [u64; WRITERS],
    token: u64,
}

impl Watch {
    /// The state before the round: all of the tenant's pages are zero.
    pub(super) fn new(tenancy: Range<usize>) -> Watch {
        let zero = || Held { page: Page { count: 0, may_be_zero: false }, from: 0, until: u64::MAX };
        let past = || Past { held: VecDeque::from([zero()]), known_from: 0 };
        let pages = tenancy.len() / PAGE;
        Watch {
            clock: AtomicU64::new(1),
            done: Default::default(),
            token: AtomicU64::new(WRITERS as u64),
            tenancy,
            past: Mutex::new((0..pages).map(|_| past()).collect()),
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes that a writer has completed `writes` writes.
    pub(super) fn has_done(&self, writer: usize, writes: u64) {
        self.done[writer].store(writes, Ordering::SeqCst);
    }

    /// Notes that the tenant is about to change these pages.
    pub(super) fn may_hold(&self, pages: Range<usize>, becomes: impl Fn(usize) -> Page) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let from = self.tick();
        for nth in pages {
            past[nth].held.push_back(Held { page: becomes(nth), from, until: u64::MAX });
        }
    }

    /// Notes that these pages have only this state from now on.
    pub(super) fn holds(&self, pages: Range<usize>, page: impl Fn(usize) -> Page) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.tick();
        for nth in pages {
            let (page, past) = (page(nth), &mut past[nth]);
            past.held.iter_mut().for_each(|held| held.until = held.until.min(now));
            match past.held.back_mut().filter(|held| held.page == page) {
                Some(held) => held.until = u64::MAX,
                None => past.held.push_back(Held { page, from: now, until: u64::MAX }),
            }
            while past.held.len() > REMEMBERED {
                past.known_from = past.held.pop_front().map_or(0, |held| held.until);
            }
        }
    }

    pub(super) fn now(&self) -> Moment {
        let done = core::array::from_fn(|writer| self.done[writer].load(Ordering::SeqCst));
        Moment { token: self.token.load(Ordering::SeqCst), done, time: self.tick() }
    }

    /// Checks that a cut shows a moment between these two. `seen` comes from [`Layout::check`]; `read` reads the value
    /// at an offset, `None` if its block was taken away.
    pub(super) fn check(
        &self,
        layout: &Layout,
        moments: [Moment; 2],
        seen: &[Option<u64>],
        random: &mut Random,
        read: impl Fn(usize) -> Option<u64>,
    ) {
        let [before, after] = moments;
        let mut rest = seen;
        for (writer, order) in layout.orders.iter().enumerate() {
            let (counts, others) = rest.split_at(order.len());
            let count_after = |writes: u64, nth: usize| {
                let samples = order.len() as u64;
                writes / samples + u64::from((nth as u64) < writes % samples)
            };
            for (nth, count) in counts.iter().enumerate() {
                // One further write may be in progress.
                let known = count_after(before.done[writer], nth)..=count_after(after.done[writer] + 1, nth);
                assert!(
                    count.is_none_or(|count| known.contains(&count)),
                    "a cut of another time: writer {writer} has {count:?} at its {nth}th place, not {known:?}"
                );
            }
            rest = others;
        }
        if let Some(last) = super::last_of(rest) {
            let known = before.token - 1..=after.token;
            assert!(known.contains(&last), "a cut of another time: the relay is at {last}, not {known:?}");
        }
        self.check_tenancy([before.time, after.time], random, read);
    }

    fn check_tenancy(&self, [before, after]: [u64; 2], random: &mut Random, read: impl Fn(usize) -> Option<u64>) {
        let pages = self.tenancy.len() / PAGE;
        let first = if pages > LOOKED_AT { random.below(pages - LOOKED_AT) } else { 0 };
        for nth in first..pages.min(first + LOOKED_AT) {
            let at = self.tenancy.start + nth * PAGE;
            let found =
                [at, at + PAGE - 8].map(&read).map(|value| value.map(|value| count_of(value, TENANT, at / PAGE)));
            let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            let past = &past[nth];
            if past.known_from > before {
                continue;
            }
            let held = || past.held.iter().filter(|held| held.from < after && held.until > before);
            for count in found.into_iter().flatten() {
                let fits = |held: &Held| held.page.count == count || (held.page.may_be_zero && count == 0);
                assert!(
                    held().any(fits),
                    "a cut from {before} to {after} has {count} in page {nth} of the tenant, of {:?}",
                    past.held
                );
            }
        }
    }
}
