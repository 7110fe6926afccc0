//! `reset`: a populated area is written to in some pages and then put back to what it was, again and again, as by a
//! fuzzer between two inputs.
//!
//! | metric | |
//! |---|---|
//! | `reset` | putting it back: the median of the rounds of a sample |
//! | `p99` | the round that only one in a hundred is slower than |
//! | `round` | a word written in each of the pages, and putting it back |
//! | `faults` | page faults that the writes of a round take in the kernel, once rounds are alike |
//!
//! | subject | puts it back by |
//! |---|---|
//! | `hugefork` | `Region::reset_to` |
//! | `memcpy` | copying all of it from a copy |
//! | `memfd-private` | `MADV_DONTNEED` of a private mapping of a file |
//! | `pagemap-scan` | `PAGEMAP_SCAN`, which tells the pages that were written and protects them again, and copies of these |
//! | `fork-thp` | the end of a child of `fork(2)`, which does the writing: its `reset` is the whole round |
//!
//! The pages are random, and the same in each round. The bench has a thread that waits for signals, so hugefork holds
//! writers each time; `cargo run --release -p hugefork --example reset_cost` measures it in a process of one thread,
//! where nobody has to be held.

mod rivals;
mod scan;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use hugefork::{Pool, Snapshot};
use hugefork_kernels::Kernel;

use self::rivals::{Copied, File, Forked};
use self::scan::Scanned;
use crate::affinity::Pinned;
use crate::case::Case;
use crate::clock::{self, Stopwatch};
use crate::engine::{self, Populated};
use crate::error::BenchError;
use crate::host::Host;
use crate::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::metric::{Measure, Metric};
use crate::random::Random;
use crate::result::{Param, Params, params, shown};
use crate::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct Reset;

/// Putting the area back.
const RESET: Metric = Metric::new("reset", "us");

/// The same, of the slowest rounds but one in a hundred.
const P99: Metric = Metric::new("p99", "us");

/// Writing and putting back.
const ROUND: Metric = Metric::new("round", "us");

/// Faults of the writes.
const FAULTS: Metric = Metric::new("faults", "faults");

const PAGE: usize = 4096;

/// Areas hold `p[i] = i + BIAS`.
const BIAS: u64 = 1;

/// Rounds that do not count: what is known of the pages grows, and lists find their length.
const FIRST: usize = 3;

/// Rounds that count, unless they take longer than [`LONGEST_MS`].
const ROUNDS: usize = 1000;
const LEAST_ROUNDS: usize = 5;
const LONGEST_MS: f64 = 300.0;

fn page_counts(scope: Scope) -> &'static [usize] {
    match scope {
        Scope::Quick => &[44, 1_000],
        Scope::Full | Scope::Sweep => &[10, 44, 100, 1_000, 10_000, 100_000],
    }
}

impl Case for Reset {
    fn name(&self) -> &'static str {
        "reset"
    }

    fn lead_metric(&self) -> Metric {
        RESET
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let rivals = [Subject::Memcpy, Subject::MemfdPrivate, Subject::PagemapScan, Subject::ForkThp];
        let mut subjects = vec![Subject::Hugefork];
        if scope != Scope::Quick {
            subjects.push(Subject::HugeforkPage);
        }
        subjects.extend(rivals);
        subjects
    }

    fn usual_size(&self, scope: Scope) -> usize {
        match scope {
            Scope::Quick => 128 << 20,
            Scope::Full | Scope::Sweep => 1 << 30,
        }
    }

    /// The area, and a copy of all of it or of what is written.
    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(2)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} pages of {}", shown(params, "pages"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        // All works of one subject share a pool.
        let pool = Rc::default();
        let of = |&count: &usize| {
            let params = params([("size", Param::size(size)), ("pages", Param::text(count))]);
            let ground = Ground { size, cpu, count: count.min(size / PAGE / 2) };
            sample::entries(subjects, &params, |planned| {
                let open: Open = match (planned.engine, &planned.subject) {
                    (Some(choice), _) => {
                        return Box::new(Hugefork { ground, choice, shared: Rc::clone(&pool), pool: None });
                    }
                    (None, Subject::Memcpy) => |ground| Ok(Box::new(Copied::open(ground)?)),
                    (None, Subject::MemfdPrivate) => |ground| Ok(Box::new(File::open(ground)?)),
                    (None, Subject::PagemapScan) => |ground| Ok(Box::new(Scanned::open(ground)?)),
                    (None, _) => |ground| Ok(Box::new(Forked::open(ground)?)),
                };
                Box::new(Rival { ground, open })
            })
        };
        page_counts(job.scope).iter().flat_map(of).collect()
    }

    fn forks(&self) -> bool {
        true
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::ForkThp).then_some("the whole round: the child does the writing")
    }
}

/// What all subjects do.
#[derive(Clone, Copy)]
struct Ground {
    size: usize,
    cpu: usize,
    /// Pages that are written in each round.
    count: usize,
}

/// Something that can be written to and put back.
trait Area {
    /// Writes a word to each of `pages`, in memory that this thread or a child of it writes to.
    fn write(&mut self, pages: &[usize]) -> Result<(), BenchError>;

    /// Puts it back.
    fn reset(&mut self) -> Result<(), BenchError>;

    /// The word of a page that is written.
    fn word(&self, page: usize) -> u64;

    /// Whether what is written is gone when `write` ends.
    fn writes_and_resets(&self) -> bool {
        false
    }
}

type Open = fn(Ground) -> Result<Box<dyn Area>, BenchError>;

/// The offset of the word of a page that is written.
fn offset_of(page: usize) -> usize {
    page * PAGE + 8 * (page % 512)
}

/// Writes a word to each of `pages`.
///
/// # Safety
/// `area` is valid for writes at these pages, and nobody else uses it.
unsafe fn write_words(area: *mut u8, pages: &[usize]) {
    for &page in pages {
        // SAFETY: a word of the area.
        unsafe { area.add(offset_of(page)).cast::<u64>().write_volatile(0) };
    }
}

/// Reads the word of a page.
///
/// # Safety
/// `area` is valid for reads there, and nobody writes.
unsafe fn word_of(area: *const u8, page: usize) -> u64 {
    // SAFETY: by contract.
    unsafe { area.add(offset_of(page)).cast::<u64>().read_volatile() }
}

/// Writes and puts back, round by round.
fn measure(ground: Ground, area: &mut dyn Area, random: &mut Random) -> Result<Vec<Measure>, BenchError> {
    let mut pages = BTreeSet::new();
    while pages.len() < ground.count {
        pages.insert(random.below(ground.size / PAGE));
    }
    let pages: Vec<usize> = pages.into_iter().collect();
    let (mut resets, mut rounds, mut faults) = (Vec::new(), Vec::new(), 0);
    let (mut watch, started) = (Stopwatch::default(), clock::now());
    let is_over = |done: usize| done >= LEAST_ROUNDS && clock::ms(started, clock::now()) > LONGEST_MS;
    for round in 0..FIRST + ROUNDS {
        if is_over(resets.len()) {
            break;
        }
        let before = clock::minor_faults();
        let (written, writing) = watch.time(|| area.write(&pages));
        written?;
        faults = clock::minor_faults() - before;
        let (reset, resetting) = watch.time(|| area.reset());
        reset?;
        if round >= FIRST {
            let both = writing + resetting;
            resets.push(1e3 * if area.writes_and_resets() { both } else { resetting });
            rounds.push(1e3 * both);
        }
    }
    check(area, &pages)?;
    let nth = |times: &mut Vec<f64>, share: usize| {
        times.sort_by(f64::total_cmp);
        times[(times.len() * share / 100).min(times.len() - 1)]
    };
    let (median, p99, round) = (nth(&mut resets, 50), nth(&mut resets, 99), nth(&mut rounds, 50));
    Ok(Measure::sample([(RESET, median), (P99, p99), (ROUND, round), (FAULTS, faults as f64)], watch.cpu()))
}

/// Checks that all words are what they were.
fn check(area: &dyn Area, pages: &[usize]) -> Result<(), BenchError> {
    match pages.iter().find(|&&page| area.word(page) != (offset_of(page) / 8) as u64 + BIAS) {
        None => Ok(()),
        Some(page) => Err(BenchError::CannotRun(format!("page {page} was not put back"))),
    }
}

/// A subject that opens an area for each sample.
struct Rival {
    ground: Ground,
    open: Open,
}

impl Work for Rival {
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let _pinned = Pinned::to(self.ground.cpu)?;
        measure(self.ground, &mut *(self.open)(self.ground)?, targets)
    }

    /// It holds nothing between samples.
    fn release(&mut self) {}
}

struct Hugefork {
    ground: Ground,
    choice: EngineChoice,
    shared: Rc<RefCell<Option<Pool>>>,
    pool: Option<Pool>,
}

/// A region, and what it goes back to.
struct Region {
    // The snapshot before the region: fields drop in order.
    snapshot: Snapshot,
    held: Populated,
}

impl Area for Region {
    fn write(&mut self, pages: &[usize]) -> Result<(), BenchError> {
        // SAFETY: our own region.
        unsafe { write_words(self.held.region.as_mut_ptr(), pages) };
        Ok(())
    }

    fn reset(&mut self) -> Result<(), BenchError> {
        Ok(self.held.region.reset_to(&self.snapshot).map_err(|error| error.reason)?)
    }

    fn word(&self, page: usize) -> u64 {
        // SAFETY: our own region.
        unsafe { word_of(self.held.region.as_ptr(), page) }
    }
}

impl Work for Hugefork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.pool.is_none() {
            let mut shared = self.shared.borrow_mut();
            if shared.is_none() {
                *shared = Some(engine::warm_pool(self.choice, 2 * self.ground.size)?);
            }
            self.pool.clone_from(&shared);
        }
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let (ground, pool) = (self.ground, self.pool.clone().expect("prepared before sampled"));
        let _pinned = Pinned::to(ground.cpu)?;
        let held = Populated::new(pool, self.choice.grain, ground.size, BIAS)?;
        measure(ground, &mut Region { snapshot: held.region.snapshot()?, held }, targets)
    }

    fn release(&mut self) {
        self.pool = None;
        *self.shared.borrow_mut() = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.pool.as_ref().map(|pool| (pool, None))
    }
}
