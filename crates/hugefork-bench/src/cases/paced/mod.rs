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
//! With `HUGEFORK_BENCH_SLOWEST=10` in the environment each sample prints its ten slowest puts to standard error, with
//! what is known of each: when it was done, the faults that it took, and for how long it waited for a CPU.
//!
//! In the end the area must hold what was put last, and the last snapshot what had been put when it was taken. A put
//! writes its own number into each word of its slot, so a snapshot that lacks an earlier put or has a later one shows.

mod keeper;
mod puts;
mod slowest;
mod writer;

use std::thread;
use std::time::Duration;

use hugefork::Pool;
use hugefork_kernels::Kernel;

use self::keeper::{Fork, Hugefork, Keeper};
use self::puts::{Cut, Puts};
use self::slowest::Slowest;
use self::writer::{AreaStart, Pace, Writer};
use crate::case::Case;
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::clock::{self, CpuTime};
use crate::measure::random::Random;
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
    fn name(&self) -> &'static str {
        "paced"
    }

    fn lead_metric(&self) -> Metric {
        Metric::P999
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let mut subjects = vec![Subject::Hugefork, Subject::HugeforkDefault, Subject::ForkThp];
        if scope != Scope::Quick {
            subjects.extend([Subject::HugeforkPage, Subject::ForkHugetlb, Subject::Fork4k]);
        }
        subjects
    }

    fn usual_size(&self, scope: Scope) -> usize {
        match scope {
            Scope::Quick => 256 << 20,
            Scope::Full => 1 << 30,
        }
    }

    /// The area, and a copy of all of it.
    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(2)
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
                Some(choice) => Box::new(Paces::new(Hugefork::new(choice), schedule)) as Box<dyn Work>,
                None => Box::new(Paces::new(Fork::new(planned.pages()), schedule)),
            })
        };
        [(None, 1), (None, some), (Some(HOT), 1), (Some(HOT), some)].into_iter().flat_map(of).collect()
    }

    fn forks(&self) -> bool {
        true
    }
}

/// A subject at work.
struct Paces<K> {
    keeper: K,
    schedule: Schedule,
    puts: Vec<Puts>,
    /// Bytes held before anything was shared.
    alone: Option<usize>,
    curves: Vec<Curve>,
}

impl<K: Keeper> Paces<K> {
    fn new(keeper: K, schedule: Schedule) -> Paces<K> {
        Paces { keeper, schedule, puts: Vec::new(), alone: None, curves: Vec::new() }
    }

    /// Takes snapshots at their times while others put.
    fn take_all(&self, start: u64) -> Result<Snapshots<K::Snapshot>, BenchError> {
        let period = self.schedule.period.as_nanos() as u64;
        let (mut longest, mut asked, mut held) = (0.0f64, Vec::new(), None);
        for nth in 0..u64::from(self.schedule.snapshots) {
            writer::sleep_until(start + nth * period);
            drop(held.take());
            let before: Vec<usize> = self.puts.iter().map(Puts::done).collect();
            let from = clock::now();
            asked.push(from);
            held = Some(self.keeper.take(&self.puts)?);
            longest = longest.max(clock::ms(from, clock::now()));
            for (puts, before) in self.puts.iter().zip(before) {
                puts.cut(Cut { before, until: puts.done() + 1 }, nth == 0);
            }
        }
        writer::sleep_until(start + u64::from(self.schedule.snapshots) * period);
        // If this came late, the threads have something left.
        while self.puts.iter().any(|puts| puts.latencies().is_empty()) {
            thread::yield_now();
        }
        Ok(Snapshots { held: held.expect("there is a snapshot"), longest, asked })
    }

    /// Runs the threads, and what `take_all` does beside them.
    fn run(&self) -> Result<(Snapshots<K::Snapshot>, Vec<Writer>), BenchError> {
        let area = AreaStart(self.keeper.start());
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
    /// When each was asked for, as the clock tells it.
    asked: Vec<u64>,
}

impl<K: Keeper> Work for Paces<K> {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let puts = || Puts::new(self.schedule.puts());
        self.puts = (0..WRITERS).map(|_| puts()).collect::<Result<_, _>>()?;
        self.keeper.populate(self.schedule.size)?;
        self.alone = self.keeper.memory(None);
        self.keeper.warm(self.schedule.size)
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut puts = std::mem::take(&mut self.puts);
        for (nth, puts) in puts.iter_mut().enumerate() {
            puts.draw(nth, WRITERS, self.schedule.size, self.schedule.keys.map(|keys| keys / WRITERS), targets);
        }
        self.puts = puts;
        let before = CpuTime::of_this_process_and_children();
        let (taken, writers) = self.run()?;
        let Snapshots { held, longest: call, .. } = &taken;
        let cpu = CpuTime::of_this_process_and_children().since(before);
        let extra = self.keeper.memory(Some(held)).zip(self.alone).map(|(now, alone)| now as f64 - alone as f64);
        for puts in &self.puts {
            // SAFETY: the keeper's own area, to which nobody writes any more.
            puts.check_written(unsafe { puts::reader(self.keeper.start()) })?;
        }
        let mut sorted: Vec<u32> = self.puts.iter().flat_map(|puts| puts.latencies().to_vec()).collect();
        sorted.sort_unstable();
        let slowest = Slowest::of(writers, &self.puts);
        slowest.print(&taken.asked);
        let rank = |part| f64::from(nearest_rank(&sorted, part)) / 1e3;
        let values = [
            (Metric::P50, rank(0.5)),
            (Metric::P99, rank(0.99)),
            (Metric::P999, rank(0.999)),
            (Metric::MAX, rank(1.0)),
            (OWN_MAX, slowest.own_max()),
            (Metric::CALL, *call),
        ];
        let mut measures = Measure::sample(values, cpu);
        measures.extend(extra.map(|bytes| Measure::new(Metric::EXTRA, bytes.max(0.0) / f64::from(1 << 20))));
        self.curves = vec![curve::by_percentile(&sorted)];
        self.keeper.let_go(taken.held, &self.puts)?;
        // What others fork is not to have this area too.
        self.keeper.release();
        Ok(measures)
    }

    fn curves(&mut self) -> Vec<Curve> {
        std::mem::take(&mut self.curves)
    }

    fn release(&mut self) {
        self.puts = Vec::new();
        self.keeper.release();
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.keeper.pool()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
