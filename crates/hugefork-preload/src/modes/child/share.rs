//! `--children share`: gives back the private pages of a child that equal what it has inherited.
//!
//! A program that counts references, such as CPython, writes to what it only reads: the counts go up and down again,
//! and what the kernel has copied for that equals what was there before. Such a page is dropped, and the child has the
//! file's again, which it shares with all others.
//!
//! ```text
//! sleep ── page faults? ── which blocks have private pages, no more than at the last look?
//!             a piece of such a block: who writes there sleeps ── what equals its twin is dropped ── wake
//! ```
//! What it may take is limited to a share of a processor ([`Budget`]), and what came to nothing, or came again, is
//! looked at less and less often ([`CopiedPages`]).

use std::ffi::c_void;
use std::ops::Range;

use hugefork_program::{CopiedPages, Looks, UncopyBudget};
use rustix::mm::ProtFlags;

use super::marks::{self, Session};
use super::privatise::Refused;
use super::twins;
use super::userfaults::UserFaults;
use super::waiting::is_to_leave;
use crate::proc::mappings;
use crate::proc::pages::Pagemap;
use crate::proc::usage::{now_ns, page_faults, thread_ns};
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::threads::thread;
use crate::{BASE_PAGE, HUGE_PAGE};

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// So many pages are held at once, at most: to compare them takes some 30 microseconds.
const HELD: usize = 64;

/// What the thread uses of a processor.
struct Budget {
    began: u64,
    used: u64,
    limit: UncopyBudget,
}

impl Budget {
    fn new() -> Budget {
        Budget { began: now_ns(), used: thread_ns(), limit: UncopyBudget::default() }
    }

    /// For how long to sleep before the next piece of work.
    fn pause(&mut self) -> u64 {
        self.limit.pause(now_ns() - self.began, thread_ns() - self.used)
    }
}

/// What pages are given back with.
pub(super) struct Sharer {
    faults: UserFaults,
    pagemap: Pagemap,
    addresses: Range<usize>,
    blocks: &'static mut [CopiedPages],
    budget: Budget,
    /// Microseconds of this thread's that the statistics have.
    told: u64,
}

impl Sharer {
    /// None if the process may not, or has no memory for it.
    pub(super) fn open() -> Option<Sharer> {
        let (faults, pagemap) = (UserFaults::of_writers().ok()?, Pagemap::open().ok()?);
        let addresses = marks::addresses();
        let known = marks::known(size_of::<CopiedPages>())? as *mut CopiedPages;
        // SAFETY: all of the memory, which stays, and which this thread alone uses. Zeros are blocks of which nothing
        // is known.
        let blocks = unsafe { std::slice::from_raw_parts_mut(known, addresses.len() / HUGE_PAGE) };
        Some(Sharer { faults, pagemap, addresses, blocks, budget: Budget::new(), told: 0 })
    }

    /// Ends when all is left to the kernel, or nothing is inherited any more.
    pub(super) fn help(&mut self) -> Result<(), Refused> {
        let mut looks = Looks::default();
        loop {
            if !thread::sleep(looks.pause() as i64) || is_to_leave() {
                return Ok(());
            }
            if !looks.is_worth_one(page_faults()) {
                continue;
            }
            let Some(looked) = self.look()? else { return Ok(()) };
            looks.has_looked(page_faults(), looked.given > 0, looked.has_more);
        }
    }

    /// Looks at all that is inherited. None if nothing is, or the thread is to leave.
    fn look(&mut self) -> Result<Option<Looked>, Refused> {
        let (addresses, mut looked) = (self.addresses.clone(), Ok(None));
        let told = mappings::inherited(&addresses, |piece, rights| {
            let blocks = piece.start.next_multiple_of(HUGE_PAGE)..piece.end / HUGE_PAGE * HUGE_PAGE;
            if rights == READ_WRITE
                && !blocks.is_empty()
                && let Ok(so_far) = looked
            {
                looked = self.look_at(&blocks).map(|found| Some(found.and(so_far.unwrap_or_default())));
            }
        });
        looked.map(|looked| looked.filter(|_| told.is_ok() && !is_to_leave()))
    }

    /// Looks at some blocks of one mapping, within the budget, unless the thread is to leave.
    fn look_at(&mut self, blocks: &Range<usize>) -> Result<Looked, Refused> {
        let mut looked = Looked::default();
        if !self.may_go_on() || !self.count(blocks) {
            return Ok(looked);
        }
        for block in blocks.clone().step_by(HUGE_PAGE) {
            let index = self.index(block);
            if self.blocks[index].is_due() && self.may_go_on() {
                let given = self.work_on(block)?;
                self.blocks[index].was_worked_on(given);
                looked.given += u64::from(given);
            }
            looked.has_more |= self.blocks[index].has_something_to_do();
        }
        Ok(looked)
    }

    /// Sleeps until the budget allows more. False if the thread is to leave.
    fn may_go_on(&mut self) -> bool {
        let pause = self.budget.pause();
        (pause == 0 || thread::sleep(pause as i64)) && !is_to_leave()
    }

    fn index(&self, block: usize) -> usize {
        (block - self.addresses.start) / HUGE_PAGE
    }

    /// Counts the private pages of some blocks. False if the kernel cannot say.
    fn count(&mut self, blocks: &Range<usize>) -> bool {
        let (first, last) = (self.index(blocks.start), self.index(blocks.end));
        self.blocks[first..last].iter_mut().for_each(CopiedPages::begin_look);
        let counted = &mut self.blocks[first..last];
        let scanned = self.pagemap.own(blocks, |run| {
            for page in run.step_by(BASE_PAGE) {
                counted[(page - blocks.start) / HUGE_PAGE].count(1);
            }
        });
        scanned.is_ok()
    }

    /// Gives back what can be of a block, and says how many pages.
    fn work_on(&mut self, block: usize) -> Result<u16, Refused> {
        let Some(session) = Session::begin() else { return Ok(0) };
        if marks::is_left(block) || !is_inherited(&(block..block + HUGE_PAGE)) {
            return Ok(0);
        }
        let given = self.give_back(&session, block)?;
        drop(session);
        if given > 0 {
            stats::publish();
            stats::add(Word::PagesGivenBack, given.into());
        }
        // Another thread may have been there before.
        let used = thread_ns() / 1000;
        stats::add(Word::SharingUsec, used - self.told);
        self.told = used;
        Ok(given)
    }

    /// Gives back those pages of a block that equal their twins.
    fn give_back(&self, _: &Session, block: usize) -> Result<u16, Refused> {
        let range = block..block + HUGE_PAGE;
        let mut own = [0_u64; HUGE_PAGE / BASE_PAGE / 64];
        let bit = |page: usize| ((page - block) / BASE_PAGE / 64, 1 << ((page - block) / BASE_PAGE % 64));
        let told =
            self.pagemap.own(&range, |run| run.step_by(BASE_PAGE).for_each(|page| own[bit(page).0] |= bit(page).1));
        if told.is_err() || self.faults.register_writers(&range).is_err() {
            // Nothing is lost: the rest of the block is left to the kernel.
            marks::note_left(block);
            return Ok(0);
        }
        let mut given = 0;
        for piece in range.clone().step_by(HELD * BASE_PAGE) {
            let piece = piece..piece + HELD * BASE_PAGE;
            let pages = own[bit(piece.start).0];
            if pages != 0 {
                given += self.give_back_of(&piece, pages)?;
            }
        }
        twins::drop_pages(block);
        self.faults.unregister(&range).map_err(|_| Refused)?;
        Ok(given)
    }

    /// The same of a piece, of which `own` has a bit for each page that is private.
    fn give_back_of(&self, piece: &Range<usize>, own: u64) -> Result<u16, Refused> {
        let first = piece.start + own.trailing_zeros() as usize * BASE_PAGE;
        let last = piece.end - own.leading_zeros() as usize * BASE_PAGE;
        let held = first..last;
        self.faults.protect(&held).map_err(|_| Refused)?;
        let (mut given, mut at) = (0, first);
        let is_equal = |page: usize| own >> ((page - piece.start) / BASE_PAGE) & 1 == 1 && equals_its_twin(page);
        while at < last {
            let end = (at..last).step_by(BASE_PAGE).find(|page| !is_equal(*page)).unwrap_or(last);
            if at < end && drop_private(&(at..end)) {
                given += ((end - at) / BASE_PAGE) as u16;
            }
            at = end + BASE_PAGE;
        }
        self.faults.unprotect(&held).map_err(|_| Refused)?;
        Ok(given)
    }
}

/// What a look has come to.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    given: u64,
    has_more: bool,
}

impl Looked {
    /// Both together.
    fn and(self, other: Looked) -> Looked {
        Looked { given: self.given + other.given, has_more: self.has_more | other.has_more }
    }
}

/// Whether all of a range is inherited, and the program can write to it.
fn is_inherited(range: &Range<usize>) -> bool {
    let mut next = range.start;
    let told = mappings::inherited(range, |piece, rights| {
        if piece.start == next && rights == READ_WRITE {
            next = piece.end;
        }
    });
    told.is_ok() && next == range.end
}

/// Whether a private page has what the file has below it.
fn equals_its_twin(page: usize) -> bool {
    // SAFETY: both are mapped and can be read: the session sees to it that they stay. Nobody writes to either: writers
    // of the one sleep, and of the other there are none as long as this child lives.
    unsafe {
        let (own, twin) = (page as *const [u8; BASE_PAGE], twins::of(page) as *const [u8; BASE_PAGE]);
        *own == *twin
    }
}

/// Drops private pages, so that the file's are seen. False if the kernel refuses.
fn drop_private(range: &Range<usize>) -> bool {
    // SAFETY: what is seen there afterwards is the same, and nobody writes to it meanwhile.
    unsafe { hugefork_linux::advice::drop_locked(range.start as *mut c_void, range.len()) }.is_ok()
}
