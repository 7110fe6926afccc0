//! The functions of libc that the library stands in for, under their names.
//!
//! ```text
//! entry        memory, descriptors, forks, and what else the table there lists
//! pins         what pins pages: devices, pipes and the network, which go past addresses
//! doors/       what few programs call, and `syscall`
//! limits       what limits what the program may have
//! privileges   what gives up rights: see `sandbox`
//! aliases      other names of functions that stand in the files above
//! kernel       the calls that all of these make, with libc's `errno`
//! ```
//! `malloc` is apart from these: it is a library of its own ([`crate::malloc`]).

pub mod aliases;
pub mod doors;
pub mod entry;
pub(crate) mod kernel;
pub mod limits;
pub mod pins;
pub mod privileges;
