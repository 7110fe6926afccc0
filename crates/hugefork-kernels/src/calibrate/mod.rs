//! Which kernels are the fastest on this machine, found out in a few milliseconds.
//!
//! The caller gives memory and a clock; nothing else is needed. One sample is one operation on a block and the use that
//! follows it, timed together, since a fast clear that leaves the use slow has won nothing.
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
//! | `decision` | when one time is so much less than another that it decides |
//! | `candidates` | the kernels that are tried for one work and use, and their times |
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

/// One candidate and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// What was timed.
    pub what: Work,
    /// What the program did next, also timed.
    pub used: Use,
    /// The candidate.
    pub kernel: Kernel,
    /// Least time for a block of 2 MiB, work and use together; `None` if the budget was spent before.
    pub nanoseconds: Option<u64>,
    /// Whether this is the one of its work and use.
    pub chosen: bool,
}

/// What [`calibrate`] found.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Clear and copy for near use, then clear and copy for whole use.
    candidates: [Candidates; 4],
    /// Of clear and of copy.
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

    /// What the calibration took in all, by its clock.
    pub fn nanoseconds(&self) -> u64 {
        self.spent
    }
}

/// Times the candidates of this machine on `memory` and chooses. Takes 6–7 ms on a Zen 5 VM, and begins no sample after
/// 8 ms by `clock`. It allocates nothing and keeps some KiB on the stack, so it is not for a signal handler.
///
/// `clock` gives nanoseconds since any moment. The best one is the CPU time of the thread (`CLOCK_THREAD_CPUTIME_ID`):
/// by the wall clock a single interruption by another task, often 4 ms, costs half of the budget and leaves defaults.
///
/// Give it 8 MiB, on huge pages if the blocks will be, and touch them before, since faults are paid from the budget. It
/// does not use more; with less than 4 MiB it measures nothing and leaves the defaults.
///
/// # Safety
///
/// `memory` is aligned to 4 KiB and valid for reads and writes of `len` bytes, which nobody else accesses meanwhile.
/// What they held is lost.
pub unsafe fn calibrate(memory: *mut u8, len: usize, clock: fn() -> u64) -> Calibration {
    let defaults = Kernels::default_for_this_cpu();
    let mut candidates =
        [(Work::Clear, Use::Near), (Work::Copy, Use::Near), (Work::Clear, Use::Whole), (Work::Copy, Use::Whole)]
            .map(|(what, used)| Candidates::new(what, used, defaults.pick(what, BLOCK, used)));
    let mut nt_from = [Work::Clear, Work::Copy].map(|what| defaults.nt_from(what));
    // SAFETY: the caller vouches for the memory until this returns, and the stage is gone by then.
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
    stage.rounds([&mut *clear_near, &mut *copy_near], |candidate| candidate.stays);

    for (nt_from, near) in nt_from.iter_mut().zip([&*clear_near, &*copy_near]) {
        if let Some(pairs) = stage.small(near) {
            *nt_from = smallest(pairs);
        }
    }

    for (whole, far) in [&mut *clear_whole, &mut *copy_whole].into_iter().zip(far) {
        whole.add_windows(far);
    }
    stage.rounds([clear_whole, copy_whole], |candidate| candidate.stays);
    Calibration { candidates, nt_from, spent: stage.spent() }
}
