//! `changes`: which pages of a populated area were written since it was snapshotted, to save those and no others.
//!
//! Between two snapshots one word is written in each of some pages, from 0.01 % of them to all (`changed`): anywhere
//! (`random`), or in one piece (`piece`). Then they are asked for.
//!
//! | metric | |
//! |---|---|
//! | `pages` | finding the pages by `Snapshot::changed_since`, or `memcmp` of each and its copy |
//! | `blocks` | of hugefork: the blocks alone |
//! | `live` | of hugefork: the pages before the second snapshot, by `Region::changed_since` |
//!
//! `memcmp` has to keep a copy of everything, and finds what differs.
//!
//! One thread does everything, and only the calls are timed. In every sample as many pages must be found as were
//! written. Each sample has new memory for the area, since a huge page that was split does not come back by itself.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use hugefork::{Changed, Pool, RegionError};
use hugefork_kernels::Kernel;

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::Stopwatch;
use crate::measure::random::Random;
use crate::memory::engine::{self, Populated};
use crate::memory::kernel_memory::{KernelMemory, PageKind};
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct Changes;

/// Finding the pages that have changed.
const PAGES: Metric = Metric::new("pages", "ms");

/// Finding the blocks.
const BLOCKS: Metric = Metric::new("blocks", "us");

/// Finding the pages before there is a snapshot.
const LIVE: Metric = Metric::new("live", "ms");

const PAGE: usize = 4096;

/// Areas hold `p[i] = i + BIAS`.
const BIAS: u64 = 1;

/// Where the pages are that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Random,
    Piece,
}

impl Where {
    fn name(self) -> &'static str {
        match self {
            Where::Random => "random",
            Where::Piece => "piece",
        }
    }
}

/// Which pages are written.
#[derive(Clone, Copy, Debug)]
struct WriteSet {
    /// Of ten thousand pages.
    share: usize,
    place: Where,
}

impl WriteSet {
    /// The works of a run.
    fn all(scope: Scope) -> Vec<WriteSet> {
        let of = |place| move |share| WriteSet { share, place };
        match scope {
            Scope::Quick => [1, 100, 10_000].map(of(Where::Random)).to_vec(),
            Scope::Full => {
                let random = [1, 10, 100, 1_000, 10_000].map(of(Where::Random));
                random.into_iter().chain([of(Where::Piece)(100)]).collect()
            }
        }
    }

    fn percent(self) -> String {
        format!("{}%", self.share as f64 / 100.0)
    }

    /// The numbers of the pages, of an area of `size` bytes.
    fn pages(self, size: usize, random: &mut Random) -> BTreeSet<usize> {
        let all = size / PAGE;
        let count = (all * self.share / 10_000).clamp(1, all);
        match self.place {
            Where::Piece => (random.below(all - count + 1)..).take(count).collect(),
            Where::Random if count == all => (0..all).collect(),
            Where::Random => {
                let mut pages = BTreeSet::new();
                while pages.len() < count {
                    pages.insert(random.below(all));
                }
                pages
            }
        }
    }
}

impl Case for Changes {
    fn facts(&self) -> Facts {
        Facts::new("changes", PAGES, [128 << 20, 1 << 30])
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let mut subjects = vec![Subject::Hugefork, Subject::Memcmp];
        if scope != Scope::Quick {
            subjects.extend([Subject::HugeforkBlock, Subject::HugeforkPage]);
        }
        subjects
    }

    fn in_words(&self, params: &Params) -> String {
        let place = if shown(params, "pattern") == Where::Piece.name() { " in one piece" } else { "" };
        format!("{} of {} changed{place}", shown(params, "changed"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        // All works of one subject share a pool.
        let pool = Rc::default();
        let of = |written: WriteSet| {
            let params = params([
                ("size", Param::size(size)),
                ("changed", Param::text(written.percent())),
                ("pattern", Param::text(written.place.name())),
            ]);
            let setup = ChangesSetup { size, cpu, written };
            sample::entries(subjects, &params, |planned| match planned.engine {
                Some(choice) => Box::new(ChangedRegion { setup, choice, shared: Rc::clone(&pool), pool: None }),
                None => Box::new(Memcmp { setup }),
            })
        };
        WriteSet::all(job.scope).into_iter().flat_map(of).collect()
    }
}

/// What all subjects do.
#[derive(Clone, Copy)]
struct ChangesSetup {
    size: usize,
    cpu: usize,
    written: WriteSet,
}

impl ChangesSetup {
    /// Changes a word of each of these pages.
    ///
    /// # Safety
    /// `area` is valid for writes of `size` bytes, and nobody else uses it.
    unsafe fn write(self, area: *mut u8, pages: &BTreeSet<usize>) {
        for page in pages {
            // SAFETY: a page of the area.
            unsafe { area.add(page * PAGE + 8 * (page % 512)).cast::<u64>().write_volatile(0) };
        }
    }
}

/// Checks that all pages were found, and no others.
fn check(found: usize, written: &BTreeSet<usize>) -> Result<(), BenchError> {
    BenchError::unless_all("found", found * PAGE, written.len() * PAGE)
}

struct ChangedRegion {
    setup: ChangesSetup,
    choice: EngineChoice,
    shared: Rc<RefCell<Option<Pool>>>,
    pool: Option<Pool>,
}

/// How many pages are in these ranges.
fn count(changed: Changed<'_>) -> Result<usize, RegionError> {
    changed.map(|range| range.map(|range| range.len() / PAGE)).sum()
}

impl Work for ChangedRegion {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.pool.is_none() {
            let mut shared = self.shared.borrow_mut();
            if shared.is_none() {
                *shared = Some(engine::warm_pool(self.choice, 2 * self.setup.size)?);
            }
            self.pool.clone_from(&shared);
        }
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let (ChangesSetup { size, cpu, written }, pool) = (self.setup, self.pool.clone());
        let pool = pool.expect("prepared before sampled");
        let _pinned = Pinned::to(cpu)?;
        let pages = written.pages(size, targets);
        let held = Populated::new(pool, self.choice.grain, size, BIAS)?;
        let before = held.region.snapshot()?;
        // SAFETY: our own region.
        unsafe { self.setup.write(held.region.as_mut_ptr(), &pages) };
        let mut watch = Stopwatch::default();
        let (found, live) = watch.time(|| count(held.region.changed_since(&before)?.pages()));
        check(found?, &pages)?;
        let after = held.region.snapshot()?;
        let (blocks, ms) = watch.time(|| count(after.changed_since(&before)?.blocks()));
        blocks?;
        let (found, all) = watch.time(|| count(after.changed_since(&before)?.pages()));
        check(found?, &pages)?;
        Ok(Measure::sample([(PAGES, all), (BLOCKS, ms * 1e3), (LIVE, live)], watch.cpu()))
    }

    fn release(&mut self) {
        self.pool = None;
        *self.shared.borrow_mut() = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.pool.as_ref().map(|pool| (pool, None))
    }
}

struct Memcmp {
    setup: ChangesSetup,
}

impl Work for Memcmp {
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let ChangesSetup { size, cpu, written } = self.setup;
        let _pinned = Pinned::to(cpu)?;
        let pages = written.pages(size, targets);
        let huge = || KernelMemory::written(PageKind::Thp, size, BIAS);
        let (area, copy) = (huge()?, huge()?);
        // SAFETY: our own mapping.
        unsafe { self.setup.write(area.as_ptr(), &pages) };
        let mut watch = Stopwatch::default();
        let (found, all) = watch.time(|| {
            let differs = |page: &usize| {
                let at = page * PAGE;
                // SAFETY: a page of each mapping, both of which are our own.
                unsafe { libc::memcmp(area.as_ptr().add(at).cast(), copy.as_ptr().add(at).cast(), PAGE) != 0 }
            };
            (0..size / PAGE).filter(differs).count()
        });
        check(found, &pages)?;
        Ok(Measure::sample([(PAGES, all)], watch.cpu()))
    }

    /// It holds nothing between samples.
    fn release(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pages_are_written_as_the_share_says_and_at_least_one() {
        let pages = |share, place, size| WriteSet { share, place }.pages(size, &mut Random::new(7));
        assert_eq!(pages(100, Where::Random, 1 << 30).len(), 2621);
        assert_eq!(pages(1, Where::Random, 1 << 20).len(), 1);
        assert_eq!(pages(10_000, Where::Random, 1 << 20), (0..256).collect());
        let piece = pages(100, Where::Piece, 1 << 30);
        assert_eq!((piece.len(), piece.last().unwrap() - piece.first().unwrap()), (2621, 2620));
        assert!(*piece.last().unwrap() < (1 << 30) / PAGE);
    }

    #[test]
    fn shares_are_told_in_percent() {
        let told = WriteSet::all(Scope::Full).into_iter().map(WriteSet::percent);
        assert_eq!(told.collect::<Vec<_>>(), ["0.01%", "0.1%", "1%", "10%", "100%", "1%"]);
    }
}
