//! The thread that does what takes time, while the program goes on: it waits until no descendant shares the program's
//! memory any more, lets the mode do its pass, and leaves. No fork, no thread, unless the mode looks after memory
//! that grows.
//!
//! It is made as thread.rs says. But the engine (mode `pool`) calls libc, so there only the program's first thread
//! makes it so: its data stays.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use rustix::process::getpid;
use rustix::thread::{gettid, set_name};
use syscalls::{Sysno, syscall};

use crate::fork::STATE;
use crate::fork::origin;
use crate::modes;
use crate::modes::{Growth, Maintained};
use crate::proc::usage::now_ns;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::threads::thread::Place;
use crate::threads::{affinity, rights, thread};

/// How long it sleeps before it looks for descendants again: first after this, then twice as long, up to the longest.
const SHORTEST_NS: i64 = 5_000_000;
const LONGEST_NS: i64 = 160_000_000;

/// There are two, since one that is leaving still stands on its stack.
static PLACES: [Place; 2] = [const { Place::new() }; 2];

/// For one that libc makes.
static LIBCS: Place = Place::new();

/// Whether [`start`] allocates nothing, in this thread.
pub(crate) fn can_start_anywhere() -> bool {
    !modes::need_thread_local_data() || gettid() == getpid()
}

/// Starts the thread. False if there can be none now.
pub(crate) fn start() -> bool {
    if !can_start_anywhere() {
        return LIBCS.start_by_libc(run_by_libc);
    }
    PLACES.iter().any(|place| place.start(run, ptr::null_mut()))
}

fn places() -> impl Iterator<Item = &'static Place> {
    PLACES.iter().chain([&LIBCS])
}

/// Whether there is one, or one that is about to leave.
pub(crate) fn is_there() -> bool {
    places().any(|place| !place.is_free())
}

/// Waits until it has left, which was sent away.
pub(crate) fn wait_until_gone() {
    places().filter(|place| place.was_used()).for_each(Place::wait_until_gone);
}

/// The thread that forks may end before this one does, and its thread-local data with it; those of the first thread
/// stay.
extern "C" fn run_by_libc(none: *mut c_void) -> *mut c_void {
    LIBCS.begin_of_libcs();
    let status = run(none);
    LIBCS.end_of_libcs();
    if status != 0 {
        // libc's own end would be the status of the process.
        // SAFETY: ends this thread, which nobody joins, and on whose stack nothing is that anybody uses.
        let _ = unsafe { syscall!(Sysno::exit, status) };
    }
    none
}

/// In the child of a fork.
pub(crate) fn in_child() {
    places().for_each(Place::in_child);
}

/// The thread.
extern "C" fn run(_: *mut c_void) -> c_int {
    affinity::go_back();
    rights::give_up();
    let _ = set_name(c"hugefork-run");
    work();
    // If nobody else is left, it is the process's. Last of all: the program may end meanwhile.
    let status = thread::end_of_the_program().unwrap_or(0);
    thread::ends();
    status
}

/// Until there is nothing more to do.
fn work() {
    let (mut pause, mut is_to_pass) = (SHORTEST_NS, false);
    // Since when there has been nothing to do.
    let mut idle: Option<u64> = None;
    loop {
        if thread::are_unwanted() {
            STATE.with(|state| state.has_worker = false);
            return;
        }
        if thread::end_of_the_program().is_some() {
            return;
        }
        // What was held for those who are gone is given up under the lock that forks take.
        let alive = STATE.with(|state| {
            state.outstanding.reap(|held| {
                is_to_pass = true;
                modes::gone(held);
            })
        });
        let alive = alive.unwrap_or(0);
        stats::set(Word::Outstanding, alive as u64);
        is_to_pass |= alive > 0;
        let maintained = modes::maintain();
        if maintained == Maintained::InPart {
            continue;
        }
        if alive > 0 {
            if maintained == Maintained::Some {
                pause = SHORTEST_NS;
            }
            sleep(&mut pause);
            continue;
        }
        // What a child collapsed that it shares with its parent would be copied.
        let has_parent = origin::has_parent();
        let mut is_shared =
            || thread::are_unwanted() || STATE.with(|state| !state.outstanding.is_empty()).unwrap_or(true);
        if matches!(maintained, Maintained::Some | Maintained::Quiet) {
            // What somebody just works on has its turn later.
            thread::sleep(SHORTEST_NS);
            continue;
        }
        if is_to_pass && !has_parent && !modes::pass(&mut is_shared) {
            continue;
        }
        if is_to_pass {
            (is_to_pass, idle, pause) = (false, None, SHORTEST_NS);
        }
        let now = now_ns();
        let stays = match modes::grown() {
            Growth::Some => {
                (idle, pause) = (None, SHORTEST_NS);
                true
            }
            Growth::None => Duration::from_nanos(now.saturating_sub(*idle.get_or_insert(now))) < modes::patience(),
            Growth::OfNoConcern => false,
        };
        if stays {
            sleep(&mut pause);
            continue;
        }
        modes::trim();
        let leaves = STATE.with(|state| {
            let leaves = state.outstanding.is_empty();
            state.has_worker &= !leaves;
            leaves
        });
        if leaves == Some(true) {
            return;
        }
    }
}

/// Sleeps, and next time twice as long.
fn sleep(pause: &mut i64) {
    thread::sleep(*pause);
    *pause = (2 * *pause).min(LONGEST_NS);
}
