//! What children of `fork(2)` inherit, and what becomes of it when they are gone.

use std::fmt;
use std::time::Duration;

use hugefork::seam::{HeldBlocks, Linux, Machine};

use crate::living::Living;
use crate::memory::{PLAIN, ProgramMemory};

/// So many faults for each block are worth a look at all of them, and fewer than this are worth none.
const FAULTS: u64 = 2;
const FEW: u64 = 64;

/// For so long blocks are demoted at once.
const DEMOTION_NS: u64 = 1_000_000;

/// About so many blocks tell whether it is worth to look at all.
const SAMPLES: usize = 32;

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
        // Who is gone makes room for who comes.
        let now = self.region.now();
        self.lives.epoch(&self.living, now);
        Inherited { held, _living: Living::begin(&self.living, now) }
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
        // Who is gone by now has lived until now.
        let now = self.region.now();
        let epoch = self.lives.epoch(&self.living, now);
        let from = match self.round {
            Some(from) => from,
            None => {
                let cow_mappings = self.region.cow_mappings() as u64;
                let faults = self.region.faults();
                let are_many = faults.wrapping_sub(self.faults) >= FEW.max(FAULTS * cow_mappings);
                let have_gone = self.living.have_gone();
                let is_worth_it = are_many && self.foresight.is_due(now);
                if !is_worth_it && !have_gone && self.living.live() {
                    return false;
                }
                // What is written from now on may be where this round has been: it counts for the next.
                self.faults = faults;
                self.foresight.begin_round(now, epoch, self.high);
                let region = &self.region;
                let step = (self.high / SAMPLES).max(1);
                let some = (0..self.high).step_by(step).filter_map(|entry| Some((entry, region.private_pages(entry)?)));
                if !self.foresight.is_worth_a_look(some, now) && !have_gone && self.living.live() {
                    return false;
                }
                0
            }
        };
        self.round = self.region.maintain(from, &mut self.foresight).filter(|&next| next < self.high);
        self.keeping.note(self.region.promoted(), epoch.map(|epoch| epoch.began));
        self.round.is_some()
    }

    /// Drops pages that were copied for writers while children live, and that equal again what the children have: for
    /// about a millisecond, and a fiftieth of a processor in all. True if more is to be done at once. It finds what is
    /// worth it by itself, if it is called some times a second.
    pub fn uncopy(&mut self) -> bool {
        if !self.living.live() || !self.is_shared() {
            self.uncopying.rest();
            return false;
        }
        self.uncopying.work(&self.region, self.high)
    }

    /// Goes back to pages where blocks were promoted that have changed little since, while children live: for about a
    /// millisecond, one block at least. Who uses such a block waits for half of one. For when memory is short
    /// ([`ProgramMemory::save_memory`]). True if not all was looked at; the next call goes on there.
    pub fn demote(&mut self) -> bool {
        let began = self.region.now();
        while self.may_demote() && self.demoting < self.high {
            self.counts.demoted += u64::from(self.region.demote(self.demoting));
            self.demoting += 1;
            if self.region.now().saturating_sub(began) >= DEMOTION_NS {
                return true;
            }
        }
        self.demoting = 0;
        false
    }

    /// Whether there are blocks that [`ProgramMemory::demote`] may find worth it.
    pub fn may_demote(&self) -> bool {
        self.region.may_demote()
    }

    /// What children's lives may have the program take, in percent of what it takes with plain pages, which are copied
    /// one by one; none: whatever saves time, as it is without this call. Each block that is promoted keeps to that, as
    /// far as can be foreseen. With 0 nothing is promoted; what lies between counts as 100.
    pub fn limit_promotions(&mut self, percent: Option<u32>) {
        self.foresight.set_limit(percent);
    }

    /// For how long what children held is worth to be kept for the next ones, once there is nothing more to do
    /// ([`ProgramMemory::trim`]): ten seconds, or until the next are late that come at least every two minutes.
    pub fn keeps_for(&self) -> Duration {
        Duration::from_nanos(self.keeping.how_long())
    }

    /// Whether anything is shown through private mappings still.
    pub fn is_shared(&self) -> bool {
        self.region.cow_mappings() > 0
    }
}

impl<S: Machine> fmt::Debug for Inherited<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inherited").field("blocks", &self.held.count()).finish_non_exhaustive()
    }
}
