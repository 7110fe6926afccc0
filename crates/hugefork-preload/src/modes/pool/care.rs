//! What the worker does: it promotes, writes back, makes huge pages of what is full, and saves memory where it is
//! short.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hugefork_program::{Full, ProgramMemory};

use super::super::types::{Growth, Maintained};
use super::engine::{Held, MEMORY, let_others_go_first, with};
use super::state::{END, IS_FORKING, IS_SHORT, NEEDS_COLLAPSE, Role, role};
use crate::config;
use crate::environment::Children;
use crate::proc::shortage::{self, Shortage};
use crate::proc::usage::{now_ns, page_faults};
use crate::stats::own as stats;
use crate::stats::own::{Times, Word};
use crate::threads::thread;
use crate::{BASE_PAGE, HUGE_PAGE};

/// Whether the worker has something to do about memory that grows.
pub(in crate::modes) fn wants_worker() -> bool {
    NEEDS_COLLAPSE.load(Ordering::Relaxed) && role() == Role::Owner
}

/// Nobody lives any more for whom this was held. The thread that forks has the lock already, and keeps all others out.
pub(crate) fn gone(held: Held) {
    MEMORY.with(|_| drop(held));
}

/// For so long at most it is not looked who lives no more, and how short memory is.
const UNLOOKED_NS: u64 = 5_000_000;

/// The same of memory that is not short soon.
const UNLOOKED_WHERE_THERE_IS_PLENTY_NS: u64 = 20_000_000;

/// Looks after what children share or have shared.
pub(in crate::modes) fn maintain() -> Maintained {
    if role() != Role::Owner || END.load(Ordering::Acquire) == 0 {
        return Maintained::All;
    }
    let began = now_ns();
    let mut is_over = false;
    while !is_over && now_ns().wrapping_sub(began) < UNLOOKED_NS {
        save_memory();
        // A round at most; in between, others have their turn.
        let_others_go_first();
        is_over = with(ProgramMemory::maintain) != Some(true);
        if !is_over {
            // Who waits for memory that is held waits for this thread to run. With a short rest before each
            // round, it has its share of the processor to itself again when it holds some.
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
        }
    }
    let mut has_more = config::children() == Children::Share;
    while has_more && now_ns().wrapping_sub(began) < UNLOOKED_NS {
        let_others_go_first();
        has_more = with(ProgramMemory::uncopy) == Some(true);
    }
    let (is_shared, may_demote) = with(|engine| {
        tell(engine);
        (engine.is_shared(), engine.may_demote())
    })
    .unwrap_or_default();
    // Memory that may soon be short is looked at as often as what is written.
    let is_watched = may_demote && !IS_PLENTY.load(Ordering::Relaxed);
    match is_shared {
        true if !is_over => Maintained::InPart,
        _ if is_watched => Maintained::Some,
        true if has_hardly_written() => Maintained::Quiet,
        true => Maintained::Some,
        false => Maintained::All,
    }
}

/// Fewer page faults than this are hardly any.
const HARDLY: u64 = 64;

/// Whether the program has hardly written to what is shared since it was seen to.
fn has_hardly_written() -> bool {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let faults = page_faults();
    let is_so = faults.wrapping_sub(SEEN.load(Ordering::Relaxed)) < HARDLY;
    if !is_so {
        SEEN.store(faults, Ordering::Relaxed);
    }
    is_so
}

/// For `hugefork stats`.
fn tell(engine: &ProgramMemory) {
    let counts = engine.counts();
    stats::set(Word::PagesWrittenBack, counts.pages_written_back);
    stats::set(Word::Promoted, counts.promoted);
    stats::set(Word::Demoted, counts.demoted);
    stats::set(Word::PagesGivenBack, counts.uncopied);
    stats::set(Word::SharingUsec, counts.uncopy_ns / 1000);
    stats::set(Word::PoolBytes, counts.memory);
    stats::set(Word::PoolKept, counts.kept);
    let held = engine.held();
    stats::set_times(Times::HeldByPromotion, &held.by_promotion);
    stats::set_times(Times::HeldByWriteBack, &held.by_write_back);
}

/// Whether there was so much memory at the last look that it is not short soon.
static IS_PLENTY: AtomicBool = AtomicBool::new(false);

/// Where memory is short, gives back what is kept for the next child, and then what was promoted too early; and where
/// there is hardly any left, no block is copied whose pages can be. Looks as often as the worker looks for children, or
/// less where there is plenty.
fn save_memory() {
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let now = now_ns();
    let unlooked = if IS_PLENTY.load(Ordering::Relaxed) { UNLOOKED_WHERE_THERE_IS_PLENTY_NS } else { UNLOOKED_NS };
    if now.wrapping_sub(LOOKED.load(Ordering::Relaxed)) < unlooked {
        return;
    }
    LOOKED.store(now, Ordering::Relaxed);
    let shortage = shortage();
    IS_SHORT.store(shortage == Some(Shortage::Here), Ordering::Relaxed);
    IS_PLENTY.store(shortage == Some(Shortage::NotSoon), Ordering::Relaxed);
    if let Some(shortage) = shortage {
        with(|engine| engine.save_memory(shortage > Shortage::None));
    }
    if shortage == Some(Shortage::Here) {
        trim();
        demote();
    }
}

/// How short memory is for what the pool may give back or copy; none if that is nothing.
fn shortage() -> Option<Shortage> {
    let (matters, counts) = with(|engine| {
        let counts = engine.counts();
        (engine.is_shared() || engine.may_demote() || counts.kept > 0, counts)
    })?;
    matters.then(|| shortage::now(counts.memory - counts.kept))
}

/// Has blocks go back to pages that were promoted too early, until memory is short no more or all were looked at.
fn demote() {
    let mut has_more = true;
    while has_more && !IS_FORKING.load(Ordering::Relaxed) && shortage() == Some(Shortage::Here) {
        has_more = with(ProgramMemory::demote) == Some(true);
        let_others_go_first();
    }
}

/// Makes huge pages of blocks that the program has filled, where the kernel does not by itself (`shmem_enabled`). False
/// if it was broken off.
pub(in crate::modes) fn pass(is_shared: &mut dyn FnMut() -> bool) -> bool {
    NEEDS_COLLAPSE.load(Ordering::Relaxed).then(|| collapse_what_is_full(is_shared)).is_none_or(|made| made.is_some())
}

/// Gives how many blocks have become huge; none if it was broken off.
fn collapse_what_is_full(is_shared: &mut dyn FnMut() -> bool) -> Option<usize> {
    let (mut next, mut made) = (Some(0), 0);
    while let Some(from) = next {
        let_others_go_first();
        let Some((full, rest)) = with(|engine| engine.next_full(from)) else { break };
        next = rest;
        // Without the lock: the kernel may take long.
        if let Some(full) = full.filter(Full::collapse) {
            with(|engine| engine.note_huge(&full));
            made += 1;
        }
        if is_shared() {
            return None;
        }
    }
    if made > 0 {
        stats::set(Word::PoolHuge, with(|engine| engine.huge() as u64).unwrap_or(0));
    }
    Some(made)
}

/// The page faults of this process at the last look. There are at least as many as pages in a block that is filled.
static FAULTS: AtomicU64 = AtomicU64::new(0);
const FAULTS_OF_A_BLOCK: u64 = (HUGE_PAGE / BASE_PAGE) as u64;

/// As [`pass`], for a program that grows.
pub(in crate::modes) fn grown() -> Growth {
    if role() != Role::Owner || END.load(Ordering::Acquire) == 0 {
        return Growth::OfNoConcern;
    }
    if !NEEDS_COLLAPSE.load(Ordering::Relaxed) {
        return Growth::None;
    }
    let faults = page_faults();
    if faults.wrapping_sub(FAULTS.load(Ordering::Relaxed)) < FAULTS_OF_A_BLOCK {
        return Growth::None;
    }
    FAULTS.store(faults, Ordering::Relaxed);
    let mut is_forking = || IS_FORKING.load(Ordering::Relaxed) || thread::are_unwanted();
    if collapse_what_is_full(&mut is_forking).is_some_and(|made| made > 0) { Growth::Some } else { Growth::None }
}

/// As [`pass`]: for how long nothing may happen until the worker leaves.
pub(in crate::modes) fn patience() -> Duration {
    with(|engine| engine.keeps_for()).unwrap_or_default()
}

/// Nothing has happened for long: gives back what was kept for the next child.
pub(in crate::modes) fn trim() {
    while role() == Role::Owner && !IS_FORKING.load(Ordering::Relaxed) && with(ProgramMemory::trim) == Some(true) {
        let_others_go_first();
    }
    with(|engine| tell(engine));
}
