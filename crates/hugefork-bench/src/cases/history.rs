//! `history`: what a snapshot costs while many older ones are held: a program that keeps a history, or takes one each
//! second while a save of an older one goes on.
//!
//! One thread takes a hundred snapshots of its populated area (`held`) and holds them all. Between two, it writes a
//! word in some pages, from 10 to 5 000 if the area has 1 GiB (`density`). With the pattern `random` the pages are
//! anywhere; with `clustered`, in one of every sixteen blocks of 2 MiB.
//!
//! | metric | |
//! |---|---|
//! | `call` | taking a snapshot |
//! | `between` | the writes until the next one |
//! | `each` | both: what a snapshot takes from the program. Subjects are compared by it |
//! | `worst` | the longest call of all |
//! | `extra` | memory held beyond the area itself at the end, for each snapshot |
//! | `read` | reading a word of each 2 MiB of the one in the middle, for the first time, by address (not of a fork) |
//! | `drop` | letting go of one, when half of them go in random order |
//!
//! The first three are medians of the second half of the snapshots: what it costs once many are held.
//!
//! At the end each snapshot that is left is checked: a page that was written last before it has what was written, and
//! no page has anything that was written later. What was written is noted in memory that a `fork(2)` does not copy.
//!
//! hugefork's pool and the memory that the kernel's copies go to have been touched before. A pool has room for eight
//! times what is written. To copy everything each time (`memcpy`) would take a hundred times the area.

use hugefork::Pool;
use hugefork_kernels::Kernel;

use super::list::List;
use super::rival::fork::ForkRival;
use super::rival::hugefork::HugeforkRival;
use super::rival::{Read, Rival};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::Stopwatch;
use crate::measure::random::Random;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::plan::writes::{Density, Pattern, Writes};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// A snapshot, and the writes until the next one.
const EACH: Metric = Metric::new("each", "ms");
const BETWEEN: Metric = Metric::new("between", "ms");
const WORST: Metric = Metric::new("worst", "ms");
const READ: Metric = Metric::new("read", "ms");
const DROP: Metric = Metric::new("drop", "us");

const PAGE: usize = 4096;
/// Clustered writes go to one of so many blocks.
const ONE_BLOCK_IN: usize = 16;
const BLOCK_PAGES: usize = (2 << 20) / PAGE;

/// The case.
#[derive(Debug)]
pub struct History;

impl Case for History {
    fn facts(&self) -> Facts {
        // With the densest of the usual writes, `room` is some seventeen areas.
        Facts { forks: true, areas: 20, ..Facts::new("history", EACH, [128 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::ForkThp, Subject::Fork4k]
    }

    fn memory(&self, job: &Job, subject: &Subject) -> Option<usize> {
        let (count, held) = job.writes.map_or((0, 0), |writes| (writes.density.writes(job.size), writes.held.number()));
        // Each child has page tables of its own.
        let tables = if *subject == Subject::Hugefork { 0 } else { held.checked_mul(job.size / PAGE * 8)? };
        job.size.checked_add(room(job.size, count, held))?.checked_add(tables)
    }

    fn in_words(&self, params: &Params) -> String {
        let how = if shown(params, "pattern") == "clustered" { " (clustered)" } else { "" };
        let [writes, size, held] = ["writes", "size", "held"].map(|name| shown(params, name));
        format!("{writes} writes{how} between two snapshots of {size}, {held} held")
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let writes = job.writes.expect("this case is planned by its writes");
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        let (count, held) = (writes.density.writes(size), writes.held.number());
        let named = params([
            ("size", Param::size(size)),
            ("density", Param::Number(writes.density.to_a_gib() as u64)),
            ("pattern", Param::text(writes.pattern.name())),
            ("writes", Param::Number(count as u64)),
            ("held", Param::Number(held as u64)),
        ]);
        sample::entries(subjects, &named, |planned| match planned.engine {
            Some(choice) => {
                let rival = HugeforkRival::with_room(choice, room(size, count, held));
                Box::new(Held { rival, size, cpu, writes, written: None, alone: None })
            }
            None => {
                let rival = ForkRival::new(planned.pages());
                Box::new(Held { rival, size, cpu, writes, written: None, alone: None })
            }
        })
    }

    fn usual_writes(&self, scope: Scope) -> Vec<Writes> {
        match scope {
            Scope::Quick => vec![Writes::first(Density::SCATTERED)],
            Scope::Full => {
                let clustered = Writes { pattern: Pattern::Clustered, ..Writes::first(Density::SCATTERED) };
                Density::ALL
                    .into_iter()
                    .filter(|density| *density <= Density::SPARSE)
                    .map(Writes::first)
                    .chain([clustered])
                    .collect()
            }
        }
    }
}

/// Memory for copies of what is written between so many snapshots, some of which are of whole blocks.
fn room(size: usize, writes: usize, held: usize) -> usize {
    size + (8 * held * writes * PAGE).next_multiple_of(2 << 20)
}

/// A way to take snapshots, at work.
struct Held<R> {
    rival: R,
    size: usize,
    cpu: usize,
    /// Between two snapshots, and how many of these are held.
    writes: Writes,
    /// For each page: after which snapshot it was written last, counted from 1; 0 if it was not.
    written: Option<List<u32>>,
    /// Bytes held before anything was shared.
    alone: Option<usize>,
}

/// Whether a snapshot that is the `nth`, counted from 1, has what it must.
fn is_kept(written: &[u32], nth: u32, bias: u64, read: Read<'_>) -> bool {
    written.iter().enumerate().all(|(page, &last)| {
        let found = read(page * PAGE);
        let before = (page * PAGE / 8) as u64 + bias;
        match last {
            0 => found == before,
            last if last < nth => found == u64::from(last),
            // What it was then is written over.
            _ => found == before || found < u64::from(nth),
        }
    })
}

/// No word has a number that is written later.
const BIAS: u64 = 1 << 40;

impl<R: Rival> Held<R> {
    fn page(&self, targets: &mut Random) -> usize {
        let pages = self.size / PAGE;
        match self.writes.pattern {
            Pattern::Random => targets.below(pages),
            Pattern::Clustered => {
                let block = targets.below((pages / BLOCK_PAGES).div_ceil(ONE_BLOCK_IN)) * ONE_BLOCK_IN;
                block * BLOCK_PAGES + targets.below(BLOCK_PAGES.min(pages))
            }
        }
    }
}

impl<R: Rival> Work for Held<R> {
    fn prepare(&mut self) -> Result<(), BenchError> {
        self.written = Some(List::new(self.size / PAGE)?);
        self.rival.populate(self.size, BIAS)?;
        self.alone = self.rival.memory(&[]);
        self.rival.warm(self.size, &[self.cpu])
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut written = self.written.take().expect("prepared before sampled");
        let start = self.rival.start();
        self.rival.ready()?;
        let (count, snapshots) = (self.writes.density.writes(self.size), self.writes.held.number());
        let (mut held, mut calls, mut betweens) =
            (Vec::with_capacity(snapshots), Vec::with_capacity(snapshots), Vec::with_capacity(snapshots));
        let pinned = Pinned::to(self.cpu)?;
        let mut watch = Stopwatch::default();
        for nth in 1..=snapshots as u32 {
            let pages: Vec<usize> = (0..count).map(|_| self.page(targets)).collect();
            let noted = &written;
            let (taken, call) = watch.time(|| self.rival.take(|read| is_kept(noted.as_slice(), nth, BIAS, read)));
            held.push(taken?);
            let ((), between) = watch.time(|| {
                for page in &pages {
                    // SAFETY: the first word of a page of the rival's own area, which nobody else writes.
                    unsafe { start.add(page * PAGE).cast::<u64>().write(u64::from(nth)) };
                }
            });
            pages.iter().for_each(|page| written.as_mut_slice()[*page] = nth);
            calls.push(call);
            betweens.push(between);
        }
        let extra = self.rival.memory(&held).zip(self.alone).map(|(now, alone)| now as f64 - alone as f64);
        let (read, reading) = watch.time(|| self.rival.first_read(&held[snapshots / 2], self.size));
        let read = read?.then_some(reading);
        let mut held: Vec<(u32, R::Snapshot)> = (1..).zip(held).collect();
        for nth in 0..snapshots / 2 {
            let other = nth + targets.below(snapshots - nth);
            held.swap(nth, other);
        }
        let gone: Vec<_> = held.drain(..snapshots / 2).collect();
        let (dropped, dropping) = watch.time(|| gone.into_iter().try_for_each(|(_, one)| self.rival.discard(one)));
        dropped?;
        drop(pinned);
        for (nth, snapshot) in held {
            let failed = || BenchError::Task { task: 0, tasks: 1, how: format!("lost what snapshot {nth} held") };
            self.rival.let_go(snapshot, |read| {
                is_kept(written.as_slice(), nth, BIAS, read).then_some(()).ok_or_else(failed)
            })?;
        }
        self.rival.end_sample();
        let later = |times: &[f64]| median(&times[snapshots / 2..]);
        let each: Vec<f64> = calls.iter().zip(&betweens).map(|(call, between)| call + between).collect();
        let worst = calls.iter().copied().fold(0.0, f64::max);
        let times = [(EACH, later(&each)), (Metric::CALL, later(&calls)), (BETWEEN, later(&betweens)), (WORST, worst)];
        let mut measures = Measure::sample(times, watch.cpu());
        measures.push(Measure::new(DROP, dropping * 1e3 / (snapshots / 2) as f64));
        measures.extend(read.map(|time| Measure::new(READ, time)));
        let a_mib = f64::from(1 << 20) * snapshots as f64;
        measures.extend(extra.map(|bytes| Measure::new(Metric::EXTRA, bytes.max(0.0) / a_mib)));
        Ok(measures)
    }

    fn release(&mut self) {
        self.written = None;
        self.rival.release();
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.rival.pool()
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_changed_since_or_did_not_is_told() {
        let written = [0, 1, 2, 3];
        let read = |values: [u64; 4]| move |at: usize| values[at / PAGE];
        let before = |page: usize| (page * PAGE / 8) as u64 + BIAS;
        let kept = |nth, values: [u64; 4]| is_kept(&written, nth, BIAS, &read(values));
        assert!(kept(3, [before(0), 1, 2, before(3)]) && kept(3, [before(0), 1, 2, 2]));
        assert!(!kept(3, [before(0), 1, 2, 3]), "written later");
        assert!(!kept(3, [before(0), 1, before(2), before(3)]), "written before, and lost");
        assert!(!kept(3, [7, 1, 2, before(3)]), "never written");
    }
}
