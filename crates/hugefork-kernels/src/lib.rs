//! Clears and copies huge memory blocks *around the byte that the program is about to touch*.
//!
//! A memory manager that hands out 2 MiB blocks has to clear or copy each block before the program's first write to it.
//! The program then continues at one particular byte. The cost depends on two choices: the order in which the block is
//! written, and whether the stores bypass the caches. This crate makes both choices for a given machine, and accepts
//! any other choice:
//!
//! * an [`Order`]: straight; Linux's target-last (up to 6.19) and neighbourhood-last (7.0); or *hybrid*, which writes
//!   everything outside a window around the target first and past the cache, and the window last and through the cache;
//! * a [`Primitive`]: `rep stosb`/`rep movsb`, SSE2, AVX2 and AVX-512 stores, cached or
//!   non-temporal, `clzero`, and the portable `memset`/`memcpy`, which is the only primitive on
//!   architectures other than x86-64 and (never measured) aarch64. A primitive exists only on a machine
//!   that can run it; a [`PrimitiveName`] exists everywhere;
//! * a [`Kernel`]: an order and primitives together, with the size of the window and the [`Side`]
//!   of the target on which the window lies;
//! * [`Kernels`]: a kernel for each block size and [`Use`]. [`calibrate`](calibrate()) measures the
//!   best set on this machine in a few milliseconds, [`Kernels::default_for_this_cpu`] picks one by
//!   the CPU's extensions, or the user pins one.
//!
//! It is the lowest layer of `hugefork` and depends on no other layer. It is `no_std`, does not
//! allocate, takes no locks and does not panic while a kernel runs: a SIGSEGV handler may call
//! [`Kernel::clear`] and [`Kernel::copy`]. Both use vector registers, which Linux saves and
//! restores around a handler.
//!
//! ```
//! use std::alloc::{Layout, alloc, dealloc};
//! use hugefork_kernels::{Kernel, Target};
//!
//! const BLOCK: usize = 2 << 20;
//!
//! // Chosen once, outside of any handler.
//! let kernel = match std::env::var("HUGEFORK_KERNEL") {
//!     Ok(name) => name.parse::<Kernel>()?,
//!     Err(_) => Kernel::for_clear(),
//! };
//! println!("clearing with {kernel}"); // for example hybrid/clzero+rep@128KiB
//!
//! let layout = Layout::from_size_align(BLOCK, BLOCK)?;
//! // SAFETY: the block is 2 MiB, aligned to more than 4 KiB, and nobody else knows it.
//! unsafe {
//!     let block = alloc(layout);
//!     assert!(!block.is_null());
//!     kernel.clear(block, BLOCK, Target::At(0x12_3456)); // the fault's offset, unrounded
//!     assert_eq!(block.add(0x12_3456).read(), 0); // still in the cache
//!     dealloc(block, layout);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Gain
//!
//! Times in µs for 2 MiB with a random target and then a read-modify-write of the 64 KiB around the
//! target, in sum, on a Zen 5 VM (compare the ratios; the best primitive differs by CPU):
//!
//! | clear | | copy | |
//! |---|---|---|---|
//! | `target-last/rep` (Linux ≤ 6.19) | 82 | `target-last/rep` | 128 |
//! | `straight/rep` | 40 | `straight/rep` | 84 |
//! | `straight/avx512-nt` | 24 | | |
//! | `hybrid/avx512-nt` | **23.6** | `hybrid/avx512-nt` | **78** |
//!
//! # Names
//!
//! Kernels print and parse as `order/primitive`, hybrid kernels as `hybrid/far+near@window`;
//! `+near` and `@window` are optional: `straight/rep`, `target-last/avx2`, `hybrid/avx512-nt`,
//! `hybrid/clzero+rep@128KiB`. A name that this machine cannot run gives a [`KernelError`] that
//! lists the possible names.
//!
//! # Layout
//!
//! | file | holds |
//! |---|---|
//! | `order` | the target-last iterator, [`visit`]: spans in processing order, the same for clear and copy |
//! | `primitive_name` | the names of all primitives, and the requirements of each |
//! | `arch` | the code of the primitives, one file for each extension, with its needs and its weak cases |
//! | `primitive` | the primitives that this machine has |
//! | `error` | the errors of a requested kernel, with a remedy in each message |
//! | `kernel`, `name` | a kernel: its order and primitives, their checks and the run; its text form |
//! | `kernels` | the set of kernels by work, use and block size; pinning |
//! | `calibrate` | chooses the set by timing candidates |
//!
//! Each module uses only modules above it in the table.

#![no_std]

#[doc(hidden)]
#[macro_use]
pub mod seeded;

mod arch;
mod calibrate;
mod error;
mod kernel;
mod kernels;
mod name;
mod order;
mod primitive;
mod primitive_name;

pub use calibrate::{Calibration, Figure, calibrate};
pub use error::{Excerpt, KernelError, NamePart};
pub use kernel::{Kernel, every_kernel};
pub use kernels::{Kernels, Use, Work};
pub use order::{
    GIGANTIC, Order, RESCHEDULE_EVERY, Reach, SUBPAGE, Side, Span, Target, TargetLast, Window, target_last, visit,
};
pub use primitive::Primitive;
pub use primitive_name::PrimitiveName;

/// Runs the code of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
