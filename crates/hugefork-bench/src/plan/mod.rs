//! The plan of a run, made from the options. It works out sizes before anything runs, checks memory and hugetlb pages,
//! and notes the reason and a remedy for each subject that cannot run.

pub mod job;
pub(crate) mod options;

use std::collections::BTreeSet;

use hugefork::{BlockSize, ByteSize};

use crate::case::Case;
use crate::error::UsageError;
use crate::host::Host;
use crate::memory::folios::{self, Settings};
use crate::memory::kernel_memory::{HUGE_PAGE, PageKind};
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::plan::options::{Options, unit};
use crate::subject::Subject;

/// The plan warns if a run has fewer counted rounds than this.
pub const COUNTED_MINIMUM: usize = 5;

/// Areas of a default size take at most the available memory of the machine divided by this number.
const SHARE: usize = 8;

/// The work of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cases, in order.
    pub cases: Vec<CasePlan>,
    /// Counted rounds.
    pub runs: usize,
    /// Caveats for the reader of the figures.
    pub warnings: Vec<String>,
}

/// One case of a plan.
#[derive(Clone, Debug)]
pub struct CasePlan {
    /// The case.
    pub case: &'static dyn Case,
    /// The amount of its work.
    pub job: Job,
    /// The subjects of the case.
    pub subjects: Vec<SubjectPlan>,
}

impl Plan {
    /// Checks `options` and works out sizes. [`Plan::settle`] then decides which subjects can run.
    ///
    /// # Errors
    /// [`UsageError`] for a request that is impossible in any state of the machine: a size that is zero, not a
    /// whole number of blocks, or larger than the memory; no tasks; no runs; a subject that no chosen case has.
    pub fn new(options: &Options, host: &Host) -> Result<Plan, UsageError> {
        options.check(host)?;
        let mut warnings = Vec::new();
        if options.runs < COUNTED_MINIMUM {
            warnings.push(format!(
                "only {} counted run(s): published figures need at least {COUNTED_MINIMUM}",
                options.runs
            ));
        }
        let mut seen = BTreeSet::new();
        let mut cases = Vec::new();
        for case in options.cases.iter().copied().filter(|case| seen.insert(case.name())) {
            for size in options.sizes() {
                for block in options.blocks(case) {
                    let planned = plan_case(case, size, block, options, host)?;
                    warnings.extend(caveats(&planned, host));
                    cases.push(planned);
                }
            }
        }
        Ok(Plan { cases, runs: options.runs, warnings })
    }

    /// Bytes of 2 MiB hugetlb pages that let every chosen subject run. Each sample gives its pages back, so this number
    /// is the most that one subject needs.
    pub fn hugetlb_bytes(&self) -> usize {
        self.subjects().filter(|subject| wants_hugetlb(subject)).map(|subject| subject.memory).max().unwrap_or(0)
    }

    /// Whether a sample would change the settings of [`folios::paths`] under [`Settings::Lent`].
    pub fn wants_folios(&self) -> bool {
        self.subjects().any(|subject| subject.subject == Subject::KernelFolios)
    }

    /// Notes which subjects cannot run on `host` in its present state.
    pub fn settle(&mut self, host: &Host, settings: Settings) {
        for case in &mut self.cases {
            case.job.settings = settings;
            for subject in &mut case.subjects {
                let folios = (subject.subject == Subject::KernelFolios)
                    .then(|| folios::lack(&host.thp, case.job.block_size, settings))
                    .flatten();
                subject.lack = folios.or_else(|| lack(subject, host));
            }
        }
    }

    /// Whether any subject of any case can run.
    pub fn runs_anything(&self) -> bool {
        self.subjects().any(|subject| subject.lack.is_none())
    }

    fn subjects(&self) -> impl Iterator<Item = &SubjectPlan> {
        self.cases.iter().flat_map(|case| &case.subjects)
    }
}

fn plan_case(
    case: &'static dyn Case,
    asked: Option<usize>,
    block_size: BlockSize,
    options: &Options,
    host: &Host,
) -> Result<CasePlan, UsageError> {
    let tasks = if case.facts().has_tasks { options.tasks.unwrap_or(host.cpus) } else { 1 };
    let size = asked.unwrap_or_else(|| default_size(case, options.scope, tasks, host, unit(&[block_size])));
    let command = options.command.clone();
    let job = Job { scope: options.scope, size, tasks, block_size, command, settings: Settings::Fixed };
    let chosen: Vec<Subject> = match &options.subjects {
        Some(only) => only.iter().filter(|subject| case.has(subject)).cloned().collect(),
        None => case.subjects(options.scope),
    };
    let plan_subject = |subject: Subject| {
        let memory = case.memory(&job, &subject).ok_or_else(|| {
            UsageError(format!("--size {} with {tasks} tasks: more than an address can name", ByteSize(size)))
        })?;
        Ok(SubjectPlan { subject, memory, lack: None })
    };
    let subjects = chosen.into_iter().map(plan_subject).collect::<Result<_, _>>()?;
    Ok(CasePlan { case, job, subjects })
}

fn wants_hugetlb(planned: &SubjectPlan) -> bool {
    planned.subject.pages() == Some(PageKind::Hugetlb)
}

/// The reason why a subject cannot run, with a remedy; `None` if it can run.
fn lack(planned: &SubjectPlan, host: &Host) -> Option<String> {
    if wants_hugetlb(planned) {
        let free = host.hugetlb_free();
        return (free < planned.memory).then(|| {
            let total: usize = host.hugetlb.iter().filter(|p| p.page == "2MiB").map(|p| p.total).sum();
            format!(
                "needs {} free hugetlb pages of 2MiB, there are {}; sysctl -w vm.nr_hugepages={}, or --tune as root",
                planned.memory.div_ceil(HUGE_PAGE),
                free / HUGE_PAGE,
                total + (planned.memory - free).div_ceil(HUGE_PAGE)
            )
        });
    }
    if planned.subject.pages() == Some(PageKind::Thp) && !matches!(host.thp.enabled.as_str(), "always" | "madvise") {
        return Some(format!(
            "transparent huge pages are `{}`; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            host.thp.enabled
        ));
    }
    host.lack_of_memory(planned.memory)
}

/// A size at which every subject of the case fits into memory, also on small machines.
fn default_size(case: &dyn Case, scope: Scope, tasks: usize, host: &Host, unit: usize) -> usize {
    let [quick, full] = case.facts().usual_sizes;
    let usual = if scope == Scope::Quick { quick } else { full };
    let wanted = usual.max(if case.facts().feels_caches { cold(host) } else { 0 });
    // `tasks + 1` areas are the most that most cases hold.
    let fits = host.available_bytes / SHARE / (tasks + 1).max(case.facts().areas);
    (wanted.min(fits) / unit * unit).max(unit)
}

/// An area smaller than this may stay in the caches from one sample to the next.
fn cold(host: &Host) -> usize {
    4 * host.last_level_cache()
}

fn caveats(plan: &CasePlan, host: &Host) -> Vec<String> {
    let mut caveats = Vec::new();
    let (cold, used) = (cold(host), plan.job.size * plan.job.tasks);
    if plan.case.facts().feels_caches && used < cold {
        caveats.push(format!(
            "{}: {} is less than four times the last-level cache ({}), so caches flatter every subject",
            plan.case,
            ByteSize(used),
            ByteSize(cold)
        ));
    }
    if plan.job.tasks > host.cpus {
        caveats.push(format!("{}: {} tasks share {} CPUs", plan.case, plan.job.tasks, host.cpus));
    }
    caveats
}

#[cfg(test)]
mod tests;
