//! The code behind each [`Primitive`](crate::Primitive): one folder an architecture, one file an extension.
//!
//! Every architecture offers the same two things. `Code` is a primitive of this architecture; it exists only where the
//! CPU has what it needs, and clears and copies one run of bytes. `drain` orders weakly ordered stores before whatever
//! comes next.
//!
//! An extension that a CPU may lack is a type whose only constructor asks the CPU. Its functions take the value as
//! `self`, so that the unsafe call of an instruction is argued by the value and not by a rule that callers have to
//! keep.

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
