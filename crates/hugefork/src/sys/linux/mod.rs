//! Linux, 5.14 or newer (`MADV_POPULATE_WRITE`); 6.1 or newer for huge pages without any setting (`MADV_COLLAPSE`).
//!
//! | file | what |
//! |---|---|
//! | `advice` | asks for huge pages, and leaves `errno` alone |
//! | `arena` | the range of addresses where all regions live |
//! | `parked` | where page tables go that a CoW mapping takes the place of |
//! | `barrier` | a memory barrier on all threads at once |
//! | `descriptor` | reads and writes files, pipes and sockets by address |
//! | `futex` | sleeps on a word |
//! | `handlers` | the chain of fault handlers |
//! | `hold` | holds whoever uses some addresses, system calls too |
//! | `mappings` | whether a range is one mapping |
//! | `mask` | keeps the program's signal handlers away |
//! | `memory` | one pool's file and its direct map |
//! | `cow_mapping` | private mappings of a pool, in which the kernel copies single pages |
//! | `own_tmpfs` | a file whose pages are huge whatever the setting says |
//! | `owner` | whether this process owns the regions or is a `fork(2)` child of the owner |
//! | `pagemap` | whether memory is in huge pages or base pages |
//! | `pressure` | sleeps until tasks wait for memory |
//! | `program` | what a program has that knows nothing of hugefork |
//! | `residence` | which pages of shmem have memory |
//! | `schedule` | gives the processor to others; faults that the kernel counts |
//! | `settings` | what the machine allows: huge pages, map count, memory |
//! | `share` | descriptors for other processes, and mappings of such |
//! | `shown` | what regions show of a pool's memory |
//! | `signal` | signal dispositions, and how `SIGBUS` is raised |
//! | `stacks` | stacks that the fault handler goes on to |
//! | `stderr` | writes one line on standard error |
//! | `threads` | whether the process has threads beside this one and the engine's own |
//! | `valgrind` | whether the process runs under it |

pub(crate) mod advice;
pub(crate) mod arena;
pub(crate) mod barrier;
mod cow_mapping;
pub(crate) mod descriptor;
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
mod track_writes;
pub(crate) mod valgrind;

use std::os::fd::BorrowedFd;

use hugefork_linux::{Descriptor, parking};

use crate::sys::SystemError;

/// Names the call that failed.
pub(crate) fn named<T>(call: &'static str, result: rustix::io::Result<T>) -> Result<T, SystemError> {
    result.map_err(|errno| SystemError::new(call, errno))
}

/// Whether the process may have another mapping at all.
pub(crate) fn may_map() -> Result<(), SystemError> {
    named("mmap of a page (raise RLIMIT_AS)", parking::may_map())
}

/// Why the last call through libc failed. The fault handler restores `errno` when it is done.
pub(crate) fn last_error() -> rustix::io::Errno {
    // Not by way of std's error, whose drop may free what one of another kind holds.
    // SAFETY: reads this thread's errno.
    rustix::io::Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// A descriptor that is kept, unless the program has closed it or put another file in its place, which did not know of
/// it.
fn kept(descriptor: &Descriptor) -> Result<BorrowedFd<'_>, SystemError> {
    descriptor.get().map_err(|errno| SystemError::new(LOST, errno))
}

/// The call that an error names where a descriptor is not there any more.
const LOST: &str = "use of a descriptor of hugefork's, which the program has closed or replaced,";
