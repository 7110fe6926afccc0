//! The victim: a thread that uses none of the cleared blocks, and that the clears slow down all the same.
//!
//! ```text
//! victim's CPU   walks × (1 +) 3 │ walks × (1 +) 3             │ walks × (1 +) 3 │ … five times
//! first CPU      waits           │ clears, block after block   │ waits           │
//! ```
//! The victim walks through a set of cache lines over and over, in random order. Each line holds the offset of the
//! next line, so that every load waits for the load before, and the time of a walk is the time in which the lines
//! reach the core. The result is the median disturbed walk divided by the median quiet walk; the first walk of each
//! phase does not count.
//!
//! The set is twice the L2, so that half of it lives in the last-level cache. In its own L2 a victim is not disturbed:
//! a walk through 512 KiB took the same time beside every clearing kernel (Zen 5, 1 MiB of L2). The set cannot be much
//! larger either, since a guest shares the last-level cache with neighbours that it cannot see: 8 MiB, half of the
//! cache that the hypervisor reports to the guest, took 13 or 300 ns a line, depending on the neighbours; 2 MiB nearly
//! always took 11.
//!
//! Clears follow each other without a pause, so that a faster kernel also clears more in the same time. This traffic
//! slows the victim more than the loss of its lines: with 2 MiB blocks, non-temporal clears made it 1.7 to 1.9 times
//! slower, one `rep stosb` 1.2 times, and target-last by 4 KiB, which clears a third as much in the same time, 1.0
//! times. All these factors are 1.0 if the victim's CPU shares no cache with the first CPU; a host may move a
//! guest's CPUs to such places at any time.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugefork::ByteSize;

use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity;
use crate::measure::clock;
use crate::measure::random::Random;
use crate::memory::kernel_memory::{HUGE_PAGE, KernelMemory, PageKind, Reserve};
use crate::results::stats::{nearest_rank, sorted};

/// The number of quiet phases, and of disturbed phases. Quiet and disturbed phases alternate, since the load that other
/// programs put on a shared cache changes within milliseconds.
const PHASES: usize = 5;

/// The number of counted walks in each phase.
const WALKS: usize = 3;

/// A cache line.
const LINE: usize = 64;

/// The assumed size of the L2 if the kernel does not report it.
const USUAL_L2: usize = 1 << 20;

/// The victim's CPU, and the size of its set of cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VictimPlan {
    /// The CPU of the victim.
    pub(super) cpu: usize,
    /// Bytes of the set through which the victim walks.
    pub(super) set: usize,
}

/// Finds a CPU for the victim: one that shares the last-level cache with the first CPU, but not the core, since
/// hyperthreads disturb each other in any case. If there is none, any other CPU will do.
pub(super) fn plan(host: &Host) -> Result<VictimPlan, String> {
    let others = host.cpu_numbers.get(1..).unwrap_or_default();
    let sharers = |level: u32| {
        let cache = host.caches.iter().find(|cache| cache.level == level && cache.kind != "Instruction");
        cache.map(|cache| cpu_list(&cache.shared_by)).unwrap_or_default()
    };
    let last = host.caches.iter().map(|cache| cache.level).max().unwrap_or(0);
    let (core, neighbours) = (sharers(1), sharers(last));
    let apart = |cpu: &&usize| !core.contains(cpu);
    let cpu = others
        .iter()
        .filter(apart)
        .find(|cpu| neighbours.contains(cpu))
        .or_else(|| others.iter().find(apart))
        .or(others.first())
        .ok_or("victim_slowdown needs a second CPU, this process may use one; see taskset")?;
    let second = host.caches.iter().find(|cache| cache.level == 2).and_then(|cache| cache.size.parse().ok());
    Ok(VictimPlan { cpu: *cpu, set: 2 * second.map_or(USUAL_L2, |ByteSize(bytes)| bytes) })
}

/// The CPUs of a list such as `0-1,4`.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The set of cache lines, and the CPU of the thread that walks through it.
pub(super) struct Victim {
    cpu: usize,
    set: usize,
    lines: KernelMemory,
}

/// The set's address, for the thread that walks it.
#[derive(Clone, Copy)]
struct Chain(*const u8);

// SAFETY: the set is only read while it is shared.
unsafe impl Send for Chain {}

impl Victim {
    /// Allocates the set and links its lines to one ring.
    pub(super) fn new(plan: VictimPlan) -> Result<Victim, BenchError> {
        // The set is on huge pages if the machine has them, so that walks do not wait for page tables.
        let lines = KernelMemory::map(PageKind::Thp, plan.set.next_multiple_of(HUGE_PAGE), Reserve::Yes)?;
        lines.touch()?;
        let ring = ring(plan.set / LINE);
        for (line, next) in ring.into_iter().enumerate() {
            // SAFETY: our own mapping, and `line * LINE` within it.
            unsafe { lines.as_ptr().add(line * LINE).cast::<usize>().write(next * LINE) };
        }
        Ok(Victim { cpu: plan.cpu, set: plan.set, lines })
    }

    /// How many times longer a walk of the victim takes while the calling thread runs `disturb` over and over.
    pub(super) fn slowdown(&self, mut disturb: impl FnMut()) -> Result<f64, BenchError> {
        // Whether the victim asks the calling thread to disturb it, and whether that thread does so now.
        let (asked, disturbed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (chain, lines, cpu) = (Chain(self.lines.as_ptr()), self.set / LINE, self.cpu);
        let (ask, is_disturbed) = (&asked, &disturbed);
        let walker = move || {
            affinity::pin(cpu).map_err(|errno| BenchError::system("pinning the victim to a CPU", errno))?;
            // The closure must capture the whole struct: the pointer in it could not cross threads.
            let Chain(start) = { chain };
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..PHASES {
                for (disturb, times) in [false, true].into_iter().zip(&mut times) {
                    ask.store(disturb, Ordering::Release);
                    while is_disturbed.load(Ordering::Acquire) != disturb {
                        hint::spin_loop();
                    }
                    // SAFETY: the set was linked by `new`, lives as long as the scope, and nobody writes it.
                    times.extend((0..=WALKS).map(|_| unsafe { timed_walk(start, lines) }).skip(1));
                }
            }
            let [quiet, disturbed] = times.map(|times| nearest_rank(&sorted(times), 0.5));
            Ok(disturbed / quiet)
        };
        thread::scope(|scope| {
            let walker = scope.spawn(walker);
            // The loop also ends if the walker could not be pinned to its CPU.
            while !walker.is_finished() {
                let wanted = asked.load(Ordering::Acquire);
                if wanted {
                    disturb();
                } else {
                    hint::spin_loop();
                }
                // The flag follows only after one call of `disturb`, when the clears are in full flow, or after the
                // last one.
                disturbed.store(wanted, Ordering::Release);
            }
            walker.join().expect("walking does not panic")
        })
    }
}

/// The time of one walk in microseconds.
///
/// # Safety
/// As [`walk`].
unsafe fn timed_walk(chain: *const u8, lines: usize) -> f64 {
    let start = clock::now_fenced();
    // SAFETY: by contract.
    unsafe { walk(chain, lines) };
    clock::us(start, clock::now_fenced())
}

/// Walks once through the ring of lines.
///
/// # Safety
/// `chain` consists of `lines` cache lines. Every line begins with the offset of another line, and no thread writes to
/// the lines during the walk.
#[inline(never)]
unsafe fn walk(chain: *const u8, lines: usize) -> usize {
    let mut at = 0;
    for _ in 0..lines {
        // SAFETY: an offset in the set, by contract.
        at = unsafe { chain.add(at).cast::<usize>().read_volatile() };
    }
    at
}

/// The index of the next line for each line, so that all lines form one ring in random order (Sattolo's shuffle, which
/// leaves no shorter rings).
fn ring(lines: usize) -> Vec<usize> {
    let mut next: Vec<usize> = (0..lines).collect();
    let mut random = Random::new(lines as u64);
    for last in (1..lines).rev() {
        next.swap(last, random.below(last));
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Cache;
    use crate::measure::affinity::allowed_cpus;

    fn cache(level: u32, kind: &str, size: &str, shared_by: &str) -> Cache {
        Cache { level, kind: kind.to_owned(), size: size.to_owned(), shared_by: shared_by.to_owned() }
    }

    #[test]
    fn the_ring_goes_through_every_line() {
        for lines in [1, 2, 3, 1000] {
            let ring = ring(lines);
            let mut seen = vec![false; lines];
            let mut at = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at], true), "{lines} lines: back at {at} too early");
                at = ring[at];
            }
            assert_eq!(at, 0);
        }
    }

    #[test]
    fn the_victim_shares_the_last_cache_and_not_the_core() {
        let mut host = Host { cpu_numbers: vec![0, 1, 4, 8], ..Host::default() };
        host.caches = vec![
            cache(1, "Data", "48KiB", "0-1"),
            cache(1, "Instruction", "32KiB", "0-1"),
            cache(2, "Unified", "3MiB", "0-1"),
            cache(3, "Unified", "32MiB", "0-1,8-9"),
        ];
        assert_eq!(plan(&host), Ok(VictimPlan { cpu: 8, set: 6 << 20 }));
        host.cpu_numbers = vec![0, 1, 4];
        assert_eq!(plan(&host).unwrap().cpu, 4, "another core before the same");
        host.cpu_numbers = vec![0, 1];
        assert_eq!(plan(&host).unwrap().cpu, 1);
        host.cpu_numbers = vec![0];
        assert!(plan(&host).unwrap_err().contains("second CPU"));
        host.cpu_numbers = vec![0, 1];
        host.caches.clear();
        assert_eq!(plan(&host), Ok(VictimPlan { cpu: 1, set: 2 * USUAL_L2 }));
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpu_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(cpu_list("7"), [7]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn a_victim_is_walked_and_whoever_cannot_be_pinned_is_an_error() {
        let plan = VictimPlan { cpu: *allowed_cpus().last().unwrap(), set: HUGE_PAGE };
        let mut blocks = 0;
        let slowdown = Victim::new(plan).unwrap().slowdown(|| blocks += 1).unwrap();
        assert!(slowdown > 0.0 && slowdown.is_finite() && blocks > 0, "{slowdown} after {blocks}");
        let nowhere = Victim::new(VictimPlan { cpu: 1023, ..plan }).unwrap();
        assert!(nowhere.slowdown(|| ()).unwrap_err().to_string().contains("pinning the victim"));
    }
}
