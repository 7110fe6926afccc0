//! `paced`: how late a write is if writes come at a fixed rate, and forks or snapshots are taken again and again.
//!
//! Two threads put slots of 64 bytes into a populated area, 200 000 a second together if the area has 1 GiB, and in
//! proportion fewer in areas of less than that. They come as requests from a socket do: every half millisecond a thread
//! wakes and does all puts that are due. The time of a put is that from the moment at which it was due, so that those
//! that wait behind a slow one count as well. A third thread takes a fork or snapshot, or several, one every `period`,
//! and drops it right before it takes the next; the puts after the first one count. Slots are anywhere in the area, or
//! always the same 4 000 (`keys`).
//!
//! | metric | |
//! |---|---|
//! | `p50`, `p99`, `p99.9`, `max` | nearest ranks of the time of a put. Subjects are compared by `p99.9` |
//! | `own_max` | the longest that a put took in the putting thread itself, where that had the CPU all the while |
//! | `call` | the longest call that took a fork or snapshot |
//! | `extra` | memory held beyond the area itself at the end, right before the last fork or snapshot is dropped |
//!
//! Whether a thread had the CPU is what the kernel says (`/proc/thread-self/schedstat`); it is asked after each put
//! that took 50 us. Time in which a hypervisor runs something else is in no such account.
//!
//! In the end the area must hold what was put last, and the last snapshot what had been put when it was taken. A put
//! writes its own number into each word of its slot, so a snapshot that lacks an earlier put or has a later one shows.

mod puts;
mod writer;

use std::thread;
use std::time::Duration;

use hugefork::Pool;
use hugefork_kernels::Kernel;

use self::puts::{BIAS, Cut, Puts};
use self::writer::{AreaStart, Noted, Pace};
use super::rival::Rival;
use super::rival::fork::ForkRival;
use super::rival::hugefork::HugeforkRival;
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::allowed_cpus;
use crate::measure::clock::{self, CpuTime};
use crate::measure::random::Random;
use crate::measure::work::reader;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::curve::{self, Curve, nearest_rank};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The longest put of a thread that had the CPU all the while.
const OWN_MAX: Metric = Metric::new("own_max", "us");

/// Threads that put.
const WRITERS: usize = 2;

/// Puts a second into 1 GiB.
const RATE: usize = 200_000;

/// How often a thread wakes.
const TICK: Duration = Duration::from_micros(500);

/// The number of slots that are put again and again, where it is not all.
const HOT: usize = 4_000;

/// The case.
#[derive(Debug)]
pub struct Paced;

/// What a sample does.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    /// Bytes of the area.
    size: usize,
    /// Different slots that are put; none if it is all.
    keys: Option<usize>,
    /// From one snapshot to the next.
    period: Duration,
    /// How many there are.
    snapshots: u32,
}

impl Schedule {
    /// Puts a second of all threads together.
    fn rate(&self) -> usize {
        ((RATE as u128 * self.size as u128) >> 30) as usize
    }

    /// What a thread does in each tick.
    fn puts_a_tick(&self) -> usize {
        ((self.rate() as f64 * TICK.as_secs_f64()) as usize / WRITERS).max(1)
    }

    /// How long the threads put before the first snapshot.
    fn before(&self) -> Duration {
        self.period / 4
    }

    /// The puts of a thread, with room for those that it does until it is stopped.
    fn puts(&self) -> usize {
        let all = self.before() + self.period * (self.snapshots + 2);
        all.as_micros() as usize / TICK.as_micros() as usize * self.puts_a_tick()
    }
}

impl Case for Paced {
    fn facts(&self) -> Facts {
        Facts { forks: true, ..Facts::new("paced", Metric::P999, [256 << 20, 1 << 30]) }
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let mut subjects = vec![Subject::Hugefork, Subject::HugeforkDefault, Subject::ForkThp];
        if scope != Scope::Quick {
            subjects.extend([Subject::HugeforkPage, Subject::ForkHugetlb, Subject::Fork4k]);
        }
        subjects
    }

    fn in_words(&self, params: &Params) -> String {
        let (rate, keys, size) = (shown(params, "rate"), shown(params, "keys"), shown(params, "size"));
        let snapshots = match shown(params, "snapshots").as_str() {
            "1" => "one snapshot".to_owned(),
            several => format!("{several} snapshots, {} apart", shown(params, "period")),
        };
        format!("{rate} puts/s to {keys} slots of {size}, {snapshots}")
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], _: &Host) -> Vec<Entry> {
        let (period, some) = match job.scope {
            Scope::Quick => (Duration::from_millis(250), 3),
            Scope::Full => (Duration::from_secs(1), 4),
        };
        let of = |(keys, snapshots): (Option<usize>, u32)| {
            let schedule = Schedule { size: job.size, keys, period, snapshots };
            let params = params([
                ("size", Param::size(schedule.size)),
                ("writers", Param::Number(WRITERS as u64)),
                ("rate", Param::Number(schedule.rate() as u64)),
                ("keys", keys.map_or_else(|| Param::text("all"), |keys| Param::Number(keys as u64))),
                ("period", Param::text(format_args!("{}ms", period.as_millis()))),
                ("snapshots", Param::Number(snapshots.into())),
            ]);
            sample::entries(subjects, &params, move |planned| match planned.engine {
                Some(choice) => Box::new(Paces::new(HugeforkRival::new(choice), schedule)) as Box<dyn Work>,
                None => Box::new(Paces::new(ForkRival::new(planned.pages()), schedule)),
            })
        };
        [(None, 1), (None, some), (Some(HOT), 1), (Some(HOT), some)].into_iter().flat_map(of).collect()
    }
}

/// A subject at work.
struct Paces<R> {
    rival: R,
    schedule: Schedule,
    puts: Vec<Puts>,
    /// Bytes held before anything was shared.
    alone: Option<usize>,
    curves: Vec<Curve>,
}

impl<R: Rival> Paces<R> {
    fn new(rival: R, schedule: Schedule) -> Paces<R> {
        Paces { rival, schedule, puts: Vec::new(), alone: None, curves: Vec::new() }
    }

    /// Takes snapshots at their times while others put.
    fn take_all(&mut self, start: u64) -> Result<Snapshots<R::Snapshot>, BenchError> {
        let Paces { rival, puts: all, schedule, .. } = self;
        let period = schedule.period.as_nanos() as u64;
        let (mut longest, mut held) = (0.0f64, None);
        for nth in 0..u64::from(schedule.snapshots) {
            writer::sleep_until(start + nth * period);
            drop(held.take());
            let before: Vec<usize> = all.iter().map(Puts::done).collect();
            let from = clock::now();
            held = Some(rival.take(|read| all.iter().all(|puts| !puts.is_asked() || puts.check_kept(read).is_ok()))?);
            longest = longest.max(clock::ms(from, clock::now()));
            for (puts, before) in all.iter().zip(before) {
                puts.cut(Cut { before, until: puts.done() + 1 }, nth == 0);
            }
        }
        writer::sleep_until(start + u64::from(schedule.snapshots) * period);
        // If this came late, the threads have something left.
        while all.iter().any(|puts| puts.latencies().is_empty()) {
            thread::yield_now();
        }
        Ok(Snapshots { held: held.expect("there is a snapshot"), longest })
    }

    /// Runs the threads, and what `take_all` does beside them.
    fn run(&mut self) -> Result<(Snapshots<R::Snapshot>, Vec<Noted>), BenchError> {
        let area = AreaStart(self.rival.start());
        let start = clock::now() + Duration::from_millis(5).as_nanos() as u64;
        let pace = Pace { start, tick: TICK.as_nanos() as u64, puts: self.schedule.puts_a_tick() };
        let shared: Vec<_> = self.puts.iter().map(Puts::shared).collect();
        thread::scope(|scope| {
            let spawn = |puts: puts::Shared| {
                thread::Builder::new()
                    .name("putting".to_owned())
                    // SAFETY: the area and the lists outlive the scope, and each thread has slots and a list of its
                    // own.
                    .spawn_scoped(scope, move || unsafe { writer::run(area, puts, pace) })
                    .map_err(|error| BenchError::system("starting a thread", error))
            };
            let threads: Result<Vec<_>, _> = shared.iter().map(|puts| spawn(*puts)).collect();
            let taken = threads.is_ok().then(|| self.take_all(start + self.schedule.before().as_nanos() as u64));
            self.puts.iter().for_each(Puts::stop);
            let writers = threads?.into_iter().map(|thread| thread.join().expect("it only puts")).collect();
            Ok((taken.expect("all threads were there")?, writers))
        })
    }
}

/// What the snapshots of a sample took.
struct Snapshots<H> {
    /// The last.
    held: H,
    /// Milliseconds of the longest call.
    longest: f64,
}

impl<R: Rival> Work for Paces<R> {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let puts = || Puts::new(self.schedule.puts());
        self.puts = (0..WRITERS).map(|_| puts()).collect::<Result<_, _>>()?;
        self.rival.populate(self.schedule.size, BIAS)?;
        self.alone = self.rival.memory(&[]);
        self.rival.ready()?;
        self.rival.warm(self.schedule.size, &allowed_cpus())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut puts = std::mem::take(&mut self.puts);
        for (nth, puts) in puts.iter_mut().enumerate() {
            puts.draw(nth, WRITERS, self.schedule.size, self.schedule.keys.map(|keys| keys / WRITERS), targets);
        }
        self.puts = puts;
        let before = CpuTime::of_this_process_and_children();
        let (taken, noted) = self.run()?;
        let Snapshots { held, longest: call } = taken;
        let cpu = CpuTime::of_this_process_and_children().since(before);
        let extra = self
            .rival
            .memory(std::slice::from_ref(&held))
            .zip(self.alone)
            .map(|(now, alone)| now as f64 - alone as f64);
        for puts in &self.puts {
            // SAFETY: the rival's own area, to which nobody writes any more.
            puts.check_written(unsafe { reader(self.rival.start()) })?;
        }
        let mut sorted: Vec<u32> = self.puts.iter().flat_map(|puts| puts.latencies().to_vec()).collect();
        sorted.sort_unstable();
        let own = noted.iter().zip(&self.puts).map(|(noted, puts)| noted.own_max(puts.first())).max().unwrap_or(0);
        let rank = |part| f64::from(nearest_rank(&sorted, part)) / 1e3;
        let values = [
            (Metric::P50, rank(0.5)),
            (Metric::P99, rank(0.99)),
            (Metric::P999, rank(0.999)),
            (Metric::MAX, rank(1.0)),
            (OWN_MAX, own as f64 / 1e3),
            (Metric::CALL, call),
        ];
        let mut measures = Measure::sample(values, cpu);
        measures.extend(extra.map(|bytes| Measure::new(Metric::EXTRA, bytes.max(0.0) / f64::from(1 << 20))));
        self.curves = vec![curve::by_percentile(&sorted)];
        self.puts.iter().for_each(Puts::ask);
        self.rival.let_go(held, |read| self.puts.iter().try_for_each(|puts| puts.check_kept(read)))?;
        // What others fork is not to have this area too.
        self.rival.release();
        Ok(measures)
    }

    fn curves(&mut self) -> Vec<Curve> {
        std::mem::take(&mut self.curves)
    }

    fn release(&mut self) {
        self.puts = Vec::new();
        self.rival.release();
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.rival.pool()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
