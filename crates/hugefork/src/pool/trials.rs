//! Which kernel is the best for blocks that are written as a whole, learnt from what streams cost.
//!
//! Past the cache or through it: what is better depends on the machine, and on how busy its memory is. A stream that is
//! believed (region/state/history.rs) does a *lap* a fault: a clear or copy of a few blocks, their mapping, the
//! program's own writes, and the way back into the handler. Now and then one stream of a pool does some laps with the
//! *favourite* of the pool and some with another candidate. If that takes less time it becomes the favourite, for all
//! streams.
//!
//! ```text
//!   all streams    ─ favourite ────────────────────────────────────────────────────── rest ─▶
//!   one of them            | counted: f f f f | warm: c c | counted: c c c c |  verdict
//! ```
//! Only laps of one stream that follow each other are compared, since each program does something else between its
//! faults. The first laps with another kernel are not counted: the cache still holds, and still has to write back, what
//! the kernel before left in it. Of the counted laps the shorter half decides: in the others the program may have
//! paused, or done something else.
//!
//! The oftener the favourite has won, the longer is the rest until the next trial. A favourite that always wins leaves
//! 6 of 139 laps to others. Where a kernel was pinned there is only one candidate, and no trial.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, Ordering};

use hugefork_kernels::Work;

use crate::sync::WordLock;

/// So many laps with each of the two are counted.
const COUNTED: u8 = 4;

/// So many laps come before those of the other candidate, and are not counted.
const WARM: u8 = 2;

/// So many verdicts for the favourite are remembered. As many against it, and one more, bring it down.
const SUREST: u8 = 3;

/// So many laps of all streams lie between two trials, twice as many for each verdict that is remembered.
const REST: u32 = 16;

/// When other streams have done so many laps since its last one, the stream that does the trial has ended.
const MISSED: u32 = 16;

/// A candidate beats the favourite if it takes less by one part in 32. Less is noise, and gains nothing.
const CLEARLY: u32 = 5;

/// One lap of a stream, which begins now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    /// Tells the streams of a pool apart.
    pub(crate) stream: usize,
    /// How much is cleared or copied.
    pub(crate) bytes: usize,
    /// Nanoseconds on a clock that only goes forward.
    pub(crate) now: u64,
}

/// What the streams of a pool have shown, of its clears and of its copies.
#[derive(Default)]
pub(crate) struct Trials {
    clear: Shared,
    copy: Shared,
}

impl Trials {
    /// The kernel for the next lap of a stream: its place among the `candidates`.
    pub(crate) fn lap(&self, what: Work, candidates: usize, lap: Lap) -> usize {
        self.of(what).lap(candidates, lap)
    }

    /// The best of the candidates, as far as is known.
    pub(crate) fn favourite(&self, what: Work) -> usize {
        usize::from(self.of(what).favourite.load(Ordering::Relaxed))
    }

    fn of(&self, what: Work) -> &Shared {
        match what {
            Work::Clear => &self.clear,
            Work::Copy => &self.copy,
        }
    }
}

/// The trials of one work.
#[derive(Default)]
struct Shared {
    favourite: AtomicU8,
    lock: WordLock,
    trial: UnsafeCell<Trial>,
}

// SAFETY: the trial is only touched under the lock.
unsafe impl Sync for Shared {}

impl Shared {
    /// Nobody waits here: who finds another thread in a lap takes the favourite, and the lap is not seen.
    fn lap(&self, candidates: usize, lap: Lap) -> usize {
        let Some(_alone) = self.lock.try_lock() else { return usize::from(self.favourite.load(Ordering::Relaxed)) };
        // SAFETY: the lock is held.
        let trial = unsafe { &mut *self.trial.get() };
        let chosen = trial.lap(candidates, lap);
        self.favourite.store(trial.favourite as u8, Ordering::Relaxed);
        chosen
    }
}

/// One work's trials, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    favourite: usize,
    /// The candidate that is tried.
    other: usize,
    /// Verdicts for the favourite that are remembered.
    sure: u8,
    /// Laps of all streams until a trial begins.
    rest: u32,
    /// The lap that is under way, of the stream that does the trial.
    last: Option<Lap>,
    /// Its laps that are over.
    laps: u8,
    /// Laps of other streams meanwhile.
    missed: u32,
    with_favourite: Shorter,
    with_other: Shorter,
}

impl Trial {
    /// The candidate for a lap that begins.
    fn lap(&mut self, candidates: usize, lap: Lap) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return self.favourite;
        }
        match self.last {
            Some(last) if last.stream != lap.stream && self.missed < MISSED => {
                self.missed += 1;
                return self.favourite;
            }
            Some(last) if last.stream == lap.stream && last.bytes == lap.bytes => {
                self.end_lap(lap.now.saturating_sub(last.now));
            }
            Some(_) | None => self.begin(candidates),
        }
        if self.laps == COUNTED + WARM + COUNTED {
            self.judge(candidates);
            return self.favourite;
        }
        self.last = (lap.bytes > 0).then_some(lap);
        self.missed = 0;
        if self.laps < COUNTED { self.favourite } else { self.other }
    }

    fn begin(&mut self, candidates: usize) {
        if self.other == self.favourite || self.other >= candidates {
            self.other = self.after(self.other, candidates);
        }
        (self.laps, self.with_favourite, self.with_other) = (0, Shorter::default(), Shorter::default());
    }

    /// Notes what a lap took.
    fn end_lap(&mut self, took: u64) {
        if self.laps < COUNTED {
            self.with_favourite.add(took);
        } else if self.laps >= COUNTED + WARM {
            self.with_other.add(took);
        }
        self.laps += 1;
    }

    /// The end of a trial. A candidate that was faster is tried again soon, until it is the favourite or was slower.
    fn judge(&mut self, candidates: usize) {
        let (favourite, other) = (self.with_favourite.sum(), self.with_other.sum());
        if other >= favourite - (favourite >> CLEARLY) {
            self.sure = (self.sure + 1).min(SUREST);
            self.other = self.after(self.other, candidates);
        } else if self.sure > 0 {
            self.sure -= 1;
        } else {
            self.favourite = self.other;
        }
        (self.last, self.rest) = (None, REST << self.sure);
    }

    /// The next candidate that is not the favourite.
    fn after(&self, candidate: usize, candidates: usize) -> usize {
        let next = |candidate: usize| if candidate + 1 < candidates { candidate + 1 } else { 0 };
        let found = next(candidate);
        if found == self.favourite { next(found) } else { found }
    }
}

/// The two shortest of some times.
#[derive(Clone, Copy, Debug)]
struct Shorter {
    first: u64,
    second: u64,
}

impl Default for Shorter {
    fn default() -> Shorter {
        Shorter { first: u64::MAX, second: u64::MAX }
    }
}

impl Shorter {
    fn add(&mut self, time: u64) {
        if time < self.first {
            (self.first, self.second) = (time, self.first);
        } else if time < self.second {
            self.second = time;
        }
    }

    fn sum(self) -> u64 {
        self.first.saturating_add(self.second)
    }
}

#[cfg(test)]
mod tests {
    use hugefork_kernels::{Kernels, Side, Use};

    use super::*;
    use crate::pool::core::{Manner, PoolCore};
    use crate::pool::stock::Stock;
    use crate::sys::Merging;
    use crate::sys::soft::SoftMmu;
    use crate::units::BlockSize;

    /// Candidates of these costs a lap, and a stream that is alone. The clock stands still but for the laps.
    struct Track<'a> {
        trial: &'a mut Trial,
        now: u64,
        stream: usize,
    }

    impl Track<'_> {
        /// One lap after the other: `cost` says what each takes, told its number and its candidate. Returns the
        /// candidates.
        fn run(&mut self, candidates: usize, laps: usize, cost: impl Fn(usize, usize) -> u64) -> Vec<usize> {
            let lap = |number| {
                let lap = Lap { stream: self.stream, bytes: 8 << 20, now: self.now };
                let chosen = self.trial.lap(candidates, lap);
                self.now += cost(number, chosen);
                chosen
            };
            (0..laps).map(lap).collect()
        }
    }

    fn track(trial: &mut Trial) -> Track<'_> {
        Track { trial, now: 1_000, stream: 1 }
    }

    /// A trial of one stream from its first lap to its verdict, at which its last lap ends.
    const TRIAL: usize = (COUNTED + WARM + COUNTED) as usize;

    /// The longest rest and the trial after it.
    const ROUND: usize = TRIAL + 1 + (REST << SUREST) as usize;

    #[test]
    fn a_trial_is_some_laps_with_each_and_the_better_stays() {
        let mut trial = Trial::default();
        let chosen = track(&mut trial).run(2, 2 * TRIAL, |_, candidate| [500, 400][candidate]);
        assert_eq!(chosen[..COUNTED as usize], [0; COUNTED as usize]);
        assert_eq!(chosen[COUNTED as usize..], [1; 2 * TRIAL - COUNTED as usize]);
        let mut trial = Trial::default();
        let chosen = track(&mut trial).run(2, 2 * TRIAL, |_, candidate| [400, 500][candidate]);
        assert_eq!(chosen[COUNTED as usize..TRIAL], [1; (WARM + COUNTED) as usize]);
        assert_eq!(chosen[TRIAL..], [0; TRIAL]);
    }

    #[test]
    fn three_candidates_are_all_tried_and_the_best_is_found() {
        for best in 0..3 {
            let mut trial = Trial::default();
            let mut costs = [100, 120, 140];
            costs.rotate_right(best);
            track(&mut trial).run(3, 4 * ROUND, |_, candidate| costs[candidate]);
            assert_eq!(trial.favourite, best, "{costs:?}");
        }
    }

    #[test]
    fn costs_that_flip_are_noticed_in_a_bounded_number_of_laps() {
        let mut trial = Trial::default();
        let mut track = track(&mut trial);
        for (costs, best) in [([100, 120], 0), ([120, 100], 1), ([100, 120], 0), ([100, 96], 1)] {
            // The rest that has begun, as many verdicts as are remembered, and the one that decides.
            let bound = ROUND + (0..=SUREST).map(|sure| TRIAL + 1 + (REST << sure) as usize).sum::<usize>();
            track.run(2, bound, |_, candidate| costs[candidate]);
            assert_eq!(track.trial.favourite, best, "{costs:?}");
            // As sure as can be.
            track.run(2, 5 * ROUND, |_, candidate| costs[candidate]);
            assert_eq!((track.trial.favourite, track.trial.sure), (best, SUREST), "{costs:?}");
        }
    }

    #[test]
    fn what_gains_less_than_noise_changes_nothing() {
        let mut trial = Trial::default();
        track(&mut trial).run(2, 10 * ROUND, |_, candidate| [100, 98][candidate]);
        assert_eq!((trial.favourite, trial.sure), (0, SUREST));
    }

    #[test]
    fn few_laps_are_done_with_another_kernel_once_the_favourite_is_sure() {
        let mut trial = Trial::default();
        track(&mut trial).run(2, 5 * ROUND, |_, candidate| [100, 200][candidate]);
        let chosen = track(&mut trial).run(2, 100 * ROUND, |_, candidate| [100, 200][candidate]);
        let others = chosen.iter().filter(|&&candidate| candidate != 0).count();
        assert!(others * 20 < chosen.len(), "{others} of {}", chosen.len());
    }

    #[test]
    fn pauses_of_the_program_do_not_count() {
        for (costs, best) in [([400, 500], 0), ([500, 400], 1)] {
            // Whichever lap of three it is that takes so long: less than half of those of a trial do.
            for which in 0..3 {
                let mut trial = Trial::default();
                let pause = |number: usize| if number % 3 == which { 1_000_000_000 } else { 0 };
                track(&mut trial).run(2, 10 * ROUND, |number, candidate| costs[candidate] + pause(number));
                assert_eq!((trial.favourite, trial.sure), (best, SUREST), "{costs:?}, {which}");
            }
        }
    }

    #[test]
    fn one_stream_at_a_time_does_a_trial_and_another_takes_over_when_it_ends() {
        let mut trial = Trial::default();
        let lap = |trial: &mut Trial, stream, now| trial.lap(2, Lap { stream, bytes: 2 << 20, now });
        for now in 0..=u64::from(COUNTED) {
            let chosen = [1, 2].map(|stream| lap(&mut trial, stream, 100 * now));
            assert_eq!(chosen, [usize::from(now == u64::from(COUNTED)), 0], "{now}");
        }
        // The first is never seen again.
        let of_second: Vec<_> = (0..40).map(|now| lap(&mut trial, 2, 100 * now)).collect();
        let began = MISSED as usize - 1;
        assert_eq!(of_second[..began + COUNTED as usize], vec![0; began + COUNTED as usize]);
        assert_eq!(of_second[began + COUNTED as usize], 1);
    }

    #[test]
    fn laps_of_unequal_length_are_not_compared() {
        let mut trial = Trial::default();
        let mut now = 0;
        for number in 0..1000 {
            // Every eighth is not to be counted, or prepares fewer blocks.
            let bytes = if number % 8 > 0 { 8 << 20 } else { (number % 16) << 18 };
            assert!(trial.lap(2, Lap { stream: 1, bytes, now }) < 2);
            now += 100;
        }
        assert_eq!((trial.favourite, trial.sure, trial.rest), (0, 0, 0));
    }

    #[test]
    fn a_clock_that_stands_still_changes_nothing() {
        let mut trial = Trial::default();
        let mut track = track(&mut trial);
        track.run(3, 1000, |_, _| 0);
        assert_eq!(track.trial.favourite, 0);
    }

    #[test]
    fn all_streams_of_a_pool_take_what_one_of_them_found() {
        let trials = Trials::default();
        let lap = |what, stream, now| trials.lap(what, 2, Lap { stream, bytes: 2 << 20, now });
        let mut now = 0;
        for _ in 0..=TRIAL {
            now += if lap(Work::Copy, 1, now) == 0 { 500 } else { 400 };
        }
        assert_eq!((trials.favourite(Work::Copy), trials.favourite(Work::Clear)), (1, 0));
        assert_eq!((lap(Work::Copy, 7, now), lap(Work::Clear, 7, now)), (1, 0));
    }

    /// The kernels that a pool copies with while a stream does a thousand laps, in which each candidate is faster than
    /// the one before.
    fn copied_with(kernels: Kernels) -> Vec<String> {
        let size = BlockSize::MIB_2;
        let mmu = SoftMmu::new(size.bytes(), Merging::Merge, 10);
        let pool = PoolCore::new(mmu, "test".to_owned(), size, 1, kernels, Stock::default());
        let mut now = 0;
        let lap = |_| {
            let lap = Lap { stream: 1, bytes: size.bytes(), now };
            let candidate = pool.candidate(Work::Copy, size.bytes(), Some(lap));
            now += 1_000_000 - 100_000 * candidate as u64;
            let manner = Manner { used: Use::Whole, side: Side::Around, candidate };
            pool.kernel(Work::Copy, size.bytes(), manner).to_string()
        };
        let mut names: Vec<_> = (0..1000).map(lap).collect();
        assert_eq!(pool.candidate(Work::Copy, size.bytes(), None), pool.trials.favourite(Work::Copy));
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn a_pinned_kernel_never_changes() {
        let base = Kernels::default_for_this_cpu();
        let pinned = Kernels::pinned(Some("target-last/portable"), Some("64KiB"), base).unwrap();
        assert_eq!(copied_with(pinned), ["target-last/portable"]);
        let candidates = base.candidates(Work::Copy, BlockSize::MIB_2.bytes()).iter();
        let mut candidates: Vec<_> = candidates.map(ToString::to_string).collect();
        candidates.sort();
        assert_eq!(copied_with(base), candidates);
    }
}
