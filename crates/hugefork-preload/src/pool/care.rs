//! The worker's work: it writes back pages that children have shared, makes huge pages of full blocks, and gives memory
//! back to the system that nobody holds any more.

use std::sync::atomic::{AtomicU64, Ordering};

use hugefork_program::{Full, ProgramMemory};

use super::engine::{Held, MEMORY, let_others_go_first, with};
use super::state::{IS_FORKING, Role, is_owner, role};
use crate::proc::usage::{now_ns, page_faults};
use crate::{BASE_PAGE, HUGE_PAGE};

/// What was done about what descendants share or have shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maintained {
    /// Nothing is shared any more.
    All,
    /// What can be done now.
    Some,
    /// Some of that. What nobody holds any more is better given up before it goes on.
    InPart,
}

/// Nobody lives any more for whom this was held. The thread that forks has the lock already, and keeps all others out.
pub(crate) fn gone(held: Held) {
    MEMORY.with(|_| drop(held));
}

/// Children that have ended are looked for at least so often.
const AT_ONCE_NS: u64 = 5_000_000;

/// Looks after what children share or have shared.
pub(crate) fn maintain() -> Maintained {
    if !is_owner() {
        return Maintained::All;
    }
    let began = now_ns();
    let mut is_over = false;
    while !is_over && now_ns().wrapping_sub(began) < AT_ONCE_NS {
        // A round at most; in between, others have their turn.
        let_others_go_first();
        is_over = with(ProgramMemory::maintain) != Some(true);
        if !is_over {
            // Who waits for memory that is held waits for this thread to run. With a short rest before each
            // round, it has its share of the processor to itself again when it holds some.
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
        }
    }
    match with(|engine| engine.is_shared()).unwrap_or(false) {
        true if !is_over => Maintained::InPart,
        true => Maintained::Some,
        false => Maintained::All,
    }
}

/// Makes huge pages of blocks that the program has filled. Gives how many; none if it was broken off.
pub(crate) fn collapse_what_is_full(is_shared: &mut dyn FnMut() -> bool) -> Option<usize> {
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
    Some(made)
}

/// There are at least as many page faults as pages in a block that is filled.
const FAULTS_OF_A_BLOCK: u64 = (HUGE_PAGE / BASE_PAGE) as u64;

/// As [`collapse_what_is_full`], for a program that grows, while no child lives. Whether it has.
pub(crate) fn has_grown(is_unwanted: fn() -> bool) -> bool {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let faults = page_faults();
    if !is_owner() || faults.wrapping_sub(SEEN.load(Ordering::Relaxed)) < FAULTS_OF_A_BLOCK {
        return false;
    }
    SEEN.store(faults, Ordering::Relaxed);
    let mut is_forking = || IS_FORKING.load(Ordering::Relaxed) || is_unwanted();
    collapse_what_is_full(&mut is_forking).is_some_and(|made| made > 0)
}

/// Gives memory back to the system that nobody holds any more.
pub(crate) fn trim() {
    while role() == Role::Owner && !IS_FORKING.load(Ordering::Relaxed) && with(ProgramMemory::trim) == Some(true) {
        let_others_go_first();
    }
}
