//! The child's thread, and when it works: `--children grow` and `share` are two kinds of work for it.
//!
//! It is a thread as the worker is (threads/worker.rs), with descriptors of its own: it shares no table with the
//! program, which may close what it likes.

use std::ffi::{c_int, c_void};
use std::mem;

use rustix::thread::set_name;
use syscalls::{Sysno, syscall};

use super::grow::Grower;
use super::privatise::Privatiser;
use super::share::Sharer;
use super::waiting::{FAULTS, Pauses, is_to_leave};
use super::{marks, twins};
use crate::config;
use crate::environment::Children;
use crate::proc::usage::page_faults;
use crate::threads::thread::Place;
use crate::threads::{affinity, rights, thread};

/// There is one at a time.
static PLACE: Place = Place::new();

/// Starts the thread, if there can be help in this child. Allocates nothing.
pub(in crate::modes) fn help(is_orphan: fn() -> bool) {
    let can_be_helped = !marks::addresses().is_empty();
    if can_be_helped && (config::children() != Children::Share || twins::make()) {
        PLACE.start(run, is_orphan as *mut c_void);
    }
}

/// Waits until the thread has left, which was sent away.
pub(in crate::modes) fn wait_until_gone() {
    if PLACE.was_used() {
        PLACE.wait_until_gone();
    }
}

/// In the child of a fork, which has no helper yet.
pub(in crate::modes) fn in_child() {
    PLACE.in_child();
    marks::in_child();
}

/// The thread.
extern "C" fn run(is_orphan: *mut c_void) -> c_int {
    // SAFETY: `help` has made it of such a function.
    let is_orphan = unsafe { mem::transmute::<*mut c_void, fn() -> bool>(is_orphan) };
    if config::children() == Children::Share {
        share()
    } else {
        grow(is_orphan)
    }
    // If nobody else is left, it is the process's.
    let status = thread::end_of_the_program().unwrap_or(0);
    thread::ends();
    status
}

/// Opens what a kind of work needs, and gives up all rights. To handle page faults is one.
fn prepare<T>(open: impl FnOnce() -> Option<T>) -> Option<T> {
    let opened = has_table_of_its_own().then(open).flatten();
    affinity::go_back();
    rights::give_up();
    let _ = set_name(c"hugefork-child");
    opened
}

/// What the kernel refuses once, it is not asked for again. Whoever waits is let go when the descriptors are closed.
fn grow(is_orphan: fn() -> bool) {
    if let Some(privatiser) = prepare(Privatiser::open)
        && wait_for_faults(is_orphan)
        && let Some(mut grower) = Grower::new(privatiser, is_orphan)
    {
        let _ = grower.help();
    }
}

fn share() {
    if let Some(mut sharer) = prepare(Sharer::open) {
        let _ = sharer.help();
    }
}

/// Leaves the table of descriptors to the program, which may close what it likes, and takes an empty one.
fn has_table_of_its_own() -> bool {
    const UNSHARE: usize = 1 << 1;
    // SAFETY: closes nothing of the program's, whose table is another from then on.
    unsafe { syscall!(Sysno::close_range, 0, u32::MAX, UNSHARE) }.is_ok()
}

/// Sleeps until the child has had many page faults.
fn wait_for_faults(is_orphan: fn() -> bool) -> bool {
    let mut pauses = Pauses::new();
    loop {
        if !pauses.sleep() || is_to_leave() {
            return false;
        }
        // A child's count begins with nothing.
        if page_faults() >= FAULTS || is_orphan() {
            return true;
        }
    }
}
