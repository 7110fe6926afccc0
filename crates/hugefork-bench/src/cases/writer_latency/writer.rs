//! The writer, which is the same for every subject. It draws words, takes the snapshot, writes, and times each write.

use crate::affinity::Pinned;
use crate::clock::{self, Stopwatch};
use crate::curve::{self, Curve, Mean, nearest_rank};
use crate::error::BenchError;
use crate::kernel_memory::{HUGE_PAGE, KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::random::Random;
use crate::work;

/// Half of all writes take no longer than this.
const P50: Metric = Metric::new("p50", "us");

/// Nine of ten writes take no longer than this.
const P90: Metric = Metric::new("p90", "us");

/// 99 of 100 writes take no longer than this.
const P99: Metric = Metric::new("p99", "us");

/// 999 of 1000 writes take no longer than this.
const P999: Metric = Metric::new("p99.9", "us");

/// The slowest write.
const MAX: Metric = Metric::new("max", "us");

/// All writes together.
pub(super) const WRITES: Metric = Metric::new("total", "ms");

/// Bytes copied for each byte that was changed.
pub(super) const AMPLIFICATION: Metric = Metric::new("amplification", "ratio");

/// The area holds `p[i] = i + BIAS` when the snapshot is taken.
pub(super) const BIAS: u64 = 1;

/// What a word holds when the snapshot is taken.
pub(super) fn before(offset: usize) -> u64 {
    (offset / 8) as u64 + BIAS
}

/// What is written to it.
fn after(offset: usize) -> u64 {
    !before(offset)
}

/// Checks that each of the words at `offsets` holds what is `expected` there.
///
/// # Safety
/// `area` is valid for reads of a word at each of `offsets`, aligned to 8; nobody writes it meanwhile.
pub(super) unsafe fn check(area: *const u8, offsets: &[usize], expected: fn(usize) -> u64) -> Result<(), BenchError> {
    for &offset in offsets {
        // SAFETY: by contract.
        let found = unsafe { area.add(offset).cast::<u64>().read_volatile() };
        let expected = expected(offset);
        if found != expected {
            return Err(BenchError::WrongContents { offset, found, expected });
        }
    }
    Ok(())
}

/// Does what every subject does in its own area.
pub(super) struct Writer {
    pub(super) size: usize,
    writes: usize,
    pub(super) cpu: usize,
    lists: Option<Lists>,
    /// The curves of the last sample.
    pub(super) curves: Vec<Curve>,
}

/// The most writes before the snapshot.
const BEFORE: usize = 1_000;

struct Lists {
    /// The words that are written after the snapshot.
    offsets: Vec<usize>,
    /// The words that are written before it, with what they hold already.
    earlier: Vec<usize>,
    /// Nanoseconds of each write. The list is not in the heap, which a child would share, so that each of its pages
    /// would cost a fault.
    latencies: KernelMemory,
}

/// What was measured of the writes.
pub(super) struct Written {
    pub(super) measures: Vec<Measure>,
    pub(super) curves: Vec<Curve>,
    pub(super) minor_faults: u64,
}

impl Writer {
    pub(super) fn new(size: usize, writes: usize, cpu: usize) -> Writer {
        Writer { size, writes, cpu, lists: None, curves: Vec::new() }
    }

    /// Draws the words of the next sample.
    pub(super) fn draw(&mut self, targets: &mut Random) -> Result<(), BenchError> {
        let latencies = match self.lists.take() {
            Some(lists) => lists.latencies,
            None => {
                let len = (self.writes * size_of::<u32>()).next_multiple_of(HUGE_PAGE);
                KernelMemory::populated(PageKind::Base, len)?
            }
        };
        let mut draw = |writes| (0..writes).map(|_| targets.word_offset(self.size)).collect();
        let (offsets, earlier) = (draw(self.writes), draw(self.writes.min(BEFORE)));
        self.lists = Some(Lists { offsets, earlier, latencies });
        Ok(())
    }

    /// The words of the last draw.
    pub(super) fn offsets(&self) -> &[usize] {
        &self.lists.as_ref().expect("drawn before written").offsets
    }

    /// Takes a snapshot, then writes.
    ///
    /// # Safety
    /// `area` is `size` bytes that nobody else accesses; every write to it finds memory.
    pub(super) unsafe fn run<T>(
        &self,
        area: *mut u8,
        take: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, Written), BenchError> {
        let lists = self.lists.as_ref().expect("drawn before written");
        let latencies = lists.latencies.as_ptr().cast::<u32>();
        let _pinned = Pinned::to(self.cpu)?;
        let mut before = Mean::default();
        let mut last = clock::now_fenced();
        for &offset in &lists.earlier {
            // SAFETY: the word lies in the area, which holds this already.
            unsafe { work::first_write(area, offset, self::before(offset)) };
            let now = clock::now_fenced();
            before.add((now - last) as f64, (now - last) as f64);
            last = now;
        }
        let mut watch = Stopwatch::default();
        let (taken, pause) = watch.time(take);
        let taken = taken?;
        let faults = clock::minor_faults();
        let ((), total) = watch.time(|| {
            let mut last = clock::now_fenced();
            for (index, &offset) in lists.offsets.iter().enumerate() {
                // SAFETY: the word lies in the area; the list has a place for each write.
                unsafe {
                    work::first_write(area, offset, after(offset));
                    let now = clock::now_fenced();
                    latencies.add(index).write((now - last).min(u32::MAX.into()) as u32);
                    last = now;
                }
            }
        });
        let minor_faults = clock::minor_faults() - faults;
        // SAFETY: the list, which nobody writes now.
        let mut sorted = unsafe { std::slice::from_raw_parts(latencies, self.writes) }.to_vec();
        let over_time = curve::over_time(before.value().unwrap_or(0.0), pause * 1e6, &sorted);
        sorted.sort_unstable();
        let curves = vec![curve::by_percentile(&sorted), over_time];
        let rank = |part| f64::from(nearest_rank(&sorted, part)) / 1e3;
        let values = [
            (Metric::PAUSE, pause),
            (P50, rank(0.5)),
            (P90, rank(0.9)),
            (P99, rank(0.99)),
            (P999, rank(0.999)),
            (MAX, rank(1.0)),
            (WRITES, total),
        ];
        let measures = Measure::sample(values, watch.cpu());
        // SAFETY: by contract.
        unsafe { check(area, &lists.offsets, after) }?;
        Ok((taken, Written { measures, curves, minor_faults }))
    }

    /// The number of different pieces of `len` bytes that the writes went to.
    pub(super) fn distinct(&self, len: usize) -> usize {
        let mut pieces: Vec<usize> = self.offsets().iter().map(|offset| offset / len).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces.len()
    }

    /// `copied` bytes over the bytes of the distinct words.
    pub(super) fn amplification(&self, copied: usize) -> Measure {
        Measure::new(AMPLIFICATION, copied as f64 / (self.distinct(8) * 8) as f64)
    }
}
