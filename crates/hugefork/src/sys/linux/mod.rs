//! The door to Linux: the system calls of the engine. Needs Linux 5.14 (`MADV_POPULATE_WRITE`), and 6.1 for huge pages
//! without any setting (`MADV_COLLAPSE`).
//!
//! | file | what |
//! |---|---|
//! | `advice` | collapses memory into huge pages, and does not change `errno` |
//! | `answer` | a file in memory in which a child leaves the result of its work |
//! | `arena` | the range of addresses where all regions lie |
//! | `parked` | addresses where replaced page tables are parked |
//! | `barrier` | a memory barrier on all threads at once |
//! | `children` | the memory of a pool in children of `fork(2)`, and how long they have it |
//! | `descriptor` | reads and writes files, pipes and sockets by address |
//! | `forks` | which forks of a program have living descendants |
//! | `futex` | sleeps on a word |
//! | `handlers` | the chain of fault handlers |
//! | `hold` | makes threads and system calls wait that use some addresses |
//! | `mappings` | where mappings end, and which file they show |
//! | `mask` | keeps the program's signal handlers from running |
//! | `memory` | one pool's file and its direct map |
//! | `cow_mapping` | private mappings of a pool, in which the kernel copies single pages |
//! | `own_tmpfs` | a file that gets huge pages whatever the machine's setting |
//! | `owner` | whether this process owns the regions or is a `fork(2)` child of the owner |
//! | `pagemap` | whether memory is in huge pages or base pages |
//! | `pool_map` | a mapping of a pool that is accessible only where the pool is used |
//! | `pressure` | sleeps until tasks wait for memory |
//! | `program` | the memory of a program that knows nothing of hugefork |
//! | `residence` | which pages of shmem have memory |
//! | `schedule` | yields the processor; the kernel's counts of faults and sleeps |
//! | `settings` | the machine's limits and settings: huge pages, map count, memory |
//! | `share` | descriptors for other processes, and mappings of such descriptors |
//! | `shown` | shows a pool's memory at the addresses of regions |
//! | `signal` | signal dispositions, and the way to raise `SIGBUS` |
//! | `stacks` | the fault handler's own stacks |
//! | `stderr` | writes one line on standard error |
//! | `threads` | whether the process has threads beside this one and the engine's own |
//! | `track_writes` | which private pages were written since the last scan |
//! | `valgrind` | whether the process runs under valgrind |

pub(crate) mod advice;
pub(crate) mod answer;
pub(crate) mod arena;
pub(crate) mod barrier;
pub(crate) mod children;
mod cow_mapping;
pub(crate) mod descriptor;
pub(crate) mod forks;
pub(crate) mod futex;
pub(crate) mod handlers;
pub(crate) mod hold;
mod mappings;
pub(crate) mod mask;
pub(crate) mod memory;
pub(crate) mod own_tmpfs;
pub(crate) mod owner;
pub(crate) mod pagemap;
mod parked;
mod pool_map;
pub(crate) mod pressure;
mod program;
mod residence;
pub(crate) mod schedule;
pub(crate) mod settings;
pub(crate) mod share;
pub(crate) mod shown;
pub(crate) mod signal;
mod stacks;
pub(crate) mod stderr;
pub(crate) mod threads;
pub(crate) mod track_writes;
pub(crate) mod valgrind;

use std::os::fd::BorrowedFd;

use hugefork_linux::{Descriptor, parking};

use crate::sys::SystemError;

/// Adds the name of the call to a failure.
pub(crate) fn named<T>(call: &'static str, result: rustix::io::Result<T>) -> Result<T, SystemError> {
    result.map_err(|errno| SystemError::new(call, errno))
}

/// Whether the process may have one more mapping at all.
pub(crate) fn may_map() -> Result<(), SystemError> {
    named("mmap of a page (raise RLIMIT_AS)", parking::may_map())
}

/// The error number of the last call through libc. The fault handler restores `errno` at its end.
pub(crate) fn last_error() -> rustix::io::Errno {
    // This does not use std's error type, whose drop may free memory.
    // SAFETY: this reads this thread's errno.
    rustix::io::Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// A descriptor that hugefork keeps. An error if the program, which does not know of it, has closed it or put another
/// file in its place.
fn kept(descriptor: &Descriptor) -> Result<BorrowedFd<'_>, SystemError> {
    descriptor.get().map_err(|errno| SystemError::new(LOST, errno))
}

/// The call in the error of a descriptor that is gone.
const LOST: &str = "use of a descriptor of hugefork's, which the program has closed or replaced,";
