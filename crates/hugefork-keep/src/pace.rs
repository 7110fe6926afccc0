//! Limits the number of blocks that are collapsed per second.
//!
//! A fast pace lengthens the program's latency tails, because a thread that faults during a
//! collapse in the same mapping waits. A slow pace leaves blocks uncollapsed at the next fork. So
//! the blocks that a child leaves behind are spread over three quarters of the usual gap: the
//! recent time between the end of one child and the next fork.

use std::time::{Duration, Instant};

/// Assumed gap of a program that has forked only once.
const FIRST_GAP: Duration = Duration::from_secs(10);

/// Minimum of blocks per second, so that the collapses of a large heap end at some time.
const MIN_RATE: f64 = 20.0;

/// Maximum of blocks per second.
const MAX_RATE: f64 = 400.0;

/// After a collapse the keeper rests this many times the duration of the collapse, so the keeper uses at most a fifth
/// of a CPU. A collapse takes 0.3 ms, or 5 ms if the host of a virtual machine has to allocate the memory.
const REST: u32 = 4;

/// The pace of one process.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// The moment since which no child has shared the process's memory; `None` while a child shares it.
    alone_since: Option<Instant>,
    /// The recent gaps, from the end of one child to the next fork.
    gaps: [Option<Duration>; 3],
    /// Time of the last collapse, and its duration.
    last: Instant,
    work: Duration,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Pace {
        Pace { alone_since: Some(now), gaps: [None; 3], last: now, work: Duration::ZERO }
    }

    /// Notes that the process has forked.
    pub(crate) fn note_fork(&mut self, now: Instant) {
        if let Some(since) = self.alone_since.take() {
            self.gaps.rotate_right(1);
            self.gaps[0] = Some(now.saturating_duration_since(since));
        }
    }

    /// Notes that the process shares its memory with no child any more.
    pub(crate) fn note_alone(&mut self, now: Instant) {
        self.alone_since.get_or_insert(now);
    }

    /// Time of the next collapse, if `blocks` blocks are left to collapse.
    pub(crate) fn due(&self, blocks: usize) -> Instant {
        // Blocks that become dense later are spread over an eighth of the gap.
        let gap = self.gaps.iter().flatten().min().copied().unwrap_or(FIRST_GAP);
        let end = self.alone_since.map(|since| since + gap * 3 / 4);
        let time = end.map_or(gap / 8, |end| end.saturating_duration_since(self.last)).max(gap / 8);
        let rate = (blocks as f64 / time.as_secs_f64().max(0.001)).clamp(MIN_RATE, MAX_RATE);
        self.last + Duration::from_secs_f64(1.0 / rate).max((1 + REST) * self.work)
    }

    /// Notes the duration of the last block's collapse and of its preparation.
    pub(crate) fn note_work(&mut self, work: Duration) {
        self.work = work;
    }

    /// Whether one of `blocks` remaining blocks may be collapsed now; if so, counts a collapse. Unused time does not
    /// accumulate, since it would lead to a burst of collapses.
    pub(crate) fn take(&mut self, blocks: usize, now: Instant) -> bool {
        let may = now >= self.due(blocks);
        if may {
            self.last = now;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_spread_over_three_quarters_of_the_gap() {
        let start = Instant::now();
        let after = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::new(start);
        assert_eq!(pace.due(1_500), after(5), "ten seconds are assumed");
        pace.note_fork(after(60_000));
        assert!(!pace.take(1_500, after(2)));
        // The 4500 blocks are spread over 45 s of the one-minute gap, which begins at the end of the child.
        pace.note_alone(after(70_000));
        assert!(pace.take(4_500, after(70_000)));
        assert_eq!(pace.due(4_500), after(70_010));
        // When 3000 blocks are left, 30 s of these 45 s are left, so the pace is the same.
        assert!(pace.take(3_000, after(85_000)));
        assert_eq!(pace.due(3_000), after(85_010));
        assert_eq!(pace.due(1), after(85_050));
        // Blocks that become dense later are spread over an eighth of the gap.
        assert!(pace.take(750, after(150_000)));
        assert_eq!(pace.due(750), after(150_010));
    }

    #[test]
    fn the_keeper_rests_four_fifths_of_the_time() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.take(1_000_000, start + Duration::from_millis(10)));
        pace.note_work(Duration::from_millis(5));
        assert_eq!(pace.due(1_000_000), start + Duration::from_millis(35));
    }

    #[test]
    fn unused_time_does_not_become_a_burst() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let late = start + Duration::from_secs(5);
        assert!(pace.take(1_000, late));
        assert!(!pace.take(1_000, late));
        assert!(pace.due(1_000) > late);
    }
}
