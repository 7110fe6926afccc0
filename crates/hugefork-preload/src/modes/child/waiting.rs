//! How the child's thread waits for something to do, and when it is to leave.

use super::marks;
use crate::threads::thread;

/// How long it sleeps: first so long, then twice as long, up to the longest. After so many that were in vain, it is the
/// seldom one.
const SHORTEST_NS: i64 = 5_000_000;
const LONGEST_NS: i64 = 160_000_000;
const SELDOM_NS: i64 = 1_000_000_000;
const PATIENCE: u32 = 64;

/// So many page faults are worth a look.
pub(super) const FAULTS: u64 = 256;

/// Whether the thread is to leave.
pub(super) fn is_to_leave() -> bool {
    marks::is_all_left() || thread::are_unwanted() || thread::end_of_the_program().is_some()
}

/// Pauses that get longer.
pub(super) struct Pauses {
    pub(super) ns: i64,
    in_vain: u32,
}

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses { ns: SHORTEST_NS, in_vain: 0 }
    }

    pub(super) fn lengthen(&mut self) {
        self.in_vain += 1;
        self.ns = if self.in_vain > PATIENCE { SELDOM_NS } else { LONGEST_NS.min(2 * self.ns) };
    }

    /// False if the kernel refuses: then it would never end.
    pub(super) fn sleep(&mut self) -> bool {
        let has_slept = thread::sleep(self.ns);
        self.lengthen();
        has_slept
    }
}
