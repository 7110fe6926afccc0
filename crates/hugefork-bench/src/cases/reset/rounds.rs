//! Rounds: an area is written to and put back, again and again.

use std::collections::BTreeSet;
use std::fmt;

use crate::error::BenchError;
use crate::measure::clock::{self, CpuMeter};
use crate::measure::random::Random;
use crate::results::metric::{Measure, Metric};
use crate::results::stats::{nearest_rank, sorted};

/// The time for putting the area back.
pub(super) const RESET: Metric = Metric::new("reset", "us");

pub(super) const PAGE: usize = 4096;

/// Areas hold `p[i] = i + BIAS`.
pub(super) const BIAS: u64 = 1;

/// First rounds, which do not count: in these, lists grow to their length, and the engine learns which pages are
/// written again and again.
const FIRST: usize = 3;

/// Number of rounds that count, unless the rounds take longer than [`LONGEST_MS`].
const ROUNDS: usize = 1000;
const LEAST_ROUNDS: usize = 5;
const LONGEST_MS: f64 = 60.0;

/// The pages that the rounds write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// The same pages in each round.
    Same,
    /// Other pages in each round.
    Others,
}

impl Pages {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pages::Same => "same",
            Pages::Others => "others",
        }
    }
}

/// The parameters of the work, which are the same for all subjects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ResetSetup {
    pub(super) size: usize,
    pub(super) cpu: usize,
    /// Number of pages that are written in each round.
    pub(super) count: usize,
    pub(super) pages: Pages,
}

/// An area that can be written to and put back.
pub(super) trait Resettable {
    /// First byte.
    fn start(&self) -> *mut u8;

    /// Puts the area back after the program has written `pages`.
    fn reset(&mut self, pages: &[usize]) -> Result<(), BenchError>;
}

/// The figures of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// The median time of a reset in microseconds.
    pub(super) reset: f64,
    /// CPU milliseconds of a round: its writes, with their faults, and the reset.
    pub(super) cpu: f64,
}

impl Figures {
    pub(super) fn measures(&self) -> Vec<Measure> {
        Measure::all([(RESET, self.reset), (Metric::CPU, self.cpu)])
    }

    pub(super) fn parse(line: &str) -> Option<Figures> {
        let (reset, cpu) = line.trim().split_once(' ')?;
        Some(Figures { reset: reset.parse().ok()?, cpu: cpu.parse().ok()? })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.reset, self.cpu)
    }
}

/// The offset of the word that a round writes in a page.
fn offset_of(page: usize) -> usize {
    page * PAGE + 8 * (page % 512)
}

/// Writes to the area and puts it back, round by round.
pub(super) fn measure(
    setup: ResetSetup,
    area: &mut dyn Resettable,
    random: &mut Random,
) -> Result<Figures, BenchError> {
    let mut pages = draw(setup, random);
    let mut resets = Vec::new();
    let (mut cpu, mut started) = (CpuMeter::start(), clock::now());
    for round in 0..FIRST + ROUNDS {
        if resets.len() >= LEAST_ROUNDS && clock::ms(started, clock::now()) > LONGEST_MS {
            break;
        }
        if round == FIRST {
            (cpu, started) = (CpuMeter::start(), clock::now());
        }
        if setup.pages == Pages::Others {
            pages = draw(setup, random);
        }
        for &page in &pages {
            // SAFETY: a word of the area, which is ours alone.
            unsafe { area.start().add(offset_of(page)).cast::<u64>().write_volatile(0) };
        }
        let (reset, ms) = clock::timed(|| area.reset(&pages));
        reset?;
        if round >= FIRST {
            resets.push(1e3 * ms);
        }
    }
    let cpu = cpu.ms() / resets.len() as f64;
    check(area, &pages)?;
    Ok(Figures { reset: nearest_rank(&sorted(resets), 0.5), cpu })
}

/// Draws the pages of a round at random. Returns them in ascending order.
fn draw(setup: ResetSetup, random: &mut Random) -> Vec<usize> {
    let mut pages = BTreeSet::new();
    while pages.len() < setup.count {
        pages.insert(random.below(setup.size / PAGE));
    }
    pages.into_iter().collect()
}

/// Checks that the words of these pages have their first values again.
fn check(area: &dyn Resettable, pages: &[usize]) -> Result<(), BenchError> {
    for offset in pages.iter().map(|page| offset_of(*page)) {
        // SAFETY: a word of the area, which is ours alone.
        let found = unsafe { area.start().add(offset).cast::<u64>().read_volatile() };
        let expected = (offset / 8) as u64 + BIAS;
        if found != expected {
            return Err(BenchError::WrongContents { offset, found, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An area whose reset puts back only the first `done` of the written pages.
    struct Fake {
        area: Vec<u64>,
        done: usize,
        seen: BTreeSet<usize>,
    }

    impl Resettable for Fake {
        fn start(&self) -> *mut u8 {
            self.area.as_ptr().cast_mut().cast()
        }

        fn reset(&mut self, pages: &[usize]) -> Result<(), BenchError> {
            self.seen.extend(pages);
            for page in pages.iter().take(self.done) {
                let word = offset_of(*page) / 8;
                self.area[word] = word as u64 + BIAS;
            }
            Ok(())
        }
    }

    #[test]
    fn a_reset_that_leaves_a_page_out_shows_and_other_pages_are_others() {
        let size = 1 << 20;
        let run = |pages, done| {
            let area = (0..size / 8).map(|word| word as u64 + BIAS).collect();
            let mut fake = Fake { area, done, seen: BTreeSet::new() };
            let setup = ResetSetup { size, cpu: 0, count: 10, pages };
            (measure(setup, &mut fake, &mut Random::new(3)), fake.seen.len())
        };
        let (figures, seen) = run(Pages::Same, 10);
        assert!(figures.is_ok() && seen == 10, "{figures:?} {seen}");
        let (figures, seen) = run(Pages::Others, 10);
        assert!(figures.is_ok() && seen > 20, "{figures:?} {seen}");
        assert!(run(Pages::Same, 9).0.is_err());
    }

    #[test]
    fn figures_read_back() {
        let figures = Figures { reset: 1.5, cpu: 0.25 };
        assert_eq!(Figures::parse(&format!("{figures}\n")), Some(figures));
        assert_eq!(Figures::parse("1.5"), None);
    }
}
