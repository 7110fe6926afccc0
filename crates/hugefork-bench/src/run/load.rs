//! What else happens on the machine while a bench runs: other programs, the hypervisor, swapping, changes of frequency.
//!
//! Each is watched case by case, and becomes a warning if it is large enough to bend the figures of the case.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::measure::clock::{CpuTime, now_fenced};

/// The part of the machine's CPU time that other programs may take without a warning.
const OTHERS: f64 = 0.10;

/// The part of it that the hypervisor may take.
const STEAL: f64 = 0.02;

/// The part by which the speed of the CPU may change.
const DRIFT: f64 = 0.05;

/// Over less time than this, ticks of 10 ms say little.
const SHORTEST: Duration = Duration::from_millis(500);

/// How long the machine is watched before the first case.
const LISTEN: Duration = Duration::from_millis(200);

/// All that is watched, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    /// Seconds since some moment.
    time: f64,
    /// CPU seconds of everybody, of all CPUs.
    busy: f64,
    /// CPU seconds that the hypervisor gave to others.
    steal: f64,
    /// CPU seconds of this process and of its children that have ended.
    own: f64,
    /// Pages that went to swap or came from it.
    swapped: f64,
    /// Nanoseconds of a fixed piece of work.
    speed: f64,
}

/// Looks at the machine from case to case.
#[derive(Debug)]
pub(crate) struct Watch {
    cpus: f64,
    /// The speed at the last warning, or at the beginning.
    speed: f64,
    last: Reading,
}

impl Watch {
    /// Watches for a moment before anything runs, and gives warnings of what happens already.
    pub(crate) fn begin() -> (Watch, Vec<String>) {
        let start = Reading::take();
        sleep(LISTEN);
        let first = Reading::take();
        let stat = read("/proc/stat");
        let cpus = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count().max(1);
        let mut told = others("before the first case", start, first, cpus as f64);
        told.extend(swap_in_use(&read("/proc/meminfo")));
        (Watch { cpus: cpus as f64, speed: first.speed, last: first }, told)
    }

    /// Warnings of what happened beside `case`, which is over.
    pub(crate) fn case_ended(&mut self, case: &str) -> Vec<String> {
        let now = Reading::take();
        let mut told = Vec::new();
        if now.time - self.last.time >= SHORTEST.as_secs_f64() {
            told = others(&format!("during {case}"), self.last, now, self.cpus);
        }
        told.extend(swapping(case, self.last, now));
        if let Some(drift) = drift(case, self.speed, now.speed) {
            told.push(drift);
            self.speed = now.speed;
        }
        self.last = now;
        told
    }
}

/// Who else used the CPUs between two readings.
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

fn swapping(case: &str, from: Reading, to: Reading) -> Option<String> {
    let pages = to.swapped - from.swapped;
    (pages > 0.0)
        .then(|| format!("during {case}, {pages} pages went to the swap or came from it; take a smaller --size"))
}

/// A warning if a fixed piece of work takes a different time than before.
fn drift(case: &str, before: f64, after: f64) -> Option<String> {
    let slower = after / before - 1.0;
    let how = if slower > 0.0 { "slower" } else { "faster" };
    (slower.abs() > DRIFT).then(|| {
        format!(
            "after {case}, the CPU computes {:.0} % {how} than before: its frequency has changed, or a neighbour shares its core",
            slower.abs() * 100.0
        )
    })
}

fn swap_in_use(meminfo: &str) -> Option<String> {
    let kib = |field| number(meminfo, field, 0).unwrap_or(0.0);
    let used = kib("SwapTotal:") - kib("SwapFree:");
    (used >= 1024.0)
        .then(|| format!("{:.0}MiB of swap are in use: memory was short before this bench began", used / 1024.0))
}

impl Reading {
    fn take() -> Reading {
        let stat = read("/proc/stat");
        let vmstat = read("/proc/vmstat");
        let pages = |field| number(&vmstat, field, 0).unwrap_or(0.0);
        let (busy, steal) = cpu_seconds(&stat);
        let own = CpuTime::of_this_process_and_children();
        Reading {
            time: now_fenced() as f64 / 1e9,
            busy,
            steal,
            own: own.user + own.sys,
            swapped: pages("pswpin") + pages("pswpout"),
            speed: speed(),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number at `place` behind the first word of a line.
fn number(text: &str, first: &str, place: usize) -> Option<f64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first))?;
    line.split_whitespace().nth(1 + place)?.parse().ok()
}

/// CPU seconds in use, and stolen, of `/proc/stat`, which counts in ticks of 10 ms on every Linux.
fn cpu_seconds(stat: &str) -> (f64, f64) {
    let ticks = |place| number(stat, "cpu", place).unwrap_or(0.0);
    // user, nice, system, (idle, iowait,) irq, softirq, steal
    ([0, 1, 2, 5, 6].map(ticks).iter().sum::<f64>() / 100.0, ticks(7) / 100.0)
}

/// Nanoseconds of multiplications that wait for each other: neither caches nor memory change their number of cycles. It
/// is the least of several, so that interruptions do not count.
fn speed() -> f64 {
    let once = || {
        let start = Instant::now();
        let mut value = std::hint::black_box(3u64);
        for _ in 0..100_000 {
            value = std::hint::black_box(value.wrapping_mul(value));
        }
        start.elapsed().as_nanos() as f64
    };
    (0..100).map(|_| once()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Reading = Reading { time: 10.0, busy: 5.0, steal: 0.0, own: 4.0, swapped: 7.0, speed: 100.0 };

    #[test]
    fn others_are_told_from_the_bench_itself() {
        let later = |busy, own, steal| Reading { time: 20.0, busy: 5.0 + busy, own: 4.0 + own, steal, ..QUIET };
        assert!(others("x", QUIET, later(19.0, 18.5, 0.2), 2.0).is_empty());
        let told = others("during copy", QUIET, later(15.0, 9.0, 1.0), 2.0);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("during copy, other programs used 30 % of the CPUs"), "{told:?}");
        assert!(told[1].contains("gave 5 % of the CPUs to other guests"), "{told:?}");
    }

    #[test]
    fn drift_and_swap_are_told_with_the_case() {
        assert_eq!(drift("copy", 100.0, 104.0), None);
        assert!(drift("copy", 100.0, 112.0).unwrap().starts_with("after copy, the CPU computes 12 % slower"));
        assert!(drift("copy", 100.0, 90.0).unwrap().contains("10 % faster"));
        assert_eq!(swapping("copy", QUIET, QUIET), None);
        let told = swapping("copy", QUIET, Reading { swapped: 9.0, ..QUIET }).unwrap();
        assert!(told.starts_with("during copy, 2 pages went to the swap"), "{told}");
        assert_eq!(swap_in_use("SwapTotal:  4096 kB\nSwapFree:  4096 kB\n"), None);
        assert!(swap_in_use("SwapTotal:  4096 kB\nSwapFree:  1024 kB\n").unwrap().starts_with("3MiB of swap"));
    }

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(cpu_seconds("cpu  100 20 30 999 999 4 6 50 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"), (1.6, 0.5));
        let before = Reading::take();
        // Ticks come every 10 ms: this goes on until there was one.
        let after = std::iter::repeat_with(Reading::take).find(|now| now.busy > before.busy && now.own > before.own);
        assert!(after.is_some_and(|after| after.time > before.time && after.speed > 0.0));
    }
}
