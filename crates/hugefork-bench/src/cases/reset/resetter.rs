//! hugefork's program: a process of one thread, in which nobody has to be held at a reset.

use hugefork::{CopyGrain, Fallback, Snapshot};

use super::rounds::{BIAS, ResetSetup, Resettable, RoundFigures, measure, word_of, write_words};
use crate::cases::program::parsed;
use crate::error::BenchError;
use crate::measure::affinity::Pinned;
use crate::measure::random::Random;
use crate::memory::engine::{self, Populated};
use crate::plan::job::EngineChoice;
use crate::subject::Stock;

/// What the program is to do.
#[derive(Clone, Copy)]
pub(super) struct ResetProgram {
    pub(super) setup: ResetSetup,
    pub(super) choice: EngineChoice,
    pub(super) seed: u64,
}

impl ResetProgram {
    /// As the arguments of its command.
    pub(super) fn words(&self) -> Vec<String> {
        let ResetProgram { setup, choice, seed } = self;
        let grain = match choice.grain {
            CopyGrain::Page => "page",
            CopyGrain::Block => "block",
            _ => "auto",
        };
        let fallback = if choice.fallback == Fallback::Refused { "refused" } else { "allowed" };
        let words = [choice.block_size.to_string(), choice.backing.to_string(), fallback.to_owned(), grain.to_owned()];
        let numbers = [setup.size, setup.cpu, setup.count].map(|number| number.to_string());
        let last = [setup.is_read.to_string(), seed.to_string()];
        words.into_iter().chain(numbers).chain(last).collect()
    }

    fn parse(words: &[String]) -> Option<ResetProgram> {
        let [block_size, backing, fallback, grain, size, cpu, count, is_read, seed] = words else { return None };
        let grain = match grain.as_str() {
            "page" => CopyGrain::Page,
            "block" => CopyGrain::Block,
            "auto" => CopyGrain::Auto,
            _ => return None,
        };
        let fallback = match fallback.as_str() {
            "refused" => Fallback::Refused,
            "allowed" => Fallback::Allowed,
            _ => return None,
        };
        let (block_size, backing) = (block_size.parse().ok()?, backing.parse().ok()?);
        let choice = EngineChoice { block_size, stock: Stock::Without, grain, backing, fallback };
        let setup = ResetSetup {
            size: size.parse().ok()?,
            cpu: cpu.parse().ok()?,
            count: count.parse().ok()?,
            is_read: is_read.parse().ok()?,
        };
        Some(ResetProgram { setup, choice, seed: seed.parse().ok()? })
    }

    fn run(&self) -> Result<RoundFigures, BenchError> {
        let _pinned = Pinned::to(self.setup.cpu)?;
        let pool = engine::warm_pool(self.choice, 2 * self.setup.size)?;
        let held = Populated::new(pool, self.choice.grain, self.setup.size, BIAS)?;
        let mut region = Region { snapshot: held.region.snapshot()?, held };
        measure(self.setup, &mut region, &mut Random::new(self.seed))
    }
}

/// Does what `words` say, which are those that the case gives to its command. Gives the line to print.
///
/// # Errors
/// What was wrong.
pub fn run(words: &[String]) -> Result<String, BenchError> {
    parsed(ResetProgram::parse(words), "reset")?.run().map(|outcome| outcome.to_string())
}

/// A region, and what it goes back to.
struct Region {
    // The snapshot before the region: fields drop in order.
    snapshot: Snapshot,
    held: Populated,
}

impl Resettable for Region {
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

#[cfg(test)]
mod tests {
    use hugefork::{Backing, BlockSize};

    use super::*;
    use crate::measure::clock::CpuTime;

    #[test]
    fn programs_and_outcomes_read_back() {
        let choice = EngineChoice {
            block_size: BlockSize::KIB_64,
            stock: Stock::Without,
            grain: CopyGrain::Page,
            backing: Backing::ShmemBase,
            fallback: Fallback::Refused,
        };
        let program =
            ResetProgram { setup: ResetSetup { size: 1 << 30, cpu: 1, count: 44, is_read: true }, choice, seed: 7 };
        let again = ResetProgram::parse(&program.words()).unwrap();
        assert_eq!((again.words(), again.choice), (program.words(), choice));
        let cpu = CpuTime { user: 0.5, sys: 0.25 };
        let outcome = RoundFigures { round: 2.5, reset: 1.5, p99: 3.0, faults: 0.0, cpu };
        assert_eq!(RoundFigures::parse(&outcome.to_string()), Some(outcome));
    }
}
