//! The library that `hugefork run` puts into unmodified programs, and what both say to each other.
//!
//! ```text
//! environment   what the command asks of the library        stats/page, stats/read   what the library counted
//! ───────────── the crate, for the command ── above ──────── in the program ── below ───────────────────────────
//! start         constructor, and the line at the end        config     what was asked for, as entry points look at it
//! interposed/   the functions of libc that it stands in for
//! sandbox/      before the program gives up rights
//! fork/         prepare, parent, child                      threads/   the worker, and how such threads are made
//! modes/        what is done about memory: collapse, pool
//! proc/         what the kernel tells about the process and its memory
//! descriptors/  the library's own                           line       a text on the stack
//! allocator     what it allocates with
//! malloc/       mimalloc in place of libc's, in a library of both
//! ```
//!
//! The same sources are two things. As a crate, they are linked into the command and export nothing. Built by the
//! command's build script with `--cfg hugefork_interposed`, they are a shared library whose [`interposed`] functions
//! carry the names of libc's.
//!
//! # Inside a strange program
//! * Nothing is allocated with the program's allocator, at any time: the program may be in the middle of its own
//!   `malloc`. What the engine needs comes from an allocator of the library's own. Only the constructor has
//!   the program's begin, with a byte.
//! * Nothing happens until the program has something big: no thread, no descriptor, no page. A program that does
//!   nothing but start and end pays for reading a few variables.
//! * `errno` stays as it was. System calls are made by `rustix`, which does not touch it, but for those that stand in
//!   for libc's own.
//! * A panic ends in an abort, at the latest at an entry point.

pub mod environment;
pub mod stats;

mod allocator;
mod config;
mod descriptors;
mod fork;
pub mod interposed;
mod line;
pub mod malloc;
mod modes;
mod proc;
mod sandbox;
mod start;
mod threads;

pub use environment::{Children, Malloc, Memory, Mode, Settings};

/// What the library allocates with. In a command, which allocates as programs do, nobody uses it.
#[cfg_attr(hugefork_interposed, global_allocator)]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();

/// The library's file name begins with this, and goes on with a number that tells its contents.
pub const LIBRARY: &str = "libhugefork-run-";

/// The same of the one that has a `malloc` beside it. Both begin as [`LIBRARY`] does.
pub const MALLOC_LIBRARY: &str = "libhugefork-run-malloc-";

/// A huge page of the machines that hugefork runs on.
const HUGE_PAGE: usize = 2 << 20;

/// The pages that huge pages are made of.
const BASE_PAGE: usize = 4096;
