//! Which kernel is the best for blocks that are written as a whole, learnt from what streams cost.
//!
//! Past the cache or through it: what is better depends on the machine, and on how busy its memory is. A stream that is
//! believed (region/state/history.rs) does a *sample* a fault: a clear or copy of a few blocks, their mapping, the
//! program's own writes, and the way back into the handler. Now and then one stream of a pool does some samples with
//! the *incumbent* of the pool and some with another candidate. If that takes less time it becomes the incumbent, for
//! all streams.
//!
//! ```text
//!   all streams    ─ incumbent ────────────────────────────────────────────────────── rest ─▶
//!   one of them            | counted: f f f f | warm: c c | counted: c c c c |  verdict
//! ```
//! Only samples of one stream that follow each other are compared, since each program does something else between its
//! faults. The first samples with another kernel are not counted: the cache still holds, and still has to write back,
//! what the kernel before left in it. Of the counted samples the shorter half decides: in the others the program may
//! have paused, or done something else.
//!
//! The oftener the incumbent has won, the longer is the rest until the next A/B test. An incumbent that always wins
//! leaves 6 of 139 samples to others. Where a kernel was pinned there is only one candidate, and no A/B test.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, Ordering};

use hugefork_kernels::Work;

use crate::sync::WordLock;

/// So many samples with each of the two are counted.
const COUNTED_SAMPLES: u8 = 4;

/// So many samples come before those of the other candidate, and are not counted.
const WARM_SAMPLES: u8 = 2;

/// So many verdicts for the incumbent are remembered. As many against it, and one more, bring it down.
const MOST_VERDICTS: u8 = 3;

/// So many samples of all streams lie between two A/B tests, twice as many for each verdict that is remembered.
const REST_SAMPLES: u32 = 16;

/// When other streams have done so many samples since its last one, the stream that does the A/B test has ended.
const MISSED_SAMPLES: u32 = 16;

/// A candidate beats the incumbent if it takes less by one part in 32. Less is noise, and gains nothing.
const CLEARLY_SHIFT: u32 = 5;

/// One sample of a stream, which begins now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Tells the streams of a pool apart.
    pub(crate) stream: usize,
    /// How much is cleared or copied.
    pub(crate) bytes: usize,
    /// Nanoseconds on a clock that only goes forward.
    pub(crate) now: u64,
}

/// What the streams of a pool have shown, of its clears and of its copies.
#[derive(Default)]
pub(crate) struct AbTests {
    clear: Shared,
    copy: Shared,
}

impl AbTests {
    /// The kernel for the next sample of a stream: its place among the `candidates`.
    pub(crate) fn sample(&self, what: Work, candidates: usize, sample: Sample) -> usize {
        self.of(what).sample(candidates, sample)
    }

    /// The best of the candidates, as far as is known.
    pub(crate) fn incumbent(&self, what: Work) -> usize {
        usize::from(self.of(what).incumbent.load(Ordering::Relaxed))
    }

    fn of(&self, what: Work) -> &Shared {
        match what {
            Work::Clear => &self.clear,
            Work::Copy => &self.copy,
        }
    }
}

/// The A/B tests of one work.
#[derive(Default)]
struct Shared {
    incumbent: AtomicU8,
    lock: WordLock,
    ab_test: UnsafeCell<AbTest>,
}

// SAFETY: the A/B test is only touched under the lock.
unsafe impl Sync for Shared {}

impl Shared {
    /// Nobody waits here: who finds another thread in a sample takes the incumbent, and the sample is not seen.
    fn sample(&self, candidates: usize, sample: Sample) -> usize {
        let Some(_alone) = self.lock.try_lock() else { return usize::from(self.incumbent.load(Ordering::Relaxed)) };
        // SAFETY: the lock is held.
        let ab_test = unsafe { &mut *self.ab_test.get() };
        let chosen = ab_test.sample(candidates, sample);
        self.incumbent.store(ab_test.incumbent as u8, Ordering::Relaxed);
        chosen
    }
}

/// One work's A/B tests, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct AbTest {
    incumbent: usize,
    /// The candidate that is tried.
    other: usize,
    /// Verdicts for the incumbent that are remembered.
    sure: u8,
    /// Samples of all streams until an A/B test begins.
    rest: u32,
    /// The sample that is under way, of the stream that does the A/B test.
    last: Option<Sample>,
    /// Its samples that are over.
    samples: u8,
    /// Samples of other streams meanwhile.
    missed: u32,
    with_incumbent: Shorter,
    with_other: Shorter,
}

impl AbTest {
    /// The candidate for a sample that begins.
    fn sample(&mut self, candidates: usize, sample: Sample) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return self.incumbent;
        }
        match self.last {
            Some(last) if last.stream != sample.stream && self.missed < MISSED_SAMPLES => {
                self.missed += 1;
                return self.incumbent;
            }
            Some(last) if last.stream == sample.stream && last.bytes == sample.bytes => {
                self.end_sample(sample.now.saturating_sub(last.now));
            }
            Some(_) | None => self.begin(candidates),
        }
        if self.samples == COUNTED_SAMPLES + WARM_SAMPLES + COUNTED_SAMPLES {
            self.judge(candidates);
            return self.incumbent;
        }
        self.last = (sample.bytes > 0).then_some(sample);
        self.missed = 0;
        if self.samples < COUNTED_SAMPLES { self.incumbent } else { self.other }
    }

    fn begin(&mut self, candidates: usize) {
        if self.other == self.incumbent || self.other >= candidates {
            self.other = self.after(self.other, candidates);
        }
        (self.samples, self.with_incumbent, self.with_other) = (0, Shorter::default(), Shorter::default());
    }

    /// Notes what a sample took.
    fn end_sample(&mut self, took: u64) {
        if self.samples < COUNTED_SAMPLES {
            self.with_incumbent.add(took);
        } else if self.samples >= COUNTED_SAMPLES + WARM_SAMPLES {
            self.with_other.add(took);
        }
        self.samples += 1;
    }

    /// The end of an A/B test. A candidate that was faster is tried again soon, until it is the incumbent or was
    /// slower.
    fn judge(&mut self, candidates: usize) {
        let (incumbent, other) = (self.with_incumbent.sum(), self.with_other.sum());
        if other >= incumbent - (incumbent >> CLEARLY_SHIFT) {
            self.sure = (self.sure + 1).min(MOST_VERDICTS);
            self.other = self.after(self.other, candidates);
        } else if self.sure > 0 {
            self.sure -= 1;
        } else {
            self.incumbent = self.other;
        }
        (self.last, self.rest) = (None, REST_SAMPLES << self.sure);
    }

    /// The next candidate that is not the incumbent.
    fn after(&self, candidate: usize, candidates: usize) -> usize {
        let next = |candidate: usize| if candidate + 1 < candidates { candidate + 1 } else { 0 };
        let found = next(candidate);
        if found == self.incumbent { next(found) } else { found }
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

    /// Candidates of these costs a sample, and a stream that is alone. The clock stands still but for the samples.
    struct Track<'a> {
        ab_test: &'a mut AbTest,
        now: u64,
        stream: usize,
    }

    impl Track<'_> {
        /// One sample after the other: `cost` says what each takes, told its number and its candidate. Returns the
        /// candidates.
        fn run(&mut self, candidates: usize, samples: usize, cost: impl Fn(usize, usize) -> u64) -> Vec<usize> {
            let sample = |number| {
                let sample = Sample { stream: self.stream, bytes: 8 << 20, now: self.now };
                let chosen = self.ab_test.sample(candidates, sample);
                self.now += cost(number, chosen);
                chosen
            };
            (0..samples).map(sample).collect()
        }
    }

    fn track(ab_test: &mut AbTest) -> Track<'_> {
        Track { ab_test, now: 1_000, stream: 1 }
    }

    /// An A/B test of one stream from its first sample to its verdict, at which its last sample ends.
    const AB_TEST: usize = (COUNTED_SAMPLES + WARM_SAMPLES + COUNTED_SAMPLES) as usize;

    /// The longest rest and the A/B test after it.
    const ROUND: usize = AB_TEST + 1 + (REST_SAMPLES << MOST_VERDICTS) as usize;

    #[test]
    fn an_ab_test_is_some_samples_with_each_and_the_better_stays() {
        let mut ab_test = AbTest::default();
        let chosen = track(&mut ab_test).run(2, 2 * AB_TEST, |_, candidate| [500, 400][candidate]);
        assert_eq!(chosen[..COUNTED_SAMPLES as usize], [0; COUNTED_SAMPLES as usize]);
        assert_eq!(chosen[COUNTED_SAMPLES as usize..], [1; 2 * AB_TEST - COUNTED_SAMPLES as usize]);
        let mut ab_test = AbTest::default();
        let chosen = track(&mut ab_test).run(2, 2 * AB_TEST, |_, candidate| [400, 500][candidate]);
        assert_eq!(chosen[COUNTED_SAMPLES as usize..AB_TEST], [1; (WARM_SAMPLES + COUNTED_SAMPLES) as usize]);
        assert_eq!(chosen[AB_TEST..], [0; AB_TEST]);
    }

    #[test]
    fn three_candidates_are_all_tried_and_the_best_is_found() {
        for best in 0..3 {
            let mut ab_test = AbTest::default();
            let mut costs = [100, 120, 140];
            costs.rotate_right(best);
            track(&mut ab_test).run(3, 4 * ROUND, |_, candidate| costs[candidate]);
            assert_eq!(ab_test.incumbent, best, "{costs:?}");
        }
    }

    #[test]
    fn costs_that_flip_are_noticed_in_a_bounded_number_of_samples() {
        let mut ab_test = AbTest::default();
        let mut track = track(&mut ab_test);
        for (costs, best) in [([100, 120], 0), ([120, 100], 1), ([100, 120], 0), ([100, 96], 1)] {
            // The rest that has begun, as many verdicts as are remembered, and the one that decides.
            let bound =
                ROUND + (0..=MOST_VERDICTS).map(|sure| AB_TEST + 1 + (REST_SAMPLES << sure) as usize).sum::<usize>();
            track.run(2, bound, |_, candidate| costs[candidate]);
            assert_eq!(track.ab_test.incumbent, best, "{costs:?}");
            // As sure as can be.
            track.run(2, 5 * ROUND, |_, candidate| costs[candidate]);
            assert_eq!((track.ab_test.incumbent, track.ab_test.sure), (best, MOST_VERDICTS), "{costs:?}");
        }
    }

    #[test]
    fn what_gains_less_than_noise_changes_nothing() {
        let mut ab_test = AbTest::default();
        track(&mut ab_test).run(2, 10 * ROUND, |_, candidate| [100, 98][candidate]);
        assert_eq!((ab_test.incumbent, ab_test.sure), (0, MOST_VERDICTS));
    }

    #[test]
    fn few_samples_are_done_with_another_kernel_once_the_incumbent_is_sure() {
        let mut ab_test = AbTest::default();
        track(&mut ab_test).run(2, 5 * ROUND, |_, candidate| [100, 200][candidate]);
        let chosen = track(&mut ab_test).run(2, 100 * ROUND, |_, candidate| [100, 200][candidate]);
        let others = chosen.iter().filter(|&&candidate| candidate != 0).count();
        assert!(others * 20 < chosen.len(), "{others} of {}", chosen.len());
    }

    #[test]
    fn pauses_of_the_program_do_not_count() {
        for (costs, best) in [([400, 500], 0), ([500, 400], 1)] {
            // Whichever sample of three it is that takes so long: less than half of those of an A/B test do.
            for which in 0..3 {
                let mut ab_test = AbTest::default();
                let pause = |number: usize| if number % 3 == which { 1_000_000_000 } else { 0 };
                track(&mut ab_test).run(2, 10 * ROUND, |number, candidate| costs[candidate] + pause(number));
                assert_eq!((ab_test.incumbent, ab_test.sure), (best, MOST_VERDICTS), "{costs:?}, {which}");
            }
        }
    }

    #[test]
    fn one_stream_at_a_time_does_a_ab_test_and_another_takes_over_when_it_ends() {
        let mut ab_test = AbTest::default();
        let sample = |ab_test: &mut AbTest, stream, now| ab_test.sample(2, Sample { stream, bytes: 2 << 20, now });
        for now in 0..=u64::from(COUNTED_SAMPLES) {
            let chosen = [1, 2].map(|stream| sample(&mut ab_test, stream, 100 * now));
            assert_eq!(chosen, [usize::from(now == u64::from(COUNTED_SAMPLES)), 0], "{now}");
        }
        // The first is never seen again.
        let of_second: Vec<_> = (0..40).map(|now| sample(&mut ab_test, 2, 100 * now)).collect();
        let began = MISSED_SAMPLES as usize - 1;
        assert_eq!(of_second[..began + COUNTED_SAMPLES as usize], vec![0; began + COUNTED_SAMPLES as usize]);
        assert_eq!(of_second[began + COUNTED_SAMPLES as usize], 1);
    }

    #[test]
    fn samples_of_unequal_length_are_not_compared() {
        let mut ab_test = AbTest::default();
        let mut now = 0;
        for number in 0..1000 {
            // Every eighth is not to be counted, or prepares fewer blocks.
            let bytes = if number % 8 > 0 { 8 << 20 } else { (number % 16) << 18 };
            assert!(ab_test.sample(2, Sample { stream: 1, bytes, now }) < 2);
            now += 100;
        }
        assert_eq!((ab_test.incumbent, ab_test.sure, ab_test.rest), (0, 0, 0));
    }

    #[test]
    fn a_clock_that_stands_still_changes_nothing() {
        let mut ab_test = AbTest::default();
        let mut track = track(&mut ab_test);
        track.run(3, 1000, |_, _| 0);
        assert_eq!(track.ab_test.incumbent, 0);
    }

    #[test]
    fn all_streams_of_a_pool_take_what_one_of_them_found() {
        let ab_tests = AbTests::default();
        let sample = |what, stream, now| ab_tests.sample(what, 2, Sample { stream, bytes: 2 << 20, now });
        let mut now = 0;
        for _ in 0..=AB_TEST {
            now += if sample(Work::Copy, 1, now) == 0 { 500 } else { 400 };
        }
        assert_eq!((ab_tests.incumbent(Work::Copy), ab_tests.incumbent(Work::Clear)), (1, 0));
        assert_eq!((sample(Work::Copy, 7, now), sample(Work::Clear, 7, now)), (1, 0));
    }

    /// The kernels that a pool copies with while a stream does a thousand samples, in which each candidate is faster
    /// than the one before.
    fn copied_with(kernels: Kernels) -> Vec<String> {
        let size = BlockSize::MIB_2;
        let mmu = SoftMmu::new(size.bytes(), Merging::Merge, 10);
        let pool = PoolCore::new(mmu, "test".to_owned(), size, 1, kernels, Stock::default());
        let mut now = 0;
        let sample = |_| {
            let sample = Sample { stream: 1, bytes: size.bytes(), now };
            let candidate = pool.candidate(Work::Copy, size.bytes(), Some(sample));
            now += 1_000_000 - 100_000 * candidate as u64;
            let manner = Manner { used: Use::Whole, side: Side::Around, candidate };
            pool.kernel(Work::Copy, size.bytes(), manner).to_string()
        };
        let mut names: Vec<_> = (0..1000).map(sample).collect();
        assert_eq!(pool.candidate(Work::Copy, size.bytes(), None), pool.ab_tests.incumbent(Work::Copy));
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
