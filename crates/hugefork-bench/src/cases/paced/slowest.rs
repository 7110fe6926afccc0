//! The slowest puts, and what is known of each.

use std::env;
use std::fmt;

use super::puts::Puts;
use super::writer::Writer;
use crate::measure::clock;

/// The variable of the environment that says how many are printed.
const PRINT: &str = "HUGEFORK_BENCH_SLOWEST";

/// A thread had the CPU all the while if it waited for no more than this, in nanoseconds.
const OWN: u64 = 5_000;

/// A put that took long, or a tick that began late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    /// The number of the put.
    pub(super) nth: usize,
    /// When it was done, or when the tick began, as the clock tells it.
    pub(super) ended: u64,
    /// Nanoseconds that it took, or by which the tick was late.
    pub(super) took: u64,
    /// Nanoseconds for which the thread waited for a CPU since its last slow put, or since the tick began.
    pub(super) waited: u64,
    /// Page faults in the kernel since then.
    pub(super) faults: u64,
    pub(super) is_put: bool,
}

/// All that threads noted, each with the number of its thread.
pub(super) struct Slowest {
    slow: Vec<(usize, Slow)>,
    /// The longest put that was not noted.
    longest: u64,
}

impl Slowest {
    /// Of what `writers` noted, what came after the first snapshot was asked for.
    pub(super) fn of(writers: Vec<Writer>, puts: &[Puts]) -> Slowest {
        let longest = writers.iter().map(|writer| writer.longest).max().unwrap_or(0);
        let each = |(thread, writer): (usize, Writer)| writer.slow.into_iter().map(move |slow| (thread, slow));
        let mut slow: Vec<_> = writers.into_iter().enumerate().flat_map(each).collect();
        slow.retain(|(thread, slow)| slow.nth >= puts[*thread].first());
        slow.sort_unstable_by_key(|(_, slow)| std::cmp::Reverse(slow.took));
        Slowest { slow, longest }
    }

    /// Microseconds of the longest put of a thread that had the CPU all the while.
    pub(super) fn own_max(&self) -> f64 {
        let own = self.slow.iter().filter(|(_, slow)| slow.is_put && slow.waited <= OWN).map(|(_, slow)| slow.took);
        own.max().unwrap_or(0).max(self.longest) as f64 / 1e3
    }

    /// Prints as many as the environment asks for, if snapshots were asked for at these times.
    pub(super) fn print(&self, asked: &[u64]) {
        let Some(count) = env::var(PRINT).ok().and_then(|count| count.parse().ok()) else { return };
        let (puts, ticks): (Vec<_>, Vec<_>) = self.slow.iter().partition(|(_, slow)| slow.is_put);
        eprintln!("{} puts took 50 us or more, and {} ticks began so late:", puts.len(), ticks.len());
        for (thread, slow) in puts.iter().take(count).chain(ticks.iter().take(count / 2)) {
            let before = asked.iter().filter(|asked| **asked <= slow.ended).max();
            let since = before.map_or(0.0, |asked| clock::ms(*asked, slow.ended));
            eprintln!("  thread {thread}, {since:.2} ms after a snapshot was asked for: {slow}");
        }
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = self.took as f64 / 1e3;
        if !self.is_put {
            return write!(f, "woke {took:.0} us late");
        }
        let (waited, faults) = (self.waited as f64 / 1e3, self.faults);
        write!(f, "{took:.0} us, of which it waited {waited:.0} us for a CPU; {faults} faults in the kernel")
    }
}
