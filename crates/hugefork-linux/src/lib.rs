//! What the engine, the library of `hugefork run` and the benchmarks ask of Linux beside what its C library offers.
//!
//! | module | what | Linux |
//! |---|---|---|
//! | [`userfaultfd`] | who needs a page sleeps, or who writes to one | 5.11; more with each feature |
//! | [`pagemap_scan`] | which pages of a range are huge, private or written | 6.7 |
//! | [`procmap_query`] | what is mapped at an address | 6.11 |
//! | [`advice`] | huge pages of what is there; dropping what is locked | 6.1, 5.18 |
//! | [`mappings`] | anonymous memory for a heap that is no program's | any |
//! | [`parking`] | page tables that lie elsewhere for a while | 5.13 |
//! | [`stack`] | work on another stack | any |
//!
//! Each structure and number of the kernel's stands here once, with the header that has it. Where the kernel lacks a
//! call, or forbids it, that is the error; whoever opens something finds out then.
//!
//! # Where it may be called
//! In a signal handler, and in a program that does not know of it: nothing is allocated, no lock is taken, nothing
//! panics where a range has its start before its end, and `errno` stays as it was, since all calls go to the kernel and
//! none to libc. What the engine's fault handler calls is written out where an adapter or a closure would do: without
//! optimisation each takes its own place on the stack.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod advice;
mod descriptor;
pub mod mappings;
pub mod pagemap_scan;
pub mod parking;
pub mod procmap_query;
pub mod stack;
pub mod userfaultfd;

pub use descriptor::Descriptor;

use core::ptr;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::ioctl::Opcode;
use syscalls::{Sysno, syscall3};

/// A page of the smallest kind.
const PAGE: usize = 4096;

/// Makes a call of a descriptor's own, whose argument the kernel reads and writes. libc's `ioctl` touches `errno`, and
/// in a program under `hugefork run` it is the program's.
///
/// # Safety
/// `Argument` is the structure that the call takes. What the kernel does then breaks nothing that anybody relies on.
unsafe fn ioctl<Argument>(file: BorrowedFd<'_>, call: Opcode, argument: &mut Argument) -> Result<usize, Errno> {
    let (number, at) = (file.as_raw_fd() as usize, ptr::from_mut(argument).expose_provenance());
    // SAFETY: by contract.
    answer(unsafe { syscall3(Sysno::ioctl, number, call as usize, at) })
}

/// What a call has answered.
fn answer(answered: Result<usize, syscalls::Errno>) -> Result<usize, Errno> {
    match answered {
        Ok(value) => Ok(value),
        Err(errno) => Err(Errno::from_raw_os_error(errno.into_raw())),
    }
}
