//! Prints the patches' figures beside each policy, the effect of each assumption, and the best plan
//! for each number of threads.

use std::{
    io::{self, Write},
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use hugefork_kernels::{Order, Work};

use super::{
    cache::{LEAD, Policy},
    machine::{Machine, Outcome, Served, Source, run},
    workload::{BLOCK, Plan},
};

/// The two cases of the patches: the work, and the threads on a socket.
const CASES: [(Work, usize); 2] = [(Work::Clear, 36), (Work::Copy, 18)];

/// The patches' figures for them, in percent: gain in throughput, and change of the time in user space.
const REPORTED: [(f64, f64); 2] = [(28.3, -7.9), (16.6, -7.2)];

/// The results of straight and of target-last.
struct Pair {
    straight: Outcome,
    last: Outcome,
}

impl Pair {
    fn gain(&self) -> f64 {
        more(self.last.throughput, self.straight.throughput)
    }

    /// The change of the time in user space, as a test of fixed duration would report it.
    fn use_time(&self) -> f64 {
        more(self.last.use_time, self.straight.use_time)
    }
}

/// By how many percent `one` exceeds `other`.
fn more(one: f64, other: f64) -> f64 {
    (one / other - 1.0) * 100.0
}

/// Runs both cases on each machine with the case's number of threads.
fn pairs(machines: &[Box<dyn Fn(usize) -> Machine + Sync + '_>]) -> Vec<[Pair; 2]> {
    let orders = [Order::Straight, Order::TargetLast];
    let jobs: Vec<(Machine, Work, Plan)> = machines
        .iter()
        .flat_map(|machine| CASES.map(|(work, threads)| (machine(threads), work)))
        .flat_map(|(machine, work)| orders.map(|order| (machine, work, Plan::cached(order))))
        .collect();
    let pair = |two: &[Outcome]| Pair { straight: two[0], last: two[1] };
    run_all(&jobs).chunks(4).map(|four| [pair(&four[..2]), pair(&four[2..])]).collect()
}

/// Runs these jobs on all processors.
fn run_all(jobs: &[(Machine, Work, Plan)]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let jobs = std::iter::from_fn(|| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(number).map(|job| (number, job))
        });
        jobs.map(|(number, (machine, work, plan))| (number, run(machine, *work, *plan))).collect::<Vec<_>>()
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let mut outcomes: Vec<(usize, Outcome)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        // A mistake in the model panics in a worker and then here.
        handles.into_iter().flat_map(|handle| handle.join().expect("a run of the model")).collect()
    });
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Prints the patches' figures beside each policy.
pub(crate) fn policies(blocks: usize, out: &mut dyn Write) -> io::Result<()> {
    let machine = |policy| move |threads| Machine::of_the_patches(policy, threads, blocks);
    let found = pairs(&Policy::ALL.map(|policy| Box::new(machine(policy)) as _));
    writeln!(out, "Target-last over straight, %, and the lookups that miss, straight -> target-last\n")?;
    writeln!(out, "{:24}anon-w-seq, 36 threads      anon-cow-seq, 18 threads", "")?;
    writeln!(out, "{:18}{:>7}{:>7} {:<14}{:>7}{:>7} misses", "replacement", "gain", "user", "misses", "gain", "user")?;
    let [clear, copy] = REPORTED;
    let patches = ("the patches", "0.33 -> 0.32");
    writeln!(
        out,
        "{:18}{:+7.1}{:+7.1} {:<14}{:+7.1}{:+7.1} -",
        patches.0, clear.0, clear.1, patches.1, copy.0, copy.1
    )?;
    for (policy, pair) in Policy::ALL.iter().zip(&found) {
        write!(out, "{:18}", policy.name())?;
        for (one, width) in pair.iter().zip([14, 0]) {
            let misses = format!("{:.2} -> {:.2}", one.straight.misses, one.last.misses);
            write!(out, "{:+7.1}{:+7.1} {misses:<width$}", one.gain(), one.use_time())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Prints the effect of each assumption.
pub(crate) fn assumptions(policy: Policy, blocks: usize, out: &mut dyn Write) -> io::Result<()> {
    type Change = fn(&mut Machine);
    let changes: [(&str, Change); 20] = [
        ("as it stands", |_| ()),
        ("another seed", |machine| machine.seed = 2),
        ("another seed", |machine| machine.seed = 3),
        ("four times as long", |machine| machine.blocks *= 4),
        ("pieces of 2 KiB", |machine| machine.piece /= 2),
        ("the channel serves all threads equally", |machine| machine.unequal = 0),
        ("the last thread is passed over 20 times in 100", |machine| machine.unequal = 20),
        ("the last thread is passed over 40 times in 100", |machine| machine.unequal = 40),
        ("the channel serves in the order of arrival", |machine| machine.served = Served::First),
        ("DRRIP switches after a quarter of the misses", |machine| machine.lead = LEAD / 4),
        ("DRRIP switches after four times the misses", |machine| machine.lead = LEAD * 4),
        ("16 ways", |machine| machine.ways = 16),
        ("no private caches", |machine| machine.private_bytes = 0),
        ("private caches of 1 MiB", |machine| machine.private_bytes = 1 << 20),
        ("writing back counts as a use", |machine| machine.write_back_is_use = true),
        ("clear and copy read what they overwrite", |machine| machine.overwrite_reads = true),
        ("copies from one source, begun together", |machine| machine.source = Source::Shared),
        ("the channel moves 40 GB/s", |machine| machine.channel = 40_000),
        ("the channel moves 110 GB/s", |machine| machine.channel = 110_000),
        ("cores half as fast", |machine| machine.core /= 2),
    ];
    let changed = changes.map(|(_, change)| {
        Box::new(move |threads| {
            let mut machine = Machine::of_the_patches(policy, threads, blocks * 2 / 3);
            change(&mut machine);
            machine
        }) as _
    });
    writeln!(out, "\nEffect of each assumption: target-last over straight, %, {}, shorter runs\n", policy.name())?;
    writeln!(out, "{:50}{:>10}{:>14}", "", "anon-w-seq", "anon-cow-seq")?;
    for ((name, _), pair) in changes.iter().zip(pairs(&changed)) {
        writeln!(out, "{name:50}{:+10.1}{:+14.1}", pair[0].gain(), pair[1].gain())?;
    }
    Ok(())
}

/// Numbers of threads that share the cache, for the predictions; the first is one thread, as in a calibration.
const THREADS: [usize; 6] = [1, 8, 18, 36, 72, 128];

/// For whole-block use, calibration prefers a candidate below this share of the best earlier candidate's time
/// (`calibrate/decision.rs`).
const CLEARLY_FASTER: f64 = 0.75;

/// The plans whose gains are predicted; all are compared with the first.
pub(crate) fn plans() -> [(&'static str, Plan); 13] {
    let window = |sixteenths: usize| Plan::window(BLOCK / 16 * sixteenths);
    [
        ("straight", Plan::cached(Order::Straight)),
        ("reversed: target-last", Plan::cached(Order::TargetLast)),
        ("neighbourhood: Linux 7.0", Plan::cached(Order::NeighbourhoodLast)),
        ("past the cache", Plan::past_cache()),
        ("window of 1/16", window(1)),
        ("window of 1/8", window(2)),
        ("window of 1/4", window(4)),
        ("window of 3/8", window(6)),
        ("window of 1/2", window(8)),
        ("window of 5/8", window(10)),
        ("1/4 reversed", window(4).reversed()),
        ("1/2 reversed", window(8).reversed()),
        ("5/8 reversed", window(10).reversed()),
    ]
}

/// The candidates of calibration for whole-block use, in its order: the default first.
fn candidates(work: Work) -> [(&'static str, Plan); 3] {
    let cached = ("straight", Plan::cached(Order::Straight));
    let window = ("1/8", Plan::window(256 << 10));
    let past = ("past", Plan::past_cache());
    match work {
        Work::Clear => [past, window, cached],
        Work::Copy => [cached, window, past],
    }
}

/// The predicted result of each plan, for each number of threads.
pub(crate) struct Predicted {
    pub(crate) work: Work,
    /// The number of threads, and the results of the plans in their order.
    pub(crate) columns: Vec<(usize, Vec<Outcome>)>,
}

/// Predicts the results for clears and for copies.
pub(crate) fn predict(policy: Policy, blocks: usize) -> Vec<Predicted> {
    let columns = |work| {
        let plans = plans();
        let jobs: Vec<_> = THREADS
            .iter()
            .flat_map(|threads| plans.map(|(_, plan)| (*threads, plan)))
            .map(|(threads, plan)| (Machine::of_the_patches(policy, threads, blocks), work, plan))
            .collect();
        let found = run_all(&jobs);
        THREADS.into_iter().zip(found.chunks(plans.len()).map(<[Outcome]>::to_vec)).collect()
    };
    [Work::Clear, Work::Copy].map(|work| Predicted { work, columns: columns(work) }).into()
}

/// Prints the best plan for each number of threads, and calibration's choice.
pub(crate) fn predictions(policy: Policy, predicted: &[Predicted], out: &mut dyn Write) -> io::Result<()> {
    for Predicted { work, columns } in predicted {
        let done = match work {
            Work::Clear => "cleared",
            Work::Copy => "copied",
        };
        writeln!(out, "\nBlocks are {done} and then written in order: % over straight, {}\n", policy.name())?;
        row(out, "threads", THREADS.map(|threads| format!("{threads} ")))?;
        row(out, "MiB of the cache for each", THREADS.map(|threads| format!("{:.2} ", 45.0 / threads as f64)))?;
        for (plan, (name, _)) in plans().iter().enumerate() {
            row(out, name, columns.iter().map(|(_, column)| gain(column, plan)))?;
        }
        row(out, "calibration would choose", columns.iter().map(|(_, column)| format!("{} ", chosen(*work, column))))?;
    }
    Ok(())
}

fn row(out: &mut dyn Write, name: &str, cells: impl IntoIterator<Item = String>) -> io::Result<()> {
    let cells: String = cells.into_iter().map(|cell| format!("{cell:>9}")).collect();
    writeln!(out, "{}", format!("{name:26}{cells}").trim_end())
}

/// The gain of a plan, with a mark if it is within one percent of the best.
fn gain(column: &[Outcome], plan: usize) -> String {
    let best = column.iter().map(|outcome| outcome.throughput).fold(0.0, f64::max);
    let this = column[plan].throughput;
    let mark = if this > 0.99 * best { '*' } else { ' ' };
    format!("{:+.1}{mark}", more(this, column[0].throughput))
}

/// The plan that calibration would choose from these measurements.
fn chosen(work: Work, column: &[Outcome]) -> &'static str {
    let throughput = |plan: Plan| {
        let known = plans().iter().position(|(_, known)| *known == plan);
        known.map_or(0.0, |plan| column[plan].throughput)
    };
    let prefer = |best: (&'static str, Plan), other: (&'static str, Plan)| {
        if throughput(best.1) < CLEARLY_FASTER * throughput(other.1) { other } else { best }
    };
    candidates(work).into_iter().reduce(prefer).map_or("", |(name, _)| name)
}
