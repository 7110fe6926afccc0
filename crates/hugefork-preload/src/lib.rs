//! The library that `hugefork run --pool` loads into a program, and the interface between the
//! command and the library.
//!
//! ```text
//! start         the constructor: decides whether the library is active; the environment of started programs
//! switch        whether the library is active
//! withdrawal    the library leaves all memory to the kernel, for good
//! fit           whether a program may have a pool
//! interposed/   the functions that replace libc's
//! fork/         prepare, parent, child
//! pool/         the program's big memory                 child/    the same in its children
//! threads/      the worker, and locks                    proc/     the kernel's facts about the process
//! allocator     the library's own allocator
//! ```
//!
//! The same sources are compiled twice. As a crate, they are linked into the command and export
//! nothing. With `--cfg hugefork_interposed`, the command's build script compiles them to a shared
//! library whose [`interposed`] functions have the names of libc's.
//!
//! # Rules inside an unknown program
//! * The library never uses the program's allocator, because the program may be in the middle of
//!   its own `malloc`. It has an allocator of its own.
//! * Before the program maps big memory, the library makes no thread, no descriptor and no page.
//! * `errno` is preserved. System calls go through `rustix`, which does not change it, except in
//!   functions that replace libc's own.
//! * A panic aborts the process, at the latest at an entry point.

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

/// The variable with which the command activates the library: `big`; or `all`, which puts all private memory from one
/// page on into the pool, for test suites, whose mappings are mostly small.
pub const VARIABLE: &str = "HUGEFORK_POOL";

/// The value of [`VARIABLE`] that the command sets, unless the user has set [`ALL`].
pub const BIG: &str = "big";

/// The value of [`VARIABLE`] that puts small mappings into the pool, too.
pub const ALL: &str = "all";

/// The library's allocator. The command, which links the crate, does not use it.
#[cfg_attr(hugefork_interposed, global_allocator)]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();

/// The name of the library's file in memory.
pub const LIBRARY: &str = "libhugefork-run";

/// A huge page of the machines that hugefork runs on.
const HUGE_PAGE: usize = 2 << 20;

/// A base page; 512 of them fit into a huge page.
const BASE_PAGE: usize = 4096;
