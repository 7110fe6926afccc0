//! `snapshot`: the cost of a snapshot for a program that goes on writing to its area at a steady pace.
//!
//! The program has a populated area and holds `held` older snapshots of it, with writes between each two snapshots. One
//! thread takes one more snapshot, and then writes `rate` 8-byte words a second at random places of the area: every
//! half millisecond the thread wakes and does the writes that are due, as with requests from a socket.
//!
//! | metric | |
//! |---|---|
//! | `call` | the call that takes the snapshot |
//! | `p50` … `max` | the lateness of a write: from when it was due to its end, also during the call |
//! | `cpu` | all threads, from the call to the last write, without the waits for the next write |
//! | `memory` | everything beyond the area itself after the last write, with all snapshots |
//!
//! | subject | takes a snapshot by |
//! |---|---|
//! | `hugefork` | `Region::snapshot()`, in a pool with all defaults |
//! | `fork-*` | `fork(2)`; the child sleeps |
//! | `memcpy` | a copy of everything, to memory that is present; with at most one older snapshot |
//! | `shadow-copy` | a copy of the pages that the kernel has marked as written, beside a full copy |
//!
//! In the end the area must hold the written words, and the snapshot must hold the words from before these
//! writes. The lists of the writes lie in memory that children share (`list.rs`), so that noting the lateness
//! of a write raises no fault.

use std::time::Duration;

use hugefork::ByteSize;
use rustix::thread::{ClockId, clock_nanosleep_relative};

use super::list::List;
use super::ways::{BIAS, CopyWay, ForkWay, Read, RegionWay, ShadowWay, Way, check_words};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::{self, CpuMeter, now};
use crate::measure::random::Random;
use crate::measure::work::{self, reader};
use crate::memory::kernel_memory::PageKind;
use crate::memory::used;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::results::stats::{nearest_rank, sorted};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct Snapshot;

/// The call that takes a snapshot.
const CALL: Metric = Metric::new("call", "ms");

/// The time between two wake-ups of the writing thread.
const TICK: Duration = Duration::from_micros(500);

/// The thread wakes this many nanoseconds before writes are due, and spins until then, since waking takes time.
const AWAKE: u64 = 100_000;

/// Number of writes between two older snapshots, for an area of 1 GiB.
const BETWEEN: usize = 1_000;

/// The numbers of older snapshots, the numbers of writes a second, and the duration of the writes.
fn works(scope: Scope) -> (&'static [usize], &'static [usize], Duration) {
    match scope {
        Scope::Quick => (&[0, 10], &[50_000], Duration::from_millis(120)),
        Scope::Full => (&[0, 1, 10, 100], &[10_000, 200_000], Duration::from_millis(1_000)),
    }
}

impl Case for Snapshot {
    fn facts(&self) -> Facts {
        let metrics = &[CALL, Metric::P99, Metric::P999, Metric::CPU, Metric::MEMORY];
        Facts { feels_caches: false, ..Facts::new("snapshot", metrics, [256 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![
            Subject::Hugefork,
            Subject::Fork4k,
            Subject::ForkThp,
            Subject::ForkHugetlb,
            Subject::Memcpy,
            Subject::ShadowCopy,
        ]
    }

    fn in_words(&self, params: &Params) -> String {
        let [size, rate, held] = ["size", "rate", "held"].map(|name| shown(params, name));
        format!("{size}, {held} held, {rate} writes/s")
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let (held, rates, time) = works(job.scope);
        let mut entries = Vec::new();
        for (&held, &rate) in held.iter().flat_map(|held| rates.iter().map(move |rate| (held, rate))) {
            let setup = Setup { size: job.size, held, rate, time, cpu: host.cpu_numbers[0] };
            let params = params([
                ("size", Param::size(job.size)),
                ("held", Param::Number(held as u64)),
                ("rate", Param::Number(rate as u64)),
            ]);
            let mut subjects = subjects.to_vec();
            // With `memcpy` every snapshot is a whole copy, and no program keeps ten of these.
            subjects.retain(|planned| planned.subject != Subject::Memcpy || held <= 1);
            for planned in subjects.iter_mut().filter(|planned| planned.lack.is_none()) {
                planned.lack = setup.lack(&planned.subject, host);
            }
            entries.extend(sample::entries(&subjects, &params, |planned| setup.work(&planned.subject)));
        }
        entries
    }
}

/// The parameters of one work.
#[derive(Clone, Copy)]
struct Setup {
    size: usize,
    /// Number of older snapshots.
    held: usize,
    /// Number of writes a second.
    rate: usize,
    /// Duration of the writes.
    time: Duration,
    cpu: usize,
}

impl Setup {
    /// The reason why a subject cannot hold `held` older snapshots and one more; `None` if it can.
    fn lack(self, subject: &Subject, host: &Host) -> Option<String> {
        // Each snapshot is a whole copy of the area, or may become one. The area itself and the last snapshot add two.
        let all = self.size * (self.held + 2);
        let why = match subject {
            Subject::Memcpy => host.lack_of_memory(all),
            Subject::ForkHugetlb if host.hugetlb_free() < all => {
                Some(format!("needs {} of hugetlb pages; sysctl -w vm.nr_hugepages={}", ByteSize(all), all >> 21))
            }
            _ => None,
        };
        why.map(|why| format!("{} held: {why}", self.held))
    }

    fn work(self, subject: &Subject) -> Work {
        let Setup { size, held, cpu, .. } = self;
        match subject {
            Subject::Hugefork => {
                // A copy of the area for the last snapshot, and several times the pages that are written between the
                // older snapshots.
                let room = size + 8 * 4096 * held * self.between();
                Box::new(move |targets| self.sample(|| RegionWay::new(size, room, cpu), targets))
            }
            Subject::Memcpy => Box::new(move |targets| self.sample(|| CopyWay::new(size, held + 1, cpu), targets)),
            Subject::ShadowCopy => Box::new(move |targets| self.sample(|| ShadowWay::new(size, cpu), targets)),
            fork => {
                let kind = fork.pages().unwrap_or(PageKind::Base);
                Box::new(move |targets| self.sample(|| ForkWay::new(kind, size, cpu), targets))
            }
        }
    }

    /// Number of writes between two older snapshots.
    fn between(self) -> usize {
        (BETWEEN * (self.size >> 20) / 1024).max(16)
    }

    /// Number of writes in each tick.
    fn a_tick(self) -> usize {
        ((self.rate as f64 * TICK.as_secs_f64()) as usize).max(1)
    }

    fn ticks(self) -> usize {
        (self.time.as_micros() / TICK.as_micros()).max(1) as usize
    }

    fn sample<W: Way>(
        self,
        new: impl FnOnce() -> Result<W, BenchError>,
        targets: &mut Random,
    ) -> Result<Sample, BenchError> {
        let unused = used::now();
        let mut way = new()?;
        let mut words = Words::new(self.ticks() * self.a_tick())?;
        words.draw(self.size, targets);
        let _pinned = Pinned::to(self.cpu)?;
        let mut held = Vec::with_capacity(self.held);
        for _ in 0..self.held {
            words.write_earlier(way.start(), self.size, self.between(), targets);
            held.push(way.take(|_| true)?);
        }
        words.write_earlier(way.start(), self.size, self.between(), targets);
        let meter = CpuMeter::start();
        let start = now();
        let (taken, call) = clock::timed(|| way.take(|read| words.check_kept(read).is_ok()));
        let taken = taken?;
        // SAFETY: the way's own area of `size` bytes, for which the words were drawn.
        let idle = unsafe { words.write(way.start(), start, self.a_tick()) };
        let cpu = (meter.ms() - idle as f64 / 1e6).max(0.0);
        let memory = used::grown_since(unused).map(|mib| (mib - (self.size >> 20) as f64).max(0.0));
        // SAFETY: as above; nobody writes any more.
        words.check_written(&unsafe { reader(way.start()) })?;
        way.check(taken, |read| words.check_kept(read))?;
        let late = sorted(words.lateness.as_slice().iter().map(|ns| f64::from(*ns) / 1e3).collect());
        let rank = |part| nearest_rank(&late, part);
        let mut measures = Measure::all([
            (CALL, call),
            (Metric::P50, rank(0.5)),
            (Metric::P99, rank(0.99)),
            (Metric::P999, rank(0.999)),
            (Metric::MAX, rank(1.0)),
            (Metric::CPU, cpu),
        ]);
        measures.extend(memory.map(|mib| Measure::new(Metric::MEMORY, mib)));
        // The snapshots hold parts of the area, so they are dropped before the area.
        drop(held);
        Ok(match way.pool() {
            Some(pool) => Sample::on(pool, None, measures),
            None => Sample::of(measures),
        })
    }
}

/// The value of a word before it is written.
fn before(offset: usize) -> u64 {
    (offset / 8) as u64 + BIAS
}

/// The value of a word after it was written.
fn after(offset: usize) -> u64 {
    !before(offset)
}

/// The writes of a sample. Only words with an even index are written before the snapshot, and only words with an odd
/// index after the snapshot, so the value of each word at the snapshot is known.
struct Words {
    /// Offsets of the writes after the snapshot.
    offsets: List<usize>,
    /// Nanoseconds by which each write after the snapshot was late.
    lateness: List<u32>,
    /// Offsets of the writes before the snapshot.
    earlier: Vec<usize>,
}

impl Words {
    /// Creates lists for `count` writes after the snapshot.
    fn new(count: usize) -> Result<Words, BenchError> {
        Ok(Words { offsets: List::new(count)?, lateness: List::new(count)?, earlier: Vec::new() })
    }

    /// Draws the writes after the snapshot, in an area of `size` bytes.
    fn draw(&mut self, size: usize, targets: &mut Random) {
        self.offsets.as_mut_slice().fill_with(|| targets.below(size / 16) * 16 + 8);
        // The write makes the list's memory present, so that no write after a fork raises a fault.
        self.lateness.as_mut_slice().fill(0);
    }

    /// Writes `count` words before a snapshot.
    fn write_earlier(&mut self, area: *mut u8, size: usize, count: usize, targets: &mut Random) {
        for _ in 0..count {
            let offset = targets.below(size / 16) * 16;
            // SAFETY: a word of the area.
            unsafe { work::first_write(area, offset, after(offset)) };
            self.earlier.push(offset);
        }
    }

    /// Does the writes that follow the snapshot: `a_tick` words in each tick, the first tick at `start`. Returns the
    /// nanoseconds for which the thread spun between the ticks.
    ///
    /// # Safety
    /// `area` is aligned to 8 and holds a word at every offset of the writes, and no other thread accesses the area.
    unsafe fn write(&mut self, area: *mut u8, start: u64, a_tick: usize) -> u64 {
        let mut idle = 0;
        let (offsets, lateness) = (self.offsets.as_slice(), self.lateness.as_mut_slice());
        let ticks = offsets.chunks(a_tick).zip(lateness.chunks_mut(a_tick));
        for (tick, (offsets, lateness)) in (0..).zip(ticks) {
            let due = start + tick * TICK.as_nanos() as u64;
            idle += wait_until(due);
            for (&offset, late) in offsets.iter().zip(lateness) {
                // SAFETY: by contract.
                unsafe { work::first_write(area, offset, after(offset)) };
                *late = (clock::now_fenced() - due).min(u32::MAX.into()) as u32;
            }
        }
        idle
    }

    /// Checks that a snapshot, which `read` reads, holds the words from the moment of the snapshot. The check allocates
    /// nothing, because children call it.
    fn check_kept(&self, read: Read<'_>) -> Result<(), BenchError> {
        check_words(self.offsets.as_slice(), before, read)?;
        check_words(&self.earlier, after, read)
    }

    /// Checks that the area holds the written words.
    fn check_written(&self, read: Read<'_>) -> Result<(), BenchError> {
        check_words(self.offsets.as_slice(), after, read)?;
        check_words(&self.earlier, after, read)
    }
}

/// Waits until the time `due`: first sleeps, then spins. Returns the nanoseconds for which the thread spun.
fn wait_until(due: u64) -> u64 {
    loop {
        let left = due.saturating_sub(AWAKE).saturating_sub(now());
        if left == 0 {
            break;
        }
        let time =
            rustix::time::Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
        // A signal may end the sleep early.
        let _ = clock_nanosleep_relative(ClockId::Monotonic, &time);
    }
    let awake = now();
    while now() < due {
        std::hint::spin_loop();
    }
    due.saturating_sub(awake)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 8 << 20;

    #[test]
    fn a_snapshot_that_lacks_a_write_or_has_one_too_many_shows() {
        let mut targets = Random::new(5);
        let mut area: Vec<u64> = (0..SIZE / 8).map(|word| word as u64 + BIAS).collect();
        let start: *mut u8 = area.as_mut_ptr().cast();
        // SAFETY: the vector's own memory, to which only `words` write meanwhile.
        let read = unsafe { reader(start) };
        let mut words = Words::new(100).unwrap();
        words.draw(SIZE, &mut targets);
        words.write_earlier(start, SIZE, 50, &mut targets);
        words.check_kept(&read).unwrap();
        assert!(words.check_written(&read).is_err(), "nothing is written yet");
        let lost = words.earlier[49];
        assert!(words.check_kept(&|at| if at == lost { before(at) } else { read(at) }).is_err());
        // SAFETY: the vector's own memory.
        unsafe { words.write(start, now(), 10) };
        words.check_written(&read).unwrap();
        assert!(words.check_kept(&read).is_err(), "it has later writes");
        let late = words.lateness.as_slice();
        assert!(late.iter().all(|ns| *ns > 0), "no write ends before it is due");
    }

    #[test]
    fn copies_beyond_the_memory_are_no_subject() {
        let setup = |held| Setup { size: 1 << 30, held, rate: 1, time: TICK, cpu: 0 };
        let host = Host { available_bytes: 8 << 30, ..Host::default() };
        assert_eq!(setup(1).lack(&Subject::Memcpy, &host), None);
        let why = setup(10).lack(&Subject::Memcpy, &host).unwrap();
        assert!(why.starts_with("10 held: needs 12288MiB"), "{why}");
        let why = setup(0).lack(&Subject::ForkHugetlb, &host).unwrap();
        assert!(why.starts_with("0 held: needs 2GiB of hugetlb pages"), "{why}");
        assert_eq!(setup(100).lack(&Subject::ShadowCopy, &host), None);
    }
}
