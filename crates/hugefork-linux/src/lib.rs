//! Linux calls and structures that the C library does not offer, for the engine, the library of
//! `hugefork run` and the benchmarks.
//!
//! | module | contents | Linux |
//! |---|---|---|
//! | [`userfaultfd`] | suspends threads that access a missing page or write to a protected one | 5.11, features later |
//! | [`pagemap_scan`] | which pages of a range are huge, private or written | 6.7 |
//! | [`procmap_query`] | the mapping at an address | 6.11 |
//! | [`advice`] | collapsing existing memory into huge pages; dropping locked pages | 6.1, 5.18 |
//! | [`mappings`] | anonymous memory for a heap apart from the program's | any |
//! | [`parking`] | moving page tables to another address for a while | 5.13 |
//! | [`stack`] | calling a function on another stack | any |
//!
//! Each structure and number of the kernel is defined here once, with a link to its header. If the
//! kernel lacks a call or forbids it, the call returns that error; types that hold a descriptor
//! return it when they are opened.
//!
//! # Where it may be called
//! These functions may run in a signal handler, and in a program that does not know of them. They
//! allocate nothing, take no lock, and do not panic if a range starts before it ends. They leave
//! `errno` unchanged, because they call the kernel directly and not libc. Functions that the
//! engine's fault handler calls make no system call inside a closure: in an unoptimised build the
//! closure and the adapter that calls it take stack of their own.
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

pub use descriptor::{Descriptor, keep_only};

use core::ptr;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::ioctl::Opcode;
use syscalls::{Sysno, syscall3};

/// Bytes in a base page.
const PAGE: usize = 4096;

/// Calls `ioctl` with an argument that the kernel reads and writes. libc's `ioctl` changes `errno`, and in a program
/// under `hugefork run` that is the program's `errno`.
///
/// # Safety
/// `Argument` is the structure that the call takes. The call's effect breaks no assumption of other code.
unsafe fn ioctl<Argument>(file: BorrowedFd<'_>, call: Opcode, argument: &mut Argument) -> Result<usize, Errno> {
    let (number, at) = (file.as_raw_fd() as usize, ptr::from_mut(argument).expose_provenance());
    // SAFETY: the caller vouches for the argument and the effect.
    answer(unsafe { syscall3(Sysno::ioctl, number, call as usize, at) })
}

/// Converts the result of a system call.
fn answer(answered: Result<usize, syscalls::Errno>) -> Result<usize, Errno> {
    answered.map_err(|errno| Errno::from_raw_os_error(errno.into_raw()))
}
