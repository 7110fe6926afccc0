//! The functions of libc that change memory.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `mmap`, `mmap64` ([`map`]) | the pool gives the memory |
//! | `munmap`, `mremap`, `madvise`, `mprotect`, `mlock` and so on | the pool works on what it gave, or hands it over |
//! | `msync`, `mincore` ([`rights`]) | what is kept for later is not mapped |
//!
//! All do the kernel's work by the system call itself, with libc's `errno`, so that they work before the constructor
//! has run.

pub mod advise;
pub mod map;
pub(crate) mod parts;
pub mod remap;
pub mod rights;
