//! Cuts of the region and its companion, and forks: each must always show what it showed at first.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hugefork::{Export, ImportError, Imported, Region, RegionError, Reserve, Snapshot};

use super::watch::Watch;
use super::{KEPT, Layout, PAGE, Plan, SCRIBBLED, had, stamp, word};
use crate::common::random::Random;

pub(super) enum Cut {
    Snapshot(Snapshot),
    Fork(Region),
}

/// The word at an offset of a snapshot; `None` if its block was taken away.
fn word_of(snapshot: &Snapshot, at: usize, plan: &Plan) -> Option<u64> {
    let mut bytes = [0; 8];
    match snapshot.read_at(at, &mut bytes) {
        Ok(()) => Some(u64::from_ne_bytes(bytes)),
        Err(RegionError::Revoked) if plan.may_revoke() => None,
        Err(error) => panic!("a snapshot cannot be read: {error}"),
    }
}

impl Cut {
    /// The word at an offset; `None` if its block was taken away.
    fn word(&self, at: usize, plan: &Plan) -> Option<u64> {
        match self {
            Cut::Snapshot(snapshot) => word_of(snapshot, at, plan),
            // A fork is made only where no block is ever taken away.
            Cut::Fork(fork) => Some(word(fork, at).load(Ordering::Relaxed)),
        }
    }
}

/// A cut, and what it showed first and must still show.
pub(super) struct Kept {
    cut: Cut,
    seen: Vec<Option<u64>>,
    /// The pages of a fork that its owner wrote to, and the values.
    scribbled: HashMap<usize, u64>,
    /// The snapshot of the companion, from the same cut.
    companion: Option<(Snapshot, Vec<Option<u64>>)>,
    export: Option<(Export, Imported)>,
}

/// Takes cuts, and checks them.
pub(super) struct Cutter<'a> {
    pub(super) region: &'a Region,
    pub(super) companion: &'a Region,
    pub(super) layout: &'a Layout,
    pub(super) plan: &'a Plan,
    pub(super) watch: &'a Watch,
    pub(super) who: u64,
    pub(super) random: Random,
    pub(super) kept: Vec<Kept>,
}

impl Cutter<'_> {
    pub(super) fn cut(&mut self) {
        for _ in 0..self.plan.cuts {
            std::thread::sleep(Duration::from_micros(self.random.below(400) as u64));
            if self.kept.len() == KEPT {
                let nth = self.random.below(KEPT);
                self.kept.swap_remove(nth);
            }
            if let Some(kept) = self.take() {
                self.kept.push(kept);
            }
            if !self.kept.is_empty() {
                let nth = self.random.below(self.kept.len());
                let mut kept = self.kept.swap_remove(nth);
                self.look_again(&mut kept);
                self.kept.push(kept);
            }
        }
    }

    fn take(&mut self) -> Option<Kept> {
        let (plan, layout) = (self.plan, self.layout);
        let before = self.watch.now();
        let (cut, companion) = match self.random.below(if plan.may_revoke() { 2 } else { 4 }) {
            0 => (Cut::Snapshot(had(self.region.snapshot(), plan)?), None),
            1 => {
                let mut cut = had(Region::snapshot_all(&[self.companion, self.region]), plan)?;
                (Cut::Snapshot(cut.pop().unwrap()), cut.pop())
            }
            _ => (Cut::Fork(had(self.region.fork_with(plan.options()), plan)?), None),
        };
        let after = self.watch.now();
        let seen = layout.check(|at| cut.word(at, plan));
        self.watch.check(layout, [before, after], &seen, &mut self.random, |at| cut.word(at, plan));
        let companion = companion.map(|snapshot| {
            let relay = layout.check_companion(&seen, |at| word_of(&snapshot, at, plan));
            (snapshot, relay)
        });
        Some(Kept { cut, seen, scribbled: HashMap::new(), companion, export: None })
    }

    /// Checks an earlier export of a cut, and exports the cut.
    fn look_at_export(
        &self,
        snapshot: &Snapshot,
        seen: &[Option<u64>],
        export: Option<(Export, Imported)>,
    ) -> Option<(Export, Imported)> {
        let export = match export {
            Some(export) => export,
            None => {
                let export = had(snapshot.export(), self.plan)?;
                match Imported::map(&export, export.extents()) {
                    Ok(imported) => (export, imported),
                    Err(ImportError::System(_) | ImportError::TooManyMappings { .. }) => return None,
                    // The system call that would have found the page was refused.
                    Err(ImportError::NoPages { .. }) if self.plan.may_fail => return None,
                    Err(error) => panic!("an export cannot be mapped: {error}"),
                }
            }
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            export.1.read_at(at, &mut bytes).unwrap();
            Some(u64::from_ne_bytes(bytes))
        };
        assert_eq!(self.layout.check(word), seen, "what is exported is not the cut");
        Some(export)
    }

    /// Writes to a fork of a snapshot, and resets it.
    fn set_back(&mut self, snapshot: &Snapshot, seen: &[Option<u64>]) {
        let (layout, plan) = (self.layout, self.plan);
        let is_reserved = self.random.one_in(3);
        let options = if is_reserved { plan.options().reserve(Reserve::Full) } else { plan.options() };
        let fork = match snapshot.fork_with(options) {
            Err(RegionError::NotReservable { .. }) if is_reserved => return,
            fork => fork,
        };
        let Some(fork) = had(fork, plan) else { return };
        let fork = Cut::Fork(fork);
        assert_eq!(layout.check(|at| fork.word(at, plan)), seen, "a fork of a snapshot differs");
        let Cut::Fork(region) = &fork else { unreachable!("a fork") };
        for _ in 0..1 + self.random.below(3) {
            let scribbled = self.scribble(region, 6);
            let is_reset = had(region.reset_to(snapshot).map_err(|error| error.reason), plan).is_some();
            for (page, value) in scribbled {
                let there = word(region, page * PAGE + SCRIBBLED).load(Ordering::Relaxed);
                assert!(there == 0 || (!is_reset && there == value), "page {page} shows {there:x} after a reset");
            }
            assert_eq!(layout.check(|at| fork.word(at, plan)), seen, "a fork that was set back differs");
            if !is_reset {
                return;
            }
        }
        // To another snapshot and back again.
        let Some(Kept { cut: Cut::Snapshot(other), seen: seen_there, .. }) = self.kept.first() else { return };
        for (goal, seen) in [(other, seen_there.as_slice()), (snapshot, seen)] {
            if had(region.reset_to(goal).map_err(|error| error.reason), plan).is_none() {
                return;
            }
            assert_eq!(layout.check(|at| fork.word(at, plan)), seen, "a fork that was set to another snapshot differs");
        }
    }

    /// Writes to some pages of a fork, and returns them with their values.
    fn scribble(&mut self, fork: &Region, count: usize) -> HashMap<usize, u64> {
        let mut scribbled = HashMap::new();
        for _ in 0..count {
            let page = self.random.below(self.layout.len / PAGE);
            let value = stamp(self.who, page, self.random.next() & 0xffff | 1);
            word(fork, page * PAGE + SCRIBBLED).store(value, Ordering::Relaxed);
            scribbled.insert(page, value);
        }
        scribbled
    }

    /// Checks that exactly the reported pages differ between a cut and an earlier one.
    fn compare(&mut self, snapshot: &Snapshot, seen: &[Option<u64>]) {
        let (layout, plan) = (self.layout, self.plan);
        let Some(Kept { cut: Cut::Snapshot(other), seen: seen_there, .. }) = self.kept.first() else { return };
        let Some(changes) = had(snapshot.changed_since(other), plan) else { return };
        let mut told = vec![false; layout.len / PAGE];
        for range in changes.pages() {
            let Some(range) = had(range, plan) else { return };
            told[range.start / PAGE..range.end / PAGE].fill(true);
        }
        let places = layout.orders.iter().flatten().chain(&layout.relay);
        for ((at, here), there) in places.zip(seen).zip(seen_there) {
            let is_told = here.is_none() || there.is_none() || here == there || told[at / PAGE];
            assert!(is_told, "{here:?} and {there:?} at {at} are told to be the same");
        }
        let first = self.random.below(told.len());
        for (page, &is_told) in told.iter().enumerate().skip(first).take(24) {
            let words = (page * PAGE..(page + 1) * PAGE).step_by(8);
            let both = words.map(|at| Some((word_of(snapshot, at, plan)?, word_of(other, at, plan)?)));
            let Some(both) = both.collect::<Option<Vec<_>>>() else { break };
            let differs = both.iter().any(|(here, there)| here != there);
            assert_eq!(is_told, differs, "what is told of page {page}");
        }
    }

    /// Checks a cut again, a fork of it, and the bytes between the counters.
    fn look_again(&mut self, kept: &mut Kept) {
        let (layout, plan) = (self.layout, self.plan);
        let now = layout.check(|at| kept.cut.word(at, plan));
        let is_the_same = |(now, then): (&Option<u64>, &Option<u64>)| now == then || now.is_none();
        assert!(now.iter().zip(&kept.seen).all(is_the_same), "a cut has changed");
        kept.seen = now;
        let scribbled = |page: usize| kept.scribbled.get(&page).copied().unwrap_or(0);
        layout.check_pages(&mut self.random, |at| kept.cut.word(at, plan), scribbled);
        if let Some((snapshot, relay)) = &mut kept.companion {
            let now = layout.check_companion(&kept.seen, |at| word_of(snapshot, at, plan));
            assert!(now.iter().zip(relay.iter()).all(is_the_same), "a cut of the companion has changed");
            *relay = now;
        }
        match &kept.cut {
            Cut::Snapshot(snapshot) => {
                if !plan.may_revoke()
                    && let Some(bytes) = had(snapshot.map(), plan)
                {
                    let word = |at: usize| Some(u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()));
                    assert_eq!(layout.check(word), kept.seen, "what is mapped is not what is read");
                }
                self.compare(snapshot, &kept.seen);
                if plan.may_revoke() {
                    return;
                }
                kept.export = self.look_at_export(snapshot, &kept.seen, kept.export.take());
                self.set_back(snapshot, &kept.seen);
            }
            Cut::Fork(fork) => {
                kept.scribbled.extend(self.scribble(fork, 6));
                for (&page, &value) in &kept.scribbled {
                    let there = word(fork, page * PAGE + SCRIBBLED).load(Ordering::Relaxed);
                    assert_eq!(there, value, "a write to a fork was lost");
                }
                let Some(second) = had(fork.fork_with(plan.options()), plan) else { return };
                let second = Cut::Fork(second);
                assert_eq!(layout.check(|at| second.word(at, plan)), kept.seen, "a fork of a fork differs");
                let scribbled = |page: usize| kept.scribbled.get(&page).copied().unwrap_or(0);
                layout.check_pages(&mut self.random, |at| second.word(at, plan), scribbled);
            }
        }
    }
}
