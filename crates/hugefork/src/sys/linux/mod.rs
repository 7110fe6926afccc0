//! Linux, 5.14 or newer (`MADV_POPULATE_WRITE`); 6.1 or newer for huge pages without any setting (`MADV_COLLAPSE`).
//!
//! | file | what |
//! |---|---|
//! | `arena` | the address range that all regions live in |
//! | `descriptor` | reading and writing files, pipes and sockets by address |
//! | `futex` | sleeping on a word |
//! | `handlers` | the chain of fault handlers |
//! | `mask` | keeping the program's signal handlers away |
//! | `memory` | one pool's memfd, its direct map, and the mappings made of it |
//! | `owner` | whether this process is the one that the regions belong to, or a `fork(2)` child of it |
//! | `pagemap` | what memory is made of: huge pages, base pages |
//! | `pressure` | sleeping until tasks wait for memory |
//! | `schedule` | giving the processor to others |
//! | `settings` | what the machine allows: huge pages, map count, memory |
//! | `signal` | signal dispositions, and raising `SIGBUS` |
//! | `stderr` | one line on standard error |

pub(crate) mod arena;
pub(crate) mod descriptor;
pub(crate) mod futex;
pub(crate) mod handlers;
pub(crate) mod mask;
pub(crate) mod memory;
pub(crate) mod owner;
pub(crate) mod pagemap;
pub(crate) mod pressure;
pub(crate) mod schedule;
pub(crate) mod settings;
pub(crate) mod signal;
pub(crate) mod stderr;

use crate::sys::SystemError;

/// Names the call that failed.
pub(crate) fn named<T>(call: &'static str, result: rustix::io::Result<T>) -> Result<T, SystemError> {
    result.map_err(|errno| SystemError::new(call, errno))
}

/// Why the last call through libc failed. The fault handler puts `errno` back when it is done.
pub(crate) fn last_error() -> rustix::io::Errno {
    // Not by way of std's error, whose drop may free what one of another kind holds.
    // SAFETY: reads this thread's errno.
    rustix::io::Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
