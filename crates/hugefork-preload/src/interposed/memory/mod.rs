//! The interposed functions of libc that change memory.
//!
//! | function | addition to libc's work |
//! |---|---|
//! | `mmap`, `mmap64` ([`map`]) | the pool provides the memory |
//! | `munmap`, `mremap`, `madvise`, `mprotect`, `mlock` and so on | done by the pool, or handed over first |
//! | `msync`, `mincore` ([`rights`]) | the pool's reserved addresses count as unmapped |
//!
//! All of them make system calls directly and set libc's `errno`, so they work before the
//! constructor has run.

pub mod advise;
pub mod map;
pub(crate) mod parts;
pub mod remap;
pub mod rights;
