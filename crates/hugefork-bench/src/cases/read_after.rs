//! `read-after`: random reads of a populated area, before a snapshot of that area (`when` is `before`), while the
//! snapshot is held and the program has written to one page in a hundred (`held`), and after the snapshot was dropped
//! (`after`).
//!
//! Reads get slower where a huge page was split into small ones. The address of each read depends
//! on the result of the read before, so that misses of the TLB add to the time. `read` is the mean
//! time of all reads, and `p99` is the 99th percentile of batches of 64 reads, each taken as the
//! mean of its reads. After the drop of the snapshot, subjects have a tenth of a second to restore
//! huge pages.

use std::hint::black_box;
use std::thread::sleep;
use std::time::Duration;

use super::ways::{ForkWay, RegionWay, Way};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock;
use crate::measure::random::Random;
use crate::measure::work;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::results::stats::{nearest_rank, sorted};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct ReadAfter;

/// The mean time of a read.
const READ: Metric = Metric::new("read", "ns");

/// The time of a read in a batch; only one batch in a hundred is slower.
const P99: Metric = Metric::new("p99", "ns");

/// Reads of a sample, and of a batch.
const READS: usize = 128 << 10;
const BATCH: usize = 64;

/// While the snapshot is held, the program writes to one in this many pages.
const ONE_PAGE_IN: usize = 100;

/// The time between the drop of the snapshot and the reads.
const SETTLE: Duration = Duration::from_millis(100);

impl Case for ReadAfter {
    fn facts(&self) -> Facts {
        Facts::new("read-after", &[READ, P99], [128 << 20, 1 << 30])
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::ForkThp, Subject::Fork4k]
    }

    fn in_words(&self, params: &Params) -> String {
        let when = match shown(params, "when").as_str() {
            "before" => "before a snapshot",
            "held" => "a snapshot held",
            _ => "after its drop",
        };
        format!("{}, {when}", shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        let of = |when: When| {
            let params = params([("size", Param::size(size)), ("when", Param::text(when.name()))]);
            sample::entries(subjects, &params, move |planned| -> Work {
                match planned.subject {
                    Subject::Hugefork => {
                        Box::new(move |targets| measure(RegionWay::new(size, size, cpu)?, when, size, cpu, targets))
                    }
                    _ => {
                        let kind = planned.pages();
                        Box::new(move |targets| measure(ForkWay::new(kind, size, cpu)?, when, size, cpu, targets))
                    }
                }
            })
        };
        [When::Before, When::Held, When::After].into_iter().flat_map(of).collect()
    }
}

/// The moment at which the area is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    Held,
    After,
}

impl When {
    fn name(self) -> &'static str {
        match self {
            When::Before => "before",
            When::Held => "held",
            When::After => "after",
        }
    }
}

fn measure<W: Way>(
    mut way: W,
    when: When,
    size: usize,
    cpu: usize,
    targets: &mut Random,
) -> Result<Sample, BenchError> {
    let _pinned = Pinned::to(cpu)?;
    let mut snapshot = None;
    if when != When::Before {
        snapshot = Some(way.take(|_| true)?);
        for _ in 0..size / 4096 / ONE_PAGE_IN {
            // SAFETY: a word of the area.
            unsafe { work::first_write(way.start(), targets.word_offset(size), 1) };
        }
    }
    if when == When::After {
        drop(snapshot.take());
        sleep(SETTLE);
    }
    let offsets: Vec<usize> = (0..READS).map(|_| targets.word_offset(size)).collect();
    // SAFETY: words of the area, to which no thread writes.
    let batches = sorted(unsafe { read(way.start(), &offsets) });
    let mean = batches.iter().sum::<f64>() / batches.len() as f64;
    let measures = Measure::all([(READ, mean), (P99, nearest_rank(&batches, 0.99))]);
    drop(snapshot);
    Ok(match way.pool() {
        Some(pool) => Sample::on(pool, None, measures),
        None => Sample::of(measures),
    })
}

/// Reads the words at `offsets`, one after the other. Returns the mean nanoseconds of a read for each batch.
///
/// # Safety
/// `area` holds a word at each offset, aligned to 8.
#[inline(never)]
unsafe fn read(area: *const u8, offsets: &[usize]) -> Vec<f64> {
    // A value that the compiler does not know, so that each address depends on the word before.
    let none = black_box(0usize);
    let mut last = 0;
    let mut batches = Vec::with_capacity(offsets.len() / BATCH + 1);
    for batch in offsets.chunks(BATCH) {
        let start = clock::now_fenced();
        for offset in batch {
            // SAFETY: by contract; `last & none` is 0.
            last = unsafe { area.add(offset + (last & none)).cast::<usize>().read_volatile() };
        }
        batches.push((clock::now_fenced() - start) as f64 / batch.len() as f64);
    }
    black_box(last);
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_has_a_time() {
        let area: Vec<u64> = (0..4096).collect();
        let offsets: Vec<usize> = (0..200).map(|word| word * 8).collect();
        // SAFETY: words of the vector.
        let batches = unsafe { read(area.as_ptr().cast(), &offsets) };
        assert!(batches.len() == 4 && batches.iter().all(|ns| *ns > 0.0), "{batches:?}");
    }
}
