//! Un-copy: which blocks are worth a look at each of their copied pages, since those may equal what children have, and
//! what that may take of a processor. What came to nothing, or came again, is looked at less and less often.
//!
//! ```text
//! pause ── page faults? ── which blocks have copied pages, no more than at the last look?
//!             those of such a block: what equals is dropped
//! ```
//! A child does the same with what it has inherited (hugefork-preload, `modes/child/share.rs`).

use hugefork::seam::{Machine, ProgramRegion};

/// So many pages that were not there before are worth it at once.
const MANY: u16 = 32;
/// The most looks that a block waits for.
const LONGEST_WAIT: u8 = 64;
/// A block whose pages have become more or less at so many looks will not come to rest.
const RESTLESS: u8 = 8;

/// What it may take of a processor, as one in so many.
const SHARE: u64 = 50;
/// What it may save up of that.
const SAVED_NS: u64 = 500_000_000;

/// How long to wait between two looks: so long, and twice as long after each that was in vain, up to the longest.
const SHORTEST_NS: u64 = 250_000_000;
const LONGEST_NS: u64 = 1_000_000_000;

/// So many page faults are worth a look.
const FAULTS: u64 = 64;

/// For so long the program's memory may be at work for this at once.
const AT_ONCE_NS: u64 = 1_000_000;

/// What is known of the copied pages of a block. All of it is zero at first.
///
/// ```
/// let mut block = hugefork_program::CopiedPages::default();
/// block.count(100);
/// assert!(!block.is_due(), "there may be more at the next look");
/// block.begin_look();
/// block.count(100);
/// assert!(block.is_due());
/// block.was_worked_on(100);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CopiedPages {
    /// How many there are at this look, and at the one before.
    now: u16,
    before: u16,
    /// Those that were left when it was last worked on: they differed.
    rest: u16,
    /// So many looks there were since, and so many there are to be.
    waited: u8,
    wait: u8,
}

impl CopiedPages {
    /// There are so many more at this look.
    pub fn count(&mut self, pages: u16) {
        self.now += pages;
    }

    /// A look begins, at which none was counted yet.
    pub fn begin_look(&mut self) {
        self.now = 0;
    }

    fn new_pages(self) -> u16 {
        self.now.saturating_sub(self.rest)
    }

    /// Whether it is worth a look at each page. To be asked once at each look.
    pub fn is_due(&mut self) -> bool {
        let comes_to_rest = self.now == self.before;
        self.before = self.now;
        if self.now == 0 {
            *self = CopiedPages::default();
            return false;
        }
        self.waited = self.waited.saturating_add(1);
        let is_worth_it =
            self.new_pages() >= MANY || self.new_pages() > 0 && self.waited >= self.wait || self.waited >= LONGEST_WAIT;
        is_worth_it && (comes_to_rest || self.waited >= RESTLESS)
    }

    /// So many of its pages were dropped.
    pub fn was_worked_on(&mut self, dropped: u16) {
        self.wait = if dropped >= MANY { 1 } else { (2 * self.wait).clamp(1, LONGEST_WAIT) };
        self.rest = self.now.saturating_sub(dropped);
        (self.before, self.waited) = (self.rest, 0);
    }

    /// Whether there is more to do about it than to wait for new page faults.
    pub fn has_something_to_do(self) -> bool {
        self.new_pages() > 0
    }
}

/// When to look at all blocks: some page faults after the last time, and less often where that is in vain.
///
/// ```
/// let mut looks = hugefork_program::Looks::default();
/// let first = looks.pause();
/// assert!(!looks.is_worth_one(3), "hardly a page fault");
/// assert!(looks.pause() > first && looks.is_worth_one(1000));
/// looks.has_looked(1000, true, false);
/// assert_eq!(looks.pause(), first);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    pause: u64,
    /// The page faults at the last look, whether there were many before this one, and whether that one left something.
    faults: u64,
    is_busy: bool,
    has_more: bool,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { pause: SHORTEST_NS, faults: 0, is_busy: false, has_more: false }
    }
}

impl Looks {
    /// For how long to wait before the next, in nanoseconds.
    pub fn pause(&self) -> u64 {
        self.pause
    }

    /// Whether the pause is over for a look, with so many page faults of the process. Otherwise there is another pause.
    pub fn is_worth_one(&mut self, faults: u64) -> bool {
        self.is_busy = faults.wrapping_sub(self.faults) >= FAULTS;
        let is_worth_it = self.is_busy || self.has_more;
        if !is_worth_it {
            self.pause = LONGEST_NS.min(2 * self.pause);
        }
        is_worth_it
    }

    /// All blocks were looked at, with so many page faults by now, those of this thread among them. Pages may have been
    /// dropped, and there may be more to do.
    pub fn has_looked(&mut self, faults: u64, has_dropped: bool, has_more: bool) {
        self.pause = if self.is_busy || has_dropped { SHORTEST_NS } else { LONGEST_NS.min(2 * self.pause) };
        (self.faults, self.has_more) = (faults, has_more);
    }
}

/// What may be used of a processor: a fiftieth, of which half a second can be saved up.
///
/// ```
/// let mut budget = hugefork_program::UncopyBudget::default();
/// assert_eq!(budget.pause(1_000_000_000, 20_000_000), 0, "20 ms in a second");
/// assert!(budget.pause(1_000_000_000, 21_000_000) > 0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct UncopyBudget {
    /// What was not used in time.
    lost: u64,
}

impl UncopyBudget {
    /// For how long to wait before the next piece of work, when so much time has passed in all and so much of it was
    /// used, in nanoseconds.
    pub fn pause(&mut self, passed: u64, used: u64) -> u64 {
        let allowed = (passed / SHARE).saturating_sub(self.lost);
        self.lost += allowed.saturating_sub(used + SAVED_NS);
        used.saturating_sub(allowed) * SHARE
    }
}

/// What is known from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Uncopying {
    blocks: Vec<CopiedPages>,
    budget: UncopyBudget,
    /// When it began, as soon as it has.
    began: Option<u64>,
    /// Nanoseconds of a processor so far, and pages that were dropped.
    pub(crate) used: u64,
    pub(crate) dropped: u64,
    looks: Looks,
    /// When the next look is due.
    next_look: u64,
    /// Where the look goes on that has begun, and what it has come to.
    at: Option<usize>,
    has_dropped: bool,
    has_more: bool,
}

impl Uncopying {
    /// Nothing is shared: there is nothing to look at, and what was known is of children that are gone.
    pub(crate) fn rest(&mut self) {
        self.at = None;
        self.blocks.clear();
    }

    /// Drops what equals what children have, of so many entries of a region, for about a millisecond. True if more is
    /// to be done at once.
    pub(crate) fn work<S: Machine>(&mut self, region: &ProgramRegion<S>, entries: usize) -> bool {
        let now = region.now();
        let began = *self.began.get_or_insert(now);
        if self.at.is_none() && !self.begins_look(now, region.faults(), entries) {
            return false;
        }
        if self.budget.pause(now - began, self.used) > 0 {
            return false;
        }
        let start = region.thread_time();
        let mut used = 0;
        while let Some(entry) = self.at.filter(|_| used < AT_ONCE_NS) {
            let block = &mut self.blocks[entry];
            block.begin_look();
            block.count(region.private_pages(entry).unwrap_or(0) as u16);
            if block.is_due() {
                let dropped = region.uncopy(entry);
                block.was_worked_on(dropped as u16);
                self.dropped += dropped as u64;
                self.has_dropped |= dropped > 0;
            }
            self.has_more |= block.has_something_to_do();
            self.at = Some(entry + 1).filter(|&next| next < self.blocks.len());
            used = region.thread_time().saturating_sub(start);
        }
        self.used += used;
        if self.at.is_none() {
            self.looks.has_looked(region.faults(), self.has_dropped, self.has_more);
            self.next_look = now + self.looks.pause();
        }
        self.at.is_some()
    }

    /// Whether a look is due, of so many entries.
    fn begins_look(&mut self, now: u64, faults: u64, entries: usize) -> bool {
        if now < self.next_look || entries == 0 {
            return false;
        }
        if !self.looks.is_worth_one(faults) {
            self.next_look = now + self.looks.pause();
            return false;
        }
        self.blocks.resize(entries, CopiedPages::default());
        (self.at, self.has_dropped, self.has_more) = (Some(0), false, false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a block that has so many copied pages at each look, of which `equal` says how many are dropped.
    fn looks(pages: impl IntoIterator<Item = u16>, equal: impl Fn(u16) -> u16) -> Vec<usize> {
        let (mut block, mut worked) = (CopiedPages::default(), Vec::new());
        for (nth, pages) in pages.into_iter().enumerate() {
            block.begin_look();
            block.count(pages);
            if block.is_due() {
                block.was_worked_on(equal(pages));
                worked.push(nth);
            }
        }
        worked
    }

    #[test]
    fn what_is_still_written_is_let_be_and_then_dropped() {
        assert_eq!(looks([100, 200, 300, 300], |pages| pages), [3]);
        // It will not come to rest.
        assert_eq!(looks((1..=9).map(|nth| 50 * nth), |_| 0)[0], 7);
    }

    #[test]
    fn what_comes_again_is_dropped_less_and_less_often() {
        let every_other = (0..400).map(|_| 3);
        let worked = looks(every_other, |pages| pages);
        assert!(worked.len() < 20, "{worked:?}");
        let gaps: Vec<usize> = worked.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps.is_sorted(), "{gaps:?}");
    }

    #[test]
    fn what_differs_is_looked_at_seldom() {
        let worked = looks((0..400).map(|_| 500), |_| 0);
        assert!((2..10).contains(&worked.len()), "{worked:?}");
    }

    #[test]
    fn nothing_is_due_where_nothing_was_copied() {
        assert_eq!(looks([0, 0, 0], |_| panic!("asked")), []);
    }

    #[test]
    fn it_takes_its_share_and_saves_some_up() {
        let mut budget = UncopyBudget::default();
        let second = 1_000_000_000;
        assert_eq!(budget.pause(second, second / SHARE), 0);
        assert_eq!(budget.pause(second, second / SHARE + 1000), 1000 * SHARE);
        // An hour of nothing is no hour of work.
        assert_eq!(budget.pause(3600 * second, second / SHARE), 0);
        let used = second / SHARE + SAVED_NS;
        assert_eq!(budget.pause(3600 * second, used), 0);
        assert_eq!(budget.pause(3600 * second, used + 1000), 1000 * SHARE);
    }

    #[test]
    fn who_is_idle_is_looked_at_less_often() {
        let mut looks = Looks::default();
        assert!(looks.is_worth_one(100), "it has faulted");
        looks.has_looked(120, false, false);
        let pauses = [(); 6].map(|()| {
            assert!(!looks.is_worth_one(130), "ten page faults are worth no look");
            looks.pause()
        });
        assert_eq!(pauses[..2], [2 * SHORTEST_NS, LONGEST_NS]);
        assert_eq!(pauses[5], LONGEST_NS);
        assert!(looks.is_worth_one(200));
        looks.has_looked(200, true, true);
        assert_eq!(looks.pause(), SHORTEST_NS);
        assert!(looks.is_worth_one(200), "there was more to do");
    }
}
