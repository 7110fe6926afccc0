//! The interposed functions of libc, under their libc names.
//!
//! ```text
//! memory/      functions that change memory
//! forks        functions that fork
//! wrapped      libc's functions after a check: rights, devices, stacks, rarely used calls
//! number       `syscall`
//! dlopen       `dlopen` without `RTLD_DEEPBIND`
//! libcs        libc's own functions of these names       kernel   the kernel's calls, with libc's `errno`
//! ```

#[cfg(target_arch = "x86_64")]
pub mod dlopen;
pub mod forks;
pub(crate) mod kernel;
pub(crate) mod libcs;
pub mod memory;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod number;
pub mod wrapped;
