//! The program of the case `fork`, as anybody could have written it: memory from libc's `mmap`, `fork(2)`, stores.

use std::fmt;
use std::fs;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

use hugefork::ByteSize;

use crate::cases::list::List;
use crate::cases::program::parsed;
use crate::error::BenchError;
use crate::measure::clock::{CpuTime, Stopwatch};
use crate::measure::random::Random;
use crate::measure::work::write_words;
use crate::memory::holder::Holder;
use crate::memory::kernel_memory::{HUGE_PAGE, PageKind};
use crate::plan::writes::Pattern;

/// What every word holds at first, beside its number.
const BIAS: u64 = 7;

/// Its huge pages are looked at so often, and must be the same for so many looks.
const LOOK: Duration = Duration::from_millis(25);
const LOOKS: usize = 10;

/// Of so many neighbouring blocks, clustered writes go to one.
const CLUSTER: usize = 16;

/// Which pages the program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// It asks for none.
    AsTheyCome,
    Of(PageKind),
}

/// What the program is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) pages: Pages,
    pub(super) size: usize,
    /// In each round.
    pub(super) writes: usize,
    pub(super) pattern: Pattern,
    pub(super) rounds: usize,
    pub(super) seed: u64,
}

impl Program {
    /// As the arguments of its command.
    pub(super) fn words(&self) -> Vec<String> {
        let pages = match self.pages {
            Pages::Of(PageKind::Thp) => "thp",
            Pages::Of(_) => "4k",
            Pages::AsTheyCome => "plain",
        };
        let numbers = [self.size, self.writes, self.rounds].map(|number| number.to_string());
        let words = [pages.to_owned(), self.pattern.name().to_owned(), self.seed.to_string()];
        words.into_iter().chain(numbers).collect()
    }

    fn parse(words: &[String]) -> Option<Program> {
        let [pages, pattern, seed, size, writes, rounds] = words else { return None };
        let pages = match pages.as_str() {
            "thp" => Pages::Of(PageKind::Thp),
            "4k" => Pages::Of(PageKind::Base),
            "plain" => Pages::AsTheyCome,
            _ => return None,
        };
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
        let size = number(size).filter(|size| size.is_multiple_of(HUGE_PAGE))?;
        let (writes, rounds) = (number(writes)?, number(rounds)?);
        Some(Program { pages, size, writes, pattern: pattern.parse().ok()?, rounds, seed: seed.parse().ok()? })
    }

    /// Does all of it. Gives what its last round took.
    fn run(&self) -> Result<RoundTimes, BenchError> {
        let area = LibcMemory::map(self.size, self.pages)?;
        let words = self.size / 8;
        // SAFETY: new memory of our own.
        unsafe { write_words(area.start(), words, BIAS) };
        let mut list = List::new(self.writes)?;
        let mut random = Random::new(self.seed);
        let mut outcome = None;
        for round in 0..self.rounds {
            if round > 0 {
                settle();
            }
            list.as_mut_slice().fill_with(|| {
                let word = self.place(&mut random);
                // SAFETY: within the area.
                (word, unsafe { area.start().add(word).read_volatile() })
            });
            outcome = Some(round_of(&area, list.as_slice(), round)?);
        }
        outcome.ok_or_else(|| BenchError::CannotRun("it has no round".to_owned()))
    }

    /// The number of a word to write to.
    fn place(&self, random: &mut Random) -> usize {
        match self.pattern {
            Pattern::Random => random.below(self.size / 8),
            Pattern::Clustered => {
                let blocks = self.size / HUGE_PAGE;
                let cluster = random.below(blocks.div_ceil(CLUSTER));
                // The same block of each in every round.
                let within = Random::new(self.seed ^ cluster as u64).below(CLUSTER.min(blocks - cluster * CLUSTER));
                (cluster * CLUSTER + within) * (HUGE_PAGE / 8) + random.below(HUGE_PAGE / 8)
            }
        }
    }
}

/// What a round took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundTimes {
    /// Milliseconds of `fork(2)`.
    pub(super) pause: f64,
    /// Milliseconds of all writes.
    pub(super) total: f64,
    /// CPU time of both.
    pub(super) cpu: CpuTime,
}

/// Forks a child, writes all that is listed, and lets the child go.
fn round_of(area: &LibcMemory, list: &[ListedWord], round: usize) -> Result<RoundTimes, BenchError> {
    let start = area.start();
    let new = |word: usize| word as u64 ^ (round as u64 + 1) << 48;
    let mut watch = Stopwatch::default();
    // SAFETY: the child only reads and compares.
    let fork = || unsafe {
        // A word that is listed twice had the same contents both times.
        Holder::fork(|| list.iter().all(|&(word, before)| start.add(word).read_volatile() == before))
    };
    let (child, pause) = watch.time(fork);
    let child = child?;
    // SAFETY: within the area, and nobody else accesses it.
    let write = |word: usize| unsafe { start.add(word).write_volatile(new(word)) };
    let ((), total) = watch.time(|| list.iter().for_each(|&(word, _)| write(word)));
    child.let_go()?;
    // SAFETY: as above.
    let found = |word: usize| unsafe { start.add(word).read_volatile() };
    match list.iter().find(|(word, _)| found(*word) != new(*word)) {
        Some(&(word, _)) => {
            Err(BenchError::WrongContents { offset: word * 8, found: found(word), expected: new(word) })
        }
        None => Ok(RoundTimes { pause, total, cpu: watch.cpu() }),
    }
}

impl RoundTimes {
    /// Reads the line that the program prints.
    pub(super) fn parse(line: &str) -> Option<RoundTimes> {
        let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [pause, total, user, sys] = numbers[..] else { return None };
        Some(RoundTimes { pause, total, cpu: CpuTime { user, sys } })
    }
}

impl fmt::Display for RoundTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoundTimes { pause, total, cpu } = self;
        write!(f, "{pause} {total} {} {}", cpu.user, cpu.sys)
    }
}

/// Does what `words` say, which are those that the case gives to its command. Gives the line to print.
///
/// # Errors
/// What was wrong.
pub fn run(words: &[String]) -> Result<String, BenchError> {
    parsed(Program::parse(words), "fork")?.run().map(|outcome| outcome.to_string())
}

/// Anonymous memory from libc's `mmap`, which is where a library can stand in for it.
struct LibcMemory {
    start: NonNull<u64>,
    mapped: *mut libc::c_void,
    len: usize,
}

impl LibcMemory {
    fn map(size: usize, pages: Pages) -> Result<LibcMemory, BenchError> {
        let len = size + HUGE_PAGE;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            let (len, error) = (ByteSize(len), std::io::Error::last_os_error());
            return Err(BenchError::CannotRun(format!("there is no memory for {len}: {error}")));
        }
        let advice = match pages {
            Pages::Of(PageKind::Thp) => Some(libc::MADV_HUGEPAGE),
            Pages::Of(_) => Some(libc::MADV_NOHUGEPAGE),
            Pages::AsTheyCome => None,
        };
        if let Some(advice) = advice {
            // SAFETY: our own mapping, which is new.
            if unsafe { libc::madvise(mapped, len, advice) } != 0 {
                return Err(BenchError::system("madvise", std::io::Error::last_os_error()));
            }
        }
        let start = (mapped as usize).next_multiple_of(HUGE_PAGE) as *mut u64;
        Ok(LibcMemory { start: NonNull::new(start).expect("the kernel maps nothing at address 0"), mapped, len })
    }

    fn start(&self) -> *mut u64 {
        self.start.as_ptr()
    }
}

impl Drop for LibcMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.mapped, self.len) };
    }
}

/// A word to write, and what it held before.
type ListedWord = (usize, u64);

/// Waits until the huge pages of this process have stayed what they are.
fn settle() {
    let huge = || {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let fields = ["AnonHugePages:", "ShmemPmdMapped:"];
        rollup.lines().filter(|line| fields.iter().any(|field| line.starts_with(field))).collect::<String>()
    };
    let (mut known, mut same) = (huge(), 0);
    while same < LOOKS {
        thread::sleep(LOOK);
        let now = huge();
        same = if now == known { same + 1 } else { 0 };
        known = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pattern: Pattern) -> Program {
        let pages = Pages::Of(PageKind::Base);
        Program { pages, size: 34 << 20, writes: 300, pattern, rounds: 2, seed: 5 }
    }

    #[test]
    fn words_read_back() {
        for pages in [Pages::AsTheyCome, Pages::Of(PageKind::Thp), Pages::Of(PageKind::Base)] {
            let program = Program { pages, ..program(Pattern::Clustered) };
            assert_eq!(Program::parse(&program.words()), Some(program));
        }
        assert!(run(&["thp".to_owned()]).is_err());
    }

    #[test]
    fn it_writes_what_its_children_do_not_see() {
        for pattern in Pattern::ALL {
            let line = run(&program(pattern).words()).unwrap();
            let outcome = RoundTimes::parse(&line).unwrap();
            assert!(outcome.pause > 0.0 && outcome.total > 0.0, "{line}");
            assert_eq!(RoundTimes::parse(&outcome.to_string()), Some(outcome));
        }
    }

    #[test]
    fn clustered_writes_go_to_one_block_of_sixteen() {
        let program = program(Pattern::Clustered);
        let mut random = Random::new(1);
        let mut blocks: Vec<usize> = (0..1000).map(|_| program.place(&mut random) * 8 / HUGE_PAGE).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 2, "{blocks:?}");
        assert_eq!(blocks[1], 16);
    }
}
