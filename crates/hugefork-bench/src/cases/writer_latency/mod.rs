//! `writer-latency`: what a program pays if it goes on writing to its populated area while a fork or snapshot of that
//! is held.
//!
//! One thread takes the snapshot (`pause`) and then writes random words of the area, one after the other: 5 000
//! (`sparse`: they hit nearly every block of 2 MiB, and few of its pages) or 500 000 (`dense`), and in proportion fewer
//! in areas of less than 1 GiB. A latency is the time between two fenced readings of the clock: one write and one
//! reading, which takes 0.05 us. `p50` to `p99.9` are nearest ranks; `total` is all writes together, without the pause.
//! There are also two curves: `latency` by percentile, and `cost` by time around the snapshot. For the latter, some
//! words are written again before the snapshot, with what they hold already. What another thread would write during the
//! pause is not measured: some subjects would let it write without copying, and be ahead afterwards.
//!
//! `amplification` is bytes copied over bytes dirtied, which are those of the distinct words. hugefork counts what it
//! copies, and `memcpy` has copied everything. The kernel does not count, but while a child holds all pages, each fault
//! copies one: so it is the thread's minor faults (`getrusage`) times the page size. With transparent huge pages a page
//! is 4 KiB, too, since Linux 5.8 and newer split a huge page at the first such write. If there are fewer faults than
//! pages written, the kernel has copied larger pieces, and the metric is left out. It includes a fault or two of the
//! thread's own stack.
//!
//! After every sample each word that was written is checked twice: the area must hold what was written, and the
//! snapshot, the copy or the child (which sleeps until then) must hold what was there before.
//!
//! Before every sample the whole area is written again: huge pages that a sample has split do not come back by
//! themselves. For all but `hugefork-default`, the memory that copies go to has been touched before, on the CPU that
//! takes it.
//!
//! `hugefork-default` is what a program has that uses the defaults: a new pool every time, in which the area has just
//! been written for the first time. The other blocks get their memory when copies need it or, from the pool's thread,
//! before.

mod writer;

use hugefork::Pool;
use hugefork_kernels::Kernel;

use self::writer::{BIAS, WRITES, Writer, Written, before, check};
use crate::case::Case;
use crate::curve::Curve;
use crate::density::Density;
use crate::engine::{self, Populated};
use crate::error::BenchError;
use crate::holder::Holder;
use crate::host::Host;
use crate::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::random::Random;
use crate::result::{Param, Params, params, shown};
use crate::sample::{self, Entry, Work};
use crate::subject::{Stock, Subject};
use crate::warm::{warm, warm_page_tables};
use crate::work;

/// The case.
#[derive(Debug)]
pub struct WriterLatency;

impl Case for WriterLatency {
    fn name(&self) -> &'static str {
        "writer-latency"
    }

    fn lead_metric(&self) -> Metric {
        WRITES
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![
            Subject::Hugefork,
            Subject::HugeforkDefault,
            Subject::ForkThp,
            Subject::ForkHugetlb,
            Subject::Fork4k,
            Subject::Memcpy,
        ]
    }

    fn usual_size(&self, scope: Scope) -> usize {
        match scope {
            Scope::Quick => 128 << 20,
            Scope::Full | Scope::Sweep => 1 << 30,
        }
    }

    /// The area, and a copy of all of it.
    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(2)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} writes, snapshot of {} held", shown(params, "writes"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let density = job.density.expect("this case is planned by density");
        let (size, writes, cpu) = (job.size, density.writes(job.size), host.cpu_numbers[0]);
        let params = params([
            ("size", Param::size(size)),
            ("density", Param::text(density.name())),
            ("writes", Param::Number(writes as u64)),
        ]);
        sample::entries(subjects, &params, |planned| {
            let writer = Writer::new(size, writes, cpu);
            match planned.engine {
                Some(choice) => Box::new(Hugefork { choice, writer, held: None }),
                None if planned.subject == Subject::Memcpy => Box::new(Memcpy { writer, held: None }),
                None => Box::new(Fork { kind: planned.pages(), writer, area: None }),
            }
        })
    }

    fn forks(&self) -> bool {
        true
    }

    fn densities(&self) -> Vec<Option<Density>> {
        Density::ALL.map(Some).to_vec()
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::Memcpy).then_some("has copied everything in its pause")
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
        warm_page_tables(self.writer.cpu)
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
    held: Option<Populated>,
}

impl Work for Hugefork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let size = self.writer.size;
        if self.choice.stock == Stock::Unused {
            // The old pool's memory is freed before the new pool gets any.
            self.held = None;
            self.held = Some(Populated::new(engine::new_pool(self.choice, 2 * size)?, size, BIAS)?);
            return Ok(());
        }
        match &self.held {
            // SAFETY: our own region; the last snapshot is gone, so these writes find room.
            Some(held) => unsafe { work::write_words(held.region.as_mut_ptr().cast(), size / 8, BIAS) },
            // Room for the area, and for a copy of each of its blocks.
            None => self.held = Some(Populated::new(engine::warm_pool(self.choice, 2 * size)?, size, BIAS)?),
        }
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        self.writer.draw(targets)?;
        let Populated { region, .. } = self.held.as_ref().expect("prepared before sampled");
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
    use super::writer::AMPLIFICATION;
    use super::*;

    #[test]
    fn faults_copy_as_much_as_the_module_says() {
        let size = 16 << 20;
        for kind in [PageKind::Base, PageKind::Thp] {
            let writer = Writer::new(size, 500, crate::affinity::allowed_cpus()[0]);
            let mut fork = Fork { kind, writer, area: None };
            match fork.prepare() {
                Err(error) if error.is_lack() => {
                    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {error}\n").as_bytes());
                    continue;
                }
                prepared => prepared.unwrap(),
            }
            let measures = fork.sample(&mut Random::new(3)).unwrap();
            let amplification = measures.iter().find(|m| m.metric == AMPLIFICATION).unwrap().value;
            let least = (fork.writer.distinct(4096) * 4096) as f64 / (fork.writer.distinct(8) * 8) as f64;
            // The thread's own stack and lists take a few faults more.
            assert!((least..least * 1.05).contains(&amplification), "{kind:?}: {amplification}, at least {least}");
        }
    }
}
