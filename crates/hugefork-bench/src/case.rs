//! What a case says of itself. The planner, the options, the runner and the ratios know nothing else of a case.
//!
//! A new case is a file in [`cases`](crate::cases) that implements [`Case`], and a line in
//! [`cases::ALL`](crate::cases::ALL).

use std::fmt::{self, Debug};

use hugefork::BlockSize;

use crate::host::Host;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::plan::writes::Writes;
use crate::results::metric::Metric;
use crate::results::result::Params;
use crate::run::sample::Entry;
use crate::subject::Subject;

/// What holds of a case whatever is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The name on the command line and in results. Names are stable.
    pub name: &'static str,
    /// The metric that subjects are compared by.
    pub lead_metric: Metric,
    /// The size of an area on a machine that has enough memory, in a quick run and in a full one.
    pub usual_sizes: [usize; 2],
    /// The most areas that a subject holds at one time, or those of its tasks if they are more.
    pub areas: usize,
    /// Whether hugefork takes part with a pool.
    pub has_pool: bool,
    /// Whether several tasks work at once.
    pub has_tasks: bool,
    /// Whether subjects are timed while they fork this process.
    pub forks: bool,
    /// Whether a small area would let caches decide the figures.
    pub rotates: bool,
    /// Whether figures depend on what is in the caches when a sample begins.
    pub feels_caches: bool,
    /// Whether each block size is a work of its own. If not, it is only a property of hugefork's pools, like the
    /// backing.
    pub works_differ_by_block: bool,
}

impl Facts {
    /// Those of a case of one task, whose figures depend on caches, and of whose subjects one has a pool.
    pub(crate) const fn new(name: &'static str, lead_metric: Metric, usual_sizes: [usize; 2]) -> Facts {
        let [has_tasks, forks, rotates, works_differ_by_block] = [false; 4];
        let [has_pool, feels_caches] = [true; 2];
        Facts {
            name,
            lead_metric,
            usual_sizes,
            areas: 2,
            has_pool,
            has_tasks,
            forks,
            rotates,
            feels_caches,
            works_differ_by_block,
        }
    }
}

/// One kind of work that subjects are measured at. Only this crate can implement it: nobody else can make its entries.
pub trait Case: Debug + Sync {
    /// What holds of it whatever is asked for.
    fn facts(&self) -> Facts;

    /// Its name.
    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// The metric that its subjects are compared by.
    fn lead_metric(&self) -> Metric {
        self.facts().lead_metric
    }

    /// Its subjects, hugefork first.
    fn subjects(&self, scope: Scope) -> Vec<Subject>;

    /// What was done, in a few words, where `params` are those of a result.
    fn in_words(&self, params: &Params) -> String;

    /// Makes the subjects ready to run on `host`.
    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry>;

    /// The most bytes that `subject` needs at one time; none if they are too many to be counted. Mostly the area, and a
    /// copy of all of it.
    fn memory(&self, job: &Job, _subject: &Subject) -> Option<usize> {
        job.size.checked_mul(2)
    }

    /// Whether `subject` can take part.
    fn has(&self, subject: &Subject) -> bool {
        self.subjects(Scope::Full).contains(subject)
    }

    /// The block sizes of a run that asks for none.
    fn usual_blocks(&self, _scope: Scope) -> Vec<BlockSize> {
        vec![BlockSize::MIB_2]
    }

    /// The ways in which areas are written in a run that asks for none, each a work of its own. None if the case has no
    /// choice, as most.
    fn usual_writes(&self, _scope: Scope) -> Vec<Writes> {
        Vec::new()
    }

    /// Why `subject` does not do the same service, if it does not. Such a subject is shown, and is never the best of
    /// hugefork's rivals.
    fn aside(&self, _subject: &Subject) -> Option<&'static str> {
        None
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
