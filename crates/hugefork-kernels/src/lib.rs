//! Clears and copies huge memory blocks *around the byte that the program is about to touch*.
//!
//! Whoever hands out memory in 2 MiB blocks has to clear or copy one before a program's first write to it, and the
//! program then goes on at one particular byte. Two questions decide what that costs: in which order the block is
//! written, and past which caches. This crate answers both for a given machine, and lets you ask for any other answer:
//!
//! * an [`Order`]: straight; Linux's target-last (up to 6.19) and neighbourhood-last (7.0); or *hybrid*, which writes
//!   everything outside a window around the target first and past the cache, and the window last and through the cache;
//! * a [`Primitive`]: `rep stosb`/`rep movsb`, SSE2, AVX2 and AVX-512 stores, cached or non-temporal, `clzero`, and the
//!   portable `memset`/`memcpy`, which is all there is on architectures other than x86-64 and (untested) aarch64. A
//!   primitive exists only where it can run; a [`PrimitiveName`] exists everywhere;
//! * a [`Kernel`]: both together, with the window's size and the [`Side`] of the target on which it lies;
//! * [`Kernels`]: which kernel for which block size and [`Use`]. [`calibrate`](calibrate()) measures that on this
//!   machine in a few milliseconds, the machine's extensions suggest it ([`Kernels::default_for_this_cpu`]), or the
//!   user pins it.
//!
//! It is the lowest layer of `hugefork` and needs nothing of it. `no_std`, no allocation, no locks, and no panics while
//! a kernel runs: [`Kernel::clear`] and [`Kernel::copy`] are made for a SIGSEGV handler. They use vector registers,
//! which Linux saves and restores around a handler.
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
//! # What it is worth
//!
//! 2 MiB at a random target and then 64 KiB of read-modify-write there, µs in sum, on a Zen 5 VM (the ratios are the
//! fact; which primitive wins differs by CPU):
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
//! Kernels print and parse as `order/primitive`, hybrid ones as `hybrid/far+near@window`, where `+near` and `@window`
//! may be left out: `straight/rep`, `target-last/avx2`, `hybrid/avx512-nt`, `hybrid/clzero+rep@128KiB`. A name that
//! this machine cannot run is a [`KernelError`] that lists those that it can.
//!
//! # Layout
//!
//! | file | holds |
//! |---|---|
//! | `order` | the target-last iterator, [`visit`]: spans in processing order, the same for clear and copy |
//! | `primitive_name` | what primitives there are, and what each needs |
//! | `arch` | their code, one file an extension, each with what it needs and when not to use it |
//! | `primitive` | those that this machine has |
//! | `error` | what is wrong with a kernel that somebody asked for, and what to do |
//! | `kernel`, `name` | the choice, its checks, the run over `visit`; how it is written |
//! | `kernels` | the set of them: by work, use and block size; pinning |
//! | `calibrate` | choosing the set by timing candidates |
//!
//! Each uses only what stands above it.

#![no_std]

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

/// The code in the README is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
