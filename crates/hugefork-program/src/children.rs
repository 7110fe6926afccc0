//! What children of `fork(2)` inherit, and what becomes of it when they are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hugefork::seam::{HeldBlocks, Linux, Machine};

use crate::memory::{PLAIN, ProgramMemory};

/// How many forks blocks are held for, and whether some are over since the last look.
#[derive(Debug, Default)]
pub(crate) struct LivingChildren {
    forks: AtomicUsize,
    have_gone: AtomicBool,
}

/// Children of one fork live.
struct Living(Arc<LivingChildren>);

impl Drop for Living {
    fn drop(&mut self) {
        self.0.have_gone.store(true, Ordering::Relaxed);
        self.0.forks.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the children of one fork hold of the program's memory. Drop it when none of them lives any more, and
/// [forget](std::mem::forget) it in a child.
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
    /// Given up first: who finds that some are gone finds their blocks free.
    held: HeldBlocks<S>,
    _living: Living,
}

impl<S: Machine> Inherited<S> {
    /// Takes up what the children of another fork hold: from now on, both are given up together.
    pub fn join(&mut self, other: Inherited<S>) {
        // What else is dropped of the other says that some are gone: a round that finds nothing of theirs.
        self.held.join(other.held);
    }
}

impl<S: Machine> ProgramMemory<S> {
    /// Prepares for a fork: shows everything through private mappings, which the child inherits. Nothing may be mapped,
    /// unmapped or maintained until the fork is over. Where something else lies in the place of what was mapped here,
    /// it stays, and is the kernel's with the block around it (from Linux 6.11 on, which tells what lies where).
    pub fn before_fork(&mut self) -> Inherited<S> {
        for index in self.region.give_up_what_others_use(0..self.high) {
            self.used[index] = PLAIN;
        }
        let (held, unseen) = self.region.share(0..self.high);
        self.counts.unseen += unseen as u64;
        self.living.forks.fetch_add(1, Ordering::Relaxed);
        Inherited { held, _living: Living(self.living.clone()) }
    }

    /// Gives some of what children have shared back to the program alone, for about a millisecond, if any are gone.
    /// True if more is to be looked at at once. While they live, nothing is done: a look at the pages takes the
    /// processor from the program, and makes each copy of a page interrupt it.
    pub fn maintain(&mut self) -> bool {
        self.take_rests_away();
        self.region.tidy();
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

    /// Whether anything is shown through private mappings still.
    pub fn is_shared(&self) -> bool {
        self.region.cow_mappings() > 0
    }
}
