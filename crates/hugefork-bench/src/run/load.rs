//! Other activity on the machine while a bench runs: other programs, and the hypervisor.
//!
//! The bench measures this activity during each case, and warns if it is large enough to change the figures
//! of the case.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::measure::clock::{CpuTime, now_fenced};

/// The part of the machine's CPU time that other programs may take without a warning.
const OTHERS: f64 = 0.10;

/// The part of the machine's CPU time that the hypervisor may take without a warning.
const STEAL: f64 = 0.02;

/// The least time between two readings: CPU time is counted in ticks of 10 ms, too coarse for a shorter time.
const SHORTEST: Duration = Duration::from_millis(500);

/// How long the machine is watched before the first case.
const LISTEN: Duration = Duration::from_millis(200);

/// The kernel's counters of CPU time at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    /// Seconds since a fixed moment.
    time: f64,
    /// CPU seconds of all processes, on all CPUs.
    busy: f64,
    /// CPU seconds that the hypervisor gave to other guests.
    steal: f64,
    /// CPU seconds of this process and of its children that have ended.
    own: f64,
}

/// Watches the machine from case to case.
#[derive(Debug)]
pub(crate) struct Watch {
    cpus: f64,
    last: Reading,
}

impl Watch {
    /// Watches the machine for a moment before the first case, and returns warnings about a load that it already has.
    pub(crate) fn begin() -> (Watch, Vec<String>) {
        let start = Reading::take();
        sleep(LISTEN);
        let last = Reading::take();
        let stat = read("/proc/stat");
        let cpus = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count().max(1);
        (Watch { cpus: cpus as f64, last }, others("before the first case", start, last, cpus as f64))
    }

    /// Warnings about other activity during `case`, which has just ended.
    pub(crate) fn case_ended(&mut self, case: &str) -> Vec<String> {
        let now = Reading::take();
        let before = std::mem::replace(&mut self.last, now);
        if now.time - before.time < SHORTEST.as_secs_f64() {
            return Vec::new();
        }
        others(&format!("during {case}"), before, now, self.cpus)
    }
}

/// Warnings about other programs and the hypervisor, if these used the CPUs between two readings.
fn others(when: &str, from: Reading, to: Reading, cpus: f64) -> Vec<String> {
    let all = (to.time - from.time) * cpus;
    let theirs = ((to.busy - from.busy) - (to.own - from.own)) / all;
    let stolen = (to.steal - from.steal) / all;
    let mut told = Vec::new();
    if theirs > OTHERS {
        told.push(format!(
            "{when}, other programs used {:.0} % of the CPUs; stop them and measure again",
            theirs * 100.0
        ));
    }
    if stolen > STEAL {
        told.push(format!("{when}, the hypervisor gave {:.0} % of the CPUs to other guests (steal)", stolen * 100.0));
    }
    told
}

impl Reading {
    fn take() -> Reading {
        let stat = read("/proc/stat");
        let (busy, steal) = cpu_seconds(&stat);
        let own = CpuTime::of_this_process_and_children();
        Reading { time: now_fenced() as f64 / 1e9, busy, steal, own: own.user + own.sys }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number at index `place` after the first word, in the line whose first word is `first`.
fn number(text: &str, first: &str, place: usize) -> Option<f64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first))?;
    line.split_whitespace().nth(1 + place)?.parse().ok()
}

/// The CPU seconds in use, and those that the hypervisor took, from the text of `/proc/stat`, which counts in ticks of
/// 10 ms on every Linux.
fn cpu_seconds(stat: &str) -> (f64, f64) {
    let ticks = |place| number(stat, "cpu", place).unwrap_or(0.0);
    // user, nice, system, (idle, iowait,) irq, softirq, steal
    ([0, 1, 2, 5, 6].map(ticks).iter().sum::<f64>() / 100.0, ticks(7) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Reading = Reading { time: 10.0, busy: 5.0, steal: 0.0, own: 4.0 };

    #[test]
    fn others_are_told_from_the_bench_itself() {
        let later = |busy, own, steal| Reading { time: 20.0, busy: 5.0 + busy, own: 4.0 + own, steal };
        assert!(others("x", QUIET, later(19.0, 18.5, 0.2), 2.0).is_empty());
        let told = others("during copy", QUIET, later(15.0, 9.0, 1.0), 2.0);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("during copy, other programs used 30 % of the CPUs"), "{told:?}");
        assert!(told[1].contains("gave 5 % of the CPUs to other guests"), "{told:?}");
    }

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(cpu_seconds("cpu  100 20 30 999 999 4 6 50 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"), (1.6, 0.5));
        let before = Reading::take();
        // The counters advance every 10 ms: the loop reads them until they have advanced.
        let after = std::iter::repeat_with(Reading::take).find(|now| now.busy > before.busy && now.own > before.own);
        assert!(after.is_some_and(|after| after.time > before.time));
    }
}
