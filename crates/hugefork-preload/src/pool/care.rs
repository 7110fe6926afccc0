//! The worker's tasks: it writes back pages that children have shared, makes huge pages of full
//! blocks, and returns unused memory to the system.

use std::sync::atomic::{AtomicU64, Ordering};

use hugefork_linux::Descriptor;
use hugefork_program::{Full, ProgramMemory};

use super::engine::{MEMORY, Memory, let_others_go_first, with};
use super::state::{IS_FORKING, Role, is_owner, role};
use crate::proc::usage::{now_ns, page_faults};
use crate::threads::signals;
use crate::{BASE_PAGE, HUGE_PAGE};

/// The result of maintaining shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maintained {
    /// No memory is shared any more.
    All,
    /// All that is possible at the moment was done.
    Some,
    /// A part was done. Before the next part, memory without a holder should be released.
    InPart,
}

/// Forks whose descendants hold memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Living {
    pub(crate) forks: usize,
    /// Whether those of others were still alive at the last check.
    pub(crate) some_have_ended: bool,
}

/// Releases the memory of forks without living descendants.
pub(crate) fn release() -> Living {
    let release = |memory: &mut Memory| {
        let before = memory.held.len();
        memory.held.retain(|(fork, _)| memory.forks.iter().any(|forks| forks.has_descendants(*fork)));
        Living { forks: memory.held.len(), some_have_ended: memory.held.len() < before }
    };
    MEMORY.with(release).unwrap_or_default()
}

/// Whether descendants hold memory. False if this thread is already using the engine.
pub(crate) fn has_descendants() -> bool {
    signals::blocked(|| MEMORY.with(|memory| !memory.held.is_empty())).unwrap_or(false)
}

/// See [`Forks::ends`](hugefork_program::Forks::ends).
pub(crate) fn ends() -> Option<Descriptor> {
    MEMORY.with(|memory| memory.forks.as_ref()?.ends()).flatten()
}

/// Ends the wait of `thread` for [`ends`].
pub(crate) fn wake(thread: u32) {
    signals::blocked(|| MEMORY.with(|memory| memory.forks.as_ref().map(|forks| forks.wake(thread))));
}

/// Longest work before the next check for ended children.
const MAX_WORK_NS: u64 = 5_000_000;

/// Maintains the memory that children share or have shared.
pub(crate) fn maintain() -> Maintained {
    if !is_owner() {
        return Maintained::All;
    }
    let began = now_ns();
    let mut is_over = false;
    while !is_over && now_ns().wrapping_sub(began) < MAX_WORK_NS {
        // At most one round; then other threads may take the lock.
        let_others_go_first();
        is_over = with(ProgramMemory::maintain) != Some(true);
        if !is_over {
            // Threads that wait for held memory wait for this thread to run. The short rest gives it a fresh time slice
            // for the time when it holds memory.
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
        }
    }
    match with(|engine| engine.is_shared()).unwrap_or(false) {
        true if !is_over => Maintained::InPart,
        true => Maintained::Some,
        false => Maintained::All,
    }
}

/// Makes huge pages of blocks that the program has filled. Returns their number; `None` if it was interrupted.
pub(crate) fn collapse_what_is_full(is_shared: &mut dyn FnMut() -> bool) -> Option<usize> {
    let (mut next, mut made) = (Some(0), 0);
    while let Some(from) = next {
        let_others_go_first();
        let Some((full, rest)) = with(|engine| engine.next_full(from)) else { break };
        next = rest;
        // Without the lock, because the kernel may take long.
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

/// Filling a block raises at least as many page faults as it has pages.
const FAULTS_OF_A_BLOCK: u64 = (HUGE_PAGE / BASE_PAGE) as u64;

/// Like [`collapse_what_is_full`], for a growing program without living children. Returns whether it has grown.
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

/// Returns memory without a holder to the system.
pub(crate) fn trim() {
    while role() == Role::Owner && !IS_FORKING.load(Ordering::Relaxed) && with(ProgramMemory::trim) == Some(true) {
        let_others_go_first();
    }
}
