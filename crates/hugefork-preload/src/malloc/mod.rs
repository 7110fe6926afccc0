//! A second library that `hugefork run` may put into a program: mimalloc in place of libc's `malloc`, whose own calls
//! of `mmap` no library sees. mimalloc's are seen by the first library, as anybody's.
//!
//! ```text
//! functions   the functions of libc that it stands in for
//! choice      whether this process gets mimalloc, or keeps what it has: decided once, at the first call
//! theirs      what it has: the next library's functions
//! system      what mimalloc asks of the kernel, on the way there
//! ```
//! Built from the same sources with `--cfg hugefork_malloc`, and apart from [`interposed`](crate::interposed), since
//! programs may keep their own `malloc`.

mod choice;
pub mod functions;
#[cfg(hugefork_malloc)]
mod system;
mod theirs;
