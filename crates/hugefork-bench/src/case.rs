//! The description of a case. The planner, the options, the runner and the ratios know a case only through
//! this description.
//!
//! A new case is a file in [`cases`](crate::cases) that implements [`Case`], and a line in
//! [`cases::ALL`](crate::cases::ALL).

use std::fmt::{self, Debug};

use hugefork::BlockSize;

use crate::host::Host;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::Metric;
use crate::results::result::Params;
use crate::run::sample::Entry;
use crate::subject::Subject;

/// The properties of a case that no option changes.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The name on the command line and in results. Names are stable.
    pub name: &'static str,
    /// The metrics in which hugefork is compared with its rivals. The first metric is the leading one: progress
    /// messages show it.
    pub metrics: &'static [Metric],
    /// The size of an area on a machine that has enough memory, in a quick run and in a full one.
    pub usual_sizes: [usize; 2],
    /// The most areas that a subject holds at one time, if that is more than one area for each task and one besides.
    pub areas: usize,
    /// Whether several tasks work at once.
    pub has_tasks: bool,
    /// Whether the figures of a small area would be those of the CPU's caches.
    pub feels_caches: bool,
    /// Whether each block size is a work of its own.
    pub has_blocks: bool,
}

impl Facts {
    /// A case of one task, whose figures depend on caches.
    pub(crate) const fn new(name: &'static str, metrics: &'static [Metric], usual_sizes: [usize; 2]) -> Facts {
        Facts { name, metrics, usual_sizes, areas: 2, has_tasks: false, feels_caches: true, has_blocks: false }
    }
}

/// One kind of work at which subjects are measured. Only this crate can implement the trait, since no other crate can
/// make an `Entry`.
pub trait Case: Debug + Sync {
    /// The properties that no option changes.
    fn facts(&self) -> Facts;

    /// The name of the case.
    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// The first of the metrics in which subjects are compared.
    fn lead_metric(&self) -> Metric {
        self.facts().metrics[0]
    }

    /// The subjects of the case, hugefork first.
    fn subjects(&self, scope: Scope) -> Vec<Subject>;

    /// The work in a few words, for a result with the parameters `params`.
    fn in_words(&self, params: &Params) -> String;

    /// Makes the subjects ready to run on `host`.
    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry>;

    /// The most bytes that `subject` needs at one time; `None` if the number overflows. Most subjects need the area and
    /// a copy of it.
    fn memory(&self, job: &Job, _subject: &Subject) -> Option<usize> {
        job.size.checked_mul(2)
    }

    /// Whether `subject` can take part in the case.
    fn has(&self, subject: &Subject) -> bool {
        self.subjects(Scope::Full).contains(subject)
    }

    /// The block sizes of a run whose options name no block size.
    fn usual_blocks(&self, _scope: Scope) -> Vec<BlockSize> {
        vec![BlockSize::MIB_2]
    }
}

impl PartialEq for dyn Case + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Case + '_ {}

impl fmt::Display for dyn Case + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
