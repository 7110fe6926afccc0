//! The CPU's own counters: cycles, instructions and misses of the last-level cache, in user and kernel mode, of the
//! sampling thread and of all threads and processes that it has started since the counters were opened.
//!
//! If the kernel refuses them, the report gives the reason and no figures: a zero would be a lie. The machines that
//! this was written on have no PMU, so that it has been seen being refused, and not yet counting.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, CountAndTime, Counter};

use crate::results::metric::{Measure, Metric};

/// What is counted.
const EVENTS: [(Metric, Hardware); 3] = [
    (Metric::CYCLES, Hardware::CPU_CYCLES),
    (Metric::INSTRUCTIONS, Hardware::INSTRUCTIONS),
    (Metric::LLC_MISSES, Hardware::CACHE_MISSES),
];

/// Counters that are running, or none.
pub(crate) struct Counters(Vec<(Metric, Counter)>);

impl Counters {
    /// Starts them.
    ///
    /// # Errors
    /// Why there are none here, for people.
    pub(crate) fn open() -> Result<Counters, String> {
        let open = |(metric, event)| {
            let mut builder = Builder::new().kind(event);
            builder.include_kernel().inherit(true);
            let mut counter = builder.build()?;
            counter.enable()?;
            Ok((metric, counter))
        };
        EVENTS.into_iter().map(open).collect::<io::Result<_>>().map(Counters).map_err(|error| reason(&error))
    }

    /// None at all.
    pub(crate) fn none() -> Counters {
        Counters(Vec::new())
    }

    /// Where they stand.
    pub(crate) fn read(&mut self) -> Vec<(Metric, CountAndTime)> {
        self.0.iter_mut().filter_map(|(metric, counter)| Some((*metric, counter.read_count_and_time().ok()?))).collect()
    }
}

/// What was counted between two readings, in millions. A counter that had no turn on the CPU gives nothing.
pub(crate) fn between(before: &[(Metric, CountAndTime)], after: &[(Metric, CountAndTime)]) -> Vec<Measure> {
    let part = |((metric, from), (_, to)): (&(Metric, CountAndTime), &(Metric, CountAndTime))| {
        let running = to.time_running.saturating_sub(from.time_running);
        let enabled = to.time_enabled.saturating_sub(from.time_enabled);
        let count = to.count.saturating_sub(from.count) as f64 * (enabled as f64 / running as f64);
        (running > 0).then(|| Measure::new(*metric, count / 1e6))
    };
    before.iter().zip(after).filter_map(part).collect()
}

fn reason(error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => "no PMU".to_owned(),
        Some(libc::EACCES | libc::EPERM) => {
            let file = "/proc/sys/kernel/perf_event_paranoid";
            let level = std::fs::read_to_string(file).unwrap_or_default();
            format!("kernel.perf_event_paranoid is {}; sysctl -w kernel.perf_event_paranoid=1", level.trim())
        }
        Some(libc::ENOSYS) => "this kernel has no perf events".to_owned(),
        _ => format!("perf_event_open: {error}"),
    };
    format!("not available here: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(count: u64, time_enabled: u64, time_running: u64) -> (Metric, CountAndTime) {
        (Metric::CYCLES, CountAndTime { count, time_enabled, time_running })
    }

    #[test]
    fn a_counter_that_had_no_turn_says_nothing_and_half_a_turn_counts_twice() {
        assert_eq!(between(&[at(7, 10, 10)], &[at(7, 20, 10)]), []);
        assert_eq!(between(&[at(0, 10, 10)], &[at(3_000_000, 30, 20)]), [Measure::new(Metric::CYCLES, 6.0)]);
    }

    #[test]
    fn a_refusal_names_its_reason() {
        let refused = |errno| reason(&io::Error::from_raw_os_error(errno));
        assert_eq!(refused(libc::ENOENT), "not available here: no PMU");
        assert!(refused(libc::EACCES).contains("sysctl -w kernel.perf_event_paranoid=1"));
        assert!(refused(libc::EMFILE).contains("perf_event_open: "));
    }

    #[test]
    fn counters_count_or_say_why_not() {
        match Counters::open() {
            Ok(mut counters) => {
                let before = counters.read();
                let sum: u64 = std::hint::black_box((0..100_000).sum());
                assert!(sum > 0 && between(&before, &counters.read()).iter().all(|measure| measure.value > 0.0));
            }
            Err(why) => assert!(why.starts_with("not available here: "), "{why}"),
        }
    }
}
