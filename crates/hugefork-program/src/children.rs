//! What children of `fork(2)` inherit, and what becomes of it when they are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hugefork::seam::{HeldBlocks, Linux, Machine, Promotions};

use crate::memory::{PLAIN, ProgramMemory};
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// A look at all blocks takes a quarter of the time of so many faults for each.
const FAULTS: u64 = 16;

/// A block is promoted once so many of its pages were copied: it then takes at most a seventh more memory than its
/// copied pages, and the copy saves the write-back of all of them.
const PROMOTED_PAGES: usize = HUGE_PAGE / BASE_PAGE / 8 * 7;

/// Promotes what is nearly all copied.
struct Dense;

impl Promotions for Dense {
    fn may_be_promoted(&mut self, _entry: usize, pages: usize) -> bool {
        pages >= PROMOTED_PAGES
    }
}

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

    /// Looks after some of what children share or shared, for about a millisecond, if there is reason to. True if more
    /// is to be looked at at once.
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
                let faults = self.region.faults();
                let are_many = faults.wrapping_sub(self.faults) >= FAULTS * self.region.cow_mappings() as u64;
                let have_gone = self.living.have_gone.swap(false, Ordering::Relaxed);
                if !are_many && !have_gone && self.living.forks.load(Ordering::Relaxed) > 0 {
                    return false;
                }
                // What is written from now on may be where this round has been: it counts for the next.
                self.faults = faults;
                0
            }
        };
        self.round = self.region.maintain(from, &mut Dense).filter(|&next| next < self.high);
        self.round.is_some()
    }

    /// Whether anything is shown through private mappings still.
    pub fn is_shared(&self) -> bool {
        self.region.cow_mappings() > 0
    }
}
