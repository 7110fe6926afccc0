//! What the library may have beside the rest: mimalloc in place of libc's `malloc`, whose own calls of `mmap` no
//! library sees. mimalloc's are seen as anybody's.
//!
//! ```text
//! functions   the functions of libc that it stands in for
//! choice      whether this process gets mimalloc, or keeps what it has: decided once, at the first call
//! theirs      what it has: the next library's functions
//! system      what mimalloc asks of the kernel, on the way there
//! ```
//! Built with `--cfg hugefork_malloc`: programs may keep their own `malloc`, and a library apart would take a program
//! that does nothing some 0.1 ms more.

mod choice;
pub mod functions;
#[cfg(hugefork_malloc)]
mod system;
mod theirs;
