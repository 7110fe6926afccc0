//! What a block will have cost by the time that the children are gone who share it: the pages that the kernel copies
//! when they are written, or a block, once it is promoted. Promotion saves the program's time. So that it takes no more
//! memory than it may, it is foreseen what plain pages would take, of each block for itself: what is written alike is
//! promoted as a whole or not at all. A part of it would take the thread's time and leave most faults, and it would
//! tear mappings, of which the next fork needs a call for each.
//!
//! ```text
//!   pages │                    . · ´ ` ·  foreseen: of those that are left, as many are written
//!         │              . ´              in each interval as in the last one
//!         │          ●  now
//!         │     ●  before
//!         └─────┴────┴──────────────────┴─ time
//!        fork        └─ children gone, as far as earlier ones tell
//! ```

use hugefork::seam::Promotions;

use crate::living::Epoch;
use crate::units::{BASE_PAGE, HUGE_PAGE};

const BLOCK_PAGES: usize = HUGE_PAGE / BASE_PAGE;

/// A block with fewer pages in the end is not promoted, whatever it may take: the copy takes as long as so many faults
/// (0.8 ms and 6 us each, for a Redis on an Intel Xeon with two CPUs). Where the children will be gone soon, it is so
/// many that must be still to come.
const LEAST: usize = BLOCK_PAGES / 4;

/// That is soon. In more time, huge pages save what the copy takes: that Redis is a tenth faster with them, and 2.6 GiB
/// of it are copied in a second.
const SOON_NS: u64 = 10_000_000_000;

/// How many pages of a block were copied at some time.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    pages: u16,
    /// Since the epoch began, in units of 2^16 ns.
    at: u32,
}

/// What was seen of a block. `before` is from the second half of the time that children have lived, or a bit older. Of
/// one that was promoted and is shared with the next child it may say too much, until it is seen anew: too little is
/// foreseen then.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    before: Seen,
    last: Seen,
}

/// Tells which blocks are worth to be promoted.
#[derive(Debug, Default)]
pub(crate) struct Foresight {
    /// What may be taken, in percent of what plain pages take; none: any amount; 0: nothing is promoted.
    limit: Option<u32>,
    blocks: Vec<Block>,
    epoch: Option<Epoch>,
    /// When the last round was that saw all blocks anew, and whether this one does.
    seen_anew: u64,
    sees_anew: bool,
    /// When the last round began.
    last_round: u64,
}

impl Foresight {
    pub(crate) fn set_limit(&mut self, percent: Option<u32>) {
        self.limit = percent;
    }

    /// Whether another round may tell something new: children have lived for half as long again as at the last one. To
    /// look at all blocks takes the time of thousands of faults.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let lived = |then: u64| self.epoch.map_or(0, |epoch| then.saturating_sub(epoch.began));
        self.limit.is_none() || 2 * lived(now) >= 3 * lived(self.last_round)
    }

    /// A round begins, which may come past so many entries.
    pub(crate) fn begin_round(&mut self, now: u64, epoch: Option<Epoch>, entries: usize) {
        let began = |epoch: Option<Epoch>| epoch.map(|epoch| epoch.began);
        if began(epoch) != began(self.epoch) {
            *self = Foresight { limit: self.limit, seen_anew: began(epoch).unwrap_or(now), ..Foresight::default() };
        }
        self.blocks.resize(entries.max(self.blocks.len()), Block::default());
        (self.epoch, self.last_round) = (epoch, now);
        let since_start = |then: u64| then.saturating_sub(began(epoch).unwrap_or(then));
        self.sees_anew = since_start(now) >= 2 * since_start(self.seen_anew);
        if self.sees_anew {
            self.seen_anew = now;
        }
    }

    /// Whether some block may be worth to be promoted, as far as some of them tell, of which each has so many pages
    /// now.
    pub(crate) fn is_worth_a_look(&mut self, some: impl IntoIterator<Item = (usize, usize)>, now: u64) -> bool {
        if self.limit.is_none() {
            return true;
        }
        let mut end = |block, pages: usize| self.foresee(block, pages.min(BLOCK_PAGES), now).0;
        let foreseen: Vec<_> = some.into_iter().map(|(block, pages)| (pages, end(block, pages))).collect();
        foreseen.into_iter().any(|(pages, end)| end >= self.least(pages, now))
    }

    /// So many pages a block must have in the end that has `pages` now: more than there are where nothing is to be
    /// promoted.
    fn least(&self, pages: usize, now: u64) -> usize {
        if self.limit == Some(0) {
            return BLOCK_PAGES + 1;
        }
        let within_limit = self.limit.map_or(0, |percent| (100 * BLOCK_PAGES).div_ceil(percent.max(100) as usize));
        let is_over_soon = self.epoch.is_some_and(|Epoch { until, .. }| (now + 1..now + SOON_NS).contains(&until));
        within_limit.max(if is_over_soon { pages + LEAST } else { LEAST })
    }

    /// How many pages of a block will have been copied in the end, of which there are `pages` now: probably, and at
    /// least, if chance brought as many new ones as it brings one time in six.
    fn foresee(&mut self, block: usize, pages: usize, now: u64) -> (usize, usize) {
        let Some(Epoch { began, until }) = self.epoch else { return (pages, 0) };
        // What came since the round began will be looked at in the next.
        let Some(block) = self.blocks.get_mut(block) else { return (pages, pages) };
        let at = u32::try_from(now.saturating_sub(began) >> 16).unwrap_or(u32::MAX);
        let round = self.last_round.saturating_sub(began) >> 16;
        if self.sees_anew && u64::from(block.last.at) < round {
            *block = Block { before: block.last, last: Seen { pages: pages as u16, at } };
        }
        let Seen { pages: before, at: then } = block.before;
        let (new, rest) = (pages.saturating_sub(usize::from(before)), until.saturating_sub(now) >> 16);
        let after = |new| pages_after(pages, new, u64::from(at.saturating_sub(then)), rest);
        // What is written once, right after the fork, would tell that more will be.
        (after(new), if then > 0 { after(new - new.isqrt()) } else { pages })
    }
}

impl Promotions for Foresight {
    fn may_be_promoted(&mut self, entry: usize, pages: usize, now: u64) -> bool {
        self.limit.is_none() || self.foresee(entry, pages.min(BLOCK_PAGES), now).1 >= self.least(pages, now)
    }
}

/// Of a block that has so many private pages, of which `new` came in the last `interval`: how many there will be after
/// `rest` of the same unit.
fn pages_after(pages: usize, new: usize, interval: u64, rest: u64) -> usize {
    let left_before = BLOCK_PAGES - pages + new;
    if interval == 0 || left_before == 0 {
        return pages;
    }
    let written = new as f64 / left_before as f64;
    let intervals = rest as f64 / interval as f64;
    // A power is more than a library without libm has: whole intervals, and a part of one.
    let whole = intervals.min(1e6) as i32;
    let stays = (1.0 - written).powi(whole) * (1.0 - written * (intervals - f64::from(whole)).clamp(0.0, 1.0));
    BLOCK_PAGES - ((BLOCK_PAGES - pages) as f64 * stays) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::living::{Lives, Living, LivingChildren};

    const MS: u64 = 1_000_000;

    #[test]
    fn pages_come_as_they_came_until_none_is_left() {
        assert_eq!(pages_after(20, 20, 10, 0), 20, "nothing more, in no time");
        assert_eq!(pages_after(20, 0, 10, 1000), 20, "nothing new");
        assert_eq!(pages_after(256, 256, 10, 10), 384, "half of the other half");
        assert_eq!(pages_after(256, 256, 10, 5), 320);
        assert_eq!(pages_after(20, 20, 10, u64::MAX), 512);
        assert_eq!((pages_after(512, 0, 10, 10), pages_after(7, 7, 0, 10)), (512, 7));
        // A hundred pages that are written again and again: 90 were there, and ten have come.
        assert!(pages_after(100, 10, 10, 20) < 125);
    }

    /// What a save took.
    struct Taken {
        /// With plain pages, and with promotions; in pages.
        plain: usize,
        all: usize,
        /// Pages that were copied one by one of blocks that were promoted, and those blocks.
        early: usize,
        promoted: usize,
    }

    /// What is known from one save to the next.
    #[derive(Default)]
    struct Known {
        foresight: Foresight,
        children: Arc<LivingChildren>,
        remembered: Lives,
    }

    impl Known {
        fn with_limit(percent: u32) -> Known {
            let mut known = Known::default();
            known.foresight.set_limit(Some(percent));
            known
        }
    }

    /// A child lives for so long, from `start` on. In each millisecond some random pages of a hundred blocks are
    /// written, and each ten milliseconds there is a round.
    fn save(known: &mut Known, start: u64, writes: usize, lives: u64) -> Taken {
        const BLOCKS: usize = 100;
        let Known { foresight, children, remembered } = known;
        let living = Living::begin(children, start);
        let mut random = 88_172_645_463_325_252_u64;
        let mut written = vec![[false; BLOCK_PAGES]; BLOCKS];
        let (mut early, mut is_promoted) = (0, [false; BLOCKS]);
        let pages_of = |block: &[bool; BLOCK_PAGES]| block.iter().filter(|page| **page).count();
        for ms in 1..=lives {
            for _ in 0..writes {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                written[random as usize % BLOCKS][(random >> 32) as usize % BLOCK_PAGES] = true;
            }
            if ms % 10 > 0 {
                continue;
            }
            let now = start + ms * MS;
            foresight.begin_round(now, remembered.epoch(children, now), BLOCKS);
            let some = (0..BLOCKS).filter(|&block| !is_promoted[block]).step_by(7);
            if !foresight.is_worth_a_look(some.map(|block| (block, pages_of(&written[block]))), now) {
                continue;
            }
            for block in (0..BLOCKS).filter(|&block| !is_promoted[block]).collect::<Vec<_>>() {
                let pages = pages_of(&written[block]);
                if foresight.may_be_promoted(block, pages, now) && pages >= 20 {
                    is_promoted[block] = true;
                    early += pages;
                }
            }
        }
        drop(living);
        assert_eq!(remembered.epoch(children, start + lives * MS), None);
        let plain = || written.iter().map(pages_of);
        let all = plain().zip(is_promoted).map(|(plain, promoted)| if promoted { BLOCK_PAGES } else { plain });
        let promoted = is_promoted.iter().filter(|promoted| **promoted).count();
        Taken { plain: plain().sum(), all: all.sum(), early, promoted }
    }

    #[test]
    fn what_is_taken_stays_within_the_limit_at_any_rate() {
        for writes in [10, 100, 200, 400, 1000, 3000] {
            let mut known = Known::with_limit(115);
            for nth in 0..4 {
                let taken = save(&mut known, (1 + 3_000 * nth) * MS, writes, 400 + 20 * nth);
                let Taken { plain, all, early, promoted } = taken;
                assert!(all * 100 <= plain * 115, "{writes} writes a ms, save {nth}: {all} of {plain} pages");
                assert!(writes > 10 || promoted == 0, "{writes} writes a ms, save {nth}: {promoted} for nothing");
                // Where nearly all is written, it is copied as a whole, and soon, once it is known how long that takes.
                let is_soon = promoted > 90 && early < 200 * promoted;
                assert!(is_soon || nth == 0 || !(400..=1000).contains(&writes), "{writes}, {nth}: {promoted}, {early}");
            }
        }
    }

    /// What can be promoted only in part, within the limit, is not promoted at all.
    #[test]
    fn blocks_that_are_written_alike_are_promoted_together_or_not_at_all() {
        for (writes, limit, are_all) in [(150, 115, false), (200, 115, false), (200, 150, true), (400, 115, true)] {
            let mut known = Known::with_limit(limit);
            for nth in 0..4 {
                let Taken { promoted, .. } = save(&mut known, (1 + 3_000 * nth) * MS, writes, 400);
                let is_so = if are_all { promoted > 90 } else { promoted < 10 };
                assert!(is_so || nth == 0, "{writes} writes a ms, {limit} %, save {nth}: {promoted}");
            }
        }
    }

    #[test]
    fn a_block_keeps_to_the_limit_and_is_worth_its_copy() {
        let least = |limit| Foresight { limit, ..Foresight::default() }.least(0, 0);
        assert_eq!([Some(50), Some(100), Some(115), Some(150), Some(1000)].map(least), [512, 512, 446, 342, 128]);
        assert_eq!((least(None), least(Some(0))), (128, 513));
    }

    #[test]
    fn where_children_will_be_gone_soon_the_copy_must_save_as_many_faults_as_it_takes() {
        let epoch = Some(Epoch { began: 0, until: 20_000 * MS });
        let foresight = Foresight { limit: Some(115), epoch, ..Foresight::default() };
        let least = |now| [0, 318, 319, 400, 512].map(|pages| foresight.least(pages, now));
        assert_eq!(least(15_000 * MS), [446, 446, 447, 528, 640]);
        assert_eq!(least(19_999 * MS), least(15_000 * MS));
        assert_eq!(least(5_000 * MS), [446; 5], "huge pages pay later");
        assert_eq!(least(20_000 * MS), [446; 5], "nobody knows for how long they will still live");
    }

    #[test]
    fn without_a_limit_all_may_be_promoted() {
        let mut foresight = Foresight::default();
        foresight.begin_round(10, Some(Epoch { began: 5, until: 10 }), 1);
        assert!(foresight.may_be_promoted(0, 20, 10));
        foresight.set_limit(Some(115));
        assert!(!foresight.may_be_promoted(0, 20, 10));
        // One that came since the round began.
        assert!(!foresight.may_be_promoted(7, 20, 10));
    }
}
