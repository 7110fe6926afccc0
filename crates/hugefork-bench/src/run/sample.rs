//! One sample of a subject: the subject prepares memory, does the timed work, checks the contents, and gives
//! the memory back.

use hugefork::Pool;
use hugefork_kernels::Kernel;

use crate::error::BenchError;
use crate::measure::random::Random;
use crate::plan::job::SubjectPlan;
use crate::results::metric::Measure;
use crate::results::result::{Param, Params, params};
use crate::subject::Subject;

/// The outcome of a sample.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) measures: Vec<Measure>,
    /// The backing of hugefork's pool, and the clear or copy kernel that its faults run; empty for a subject without a
    /// pool.
    pub(crate) found: Params,
    /// A caveat for the reader of the figures.
    pub(crate) caveat: Option<String>,
}

impl Sample {
    /// A sample of a subject without a pool.
    pub(crate) fn of(measures: Vec<Measure>) -> Sample {
        Sample { measures, ..Sample::default() }
    }

    /// A sample on `pool`. `kernel` is the clear or copy kernel that faults run in this case, if faults clear or copy.
    pub(crate) fn on(pool: &Pool, kernel: Option<Kernel>, measures: Vec<Measure>) -> Sample {
        let mut found = params([("backing", Param::text(pool.backing()))]);
        found.extend(kernel.map(|kernel| ("kernel".to_owned(), Param::text(kernel))));
        let caveat = pool.fallback_reason().map(|reason| format!("hugefork ran on {}: {reason}", pool.backing()));
        Sample { measures, found, caveat }
    }
}

/// Takes one sample. Between samples a subject holds no memory, so that it does not slow the other subjects down:
/// `fork(2)` walks every mapping of the process, and a pool's thread takes CPU time.
pub(crate) type Work = Box<dyn FnMut(&mut Random) -> Result<Sample, BenchError>>;

/// One line of a case: a subject with its parameters.
pub struct Entry {
    pub(crate) subject: Subject,
    pub(crate) params: Params,
    /// The function that takes the subject's samples, or the reason why the subject cannot run.
    pub(crate) work: Result<Work, String>,
}

/// An entry for each of `subjects`, with the `params` of the work, and the function that `make` returns for taking
/// samples.
pub(crate) fn entries(subjects: &[SubjectPlan], params: &Params, make: impl Fn(&SubjectPlan) -> Work) -> Vec<Entry> {
    let entry = |planned: &SubjectPlan| {
        let work = planned.lack.clone().map_or_else(|| Ok(make(planned)), Err);
        Entry { subject: planned.subject.clone(), params: params.clone(), work }
    };
    subjects.iter().map(entry).collect()
}
