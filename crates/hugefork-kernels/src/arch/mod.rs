//! The code behind each [`Primitive`](crate::Primitive), one folder an architecture, one file an extension.
//!
//! Offers three functions, the same on every architecture: `clear` and `copy` run one primitive over one run of bytes,
//! `drain` orders weakly ordered stores before whatever comes next. Nothing here asks what the CPU can do (except whether
//! aarch64 has `dc zva`, which is where its block size stands too): a caller names only primitives that are available,
//! and a name that is not built for this architecture runs the portable code.

mod generic;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod other;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{clear, copy, drain, has_dc_zva};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use other::{clear, copy, drain};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{clear, copy, drain};
