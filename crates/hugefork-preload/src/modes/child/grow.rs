//! `--children grow`: looks where the child writes densely, privatises those blocks, and goes ahead of streams.
//!
//! ```text
//! sleep ── many page faults? ── which inherited blocks have private pages, and how many?
//!             some of them: the block is privatised
//!             all over, up to here: a stream; the next block is held ahead
//!                 ──▶ somebody needs it: that one is privatised, and others behind it; then the next is held ahead
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::mm::ProtFlags;

use super::marks::{self, Session};
use super::privatise::{Batch, HEADS, HeldAhead, MOST, Privatiser, Refused};
use super::waiting::{FAULTS, Pauses, is_to_leave};
use crate::proc::mappings;
use crate::proc::shortage::{self, Shortage};
use crate::proc::usage::{now_ns, page_faults};
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{BASE_PAGE, HUGE_PAGE};

/// A block with so many private pages is worth its copy, with more than that there are too few left to copy.
const DENSE: usize = 64;
const FULL: usize = 448;

/// The same in a process whose parent is gone: it has time, and will fork in its turn.
const DENSE_ALONE: usize = 16;
const FULL_ALONE: usize = usize::MAX;

/// A stream has written so many blocks, one after the other.
const STREAM: usize = 2;
/// So many blocks are privatised ahead of a stream, at most.
const AHEAD: usize = 16;

/// A stream that is not there for so long has ended.
const GONE_NS: u64 = 300_000_000;

/// Between two looks at how many mappings there are, so many blocks are privatised.
const UNLOOKED: usize = 32;
/// Between two looks at how much memory there is: others take some, too.
const UNLOOKED_NS: u64 = 5_000_000;

/// Where a stream of writes is expected to go on.
#[derive(Clone, Debug)]
struct Head {
    /// The next block: held ahead, unless some are to be privatised.
    block: usize,
    is_downwards: bool,
    /// So many blocks are privatised when it comes.
    credit: usize,
    /// So many of those are to do.
    to_do: usize,
    is_held: bool,
    /// Where its pages lie then: one of two, since the next is held ahead before this one is privatised.
    slot: usize,
    /// The blocks that it can go to.
    limit: Range<usize>,
    /// A block at which the stream began by reading. If it was written since, it was no mere reader.
    probe: Option<usize>,
    since: u64,
}

impl Head {
    /// The block so many further on.
    fn after(&self, count: usize) -> usize {
        let by = count * HUGE_PAGE;
        if self.is_downwards { self.block.wrapping_sub(by) } else { self.block + by }
    }

    fn is_within(&self, block: usize) -> bool {
        self.limit.contains(&block) && !marks::is_left(block)
    }

    /// The next blocks in its way, `most` at most, up to one where another waits.
    fn batch(&self, most: usize, others: &[Option<Head>]) -> Batch {
        let is_free = |block: usize| self.is_within(block) && !is_held_ahead(others, block);
        let count = (0..most).take_while(|nth| is_free(self.after(*nth))).count();
        let places = if self.is_downwards {
            self.after(count) + HUGE_PAGE..self.block + HUGE_PAGE
        } else {
            self.block..self.after(count)
        };
        Batch { places, is_downwards: self.is_downwards, slot: self.is_held.then_some(self.slot) }
    }
}

/// Whether one of some heads waits at a block. Nobody else may work on that: if he had to bring its pages back, the
/// program would write to them, and the head would not know.
fn is_held_ahead(heads: &[Option<Head>], block: usize) -> bool {
    heads.iter().flatten().any(|head| head.is_held && head.block == block)
}

pub(super) struct Grower {
    privatiser: Privatiser,
    heads: [Option<Head>; HEADS],
    /// The address of a number for each block: its private pages at the last look.
    counts: usize,
    addresses: Range<usize>,
    privatised: usize,
    looked_at: usize,
    looked: u64,
    is_short: bool,
    are_mappings_short: bool,
    /// Says whether the parent is gone: the process is a daemon then.
    is_orphan: fn() -> bool,
    is_alone: bool,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    inherited: bool,
    something_to_do: bool,
}

impl Grower {
    /// None if this process cannot be helped.
    pub(super) fn new(privatiser: Privatiser, is_orphan: fn() -> bool) -> Option<Grower> {
        // Its descriptor is in this thread's table, so others find it in the process's memory.
        stats::publish();
        let addresses = marks::addresses();
        let counts = marks::known(size_of::<AtomicU16>())?;
        Some(Grower {
            privatiser,
            heads: [const { None }; HEADS],
            counts,
            addresses,
            privatised: 0,
            looked_at: 0,
            looked: 0,
            is_short: false,
            are_mappings_short: false,
            is_orphan,
            is_alone: false,
        })
    }

    fn count(&self, block: usize) -> &AtomicU16 {
        // SAFETY: a number of the mapping, which stays.
        unsafe { &*((self.counts as *const AtomicU16).add((block - self.addresses.start) / HUGE_PAGE)) }
    }

    fn private_at(&self, block: usize) -> usize {
        self.count(block).load(Ordering::Relaxed).into()
    }

    /// Ends when nothing is inherited any more, or all is left to the kernel.
    pub(super) fn help(&mut self) -> Result<(), Refused> {
        let (mut pauses, mut faults, mut looked) = (Pauses::new(), 0, 0);
        loop {
            if is_to_leave() {
                // Whoever waits is let go of with the descriptor.
                return Ok(());
            }
            self.see_to_faults()?;
            let mut is_at_work = false;
            for nth in 0..HEADS {
                is_at_work |= self.go_on(nth)?;
            }
            if is_at_work {
                continue;
            }
            if self.heads.iter().any(Option::is_some) {
                if self.does_somebody_come(pauses.ns)? {
                    continue;
                }
                pauses.lengthen();
                self.give_up_old_heads()?;
            } else if self.does_somebody_come(pauses.ns)? {
                // Somebody at a block that is no longer held ahead.
                continue;
            } else {
                pauses.lengthen();
            }
            // Not more than a fifth of the time.
            let (count, began) = (page_faults(), now_ns());
            let is_alone_now = (self.is_orphan)();
            let is_new = is_alone_now && !self.is_alone;
            self.is_alone |= is_alone_now;
            if (count.wrapping_sub(faults) < FAULTS && !is_new) || began < looked {
                continue;
            }
            faults = count;
            let seen = self.look()?;
            looked = now_ns() + 4 * (now_ns() - began);
            if !seen.inherited {
                return Ok(());
            }
            if seen.something_to_do {
                pauses = Pauses::new();
            }
        }
    }

    /// Waits for somebody to need a page, for so long at most.
    fn does_somebody_come(&self, ns: i64) -> Result<bool, Refused> {
        self.privatiser.faults.wait(ns).map_err(|_| Refused)
    }

    /// Sees to all who wait for pages.
    fn see_to_faults(&mut self) -> Result<(), Refused> {
        while let Some(fault) = self.privatiser.faults.next().map_err(|_| Refused)? {
            self.somebody_needs(fault.address / HUGE_PAGE * HUGE_PAGE, fault.is_write)?;
        }
        Ok(())
    }

    /// Somebody waits for a page of a block.
    fn somebody_needs(&mut self, block: usize, is_write: bool) -> Result<(), Refused> {
        let Some(nth) = self.heads.iter().position(|head| is_held_ahead(std::slice::from_ref(head), block)) else {
            // It was held ahead when the program did something there, or he is awake by now.
            return self.privatiser.let_in(block);
        };
        let Some(mut head) = self.heads[nth].take() else { return Ok(()) };
        let was_written = head.probe.take().is_some_and(|probe| {
            self.privatiser.private_pages(&(probe..probe + HUGE_PAGE)).is_some_and(|pages| pages >= DENSE)
        });
        if (is_write || was_written) && !self.is_memory_short() {
            head.to_do = head.credit;
            self.heads[nth] = Some(head);
            return Ok(());
        }
        self.resume(&head)?;
        if !is_write && !was_written {
            // Perhaps it reads each word before it writes it: this block will tell.
            let probe = Some(head.block);
            (head.block, head.probe, head.is_held) = (head.after(1), probe, false);
            return self.hold_ahead(nth, head);
        }
        Ok(())
    }

    /// Holds the block ahead that a stream comes to next, if that can be.
    fn hold_ahead(&mut self, nth: usize, mut head: Head) -> Result<(), Refused> {
        if !head.is_within(head.block) || marks::is_tried(head.block) || is_held_ahead(&self.heads, head.block) {
            return Ok(());
        }
        let Some(session) = Session::begin() else { return Ok(()) };
        if !head.is_within(head.block) {
            return Ok(());
        }
        self.hold_ahead_in(&session, &mut head)?;
        drop(session);
        self.heads[nth] = Some(head);
        Ok(())
    }

    /// The same in a session. What is written there already is privatised at once.
    fn hold_ahead_in(&mut self, session: &Session, head: &mut Head) -> Result<(), Refused> {
        match self.privatiser.hold_ahead(session, head.block, head.slot) {
            HeldAhead::Held => head.is_held = true,
            HeldAhead::Written => {
                let only =
                    Batch { places: head.block..head.block + HUGE_PAGE, is_downwards: false, slot: Some(head.slot) };
                let privatised = self.privatiser.privatise(session, &only)?;
                self.note(privatised);
                head.to_do = if privatised == 0 { 0 } else { head.to_do.max(head.credit) };
                head.block = head.after(1);
            }
            HeldAhead::Refused => return Err(Refused),
        }
        Ok(())
    }

    /// Privatises some blocks that a stream will come to. False if there is nothing to do.
    fn go_on(&mut self, nth: usize) -> Result<bool, Refused> {
        let Some(head) = self.heads[nth].take_if(|head| head.to_do > 0 || !head.is_held) else { return Ok(false) };
        let session = Session::begin();
        let batch = head.batch(head.to_do.min(MOST), &self.heads);
        let (Some(session), false) = (session, batch.places.is_empty()) else {
            self.resume(&head)?;
            return Ok(true);
        };
        let wanted = batch.places.len() / HUGE_PAGE;
        let mut next = head.clone();
        (next.block, next.slot, next.is_held) = (head.after(wanted), head.slot ^ 1, false);
        next.to_do = head.to_do - wanted;
        if next.to_do == 0 {
            next.credit = AHEAD.min(2 * head.credit);
        }
        next.since = now_ns();
        // Who is through with these waits at the next.
        let goes_on = next.is_within(next.block) && !is_held_ahead(&self.heads, next.block);
        let held = if goes_on { self.hold_ahead_in(&session, &mut next) } else { Ok(()) };
        let privatised = self.privatiser.privatise(&session, &batch)?;
        self.note(privatised);
        held?;
        drop(session);
        if !goes_on || privatised < wanted {
            self.resume(&next)?;
        } else {
            self.heads[nth] = Some(next);
        }
        Ok(true)
    }

    fn resume(&self, head: &Head) -> Result<(), Refused> {
        if head.is_held { self.privatiser.let_on(head.block, head.slot) } else { Ok(()) }
    }

    fn give_up_old_heads(&mut self) -> Result<(), Refused> {
        for nth in 0..HEADS {
            if let Some(head) = self.heads[nth].take_if(|head| now_ns() - head.since > GONE_NS) {
                marks::note_tried(head.block);
                self.resume(&head)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, privatised: usize) {
        self.privatised += privatised;
        stats::add(Word::Privatised, privatised as u64);
    }

    /// Whether there is too little memory to give some away for speed, or too few mappings.
    fn is_memory_short(&mut self) -> bool {
        if self.privatised >= self.looked_at {
            self.looked_at = self.privatised + UNLOOKED;
            // Each block may cost two mappings. Near the limit, nothing could be moved back.
            self.are_mappings_short = mappings::are_mappings_short();
        }
        let now = now_ns();
        if now.wrapping_sub(self.looked) >= UNLOOKED_NS {
            self.looked = now;
            self.is_short = shortage::now(0) > Shortage::None;
        }
        self.is_short || self.are_mappings_short
    }

    /// Looks at all that is inherited.
    fn look(&mut self) -> Result<Seen, Refused> {
        let mut seen = Ok(Seen::default());
        let addresses = self.addresses.clone();
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let _ = mappings::inherited(&addresses, |there, rights| {
            let blocks = there.start.next_multiple_of(HUGE_PAGE)..there.end / HUGE_PAGE * HUGE_PAGE;
            if let Ok(so_far) = seen
                && !blocks.is_empty()
                && rights == read_write
            {
                let found = self.look_at(&blocks);
                seen = found.map(|found| Seen { inherited: true, something_to_do: so_far.something_to_do | found });
            }
        });
        seen
    }

    /// Looks at one mapping. True if there was something to do.
    fn look_at(&mut self, blocks: &Range<usize>) -> Result<bool, Refused> {
        blocks.clone().step_by(HUGE_PAGE).for_each(|block| self.count(block).store(0, Ordering::Relaxed));
        let counted = self.privatiser.pagemap.own(blocks, |run| {
            let mut from = run.start;
            while from < run.end {
                let block = from / HUGE_PAGE * HUGE_PAGE;
                let to = run.end.min(block + HUGE_PAGE);
                self.count(block).fetch_add(((to - from) / BASE_PAGE) as u16, Ordering::Relaxed);
                from = to;
            }
        });
        if counted.is_err() || self.is_memory_short() {
            return Ok(false);
        }
        let dense = if self.is_alone { DENSE_ALONE } else { DENSE };
        let (mut at, mut has_done) = (blocks.start, false);
        while at < blocks.end {
            let start = at;
            while at < blocks.end && !marks::is_left(at) && self.private_at(at) >= dense {
                at += HUGE_PAGE;
            }
            if start < at {
                self.expect(&(start..at), blocks)?;
                has_done |= self.privatise_dense(&(start..at))?;
            } else {
                at += HUGE_PAGE;
            }
        }
        Ok(has_done)
    }

    /// Blocks in a row were written densely: perhaps that goes on at one of its ends.
    fn expect(&mut self, written: &Range<usize>, limit: &Range<usize>) -> Result<(), Refused> {
        let before = |block: usize| {
            (1..=AHEAD).take_while(|nth| marks::is_privatised(block.wrapping_sub(nth * HUGE_PAGE))).count()
        };
        let behind = |block: usize| (0..AHEAD).take_while(|nth| marks::is_privatised(block + nth * HUGE_PAGE)).count();
        let len = written.len() / HUGE_PAGE;
        for is_downwards in [false, true] {
            let (block, more) = if is_downwards {
                (written.start.wrapping_sub(HUGE_PAGE), behind(written.end))
            } else {
                (written.end, before(written.start))
            };
            let credit = AHEAD.min(len + more);
            let head = Head {
                block,
                is_downwards,
                credit,
                to_do: 0,
                is_held: false,
                slot: 0,
                limit: limit.clone(),
                probe: None,
                since: now_ns(),
            };
            let is_known = self.heads.iter().flatten().any(|head| head.block == block);
            let free = self.heads.iter().position(Option::is_none);
            if let Some(nth) = free
                && credit >= STREAM
                && !is_known
            {
                self.hold_ahead(nth, Head { slot: 2 * nth, ..head })?;
            }
        }
        Ok(())
    }

    /// Privatises those blocks that are worth it. True if there were any.
    fn privatise_dense(&mut self, written: &Range<usize>) -> Result<bool, Refused> {
        let full = if self.is_alone { FULL_ALONE } else { FULL };
        let (mut at, mut has_privatised) = (written.start, false);
        while at < written.end {
            let start = at;
            let most = written.end.min(start + MOST * HUGE_PAGE);
            while at < most && !marks::is_left(at) && self.private_at(at) < full && !is_held_ahead(&self.heads, at) {
                at += HUGE_PAGE;
            }
            if start == at {
                at += HUGE_PAGE;
                continue;
            }
            let Some(session) = Session::begin() else { return Ok(has_privatised) };
            if (start..at).step_by(HUGE_PAGE).any(marks::is_left) {
                continue;
            }
            let batch = Batch { places: start..at, is_downwards: false, slot: None };
            let privatised = self.privatiser.privatise(&session, &batch)?;
            drop(session);
            self.note(privatised);
            has_privatised |= privatised > 0;
            if self.is_memory_short() {
                return Ok(has_privatised);
            }
            // Those who wait for a block that is held ahead have their turn.
            self.see_to_faults()?;
            for nth in 0..HEADS {
                self.go_on(nth)?;
            }
        }
        Ok(has_privatised)
    }
}
