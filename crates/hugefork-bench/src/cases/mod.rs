//! The cases: what one sample of each is, who takes part, and what it needs.

mod anon_cow_seq;
mod anon_w_seq;
mod clear_copy;
mod lazy_free;
mod snapshot;
mod writer_latency;
mod zero_fault;

use std::fmt;
use std::str::FromStr;

use hugefork::BlockSize;
use hugefork_kernels::{Kernel, Order, Primitive, PrimitiveName, every_kernel};

use crate::density::Density;
use crate::nearest;
use crate::plan::{CasePlan, Scope};
use crate::sample::{Entry, Metric};
use crate::subject::{Stock, Subject};
use crate::sweep;

/// A case. Names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Case {
    /// Clear a block around a random target, then use what lies there. The area is what blocks rotate over.
    Clear,
    /// Copy a block likewise, from one area to another.
    Copy,
    /// First write at a random offset of each block of an area that is new, on memory that is not; then near use.
    ZeroFault,
    /// Each task writes every word of its own new area.
    AnonWSeq,
    /// Each task writes every word of its own fork of one populated area.
    AnonCowSeq,
    /// Pause of the program that takes a fork or snapshot of a populated area.
    Snapshot,
    /// Random writes to a populated area while a fork or snapshot of it is held.
    WriterLatency,
    /// A populated area is lazily freed, written to again, and reclaimed.
    LazyFree,
}

impl Case {
    /// Every case, in the order of a full run.
    pub const ALL: [Case; 8] = [
        Case::Clear,
        Case::Copy,
        Case::ZeroFault,
        Case::AnonWSeq,
        Case::AnonCowSeq,
        Case::Snapshot,
        Case::WriterLatency,
        Case::LazyFree,
    ];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Case::Clear => "clear",
            Case::Copy => "copy",
            Case::ZeroFault => "zero-fault",
            Case::AnonWSeq => "anon-w-seq",
            Case::AnonCowSeq => "anon-cow-seq",
            Case::Snapshot => "snapshot",
            Case::WriterLatency => "writer-latency",
            Case::LazyFree => "lazy-free",
        }
    }

    /// The metric that subjects are compared by.
    pub fn lead_metric(self) -> Metric {
        match self {
            Case::Clear | Case::Copy => Metric::Total,
            Case::ZeroFault => Metric::Latency,
            Case::AnonWSeq | Case::AnonCowSeq => Metric::Throughput,
            Case::Snapshot => Metric::Pause,
            Case::WriterLatency => Metric::Writes,
            Case::LazyFree => Metric::Mark,
        }
    }

    /// Its subjects. The quick `clear` and `copy` take hugefork's choice, what Linux up to 6.19 does, one whole `rep` and
    /// libc; the full ones every kernel of the machine, and the sweep each with every window, and Linux's order byte-reversed.
    pub fn subjects(self, scope: Scope) -> Vec<Subject> {
        match self {
            Case::Clear | Case::Copy => {
                let libc = if self == Case::Clear { Subject::Memset } else { Subject::Memcpy };
                let mut subjects = vec![Subject::Hugefork, libc];
                match scope {
                    Scope::Quick => subjects.extend([linux_order(), one_call()].map(Subject::Kernel)),
                    Scope::Full => subjects.extend(every_kernel().filter(|k| self.can_use(k)).map(Subject::Kernel)),
                    Scope::Sweep => {
                        subjects.extend(sweep::kernels().filter(|k| self.can_use(k)).map(Subject::Kernel));
                        subjects.extend((self == Case::Clear).then_some(Subject::Reversed));
                    }
                }
                subjects
            }
            Case::ZeroFault | Case::AnonWSeq => {
                let mut subjects = vec![Subject::Hugefork];
                subjects.extend((self == Case::ZeroFault).then_some(Subject::HugeforkDefault));
                subjects.push(Subject::HugeforkZeroed);
                if self == Case::AnonWSeq && scope != Scope::Quick {
                    subjects.push(Subject::HugeforkRefilling);
                }
                subjects.extend([Subject::KernelThp, Subject::KernelHugetlb, Subject::Kernel4k]);
                subjects
            }
            Case::AnonCowSeq => vec![Subject::Hugefork, Subject::ForkThp, Subject::ForkHugetlb, Subject::Fork4k],
            Case::Snapshot | Case::WriterLatency => {
                let mut subjects = vec![Subject::Hugefork];
                subjects.extend((self == Case::WriterLatency).then_some(Subject::HugeforkDefault));
                subjects.extend([Subject::ForkThp, Subject::ForkHugetlb, Subject::Fork4k, Subject::Memcpy]);
                subjects
            }
            Case::LazyFree => vec![Subject::Hugefork, Subject::KernelFolios],
        }
    }

    /// Whether `subject` can take part; for `clear` and `copy` that is any kernel that can be named, listed or not.
    pub fn has(self, subject: &Subject) -> bool {
        match subject {
            Subject::Kernel(kernel) => matches!(self, Case::Clear | Case::Copy) && self.can_use(kernel),
            named => self.subjects(Scope::Sweep).contains(named),
        }
    }

    fn can_use(self, kernel: &Kernel) -> bool {
        self == Case::Clear || (kernel.far().can_copy() && kernel.near().can_copy())
    }

    /// Whether several tasks work at once.
    pub(crate) fn has_tasks(self) -> bool {
        matches!(self, Case::AnonWSeq | Case::AnonCowSeq)
    }

    /// The block sizes of a run that asks for none.
    pub fn usual_blocks(self, scope: Scope) -> Vec<BlockSize> {
        match (self, scope) {
            (Case::Clear | Case::Copy, Scope::Sweep) => sweep::BLOCKS.to_vec(),
            // What any user's kernel can do, without a setting.
            (Case::LazyFree, Scope::Quick) => vec![BlockSize::KIB_4, BlockSize::MIB_2],
            (Case::LazyFree, Scope::Full | Scope::Sweep) => lazy_free::blocks(),
            _ => vec![BlockSize::MIB_2],
        }
    }

    /// Whether each block size is a work of its own. For hugefork's pools it is only a property, like the backing.
    pub(crate) fn works_differ_by_block(self) -> bool {
        !self.has_pool() || self == Case::LazyFree
    }

    /// How densely is written, each a work of its own; nothing to choose in most cases.
    pub(crate) fn densities(self) -> Vec<Option<Density>> {
        match self {
            Case::WriterLatency => Density::ALL.map(Some).to_vec(),
            _ => vec![None],
        }
    }

    /// Whether hugefork takes part with a pool.
    pub(crate) fn has_pool(self) -> bool {
        !matches!(self, Case::Clear | Case::Copy)
    }

    /// Whether a small area would let caches decide the figures.
    pub(crate) fn rotates(self) -> bool {
        matches!(self, Case::Clear | Case::Copy | Case::ZeroFault)
    }

    /// The area's size on a machine with memory enough.
    pub(crate) fn usual_size(self, scope: Scope) -> usize {
        const MIB: usize = 1 << 20;
        match (self, scope) {
            (Case::Clear | Case::Copy, Scope::Quick) => 256 * MIB,
            (Case::ZeroFault | Case::Snapshot, Scope::Quick) => 512 * MIB,
            (Case::AnonWSeq | Case::AnonCowSeq | Case::LazyFree, Scope::Quick) => 256 * MIB,
            (Case::WriterLatency, Scope::Quick) => 128 * MIB,
            (Case::AnonCowSeq, Scope::Full | Scope::Sweep) => 512 * MIB,
            (_, Scope::Full | Scope::Sweep) => 1024 * MIB,
        }
    }

    /// Bytes that `subject` needs at the same time; none if that is more than can be counted.
    pub(crate) fn memory(self, plan: &CasePlan, subject: &Subject) -> Option<usize> {
        let hugefork = subject.stock().is_some();
        match self {
            Case::Clear => Some(plan.size),
            Case::Copy => plan.size.checked_mul(2),
            Case::ZeroFault if subject.stock() == Some(Stock::Without) => plan.size.checked_add(plan.rotation),
            Case::ZeroFault => Some(plan.size),
            Case::AnonWSeq => plan.size.checked_mul(plan.tasks),
            Case::AnonCowSeq => {
                let forks = plan.size.checked_mul(plan.tasks + 1)?;
                if hugefork { forks.checked_add(2 * plan.rotation) } else { Some(forks) }
            }
            // The area, and a copy of all of it.
            Case::Snapshot if *subject == Subject::Memcpy => plan.size.checked_mul(2),
            Case::WriterLatency => plan.size.checked_mul(2),
            Case::Snapshot | Case::LazyFree => Some(plan.size),
        }
    }

    /// Whether subjects of this case are timed while they fork this process.
    pub(crate) fn forks(self) -> bool {
        matches!(self, Case::AnonCowSeq | Case::Snapshot | Case::WriterLatency)
    }

    /// Builds the case's subjects. `cpus` are the ones to pin to.
    pub(crate) fn entries(plan: &CasePlan, cpus: &[usize]) -> Vec<Entry> {
        let work = match plan.case {
            Case::Clear | Case::Copy => return clear_copy::entries(plan, cpus),
            Case::ZeroFault => zero_fault::work,
            Case::AnonWSeq => anon_w_seq::work,
            Case::AnonCowSeq => anon_cow_seq::work,
            Case::Snapshot => snapshot::work,
            Case::WriterLatency => writer_latency::work,
            Case::LazyFree => lazy_free::work,
        };
        plan.subjects
            .iter()
            .map(|subject| {
                let (params, work) = work(plan, subject, cpus);
                let work = match &subject.lack {
                    Some(lack) => Err(lack.clone()),
                    None => Ok(work),
                };
                Entry { subject: subject.subject.clone(), params, keep: subject.keep, work }
            })
            .collect()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Case::ALL.into_iter().find(|case| case.name() == text);
        found.ok_or_else(|| nearest::unknown("case", text, Case::ALL.iter().map(|case| case.name())))
    }
}

/// What Linux up to 6.19 does to a huge page: target-last, one 4 KiB call at a time.
pub(crate) fn linux_order() -> Kernel {
    with_rep(Order::TargetLast)
}

/// The whole block in one go.
fn one_call() -> Kernel {
    with_rep(Order::Straight)
}

fn with_rep(order: Order) -> Kernel {
    Kernel::new(order, Primitive::new(PrimitiveName::Rep).unwrap_or(Primitive::PORTABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_slips_are_helped() {
        for case in Case::ALL {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("snapshots".parse::<Case>().unwrap_err().contains("did you mean `snapshot`?"));
    }

    #[test]
    fn every_case_has_hugefork_and_a_rival() {
        for case in Case::ALL {
            for scope in [Scope::Quick, Scope::Full, Scope::Sweep] {
                let subjects = case.subjects(scope);
                assert_eq!(subjects[0], Subject::Hugefork);
                assert!(subjects.len() >= 2);
                assert!(subjects.iter().all(|subject| case.has(subject)), "{case}");
            }
        }
    }

    #[test]
    fn kernels_that_cannot_copy_stay_out_of_copy() {
        for subject in Case::Copy.subjects(Scope::Full) {
            if let Subject::Kernel(kernel) = subject {
                assert!(kernel.far().can_copy(), "{kernel}");
            }
        }
    }
}
