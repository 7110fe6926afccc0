//! `first-touch`: one pass of first writes, one to each 2 MiB of a new area, at random offsets.
//!
//! | metric | |
//! |---|---|
//! | `pass` | the whole pass |
//! | `p50`, `p99` | a single write |
//! | `cpu` | all threads, from the first step after the warm-up to the end of the pass |
//!
//! Where `memory` is `fresh`, the program gets the memory from the system: the kernel's subjects
//! map an area, `hugefork` builds a pool with its defaults. `hugefork-upfront` builds a pool that
//! gets all its memory when it is built; the time of the build is not part of the pass, but of
//! `cpu`. Where `memory` is `recycled`, the program has used the memory before and has freed it, by
//! dropping a region of the same pool or by `MADV_DONTNEED` of the same mapping.
//!
//! One thread writes. Where `cpus` is 1, the process has one CPU, so that the pool's thread that obtains memory in
//! advance competes with the writer. Where `cpus` is `all`, that thread may have a CPU of its own.

use hugefork::{Commit, Pool, Region};

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::{self, CpuMeter};
use crate::measure::random::Random;
use crate::measure::warm::warm;
use crate::measure::work;
use crate::memory::kernel_memory::{HUGE_PAGE, KernelMemory, PageKind, Reserve};
use crate::memory::pools;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::results::stats::{nearest_rank, sorted};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct FirstTouch;

/// All first writes together.
const PASS: Metric = Metric::new("pass", "ms");

impl Case for FirstTouch {
    fn facts(&self) -> Facts {
        Facts::new("first-touch", &[PASS, Metric::P99, Metric::CPU], [256 << 20, 1 << 30])
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::HugeforkUpfront, Subject::KernelThp, Subject::KernelHugetlb]
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        Some(job.size)
    }

    fn in_words(&self, params: &Params) -> String {
        let cpus = if shown(params, "cpus") == "1" { "1 CPU" } else { "all CPUs" };
        format!("{} of {} memory, {cpus}", shown(params, "size"), shown(params, "memory"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let works = [Memory::Fresh, Memory::Recycled].into_iter().flat_map(|memory| [(memory, true), (memory, false)]);
        // On a machine with one CPU, the confined work and the other are the same.
        let works = works.filter(|(_, is_confined)| *is_confined || host.cpus > 1);
        let of = |(memory, is_confined): (Memory, bool)| {
            let params = params([
                ("size", Param::size(job.size)),
                ("memory", Param::text(memory.name())),
                ("cpus", if is_confined { Param::Number(1) } else { Param::text("all") }),
            ]);
            let pass = Pass { size: job.size, memory, is_confined, cpu: host.cpu_numbers[0] };
            sample::entries(subjects, &params, move |planned| -> Work {
                match planned.subject {
                    Subject::Hugefork => Box::new(move |targets| pass.in_region(Commit::OnDemand, targets)),
                    Subject::HugeforkUpfront => Box::new(move |targets| pass.in_region(Commit::Upfront, targets)),
                    _ => {
                        let kind = planned.pages();
                        Box::new(move |targets| pass.in_mapping(kind, targets))
                    }
                }
            })
        };
        works.flat_map(of).collect()
    }
}

/// The owner of the area's memory before the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// The memory belonged to the system.
    Fresh,
    /// The program has used the memory.
    Recycled,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Memory::Fresh => "fresh",
            Memory::Recycled => "recycled",
        }
    }
}

/// The parameters of one pass.
#[derive(Clone, Copy)]
struct Pass {
    size: usize,
    memory: Memory,
    /// Whether the whole process has one CPU.
    is_confined: bool,
    cpu: usize,
}

impl Pass {
    fn in_mapping(self, kind: PageKind, targets: &mut Random) -> Result<Sample, BenchError> {
        let _pinned = Pinned::to(self.cpu)?;
        warm(kind, self.size, 1, &[self.cpu])?;
        let mut meter = CpuMeter::start();
        let memory = KernelMemory::map(kind, self.size, Reserve::Yes)?;
        if self.memory == Memory::Recycled {
            memory.touch()?;
            memory.discard()?;
            meter = CpuMeter::start();
        }
        // SAFETY: an anonymous mapping of our own.
        let measures = unsafe { self.run(memory.as_ptr(), meter, targets) }?;
        // Without huge pages, the figure would be that of another subject.
        memory.check_huge()?;
        Ok(Sample::of(measures))
    }

    fn in_region(self, commit: Commit, targets: &mut Random) -> Result<Sample, BenchError> {
        warm(PageKind::Thp, self.size, 1, &[self.cpu])?;
        let mut pinned = self.is_confined.then(|| Pinned::to(self.cpu)).transpose()?;
        let mut meter = CpuMeter::start();
        // The pool's threads inherit the allowed CPUs of this thread.
        let pool: Pool = pools::builder(self.size).commit(commit).build()?;
        if self.memory == Memory::Recycled {
            drop(pools::written(&pool, self.size, 0)?);
            meter = CpuMeter::start();
        }
        let region: Region = pool.region(self.size)?;
        if pinned.is_none() {
            pinned = Some(Pinned::to(self.cpu)?);
        }
        // SAFETY: a new region of our own; its pool has a block for every write.
        let measures = unsafe { self.run(region.as_mut_ptr(), meter, targets) }?;
        drop(pinned);
        Ok(Sample::on(&pool, Some(pool.clear_kernel()), measures))
    }

    /// Writes a word in each 2 MiB of the area, and times the writes.
    ///
    /// # Safety
    /// `area` is `size` bytes of demand-zero memory, aligned to 4096, ours alone.
    unsafe fn run(self, area: *mut u8, meter: CpuMeter, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let steps = self.size / HUGE_PAGE;
        let offsets: Vec<usize> = (0..steps).map(|step| step * HUGE_PAGE + targets.word_offset(HUGE_PAGE)).collect();
        let mut writes = Vec::with_capacity(steps);
        let start = clock::now_fenced();
        let mut last = start;
        for &offset in &offsets {
            // SAFETY: a word of the area.
            unsafe { work::first_write(area, offset, MARK) };
            let now = clock::now_fenced();
            writes.push(clock::us(last, now));
            last = now;
        }
        let cpu = meter.ms();
        for (step, &written) in offsets.iter().enumerate() {
            // SAFETY: words of the area, by contract.
            unsafe { check(area, step * HUGE_PAGE, written) }?;
        }
        let writes = sorted(writes);
        let [p50, p99] = [0.5, 0.99].map(|part| nearest_rank(&writes, part));
        Ok(Measure::all([(PASS, clock::ms(start, last)), (Metric::P50, p50), (Metric::P99, p99), (Metric::CPU, cpu)]))
    }
}

/// The value that is written.
const MARK: u64 = 0x5eed_f00d_0dd5;

/// Checks the word at `written` and the first word of each page in the 2 MiB from `start` on: only the word at
/// `written` may differ from zero.
///
/// # Safety
/// `area` holds these 2 MiB, and no other thread writes to them.
unsafe fn check(area: *const u8, start: usize, written: usize) -> Result<(), BenchError> {
    let words = (start..start + HUGE_PAGE).step_by(4096).chain([written]);
    for offset in words {
        // SAFETY: a word of the area.
        let found = unsafe { area.add(offset).cast::<u64>().read_volatile() };
        let expected = if offset == written { MARK } else { 0 };
        if found != expected {
            return Err(BenchError::WrongContents { offset, found, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_fails_the_check() {
        let mut area = vec![0u64; HUGE_PAGE / 8];
        area[1000] = MARK;
        let check = |area: &[u64], written| {
            // SAFETY: the vector's own memory.
            unsafe { check(area.as_ptr().cast(), 0, written) }
        };
        check(&area, 8000).unwrap();
        assert!(check(&area, 8008).is_err(), "the write is missing");
        area[512] = 7;
        assert!(check(&area, 8000).is_err(), "not zero");
    }
}
