//! `writer-latency`: what a program pays that goes on writing after a fork or snapshot of its populated area was taken, while
//! that is held.
//!
//! One thread takes it (`pause`) and then writes 8 bytes each at random words of the area, one after the other: 5 000
//! writes (`sparse`: nearly every block of 2 MiB is hit, and few of its pages) or 500 000 (`dense`), less in proportion in
//! areas of less than 1 GiB. A latency is what lies between two fenced readings of the clock: one write and one reading,
//! which takes 0.05 us. `p50` to `p99.9` are nearest ranks, `total` is all writes together, without the pause. Two curves say
//! more (see `curve`): `latency` by percentile, and `cost` by time around the snapshot, for which some words are written again
//! with what they hold before it is taken. What another thread would write during the pause is not measured: some subjects would let it write without copying, and be ahead
//! afterwards.
//!
//! `amplification` is bytes copied over bytes dirtied, which are the distinct words. hugefork counts what it copies; `memcpy`
//! has copied everything. The kernel does not count, but each of its faults copies one page while a child holds them all:
//! the thread's minor faults (`getrusage`) times the page. With transparent huge pages that is a page of 4 KiB too, since
//! Linux 5.8 splits a huge page at the first such write. Should there be fewer faults than pages written, then the kernel
//! copied in larger pieces than that, and the metric is left out. A fault or two of the thread's own stack are in it.
//!
//! After every sample each word that was written is looked at twice: the area must hold what was written, and the snapshot,
//! the copy or the child (who sleeps until then) what was there before.
//!
//! Before every sample the area is written anew, as a whole: huge pages that a sample split do not come back by themselves.
//! What will be copied to has been touched before, for all but `hugefork-default`, on the CPU that takes it.
//!
//! `hugefork-default` is what a program has that goes by the defaults: a new pool every time, in which the area has just been
//! written for the first time, and whose other blocks get their memory for the copies or, by the pool's thread, before.

use hugefork::{Pool, Region};
use hugefork_kernels::Kernel;

use super::snapshot::PAGE_TABLES;
use crate::affinity::Pinned;
use crate::clock::{self, Stopwatch};
use crate::curve::{self, Curve, Mean, nearest_rank};
use crate::engine;
use crate::error::BenchError;
use crate::holder::Holder;
use crate::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::plan::{CasePlan, EngineChoice, SubjectPlan};
use crate::random::Random;
use crate::result::{Param, Params};
use crate::sample::Work;
use crate::subject::{Stock, Subject};
use crate::warm::warm;
use crate::work;

pub(super) fn work(plan: &CasePlan, subject: &SubjectPlan, cpus: &[usize]) -> (Params, Box<dyn Work>) {
    let density = plan.density.expect("this case is planned by density");
    let writes = density.writes(plan.size);
    let mut params = Params::from([
        ("size".to_owned(), Param::size(plan.size)),
        ("density".to_owned(), Param::text(density.name())),
        ("writes".to_owned(), Param::Number(writes as u64)),
    ]);
    let writer = Writer { size: plan.size, writes, cpu: cpus[0], lists: None, curves: Vec::new() };
    let work: Box<dyn Work> = match subject.engine {
        Some(choice) => {
            params.extend(engine::asked(choice));
            Box::new(Hugefork { choice, writer, held: None })
        }
        None if subject.subject == Subject::Memcpy => Box::new(Memcpy { writer, held: None }),
        None => Box::new(Fork { kind: subject.pages(), writer, area: None }),
    };
    (params, work)
}

/// The area holds `p[i] = i + BIAS` when the snapshot is taken.
const BIAS: u64 = 1;

fn before(offset: usize) -> u64 {
    (offset / 8) as u64 + BIAS
}

fn after(offset: usize) -> u64 {
    !before(offset)
}

/// # Safety
/// `area` is valid for reads of a word at each of `offsets`, aligned to 8; nobody writes it meanwhile.
unsafe fn check(area: *const u8, offsets: &[usize], expected: fn(usize) -> u64) -> Result<(), BenchError> {
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

/// What every subject does, in its own area.
struct Writer {
    size: usize,
    writes: usize,
    cpu: usize,
    lists: Option<Lists>,
    /// Of the last sample.
    curves: Vec<Curve>,
}

/// Writes before the snapshot, at most.
const BEFORE: usize = 1_000;

struct Lists {
    /// What is written.
    offsets: Vec<usize>,
    /// What is written again before the snapshot.
    earlier: Vec<usize>,
    /// Nanoseconds of each write. Not in the heap: a child would share it, and each of its pages would cost a fault.
    latencies: KernelMemory,
}

/// What the writes came to.
struct Written {
    measures: Vec<Measure>,
    curves: Vec<Curve>,
    minor_faults: u64,
}

impl Writer {
    /// Draws the words of the next sample.
    fn draw(&mut self, targets: &mut Random) -> Result<(), BenchError> {
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

    fn offsets(&self) -> &[usize] {
        &self.lists.as_ref().expect("drawn before written").offsets
    }

    /// Takes a snapshot, then writes.
    ///
    /// # Safety
    /// `area` is `size` bytes that nobody else accesses; every write to it finds memory.
    unsafe fn run<T>(
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
        let ranks =
            [(Metric::P50, 0.5), (Metric::P90, 0.9), (Metric::P99, 0.99), (Metric::P999, 0.999), (Metric::Max, 1.0)];
        let mut measures = vec![Measure::new(Metric::Pause, pause)];
        measures.extend(ranks.map(|(metric, part)| Measure::new(metric, f64::from(nearest_rank(&sorted, part)) / 1e3)));
        measures.push(Measure::new(Metric::Writes, total));
        measures.extend(Measure::cpu(watch.cpu()));
        // SAFETY: by contract.
        unsafe { check(area, &lists.offsets, after) }?;
        Ok((taken, Written { measures, curves, minor_faults }))
    }

    /// Different pieces of `len` bytes that the writes went to.
    fn distinct(&self, len: usize) -> usize {
        let mut pieces: Vec<usize> = self.offsets().iter().map(|offset| offset / len).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces.len()
    }

    fn amplification(&self, copied: usize) -> Measure {
        Measure::new(Metric::Amplification, copied as f64 / (self.distinct(8) * 8) as f64)
    }
}

struct Fork {
    kind: PageKind,
    writer: Writer,
    area: Option<KernelMemory>,
}

impl Fork {
    /// What the kernel copies at a write to a shared page.
    fn copied_at_once(&self) -> usize {
        match self.kind {
            PageKind::Hugetlb => HUGE_PAGE,
            PageKind::Base | PageKind::Thp => 4096,
        }
    }
}

impl Work for Fork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        self.area = None;
        let area = KernelMemory::written(self.kind, self.writer.size, BIAS)?;
        area.check_huge()?;
        self.area = Some(area);
        let copies = if self.kind == PageKind::Hugetlb { PageKind::Hugetlb } else { PageKind::Base };
        warm(copies, self.writer.size, 1, &[self.writer.cpu])?;
        warm(PageKind::Base, PAGE_TABLES, 1, &[self.writer.cpu])
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        self.writer.draw(targets)?;
        let area = self.area.take().expect("prepared before sampled");
        area.inherit(Inherit::Yes)?;
        let offsets = self.writer.offsets();
        // SAFETY: the child compares words of its own copy of the mapping.
        let fork = || unsafe { Holder::fork(|| check(area.as_ptr(), offsets, before).is_ok()) };
        // SAFETY: our own mapping.
        let (child, Written { mut measures, curves, minor_faults }) = unsafe { self.writer.run(area.as_ptr(), fork) }?;
        child.let_go()?;
        self.writer.curves = curves;
        let page = self.copied_at_once();
        let faults = minor_faults as usize;
        if faults >= self.writer.distinct(page) {
            measures.push(self.writer.amplification(faults * page));
        }
        Ok(measures)
    }

    fn curves(&mut self) -> Vec<Curve> {
        std::mem::take(&mut self.writer.curves)
    }

    fn release(&mut self) {
        self.area = None;
    }
}

struct Memcpy {
    writer: Writer,
    held: Option<(KernelMemory, KernelMemory)>,
}

impl Work for Memcpy {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let size = self.writer.size;
        match &self.held {
            // SAFETY: our own mapping.
            Some((from, _)) => unsafe { work::write_words(from.as_ptr().cast(), size / 8, BIAS) },
            None => {
                let huge = |bias| KernelMemory::written(PageKind::Thp, size, bias);
                self.held = Some((huge(BIAS)?, huge(0)?));
            }
        }
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        self.writer.draw(targets)?;
        let (from, to) = self.held.as_ref().expect("prepared before sampled");
        let copy = || {
            // SAFETY: two mappings of our own of `size` bytes.
            unsafe { libc::memcpy(to.as_ptr().cast(), from.as_ptr().cast(), from.len()) };
            Ok(())
        };
        // SAFETY: our own mapping.
        let ((), Written { mut measures, curves, .. }) = unsafe { self.writer.run(from.as_ptr(), copy) }?;
        // SAFETY: our own mapping, as long as the other.
        unsafe { check(to.as_ptr(), self.writer.offsets(), before) }?;
        measures.push(self.writer.amplification(from.len()));
        self.writer.curves = curves;
        Ok(measures)
    }

    fn curves(&mut self) -> Vec<Curve> {
        std::mem::take(&mut self.writer.curves)
    }

    fn release(&mut self) {
        self.held = None;
    }
}

struct Hugefork {
    choice: EngineChoice,
    writer: Writer,
    held: Option<Held>,
}

struct Held {
    // The region before its pool: fields drop in order.
    region: Region,
    pool: Pool,
}

impl Work for Hugefork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let size = self.writer.size;
        if self.choice.stock == Stock::Unused {
            // The old one's memory goes before the new one's comes.
            self.held = None;
            let pool = engine::new_pool(self.choice, 2 * size)?;
            let region = engine::written(&pool, size, BIAS)?;
            self.held = Some(Held { region, pool });
            return Ok(());
        }
        match &self.held {
            // SAFETY: our own region; the last snapshot is gone, so these writes find room.
            Some(held) => unsafe { work::write_words(held.region.as_mut_ptr().cast(), size / 8, BIAS) },
            None => {
                // Every block once more, for its copy.
                let pool = engine::warm_pool(self.choice, 2 * size)?;
                let region = engine::written(&pool, size, BIAS)?;
                self.held = Some(Held { region, pool });
            }
        }
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        self.writer.draw(targets)?;
        let Held { region, .. } = self.held.as_ref().expect("prepared before sampled");
        let copied = || region.stats().faults.bytes_copied as usize;
        let earlier = copied();
        let take = || Ok(region.snapshot()?);
        // SAFETY: our own region; its pool has a block for every copy.
        let (snapshot, Written { mut measures, curves, .. }) = unsafe { self.writer.run(region.as_mut_ptr(), take) }?;
        measures.push(self.writer.amplification(copied() - earlier));
        // SAFETY: the snapshot is as long as the region.
        unsafe { check(snapshot.map()?.as_ptr(), self.writer.offsets(), before) }?;
        self.writer.curves = curves;
        Ok(measures)
    }

    fn curves(&mut self) -> Vec<Curve> {
        std::mem::take(&mut self.writer.curves)
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, Some(held.pool.copy_kernel())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_copy_as_much_as_the_module_says() {
        let size = 16 << 20;
        for kind in [PageKind::Base, PageKind::Thp] {
            let writer =
                Writer { size, writes: 500, cpu: crate::affinity::allowed_cpus()[0], lists: None, curves: Vec::new() };
            let mut fork = Fork { kind, writer, area: None };
            match fork.prepare() {
                Err(error) if error.is_lack() => {
                    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {error}\n").as_bytes());
                    continue;
                }
                prepared => prepared.unwrap(),
            }
            let measures = fork.sample(&mut Random::new(3)).unwrap();
            let amplification = measures.iter().find(|m| m.metric == Metric::Amplification).unwrap().value;
            let least = (fork.writer.distinct(4096) * 4096) as f64 / (fork.writer.distinct(8) * 8) as f64;
            // A few faults of the thread's own stack and lists on top.
            assert!((least..least * 1.05).contains(&amplification), "{kind:?}: {amplification}, at least {least}");
        }
    }
}
