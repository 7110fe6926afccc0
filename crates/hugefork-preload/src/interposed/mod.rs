//! The functions of libc that the library stands in for, under their names.
//!
//! ```text
//! memory/      what changes memory
//! descriptors  what closes descriptors                   forks   what forks, or registers handlers of forks
//! prctl        the one thing of it that concerns memory
//! pins         what pins pages: devices, pipes and the network, which go past addresses
//! doors/       what few programs call, and `syscall`
//! limits       what limits what the program may have
//! privileges   what gives up rights: see `sandbox`
//! aliases      other names of functions that stand in the files above
//! libcs        libc's own functions of these names
//! kernel       the kernel's calls, with libc's `errno`
//! ```
//! `malloc` is apart from these: it is a library of its own ([`crate::malloc`]).

pub mod aliases;
pub mod descriptors;
pub mod doors;
pub mod forks;
pub(crate) mod kernel;
pub(crate) mod libcs;
pub mod limits;
pub mod memory;
pub mod pins;
pub mod prctl;
pub mod privileges;
