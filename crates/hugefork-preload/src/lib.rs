//! The library that `hugefork run --pool` puts into a program, and what both say to each other.
//!
//! ```text
//! start         constructor: whether anything is done here, and the environment of what the program starts
//! switch        whether anything is done here
//! withdrawal    when the library leaves all to the kernel, for good
//! fit           whether a program may have a pool
//! interposed/   the functions of libc that it stands in for
//! fork/         prepare, parent, child
//! pool/         the program's big memory                 child/    the same in its children
//! threads/      the worker, and locks                    proc/     what the kernel tells about the process
//! allocator     what it allocates with
//! ```
//!
//! The same sources are two things. As a crate, they are linked into the command and export nothing. Built by the
//! command's build script with `--cfg hugefork_interposed`, they are a shared library whose [`interposed`] functions
//! carry the names of libc's.
//!
//! # Inside a strange program
//! * Nothing is allocated with the program's allocator, at any time: the program may be in the middle of its own
//!   `malloc`. What the engine needs comes from an allocator of the library's own.
//! * Nothing happens until the program has something big: no thread, no descriptor, no page.
//! * `errno` stays as it was. System calls are made by `rustix`, which does not touch it, but for those that stand in
//!   for libc's own.
//! * A panic ends in an abort, at the latest at an entry point.

mod allocator;
mod child;
pub mod fit;
mod fork;
pub mod interposed;
mod pool;
mod proc;
mod start;
mod switch;
mod threads;
mod withdrawal;

/// The variable by which the command asks the library to do anything: `big`; or `all`, to have private memory from one
/// page on in the pool, for test suites, whose mappings are mostly small (`docs/evidence.md`).
pub const VARIABLE: &str = "HUGEFORK_POOL";

/// The value of [`VARIABLE`] that the command sets, unless it finds [`ALL`].
pub const BIG: &str = "big";

/// The other value of [`VARIABLE`].
pub const ALL: &str = "all";

/// What the library allocates with. In a command, which allocates as programs do, nobody uses it.
#[cfg_attr(hugefork_interposed, global_allocator)]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();

/// The library's file name begins with this, and goes on with a number that tells its contents.
pub const LIBRARY: &str = "libhugefork-run-";

/// A huge page of the machines that hugefork runs on.
const HUGE_PAGE: usize = 2 << 20;

/// The pages that huge pages are made of.
const BASE_PAGE: usize = 4096;
