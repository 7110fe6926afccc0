//! From what was asked for to what will run. The plan works out sizes before anything runs, shares out memory and
//! hugetlb pages, and says of each subject that cannot run why, and what would help.

pub(crate) mod budget;
pub mod job;
pub(crate) mod options;
pub mod writes;

use std::collections::BTreeSet;
use std::time::Duration;

use hugefork::{Backing, BlockSize, ByteSize, Fallback};

use crate::case::Case;
use crate::error::UsageError;
use crate::host::Host;
use crate::memory::folios::{self, Settings};
use crate::memory::kernel_memory::{HUGE_PAGE, PageKind};
use crate::plan::job::{EngineChoice, Job, Keep, Scope, SubjectPlan};
use crate::plan::options::{Options, unit};
use crate::plan::writes::Writes;
use crate::subject::Subject;

/// Fewer counted rounds than this give a warning.
pub const COUNTED_MINIMUM: usize = 5;

/// Subjects keep their memory between samples if none takes more than this part of the machine's, and hugefork's pools
/// together not more than half of it.
const KEEP_SHARE: usize = 8;

/// What will run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cases, in order.
    pub cases: Vec<CasePlan>,
    /// Counted rounds.
    pub runs: usize,
    /// How long it may take.
    pub time_budget: Option<Duration>,
    /// What a reader must know of the figures.
    pub warnings: Vec<String>,
}

/// One case of a plan.
#[derive(Clone, Debug)]
pub struct CasePlan {
    /// The case.
    pub case: &'static dyn Case,
    /// How much it does.
    pub job: Job,
    /// The sizes that it may be cut to, the largest first; none if its size was asked for.
    pub smaller: Vec<usize>,
    /// Its subjects.
    pub subjects: Vec<SubjectPlan>,
}

impl CasePlan {
    /// The same case with smaller areas, of `size` bytes.
    pub(crate) fn cut_to(&self, size: usize) -> CasePlan {
        let job = Job { size, rotation: self.job.rotation.min(size), ..self.job.clone() };
        let mut plan = CasePlan { job, ..self.clone() };
        for subject in &mut plan.subjects {
            subject.memory = plan.case.memory(&plan.job, &subject.subject).unwrap_or(subject.memory);
        }
        plan
    }

    /// Bytes of hugetlb pages: what subjects hold all the time, and the most that one takes while it is sampled.
    fn hugetlb_bytes(&self) -> usize {
        let of = |keep| {
            let wanting = move |subject: &&SubjectPlan| subject.keep == keep && wants_hugetlb(subject);
            self.subjects.iter().filter(wanting).map(|subject| subject.memory)
        };
        of(Keep::Held).sum::<usize>() + of(Keep::Freed).max().unwrap_or(0)
    }

    /// Shares out what `host` has right now, first to the subjects that keep it.
    fn settle(&mut self, host: &Host, settings: Settings) {
        self.job.settings = settings;
        let mut pages = host.hugetlb_free();
        for turn in [Keep::Held, Keep::Freed] {
            for subject in self.subjects.iter_mut().filter(|subject| subject.keep == turn) {
                let folios = (subject.subject == Subject::KernelFolios)
                    .then(|| folios::lack(&host.thp, self.job.block_size, settings))
                    .flatten();
                subject.lack = folios.or_else(|| lack(subject, host, pages));
                if subject.lack.is_none() && wants_hugetlb(subject) && turn == Keep::Held {
                    pages -= subject.memory;
                }
            }
        }
    }
}

impl Plan {
    /// Checks `options` and works out sizes; [`Plan::settle`] then says what can run.
    ///
    /// # Errors
    /// [`UsageError`] for what is impossible in any state of the machine: a size that is zero, not a whole number of
    /// blocks, or larger than the memory; no tasks; no runs; a subject that no chosen case has.
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
            let blocks = options.blocks(case);
            let at_once = if case.facts().works_differ_by_block { 1 } else { blocks.len() };
            for asked in options.sizes() {
                for group in blocks.chunks(at_once) {
                    for writes in options.writes(case) {
                        let planned = plan_case(case, asked, group, writes, options, host)?;
                        warnings.extend(caveats(&planned, host));
                        cases.push(planned);
                    }
                }
            }
        }
        Ok(Plan { cases, runs: options.runs, time_budget: options.time_budget, warnings })
    }

    /// Bytes of 2 MiB hugetlb pages that would let every chosen subject run.
    pub fn hugetlb_bytes(&self) -> usize {
        self.cases.iter().map(CasePlan::hugetlb_bytes).max().unwrap_or(0)
    }

    /// Whether any sample changes the settings of [`folios::paths`], if it may.
    pub fn wants_folios(&self) -> bool {
        self.cases.iter().flat_map(|case| &case.subjects).any(|subject| subject.subject == Subject::KernelFolios)
    }

    /// Shares out what `host` has right now, and notes what cannot run on it.
    pub fn settle(&mut self, host: &Host, settings: Settings) {
        for case in &mut self.cases {
            case.settle(host, settings);
        }
    }

    /// Whether any subject of any case can run.
    pub fn runs_anything(&self) -> bool {
        self.cases.iter().flat_map(|case| &case.subjects).any(|subject| subject.lack.is_none())
    }
}

fn plan_case(
    case: &'static dyn Case,
    asked: Option<usize>,
    blocks: &[BlockSize],
    writes: Option<Writes>,
    options: &Options,
    host: &Host,
) -> Result<CasePlan, UsageError> {
    let unit = unit(blocks);
    let block_size = blocks.iter().copied().max().unwrap_or(BlockSize::MIB_2);
    let tasks = if case.facts().has_tasks { options.tasks.unwrap_or(host.cpus) } else { 1 };
    let rotation = host.rotation().next_multiple_of(unit);
    let size = asked.unwrap_or_else(|| default_size(case, options.scope, tasks, host, rotation, unit));
    let job = Job {
        scope: options.scope,
        size,
        tasks,
        block_size,
        writes,
        command: options.command.clone(),
        // A reference that rotates over more than the area would be colder, and look slow.
        rotation: rotation.min(size),
        settings: Settings::Fixed,
    };
    let mut plan = CasePlan {
        case,
        job,
        smaller: if asked.is_some() { Vec::new() } else { smaller_sizes(size, cold(host) / tasks.max(1), unit) },
        subjects: Vec::new(),
    };
    let subjects: Vec<Subject> = match &options.subjects {
        Some(only) => only.iter().filter(|subject| case.has(subject)).cloned().collect(),
        None => case.subjects(options.scope),
    };
    for subject in subjects {
        let memory = case.memory(&plan.job, &subject).ok_or_else(|| {
            UsageError(format!("--size {} with {tasks} tasks: more than an address can name", ByteSize(size)))
        })?;
        // Without a pool, hugefork takes part with its kernels alone.
        let Some(stock) = subject.stock().filter(|_| case.facts().has_pool) else {
            plan.subjects.push(SubjectPlan { subject, engine: None, memory, keep: Keep::Held, lack: None });
            continue;
        };
        let grain = subject.grain();
        for block_size in blocks.iter().copied() {
            for backing in options.backings.iter().copied() {
                let fallback = if backing == Backing::Auto { Fallback::Allowed } else { Fallback::Refused };
                let engine = Some(EngineChoice { block_size, stock, grain, backing, fallback });
                let keep = if case.facts().forks { Keep::Freed } else { Keep::Held };
                plan.subjects.push(SubjectPlan { subject: subject.clone(), engine, memory, keep, lack: None });
            }
        }
    }
    let share = host.memory_bytes.min(host.available_bytes) / KEEP_SHARE;
    let pools = plan.subjects.iter().filter(|subject| subject.engine.is_some()).map(|subject| subject.memory);
    let crowded = pools.fold(0, usize::saturating_add) > KEEP_SHARE / 2 * share;
    // Without pools, all subjects share one area.
    if case.facts().has_pool && (crowded || plan.subjects.iter().any(|subject| subject.memory > share)) {
        plan.subjects.iter_mut().for_each(|subject| subject.keep = Keep::Freed);
    }
    Ok(plan)
}

/// Whether a subject stands on hugetlb pages. hugefork in `auto` takes them only if shmem has no huge pages at all, and
/// the plan does not reckon with that.
fn wants_hugetlb(planned: &SubjectPlan) -> bool {
    planned.subject.pages() == Some(PageKind::Hugetlb)
        || planned.engine.is_some_and(|engine| engine.backing == Backing::Hugetlb)
}

/// Why a subject cannot run, and what would help.
fn lack(planned: &SubjectPlan, host: &Host, hugetlb_free: usize) -> Option<String> {
    if wants_hugetlb(planned) {
        return (hugetlb_free < planned.memory).then(|| {
            let total: usize = host.hugetlb.iter().filter(|p| p.page == "2MiB").map(|p| p.total).sum();
            format!(
                "{}needs {} free hugetlb pages of 2MiB, there are {}; sysctl -w vm.nr_hugepages={}, or --tune as root",
                if planned.engine.is_some() { "backing hugetlb: " } else { "" },
                planned.memory.div_ceil(HUGE_PAGE),
                hugetlb_free / HUGE_PAGE,
                total + (planned.memory - hugetlb_free).div_ceil(HUGE_PAGE)
            )
        });
    }
    if planned.subject.pages() == Some(PageKind::Thp) && !matches!(host.thp.enabled.as_str(), "always" | "madvise") {
        return Some(format!(
            "transparent huge pages are `{}`; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            host.thp.enabled
        ));
    }
    // A tenth is left for the rest of the machine.
    let usable = host.available_bytes / 10 * 9;
    (planned.memory > usable).then(|| {
        format!(
            "needs {} of memory, {}MiB are available; take a smaller --size",
            ByteSize(planned.memory),
            usable >> 20
        )
    })
}

/// A size at which every subject of the case fits into memory, also on small machines.
fn default_size(case: &dyn Case, scope: Scope, tasks: usize, host: &Host, rotation: usize, unit: usize) -> usize {
    let [quick, full] = case.facts().usual_sizes;
    let usual = if scope == Scope::Quick { quick } else { full };
    let wanted = usual.max(if case.facts().rotates { rotation } else { 0 });
    // `tasks + 1` areas are the most that most cases hold; hugefork keeps another rotation for its reference.
    let fits = host.available_bytes / KEEP_SHARE / (tasks + 1).max(case.facts().areas);
    (wanted.min(fits) / unit * unit).max(unit)
}

/// Halves of `size`, while caches do not decide the figures.
fn smaller_sizes(size: usize, least: usize, unit: usize) -> Vec<usize> {
    let halves = std::iter::successors(Some(size), |size| Some(size / 2)).skip(1);
    halves.take_while(|half| *half >= least.max(unit) && half.is_multiple_of(unit)).collect()
}

/// An area smaller than this may stay in the caches from one round to the next.
fn cold(host: &Host) -> usize {
    4 * host.last_level_cache()
}

fn caveats(plan: &CasePlan, host: &Host) -> Vec<String> {
    let mut caveats = Vec::new();
    let cold = cold(host);
    let gone_over = plan.job.size * plan.job.tasks;
    if plan.case.facts().feels_caches && gone_over < cold {
        caveats.push(format!(
            "{}: {} is less than four times the last-level cache ({}), so caches flatter every subject",
            plan.case,
            ByteSize(gone_over),
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
