//! How many blocks are collapsed a second.
//!
//! The faster, the longer the tails of the program: each collapse has threads wait that fault in the same mapping. The
//! slower, the less is done by the next fork. So the blocks that a child leaves behind are spread over three quarters
//! of the time that the program has lately left between the end of one child and its next fork.

use std::time::{Duration, Instant};

/// The time until the next fork of a program that has forked once.
const FIRST_GAP: Duration = Duration::from_secs(10);

/// Blocks a second, at least: a large heap is never put off for ever.
const MIN_RATE: f64 = 20.0;

/// Blocks a second, at most.
const MAX_RATE: f64 = 400.0;

/// The keeper rests so many times as long as it has worked, so that it takes no more than a fifth of a CPU. A collapse
/// takes 0.3 ms, and 5 where a virtual machine has to find the memory.
const REST: u32 = 4;

/// The pace for one process.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Since when no child shares its memory.
    alone_since: Option<Instant>,
    /// The last gaps, from the end of one child to the next fork.
    gaps: [Option<Duration>; 3],
    /// When the last block was collapsed, and how long that took.
    last: Instant,
    work: Duration,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Pace {
        Pace { alone_since: Some(now), gaps: [None; 3], last: now, work: Duration::ZERO }
    }

    /// The process has forked.
    pub(crate) fn note_fork(&mut self, now: Instant) {
        if let Some(since) = self.alone_since.take() {
            self.gaps.rotate_right(1);
            self.gaps[0] = Some(now.saturating_duration_since(since));
        }
    }

    /// Nobody shares its memory any more.
    pub(crate) fn note_alone(&mut self, now: Instant) {
        self.alone_since.get_or_insert(now);
    }

    /// When the next of so many blocks is to be collapsed.
    pub(crate) fn due(&self, blocks: usize) -> Instant {
        // Blocks that become dense later have an eighth of the gap.
        let gap = self.gaps.iter().flatten().min().copied().unwrap_or(FIRST_GAP);
        let end = self.alone_since.map(|since| since + gap * 3 / 4);
        let time = end.map_or(gap / 8, |end| end.saturating_duration_since(self.last)).max(gap / 8);
        let rate = (blocks as f64 / time.as_secs_f64().max(0.001)).clamp(MIN_RATE, MAX_RATE);
        self.last + Duration::from_secs_f64(1.0 / rate).max((1 + REST) * self.work)
    }

    /// The last block took so long, with all that belongs to it.
    pub(crate) fn note_work(&mut self, work: Duration) {
        self.work = work;
    }

    /// Whether one of so many blocks may be collapsed now; it counts as that then. Time that was not used does not add
    /// up: that would be a burst.
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
    fn blocks_are_spread_over_most_of_the_usual_gap() {
        let start = Instant::now();
        let after = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::new(start);
        assert_eq!(pace.due(1_500), after(5), "ten seconds are assumed");
        pace.note_fork(after(60_000));
        assert!(!pace.take(1_500, after(2)));
        // 45 s of the gap of a minute, from the end of the child on.
        pace.note_alone(after(70_000));
        assert!(pace.take(4_500, after(70_000)));
        assert_eq!(pace.due(4_500), after(70_010));
        // As fewer are left, less time is left, too.
        assert!(pace.take(3_000, after(85_000)));
        assert_eq!(pace.due(3_000), after(85_010));
        assert_eq!(pace.due(1), after(85_050));
        // Later ones have an eighth of the gap.
        assert!(pace.take(750, after(150_000)));
        assert_eq!(pace.due(750), after(150_010));
    }

    #[test]
    fn four_fifths_of_the_time_are_rest() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.take(1_000_000, start + Duration::from_millis(10)));
        pace.note_work(Duration::from_millis(5));
        assert_eq!(pace.due(1_000_000), start + Duration::from_millis(35));
    }

    #[test]
    fn what_was_not_used_is_no_burst() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let late = start + Duration::from_secs(5);
        assert!(pace.take(1_000, late));
        assert!(!pace.take(1_000, late));
        assert!(pace.due(1_000) > late);
    }
}
