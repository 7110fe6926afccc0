//! The memory that children of `fork(2)` inherit, and the return of that memory when the children
//! have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hugefork::seam::{HeldBlocks, Linux, Machine};

use crate::memory::{PLAIN, ProgramMemory};

/// Number of forks whose children hold blocks, and whether some of these children have ended since the last check.
#[derive(Debug, Default)]
pub(crate) struct LivingChildren {
    forks: AtomicUsize,
    have_gone: AtomicBool,
}

/// Guard for one fork whose children live: while the guard exists, [`LivingChildren::forks`] includes that fork.
struct Living(Arc<LivingChildren>);

impl Drop for Living {
    fn drop(&mut self) {
        self.0.have_gone.store(true, Ordering::Relaxed);
        self.0.forks.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The program's memory that the children of one fork hold. Drop this value when all these children have ended. In a
/// child, [forget](std::mem::forget) the copy of this value.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(mut memory) = hugefork_program::ProgramMemory::new(64 << 20) else { return Ok(()) };
/// memory.map(4 << 20).expect("there is room");
/// let inherited = memory.before_fork(); // … fork(2), and the child comes and goes
/// drop(inherited);
/// while memory.is_shared() {
///     memory.maintain(); // as long as it takes until everything is in huge pages again
/// }
/// # Ok(())
/// # }
/// ```
pub struct Inherited<S: Machine = Linux> {
    /// This field is dropped before `_living`: when `maintain` sees that children have ended, the blocks of these
    /// children must be free already.
    _held: HeldBlocks<S>,
    _living: Living,
}

impl<S: Machine> ProgramMemory<S> {
    /// Prepares for a fork: maps all of this memory privately, so that the child inherits it. Until the fork is over,
    /// the caller must not map, unmap or maintain this memory. If the program has placed another mapping over this
    /// memory, that mapping remains, and the block around it is handed over to the kernel (from Linux 6.11 on, because
    /// earlier kernels do not report mappings).
    pub fn before_fork(&mut self) -> Inherited<S> {
        for index in self.region.give_up_what_others_use(0..self.high) {
            self.used[index] = PLAIN;
        }
        let (held, unseen) = self.region.share(0..self.high);
        self.counts.unseen += unseen as u64;
        self.living.forks.fetch_add(1, Ordering::Relaxed);
        Inherited { _held: held, _living: Living(self.living.clone()) }
    }

    /// If children have ended, returns some of the shared memory to the program alone; runs for about a millisecond.
    /// Returns true if more work is left. While all children live, this function does nothing: checking the pages would
    /// use the program's processor time, and would make each copy of a page interrupt the program.
    pub fn maintain(&mut self) -> bool {
        self.take_rests_away();
        if !self.is_shared() {
            self.round = None;
            return false;
        }
        let from = match self.round {
            Some(from) => from,
            None => {
                let have_gone = self.living.have_gone.swap(false, Ordering::Relaxed);
                if !have_gone && self.living.forks.load(Ordering::Relaxed) > 0 {
                    return false;
                }
                0
            }
        };
        self.round = self.region.maintain(from).filter(|&next| next < self.high);
        self.round.is_some()
    }

    /// Whether any block is still mapped privately.
    pub fn is_shared(&self) -> bool {
        self.region.cow_mappings() > 0
    }
}
