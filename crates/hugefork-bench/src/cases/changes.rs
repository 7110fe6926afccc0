//! `changes`: finding the pages of a live area that differ from a snapshot of it, so that a program can save
//! only these pages.
//!
//! One word is written in some pages at random, from 0.01 % of them to all (`changed`). `find` is
//! the time to find these pages: by `Region::changed_since` in a pool with all defaults; by
//! `memcmp` of each page and its copy; or by `PAGEMAP_SCAN`, which also protects the pages again.
//! In every sample, the number of pages found must be the number of pages written.

use std::collections::BTreeSet;

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::timed;
use crate::measure::random::Random;
use crate::measure::warm::warm;
use crate::memory::kernel_memory::{KernelMemory, PageKind};
use crate::memory::pools;
use crate::memory::tracked::Tracked;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct Changes;

/// Finding the pages that have changed.
const FIND: Metric = Metric::new("find", "ms");

const PAGE: usize = 4096;

/// Areas hold `p[i] = i + BIAS`.
const BIAS: u64 = 1;

impl Case for Changes {
    fn facts(&self) -> Facts {
        Facts::new("changes", &[FIND], [128 << 20, 1 << 30])
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::Memcmp, Subject::PagemapScan]
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} of {} changed", shown(params, "changed"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        // The number of written pages in every ten thousand.
        let shares: &[usize] = match job.scope {
            Scope::Quick => &[1, 100, 10_000],
            Scope::Full => &[1, 10, 100, 1_000, 10_000],
        };
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        let of = |share: usize| {
            let changed = Param::text(format_args!("{}%", share as f64 / 100.0));
            let params = params([("size", Param::size(size)), ("changed", changed)]);
            let setup = Setup { size, share, cpu };
            sample::entries(subjects, &params, move |planned| -> Work {
                match planned.subject {
                    Subject::Hugefork => Box::new(move |targets| setup.in_region(targets)),
                    Subject::Memcmp => Box::new(move |targets| setup.by_memcmp(targets)),
                    _ => Box::new(move |targets| setup.by_scan(targets)),
                }
            })
        };
        shares.iter().copied().flat_map(of).collect()
    }
}

#[derive(Clone, Copy)]
struct Setup {
    size: usize,
    /// The number of written pages in every ten thousand.
    share: usize,
    cpu: usize,
}

impl Setup {
    fn pages(self, random: &mut Random) -> BTreeSet<usize> {
        let all = self.size / PAGE;
        let count = (all * self.share / 10_000).clamp(1, all);
        if count == all {
            return (0..all).collect();
        }
        let mut pages = BTreeSet::new();
        while pages.len() < count {
            pages.insert(random.below(all));
        }
        pages
    }

    /// Writes a word of each page, has `find` count the pages that have changed, and checks the count.
    ///
    /// # Safety
    /// `area` is valid for writes of `size` bytes, and no other thread uses it.
    unsafe fn measure(
        self,
        area: *mut u8,
        random: &mut Random,
        find: impl FnOnce() -> Result<usize, BenchError>,
    ) -> Result<Vec<Measure>, BenchError> {
        let pages = self.pages(random);
        let _pinned = Pinned::to(self.cpu)?;
        for page in &pages {
            // SAFETY: a word of the area.
            unsafe { area.add(page * PAGE + 8 * (page % 512)).cast::<u64>().write_volatile(0) };
        }
        let (found, ms) = timed(find);
        BenchError::unless_all("found", found? * PAGE, pages.len() * PAGE)?;
        Ok(Measure::all([(FIND, ms)]))
    }

    fn in_region(self, random: &mut Random) -> Result<Sample, BenchError> {
        warm(PageKind::Thp, self.size, 1, &[self.cpu])?;
        let pool = pools::new(2 * self.size)?;
        let region = pools::written(&pool, self.size, BIAS)?;
        let before = region.snapshot()?;
        let find = || {
            let ranges = region.changed_since(&before)?.pages();
            Ok(ranges.map(|range| range.map(|range| range.len() / PAGE)).sum::<Result<usize, _>>()?)
        };
        // SAFETY: our own region.
        let measures = unsafe { self.measure(region.as_mut_ptr(), random, find) }?;
        Ok(Sample::on(&pool, None, measures))
    }

    fn by_memcmp(self, random: &mut Random) -> Result<Sample, BenchError> {
        warm(PageKind::Thp, 2 * self.size, 1, &[self.cpu])?;
        let huge = || KernelMemory::written(PageKind::Thp, self.size, BIAS);
        let (area, copy) = (huge()?, huge()?);
        let find = || {
            let differs = |page: &usize| {
                let at = page * PAGE;
                // SAFETY: a page of each mapping, both of which are our own.
                unsafe { libc::memcmp(area.as_ptr().add(at).cast(), copy.as_ptr().add(at).cast(), PAGE) != 0 }
            };
            Ok((0..self.size / PAGE).filter(differs).count())
        };
        // SAFETY: our own mapping.
        unsafe { self.measure(area.as_ptr(), random, find) }.map(Sample::of)
    }

    fn by_scan(self, random: &mut Random) -> Result<Sample, BenchError> {
        warm(PageKind::Thp, self.size, 1, &[self.cpu])?;
        let mut area = Tracked::written(self.size, BIAS)?;
        let start = area.as_ptr();
        let find = || {
            let mut found = 0;
            area.scan(|range| found += range.len() / PAGE)?;
            area.protect()?;
            Ok(found)
        };
        // SAFETY: our own mapping.
        unsafe { self.measure(start, random, find) }.map(Sample::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::ways::unless_lacking;

    #[test]
    fn as_many_pages_are_written_as_the_share_says_and_at_least_one() {
        let pages = |share, size| Setup { size, share, cpu: 0 }.pages(&mut Random::new(7));
        assert_eq!(pages(100, 1 << 30).len(), 2621);
        assert_eq!(pages(1, 1 << 20).len(), 1);
        assert_eq!(pages(10_000, 1 << 20), (0..256).collect());
    }

    #[test]
    fn every_subject_finds_the_pages() {
        let setup = |share| Setup { size: 4 << 20, share, cpu: crate::measure::affinity::allowed_cpus()[0] };
        for share in [1, 1_000, 10_000] {
            setup(share).in_region(&mut Random::new(1)).unwrap();
            setup(share).by_memcmp(&mut Random::new(1)).unwrap();
            unless_lacking(setup(share).by_scan(&mut Random::new(1)));
        }
    }
}
