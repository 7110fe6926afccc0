//! Rounds: an area is written to and put back, again and again.

use std::collections::BTreeSet;
use std::fmt;

use crate::error::BenchError;
use crate::measure::clock::{self, CpuTime, Stopwatch};
use crate::measure::random::Random;
use crate::results::metric::{Measure, Metric};

/// Putting the area back.
pub(super) const RESET: Metric = Metric::new("reset", "us");

/// The same, of the slowest rounds but one in a hundred.
pub(super) const P99: Metric = Metric::new("p99", "us");

/// Writing and putting back.
pub(super) const ROUND: Metric = Metric::new("round", "us");

/// Faults of the writes.
pub(super) const FAULTS: Metric = Metric::new("faults", "faults");

pub(super) const PAGE: usize = 4096;

/// Areas hold `p[i] = i + BIAS`.
pub(super) const BIAS: u64 = 1;

/// Rounds that do not count: what is known of the pages grows, and lists find their length.
const FIRST: usize = 3;

/// Rounds that count, unless they take longer than [`LONGEST_MS`].
const ROUNDS: usize = 1000;
const LEAST_ROUNDS: usize = 5;
const LONGEST_MS: f64 = 300.0;

/// What all subjects do.
#[derive(Clone, Copy)]
pub(super) struct ResetSetup {
    pub(super) size: usize,
    pub(super) cpu: usize,
    /// Pages that are written in each round.
    pub(super) count: usize,
    /// Whether all pages are read before the rounds that count.
    pub(super) is_read: bool,
}

/// Something that can be written to and put back.
pub(super) trait Resettable {
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

/// What came of the rounds: microseconds, and page faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundFigures {
    pub(super) round: f64,
    pub(super) reset: f64,
    pub(super) p99: f64,
    pub(super) faults: f64,
    pub(super) cpu: CpuTime,
}

impl RoundFigures {
    pub(super) fn measures(&self) -> Vec<Measure> {
        let RoundFigures { round, reset, p99, faults, cpu } = *self;
        Measure::sample([(ROUND, round), (RESET, reset), (P99, p99), (FAULTS, faults)], cpu)
    }

    pub(super) fn parse(line: &str) -> Option<RoundFigures> {
        let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [round, reset, p99, faults, user, sys] = numbers[..] else { return None };
        Some(RoundFigures { round, reset, p99, faults, cpu: CpuTime { user, sys } })
    }
}

impl fmt::Display for RoundFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoundFigures { round, reset, p99, faults, cpu } = self;
        write!(f, "{round} {reset} {p99} {faults} {} {}", cpu.user, cpu.sys)
    }
}

/// The offset of the word of a page that is written.
fn offset_of(page: usize) -> usize {
    page * PAGE + 8 * (page % 512)
}

/// Writes a word to each of `pages`.
///
/// # Safety
/// `area` is valid for writes at these pages, and nobody else uses it.
pub(super) unsafe fn write_words(area: *mut u8, pages: &[usize]) {
    for &page in pages {
        // SAFETY: a word of the area.
        unsafe { area.add(offset_of(page)).cast::<u64>().write_volatile(0) };
    }
}

/// Reads the word of a page.
///
/// # Safety
/// `area` is valid for reads there, and nobody writes.
pub(super) unsafe fn word_of(area: *const u8, page: usize) -> u64 {
    // SAFETY: by contract.
    unsafe { area.add(offset_of(page)).cast::<u64>().read_volatile() }
}

/// Writes and puts back, round by round.
pub(super) fn measure(
    setup: ResetSetup,
    area: &mut dyn Resettable,
    random: &mut Random,
) -> Result<RoundFigures, BenchError> {
    let mut pages = BTreeSet::new();
    while pages.len() < setup.count {
        pages.insert(random.below(setup.size / PAGE));
    }
    let pages: Vec<usize> = pages.into_iter().collect();
    let (mut resets, mut rounds, mut faults) = (Vec::new(), Vec::new(), 0);
    let (mut watch, started) = (Stopwatch::default(), clock::now());
    let is_over = |done: usize| done >= LEAST_ROUNDS && clock::ms(started, clock::now()) > LONGEST_MS;
    for round in 0..FIRST + ROUNDS {
        if is_over(resets.len()) {
            break;
        }
        if round == FIRST && setup.is_read {
            (0..setup.size / PAGE).for_each(|page| {
                area.word(page);
            });
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
    let (reset, p99, round) = (nth(&mut resets, 50), nth(&mut resets, 99), nth(&mut rounds, 50));
    Ok(RoundFigures { round, reset, p99, faults: faults as f64, cpu: watch.cpu() })
}

/// Checks that all words are what they were.
fn check(area: &dyn Resettable, pages: &[usize]) -> Result<(), BenchError> {
    match pages.iter().find(|&&page| area.word(page) != (offset_of(page) / 8) as u64 + BIAS) {
        None => Ok(()),
        Some(page) => Err(BenchError::CannotRun(format!("page {page} was not put back"))),
    }
}
