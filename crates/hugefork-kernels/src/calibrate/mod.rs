//! Finds the fastest kernels of this machine in a few milliseconds.
//!
//! The caller supplies memory and a clock. One sample times an operation on a block together with
//! the following use of the block: a fast clear that makes the use slow gains nothing.
//!
//! ```text
//! 1  near use, clear and copy   every far primitive with the default window, straight cached   → the far primitive P
//! 2  near use, clear and copy   P with other windows, straight P, straight cached              → near
//!    sizes below 2 MiB          near against straight cached                                   → nt_from
//! 3  whole use, clear and copy  P with windows, straight P, straight cached                    → whole
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `decision` | the rule by which a smaller time wins |
//! | `candidates` | the kernels to try for one work and use, and their times |
//! | `stage` | the memory, the clock and the budget: takes the samples |

mod candidates;
mod decision;
mod stage;

#[cfg(test)]
mod tests;

use candidates::Candidates;
use decision::{BLOCK, smallest};
use stage::Stage;

use crate::{
    kernel::Kernel,
    kernels::{Choice, Kernels, Use, Work},
};

/// One candidate and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// The work that was timed.
    pub what: Work,
    /// The use of the block after the work, which the time includes.
    pub used: Use,
    /// The candidate.
    pub kernel: Kernel,
    /// Least time for a block of 2 MiB, work and use together; `None` if the budget ended before the candidate had
    /// enough samples.
    pub nanoseconds: Option<u64>,
    /// Whether this candidate was chosen for its work and use.
    pub chosen: bool,
}

/// The result of [`calibrate`].
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Clear and copy for near use, then clear and copy for whole use.
    candidates: [Candidates; 4],
    /// The result of [`Kernels::nt_from`] for clear and for copy.
    nt_from: [usize; 2],
    spent: u64,
}

impl Calibration {
    /// The chosen kernels.
    pub fn kernels(&self) -> Kernels {
        let [clear_near, copy_near, clear_whole, copy_whole] = self.candidates.each_ref().map(Candidates::best);
        let [clear_from, copy_from] = self.nt_from;
        Kernels::new(Choice::new(clear_near, clear_whole, clear_from), Choice::new(copy_near, copy_whole, copy_from))
    }

    /// Every candidate; for each work and use exactly one is chosen.
    pub fn table(&self) -> impl Iterator<Item = Figure> {
        self.candidates.iter().flat_map(|candidates| {
            let chosen = candidates.chosen();
            candidates.all().iter().enumerate().map(move |(index, candidate)| Figure {
                what: candidates.what,
                used: candidates.used,
                kernel: candidate.kernel,
                nanoseconds: candidate.samples.least(),
                chosen: index == chosen,
            })
        })
    }

    /// Total duration of the calibration, by the clock that the caller passed.
    pub fn nanoseconds(&self) -> u64 {
        self.spent
    }
}

/// Times the candidates of this machine on `memory` and chooses the kernels. Takes 6–7 ms on a Zen 5 VM, and begins no
/// sample after 8 ms by `clock`. The calibration allocates nothing but uses some KiB of stack, so do not call it in a
/// signal handler.
///
/// `clock` returns nanoseconds since any fixed moment. The best clock is the thread's CPU time
/// (`CLOCK_THREAD_CPUTIME_ID`): by the wall clock, one interruption by another task, often 4 ms, uses up half of the
/// budget and leaves defaults.
///
/// Pass 8 MiB, on huge pages if the blocks will be on huge pages, and touch the memory before the call, since page
/// faults count against the budget. More memory has no effect; with less than 4 MiB nothing is measured and the
/// defaults remain.
///
/// # Safety
///
/// `memory` is aligned to 4 KiB and valid for reads and writes of `len` bytes, and no other code accesses it during the
/// call. The contents of the memory are overwritten.
pub unsafe fn calibrate(memory: *mut u8, len: usize, clock: fn() -> u64) -> Calibration {
    let defaults = Kernels::default_for_this_cpu();
    let mut candidates =
        [(Work::Clear, Use::Near), (Work::Copy, Use::Near), (Work::Clear, Use::Whole), (Work::Copy, Use::Whole)]
            .map(|(what, used)| Candidates::new(what, used, defaults.pick(what, BLOCK, used)));
    let mut nt_from = [Work::Clear, Work::Copy].map(|what| defaults.nt_from(what));
    // SAFETY: the caller vouches for the memory until this function returns, and the stage is dropped by then.
    let Some(mut stage) = (unsafe { Stage::new(memory, len, clock) }) else {
        return Calibration { candidates, nt_from, spent: 0 };
    };
    let [clear_near, copy_near, clear_whole, copy_whole] = &mut candidates;

    for near in [&mut *clear_near, &mut *copy_near] {
        near.add_primitives();
    }
    stage.rounds([&mut *clear_near, &mut *copy_near], |_| true);

    let far = [clear_near.far(), copy_near.far()];
    for (near, far) in [&mut *clear_near, &mut *copy_near].into_iter().zip(far) {
        near.add_windows(far);
    }
    stage.rounds([&mut *clear_near, &mut *copy_near], |candidate| candidate.is_for_all_steps);

    for (nt_from, near) in nt_from.iter_mut().zip([&*clear_near, &*copy_near]) {
        if let Some(pairs) = stage.small(near) {
            *nt_from = smallest(pairs);
        }
    }

    for (whole, far) in [&mut *clear_whole, &mut *copy_whole].into_iter().zip(far) {
        whole.add_windows(far);
    }
    stage.rounds([clear_whole, copy_whole], |candidate| candidate.is_for_all_steps);
    Calibration { candidates, nt_from, spent: stage.spent() }
}
