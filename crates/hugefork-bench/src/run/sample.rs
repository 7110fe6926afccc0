//! What a subject does for the runner: it makes memory ready, takes a sample, and gives the memory back.

use hugefork::Pool;
use hugefork_kernels::Kernel;

use crate::error::BenchError;
use crate::measure::random::Random;
use crate::memory::engine;
use crate::plan::job::{Keep, SubjectPlan};
use crate::results::curve::Curve;
use crate::results::metric::Measure;
use crate::results::result::Params;
use crate::subject::Subject;

/// A subject at work. Calls come as `prepare`, `sample`, `prepare`, `sample`, …, with `release` after a sample where
/// subjects cannot all keep their memory.
pub(crate) trait Work {
    /// Gets memory unless it is held, warms it, and brings it into the state that a sample starts from. Not timed.
    fn prepare(&mut self) -> Result<(), BenchError>;

    /// Takes one sample.
    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError>;

    /// Curves of the last sample.
    fn curves(&mut self) -> Vec<Curve> {
        Vec::new()
    }

    /// Gives the memory back. Not timed.
    fn release(&mut self);

    /// hugefork's pool, once there is one, and the clear or copy kernel that its faults run in this case, if they run
    /// one.
    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        None
    }

    /// What a reader must know about these figures. It is known once memory was got.
    fn caveat(&self) -> Option<String> {
        self.pool().and_then(|(pool, _)| engine::caveat(pool))
    }
}

/// One line of a case: a subject with its parameters.
pub struct Entry {
    pub(crate) subject: Subject,
    pub(crate) params: Params,
    pub(crate) keep: Keep,
    /// The subject at work, or why it cannot run.
    pub(crate) work: Result<Box<dyn Work>, String>,
}

/// An entry for each of `subjects`, with the `params` of the case, what hugefork's pool is asked for, and what `make`
/// makes.
pub(crate) fn entries(
    subjects: &[SubjectPlan],
    params: &Params,
    make: impl Fn(&SubjectPlan) -> Box<dyn Work>,
) -> Vec<Entry> {
    let entry = |planned: &SubjectPlan| {
        let mut params = params.clone();
        params.extend(planned.engine.into_iter().flat_map(engine::asked));
        let work = planned.lack.clone().map_or_else(|| Ok(make(planned)), Err);
        Entry { subject: planned.subject.clone(), params, keep: planned.keep, work }
    };
    subjects.iter().map(entry).collect()
}
