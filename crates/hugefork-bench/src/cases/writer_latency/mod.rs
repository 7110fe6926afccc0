//! `writer-latency`: what a program pays if it goes on writing to its populated area while a fork or snapshot of that
//! is held.
//!
//! One thread takes the snapshot and then writes words of the area, one after the other: from 10 to 1 000 000 if the
//! area has 1 GiB (`density`; in 5 000 writes, nearly every block of 2 MiB is hit, and few of its pages), and in
//! proportion fewer in areas of less than that. With the pattern `random` the words are anywhere; with `clustered`, as
//! many are in one of every sixteen neighbouring blocks of 2 MiB, which is chosen at random.
//!
//! `epoch` is 1 if the area has not been snapshotted before. It is 3 if it has been snapshotted and written in the same
//! manner twice, with each snapshot dropped before the next: so a program finds its memory that takes snapshots again
//! and again. Clustered writes hit the same blocks in every epoch.
//!
//! | metric | |
//! |---|---|
//! | `pause` | how long the snapshot keeps writers waiting. Of its call, hugefork says how much that is |
//! | `call` | the whole call |
//! | `total` | all writes together |
//! | `taken` | `pause` and `total`: what the snapshot takes from the program. Subjects are compared by it |
//! | `all` | `call` and `total` |
//! | `p50` … `p99.9`, `max` | nearest ranks of the time of a write |
//! | `amplification` | bytes copied over bytes dirtied, which are those of the distinct words |
//! | `extra` | memory held beyond the area itself when all was written |
//!
//! A pause is the whole call of `fork(2)` and `memcpy`, and the new mapping of `memfd-private`.
//!
//! The time of a write is that between two fenced readings of the clock: one write and one reading, which takes 0.05
//! us. There are also two curves: `latency` by percentile, and `cost` by time around the snapshot. For the latter, some
//! words are written again before the snapshot, with what they hold already. What another thread would write during the
//! pause is not measured: some subjects would let it write without copying, and be ahead afterwards.
//!
//! For the `amplification`, hugefork counts what it copies (`rival/hugefork.rs` says how pages come into it), and
//! `memcpy` has copied everything. The kernel does not count, but while a child holds all pages, each fault copies one:
//! so it is the thread's minor faults (`getrusage`) times the page size. With transparent huge pages a page is 4 KiB,
//! too, since Linux 5.8 and newer split a huge page at the first such write. If there are fewer faults than pages
//! written, the kernel has copied larger pieces, and the metric is left out. It includes a fault or two of the thread's
//! own stack.
//!
//! `extra` is anonymous memory and hugetlb pages of the process and its child (`footprint.rs`), less what the process
//! held when the area was populated; of hugefork also the blocks that are in use beyond those of the area, whether a
//! snapshot or the region holds them.
//!
//! In every epoch each word that was written is checked twice: the area must hold what was written, and the snapshot,
//! the copy or the child (which sleeps until then) must hold what was there before. From the second epoch on both must
//! also hold what was written in the one before.
//!
//! Before every sample the whole area is written again: huge pages that a sample has split do not come back by
//! themselves. For all but `hugefork-default`, the memory that copies go to has been touched before, on the CPU that
//! takes it. The lists of words are in memory that a `fork(2)` does not copy.
//!
//! `hugefork-block` and `hugefork-page` copy in one grain only, where `hugefork` chooses. `hugefork-default` is what a
//! program has that uses the defaults: a new pool every time, in which the area has just been written for the first
//! time. The other blocks get their memory when copies need it or, from the pool's thread, before.

mod measured;
mod memcpy;
mod memfd;
mod words;
mod writer;

use self::measured::{Ground, Measured};
use self::memcpy::MemcpyRival;
use self::memfd::MemfdPrivate;
pub(super) use self::writer::TAKEN;
use super::rival::fork::ForkRival;
use super::rival::hugefork::HugeforkRival;
use crate::case::{Case, Facts};
use crate::host::Host;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::plan::writes::{Density, Epoch, Pattern, Writes};
use crate::results::result::{Params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct WriterLatency;

impl Case for WriterLatency {
    fn facts(&self) -> Facts {
        Facts { forks: true, ..Facts::new("writer-latency", TAKEN, [128 << 20, 1 << 30]) }
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let mut subjects = vec![Subject::Hugefork, Subject::HugeforkDefault];
        subjects.extend([Subject::ForkThp, Subject::ForkHugetlb, Subject::Fork4k, Subject::Memcpy]);
        match scope {
            Scope::Quick => {}
            Scope::Full => subjects.extend([Subject::HugeforkBlock, Subject::HugeforkPage, Subject::MemfdPrivate]),
        }
        subjects
    }

    fn in_words(&self, params: &Params) -> String {
        let how = match (shown(params, "pattern").as_str(), shown(params, "epoch").as_str()) {
            ("" | "random", "" | "1") => String::new(),
            ("" | "random", epoch) => format!(" (epoch {epoch})"),
            (pattern, "" | "1") => format!(" ({pattern})"),
            (pattern, epoch) => format!(" ({pattern}, epoch {epoch})"),
        };
        format!("{} writes{how}, snapshot of {} held", shown(params, "writes"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let writes = job.writes.expect("this case is planned by its writes");
        let ground = Ground { size: job.size, cpu: host.cpu_numbers[0] };
        sample::entries(subjects, &writes.params(job.size), |planned| work(planned, ground, writes))
    }

    /// A quick run has no bar to meet. A full one has every density after the first snapshot, those in the steady state
    /// that differ from it, and one that is clustered.
    fn usual_writes(&self, scope: Scope) -> Vec<Writes> {
        let some = [Density::SPARSE, Density::HALF_DENSE, Density::DENSE];
        match scope {
            Scope::Quick => some.map(Writes::first).to_vec(),
            Scope::Full => {
                let third = some.map(|density| Writes { epoch: Epoch::Third, ..Writes::first(density) });
                let clustered = Writes { pattern: Pattern::Clustered, ..Writes::first(Density::SPARSE) };
                Density::ALL.into_iter().map(Writes::first).chain(third).chain([clustered]).collect()
            }
        }
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::Memcpy).then_some("copies everything in its pause, and needs memory for all of it")
    }
}

fn work(planned: &SubjectPlan, ground: Ground, writes: Writes) -> Box<dyn Work> {
    match (planned.engine, &planned.subject) {
        (Some(choice), _) => Box::new(Measured::new(HugeforkRival::new(choice), ground, writes)),
        (None, Subject::Memcpy) => Box::new(Measured::new(MemcpyRival::default(), ground, writes)),
        (None, Subject::MemfdPrivate) => Box::new(Measured::new(MemfdPrivate::default(), ground, writes)),
        (None, _) => Box::new(Measured::new(ForkRival::new(planned.pages()), ground, writes)),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
