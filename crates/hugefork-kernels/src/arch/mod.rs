//! The machine code of each [`Primitive`](crate::Primitive): one folder for each architecture, one file for each
//! extension.
//!
//! Every architecture offers the same two items. `Code` is a primitive of this architecture: it
//! exists only where the CPU has the instructions, and it clears or copies one run of bytes.
//! `drain` orders weakly ordered stores before all later stores.
//!
//! An extension that a CPU may lack is a type. Its only constructor checks the CPU, and its
//! functions take the value as `self`. So the value itself proves that the instruction may run.

mod generic;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod other;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{Code, drain};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use other::{Code, drain};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Code, drain};
