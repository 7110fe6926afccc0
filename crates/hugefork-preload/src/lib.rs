//! The library that `hugefork run` puts into unmodified programs, and what both say to each other.
//!
//! ```text
//! environment   what the command asks of the library        stats/page, stats/read   what the library counted
//! ───────────── the crate, for the command ── above ──────── in the program ── below ───────────────────────────
//! start         constructor, and the line at the end
//! entry, pins, doors/   the functions of libc that it stands in for; aliases, their other names
//! privileges    the same, for sandbox: what the library does before the program gives up rights
//! limits        the same: before the program limits what it may have
//! fork          prepare, parent, child                      liveness   who of the descendants still lives
//! modes/        what is done about memory: collapse, pool    worker     the thread that does what takes time
//! mappings      the program's memory, from /proc/…/maps     pages      which of it is in base pages
//! shortage      how much more memory there is
//! dumps         what a core dump has of it
//! malloc/       mimalloc in place of libc's: a library of its own, from the same sources
//! seal, errno, kernel, lock, copies, origin, descriptor, spare, own, signals, line, stack, thread, rights, userfaults
//!               what stands below all of these
//! ```
//!
//! The same sources are two things. As a crate, they are linked into the command and export nothing. Built by the
//! command's build script with `--cfg hugefork_interposed`, they are a shared library whose [`entry`] points carry the
//! names of libc's functions.
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

pub mod aliases;
mod config;
mod copies;
mod descriptor;
pub mod doors;
mod dumps;
pub mod entry;
mod errno;
mod fork;
mod kernel;
pub mod limits;
mod line;
mod liveness;
mod lock;
pub mod malloc;
mod mappings;
mod modes;
mod origin;
mod own;
mod pages;
pub mod pins;
pub mod privileges;
mod queries;
mod rights;
mod sandbox;
mod seal;
mod shortage;
mod signals;
mod spare;
mod stack;
mod start;
mod thread;
mod userfaults;
mod worker;

pub use environment::{Children, Malloc, Mode, Settings};

/// What the engine allocates with.
#[cfg(hugefork_interposed)]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The library's file name begins with this, and goes on with a number that tells its contents.
pub const LIBRARY: &str = "libhugefork-run-";

/// The same of the library that brings a `malloc`.
pub const MALLOC_LIBRARY: &str = "libhugefork-malloc-";

/// A huge page of the machines that hugefork runs on.
const HUGE_PAGE: usize = 2 << 20;

/// The pages that huge pages are made of.
const BASE_PAGE: usize = 4096;
