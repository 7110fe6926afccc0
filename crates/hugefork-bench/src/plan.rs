//! From what was asked to what will run: sizes checked before anything runs, memory and hugetlb pages shared out, and for
//! each subject that cannot run the reason and its remedy.

use std::collections::BTreeSet;

use hugefork::{Backing, BlockSize, ByteSize, Fallback};

use crate::cases::Case;
use crate::error::UsageError;
use crate::host::Host;
use crate::kernel_memory::{HUGE_PAGE, PageKind};
use crate::subject::{Stock, Subject};
use crate::sweep;
use crate::victim::{self, VictimPlan};

/// Fewer counted rounds than this are run, but flagged.
pub const COUNTED_MINIMUM: usize = 5;

/// More tasks than this are taken for a slip.
const MAX_TASKS: usize = 1024;

/// Subjects may keep their memory between samples up to this part of it each, and hugefork's pools half of it together.
const KEEP_SHARE: usize = 8;

/// How much is run when nothing says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Sizes and subjects that fit well inside a minute on two cores.
    Quick,
    /// The sizes that figures are published for.
    Full,
    /// As `Full`; of `clear` and `copy` also every window, and blocks from 4 KiB to 1 GiB (see [`sweep`]).
    Sweep,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cases, in order.
    pub cases: Vec<Case>,
    /// How much is run where an option below is absent.
    pub scope: Scope,
    /// Bytes of one area (see [`Case`] for what that is), for every case.
    pub size: Option<usize>,
    /// Tasks of the `anon-*` cases; all CPUs if absent.
    pub tasks: Option<usize>,
    /// The blocks of `clear` and `copy`, and of hugefork's pools, each of which is a subject of its own. If absent 2 MiB, and
    /// [`sweep::BLOCKS`] for `clear` and `copy` in [`Scope::Sweep`].
    pub block_sizes: Option<Vec<BlockSize>>,
    /// The backings of hugefork's pools; each is a subject of its own.
    pub backings: Vec<Backing>,
    /// Counted rounds.
    pub runs: usize,
    /// Only these subjects.
    pub subjects: Option<Vec<Subject>>,
}

/// What will run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cases, in order.
    pub cases: Vec<CasePlan>,
    /// Counted rounds.
    pub runs: usize,
    /// What a reader must know.
    pub warnings: Vec<String>,
}

/// One case of a plan.
#[derive(Clone, Debug)]
pub struct CasePlan {
    /// Which case.
    pub case: Case,
    /// How much of it.
    pub scope: Scope,
    /// Bytes of one area.
    pub size: usize,
    /// Tasks at once; 1 where the case has no tasks.
    pub tasks: usize,
    /// The block of `clear` and `copy`; elsewhere the largest block of hugefork's pools.
    pub block_size: BlockSize,
    /// Bytes that reference operations rotate over.
    pub rotation: usize,
    /// Whom clearing disturbs, or why nobody can be found; none where that is not measured.
    pub victim: Option<Result<VictimPlan, String>>,
    /// Why none of its subjects can run.
    pub lack: Option<String>,
    /// Its subjects.
    pub subjects: Vec<SubjectPlan>,
}

/// What becomes of a subject's memory after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Held: it fits beside the others', and is in nobody's way.
    Held,
    /// Freed, and got and populated again, untimed, before the next sample. For all subjects of a case if one is large. And for
    /// hugefork where others fork: a fork walks every mapping of the process, those too that children do not get, and
    /// hugefork's may be many (with a block of hugetlb pages each, a pool of 1 GiB makes `fork-thp` 40 % slower).
    Freed,
}

/// One subject of a case.
#[derive(Clone, Debug)]
pub struct SubjectPlan {
    /// Who.
    pub subject: Subject,
    /// What hugefork's pool is asked for; none for the others.
    pub engine: Option<EngineChoice>,
    /// Bytes that it needs at the same time.
    pub memory: usize,
    /// What becomes of that memory after a sample.
    pub keep: Keep,
    /// Why it cannot run, and what would mend that.
    pub lack: Option<String>,
}

/// What hugefork's pool is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineChoice {
    /// Bytes in a block.
    pub block_size: BlockSize,
    /// What is done about blocks that were used.
    pub stock: Stock,
    /// The backing.
    pub backing: Backing,
    /// Only `auto` may fall back: figures of a backing that was asked for by name must be of that backing.
    pub fallback: Fallback,
}

impl CasePlan {
    /// Bytes from one first write or one block to the next. At least 2 MiB also with smaller blocks, so that every subject
    /// does the same work whatever its pages.
    pub fn stride(&self) -> usize {
        self.block_size.bytes().max(HUGE_PAGE)
    }

    /// Bytes of hugetlb pages that subjects hold all the time, and the most that one takes for the length of a sample.
    fn hugetlb_bytes(&self) -> usize {
        let of = |keep| {
            let wanting = move |subject: &&SubjectPlan| subject.keep == keep && subject.wants_hugetlb();
            self.subjects.iter().filter(wanting).map(|subject| subject.memory)
        };
        of(Keep::Held).sum::<usize>() + of(Keep::Freed).max().unwrap_or(0)
    }

    /// Shares out what `host` has right now: first to those who keep it.
    fn settle(&mut self, host: &Host) {
        if self.lack.is_some() {
            self.subjects.iter_mut().for_each(|subject| subject.lack.clone_from(&self.lack));
            return;
        }
        let mut pages = host.hugetlb_free();
        for turn in [Keep::Held, Keep::Freed] {
            for subject in self.subjects.iter_mut().filter(|subject| subject.keep == turn) {
                subject.lack = subject.lack(host, pages);
                if subject.lack.is_none() && subject.wants_hugetlb() && turn == Keep::Held {
                    pages -= subject.memory;
                }
            }
        }
    }
}

impl SubjectPlan {
    /// The pages of a kernel subject.
    pub(crate) fn pages(&self) -> PageKind {
        self.subject.pages().expect("cases hold hugefork, memcpy and memset apart; the others have pages")
    }

    /// Whether it stands on hugetlb pages. hugefork in `auto` takes them only where shmem has no huge pages at all, which the
    /// plan does not count on.
    fn wants_hugetlb(&self) -> bool {
        self.subject.pages() == Some(PageKind::Hugetlb)
            || self.engine.is_some_and(|engine| engine.backing == Backing::Hugetlb)
    }

    fn lack(&self, host: &Host, hugetlb_free: usize) -> Option<String> {
        if self.wants_hugetlb() {
            return (hugetlb_free < self.memory).then(|| {
                let total: usize = host.hugetlb.iter().filter(|p| p.page == "2MiB").map(|p| p.total).sum();
                format!(
                    "{}needs {} free hugetlb pages of 2MiB, there are {}; sysctl -w vm.nr_hugepages={}, or --tune as root",
                    if self.engine.is_some() { "backing hugetlb: " } else { "" },
                    self.memory.div_ceil(HUGE_PAGE),
                    hugetlb_free / HUGE_PAGE,
                    total + (self.memory - hugetlb_free).div_ceil(HUGE_PAGE)
                )
            });
        }
        if self.subject.pages() == Some(PageKind::Thp) && !matches!(host.thp.enabled.as_str(), "always" | "madvise") {
            return Some(format!(
                "transparent huge pages are `{}`; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                host.thp.enabled
            ));
        }
        // A tenth stays for everybody else.
        let usable = host.available_bytes / 10 * 9;
        (self.memory > usable).then(|| {
            format!(
                "needs {} of memory, {}MiB are available; take a smaller --size",
                ByteSize(self.memory),
                usable >> 20
            )
        })
    }
}

impl Plan {
    /// Checks `options` and works out sizes; [`Plan::settle`] then says what can run.
    ///
    /// # Errors
    /// [`UsageError`] for what cannot be on any machine state: a size of zero, one that is not a whole number of blocks, one
    /// larger than the memory, no tasks, no runs, a subject that no chosen case has.
    pub fn new(options: &Options, host: &Host) -> Result<Plan, UsageError> {
        check_numbers(options)?;
        check_size(options, host)?;
        check_subjects(options)?;
        let mut warnings = Vec::new();
        if options.runs < COUNTED_MINIMUM {
            warnings.push(format!(
                "only {} counted run(s): published figures need at least {COUNTED_MINIMUM}",
                options.runs
            ));
        }
        let mut seen = BTreeSet::new();
        let mut cases = Vec::new();
        for case in options.cases.iter().copied().filter(|case| seen.insert(*case)) {
            let blocks = blocks(case, options);
            // For a pool the block size is one of its properties, like the backing; clear and copy do other work with each.
            let groups = if case.has_pool() { blocks.chunks(blocks.len()) } else { blocks.chunks(1) };
            for group in groups {
                let planned = plan_case(case, group, options, host)?;
                warnings.extend(caveats(&planned, host).into_iter().filter(|_| planned.lack.is_none()));
                cases.push(planned);
            }
        }
        Ok(Plan { cases, runs: options.runs, warnings })
    }

    /// Bytes of 2 MiB hugetlb pages that would let every chosen subject run.
    pub fn hugetlb_bytes(&self) -> usize {
        self.cases.iter().map(CasePlan::hugetlb_bytes).max().unwrap_or(0)
    }

    /// Shares out what `host` has right now, and notes what cannot run on it.
    pub fn settle(&mut self, host: &Host) {
        for case in &mut self.cases {
            case.settle(host);
        }
    }

    /// Whether any subject of any case can run.
    pub fn runs_anything(&self) -> bool {
        self.cases.iter().flat_map(|case| &case.subjects).any(|subject| subject.lack.is_none())
    }
}

fn check_numbers(options: &Options) -> Result<(), UsageError> {
    if options.runs == 0 {
        return Err(UsageError("--runs 0: take at least 1 (5 for figures to publish)".to_owned()));
    }
    match options.tasks {
        Some(0) => Err(UsageError("--tasks 0: take at least 1".to_owned())),
        Some(tasks) if tasks > MAX_TASKS => Err(UsageError(format!("--tasks {tasks}: take at most {MAX_TASKS}"))),
        _ => Ok(()),
    }
}

/// The block sizes of a case, each once. Never empty.
fn blocks(case: Case, options: &Options) -> Vec<BlockSize> {
    let mut blocks = match &options.block_sizes {
        Some(asked) if !asked.is_empty() => asked.clone(),
        _ if options.scope == Scope::Sweep && !case.has_pool() => sweep::BLOCKS.to_vec(),
        _ => vec![BlockSize::MIB_2],
    };
    let mut seen = BTreeSet::new();
    blocks.retain(|block| seen.insert(*block));
    blocks
}

/// What areas are a whole number of: huge pages, for the kernel's subjects, and blocks.
fn unit(blocks: &[BlockSize]) -> usize {
    blocks.iter().map(|block| block.bytes()).max().unwrap_or(0).max(HUGE_PAGE)
}

fn check_size(options: &Options, host: &Host) -> Result<(), UsageError> {
    let Some(size) = options.size else {
        return Ok(());
    };
    // A sweep's own sizes are not asked for: those that do not fit are left out, see `plan_case`.
    let unit = unit(options.block_sizes.as_deref().unwrap_or_default());
    if size == 0 {
        return Err(UsageError(format!("--size 0: take a multiple of {}", ByteSize(unit))));
    }
    if !size.is_multiple_of(unit) {
        let below = size / unit * unit;
        let nearest = if below == 0 { unit } else { below };
        return Err(UsageError(format!(
            "--size {}: not a multiple of {} (the larger of a huge page and --block-size); the nearest is {}",
            ByteSize(size),
            ByteSize(unit),
            ByteSize(nearest)
        )));
    }
    if size > host.memory_bytes {
        return Err(UsageError(format!(
            "--size {}: larger than this machine's memory ({}MiB); take a smaller one",
            ByteSize(size),
            host.memory_bytes >> 20
        )));
    }
    Ok(())
}

fn check_subjects(options: &Options) -> Result<(), UsageError> {
    for subject in options.subjects.iter().flatten() {
        if !options.cases.iter().any(|case| case.has(subject)) {
            let mut have: Vec<String> =
                options.cases.iter().flat_map(|case| case.subjects(Scope::Quick)).map(|s| s.to_string()).collect();
            have.sort_unstable();
            have.dedup();
            return Err(UsageError(format!(
                "--subjects {subject}: no chosen case has it; their subjects are {}",
                have.join(", ")
            )));
        }
    }
    Ok(())
}

fn plan_case(case: Case, blocks: &[BlockSize], options: &Options, host: &Host) -> Result<CasePlan, UsageError> {
    let unit = unit(blocks);
    let block_size = blocks.iter().copied().max().unwrap_or(BlockSize::MIB_2);
    let tasks = if case.has_tasks() { options.tasks.unwrap_or(host.cpus) } else { 1 };
    let rotation = host.rotation().next_multiple_of(unit);
    let size = options.size.unwrap_or_else(|| default_size(case, options.scope, tasks, host, rotation, unit));
    let mut plan = CasePlan {
        case,
        scope: options.scope,
        size,
        tasks,
        block_size,
        // A reference that is colder than what it is compared with would make it look slow.
        rotation: rotation.min(size),
        victim: (case == Case::Clear && options.scope != Scope::Quick).then(|| victim::plan(host)),
        lack: (!size.is_multiple_of(unit)).then(|| {
            format!("--size {} is not a whole number of blocks of {}; leave --size out", ByteSize(size), ByteSize(unit))
        }),
        subjects: Vec::new(),
    };
    let subjects: Vec<Subject> = match &options.subjects {
        Some(only) => only.iter().filter(|subject| case.has(subject)).cloned().collect(),
        None if options.scope == Scope::Sweep && !case.has_pool() => {
            case.subjects(options.scope).into_iter().filter(|subject| sweep::differs(subject, block_size)).collect()
        }
        None => case.subjects(options.scope),
    };
    for subject in subjects {
        let memory = case.memory(&plan, &subject).ok_or_else(|| {
            UsageError(format!("--size {} with {tasks} tasks: more than an address can name", ByteSize(size)))
        })?;
        // Clear and copy run hugefork's kernels without a pool.
        let Some(stock) = subject.stock().filter(|_| case.has_pool()) else {
            plan.subjects.push(SubjectPlan { subject, engine: None, memory, keep: Keep::Held, lack: None });
            continue;
        };
        for block_size in blocks.iter().copied() {
            for backing in options.backings.iter().copied() {
                let fallback = if backing == Backing::Auto { Fallback::Allowed } else { Fallback::Refused };
                let engine = Some(EngineChoice { block_size, stock, backing, fallback });
                let keep = if case.forks() { Keep::Freed } else { Keep::Held };
                plan.subjects.push(SubjectPlan { subject: subject.clone(), engine, memory, keep, lack: None });
            }
        }
    }
    let share = host.memory_bytes.min(host.available_bytes) / KEEP_SHARE;
    let pools = plan.subjects.iter().filter(|subject| subject.engine.is_some()).map(|subject| subject.memory);
    let crowded = pools.fold(0, usize::saturating_add) > KEEP_SHARE / 2 * share;
    // Clear and copy have one area between all of them.
    if case.has_pool() && (crowded || plan.subjects.iter().any(|subject| subject.memory > share)) {
        plan.subjects.iter_mut().for_each(|subject| subject.keep = Keep::Freed);
    }
    Ok(plan)
}

/// A size that every subject of the case fits with, on machines with little memory too.
fn default_size(case: Case, scope: Scope, tasks: usize, host: &Host, rotation: usize, unit: usize) -> usize {
    let wanted = case.usual_size(scope).max(if case.rotates() { rotation } else { 0 });
    // `tasks + 1` areas are the most that a case holds; hugefork keeps another rotation for its reference.
    let fits = host.available_bytes / KEEP_SHARE / (tasks + 1);
    (wanted.min(fits) / unit * unit).max(unit)
}

fn caveats(plan: &CasePlan, host: &Host) -> Vec<String> {
    let mut caveats = Vec::new();
    let cold = 4 * host.last_level_cache();
    // A snapshot's pause does not depend on what is in the caches; everything else does.
    let gone_over = plan.size * plan.tasks;
    if plan.case != Case::Snapshot && gone_over < cold {
        caveats.push(format!(
            "{}: {} is less than four times the last-level cache ({}), so caches flatter every subject",
            plan.case,
            ByteSize(gone_over),
            ByteSize(cold)
        ));
    }
    if plan.tasks > host.cpus {
        caveats.push(format!("{}: {} tasks share {} CPUs", plan.case, plan.tasks, host.cpus));
    }
    caveats
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
