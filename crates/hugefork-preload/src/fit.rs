//! Checks the limits under which a program can have a pool, apart from the program's own calls and
//! the kernel's features.

use rustix::process::{Resource, getrlimit};

use crate::proc::limits::{has_room, is_limited};

/// The reason why a program started by this process would get no pool: it inherits the same limits.
pub fn why_no_pool() -> Option<&'static str> {
    /// With fewer, the engine would use numbers that the program may need.
    const MIN_DESCRIPTORS: u64 = 1024;
    if is_limited() {
        Some("its memory is limited by RLIMIT_AS or RLIMIT_DATA, and a pool has more addresses than the program uses")
    } else if !has_room(0) {
        Some("its control group has no room for one more thread: raise pids.max")
    } else if getrlimit(Resource::Nofile).current.is_some_and(|most| most < MIN_DESCRIPTORS) {
        Some("it may have fewer than 1024 descriptors (ulimit -n), and hugefork uses numbers from 900 on")
    } else {
        None
    }
}
