//! The loops of the vector extensions. Each extension instantiates them with its vector width and
//! instruction names.
//!
//! The loops are written in assembly for two reasons. LLVM recognises a loop of plain vector stores
//! and calls `memset` instead, so the first measurements of "AVX-512" measured glibc. And a kernel
//! runs in a signal handler, on a stack that may be 8 KiB: without optimisation, intrinsics put a
//! dozen vectors on it, 5 KiB with AVX-512.
//!
//! A step moves four vectors. Four loads followed by four stores group the loads of a copy, and
//! with 64-byte vectors a step is the 256-byte burst of the measured prototypes. No loop ends with
//! a fence: a target-last run calls a loop 512 times per 2 MiB and needs one fence in all (see
//! `drain`).

/// Defines a function of an extension that clears `len` bytes with `$store`, four times `$bytes` a step.
macro_rules! clear_loop {
    ($(#[$doc:meta])* $name:ident, $feature:literal, $bytes:literal, $zero:literal, $store:literal, $reg:literal, $end:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// The contract of [`Primitive::clear`](crate::Primitive::clear).
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(self, block: *mut u8, len: usize) {
            const { assert!($crate::order::SUBPAGE.is_multiple_of(4 * $bytes), "a run is whole steps") };
            // SAFETY: `self` proves that the CPU has the extension. The loop writes `len` bytes from `block` on, for
            // which the caller vouches: they are aligned to a vector and a positive number of whole steps. It changes
            // only registers that a call may change.
            unsafe {
                core::arch::asm!(
                    $zero,
                    "2:",
                    concat!($store, " [rdi], ", $reg),
                    concat!($store, " [rdi + {bytes}], ", $reg),
                    concat!($store, " [rdi + 2 * {bytes}], ", $reg),
                    concat!($store, " [rdi + 3 * {bytes}], ", $reg),
                    "add rdi, 4 * {bytes}",
                    "sub rcx, 4 * {bytes}",
                    "jnz 2b",
                    $end,
                    bytes = const $bytes,
                    inout("rdi") block => _,
                    inout("rcx") len => _,
                    clobber_abi("sysv64"),
                    options(nostack),
                )
            }
        }
    };
}

/// Defines a function of an extension that copies `len` bytes with `$load` and `$store`, four times `$bytes` a step.
macro_rules! copy_loop {
    ($(#[$doc:meta])* $name:ident, $feature:literal, $bytes:literal, $load:literal, $store:literal,
     [$a:literal, $b:literal, $c:literal, $d:literal], $end:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// The contract of [`Primitive::copy`](crate::Primitive::copy).
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(self, to: *mut u8, from: *const u8, len: usize) {
            const { assert!($crate::order::SUBPAGE.is_multiple_of(4 * $bytes), "a run is whole steps") };
            // SAFETY: `self` proves that the CPU has the extension. The loop reads and writes `len` bytes from `from`
            // and `to` on, for which the caller vouches: they are aligned to a vector and a positive number of whole
            // steps. It changes only registers that a call may change.
            unsafe {
                core::arch::asm!(
                    "2:",
                    concat!($load, " ", $a, ", [rsi]"),
                    concat!($load, " ", $b, ", [rsi + {bytes}]"),
                    concat!($load, " ", $c, ", [rsi + 2 * {bytes}]"),
                    concat!($load, " ", $d, ", [rsi + 3 * {bytes}]"),
                    concat!($store, " [rdi], ", $a),
                    concat!($store, " [rdi + {bytes}], ", $b),
                    concat!($store, " [rdi + 2 * {bytes}], ", $c),
                    concat!($store, " [rdi + 3 * {bytes}], ", $d),
                    "add rsi, 4 * {bytes}",
                    "add rdi, 4 * {bytes}",
                    "sub rcx, 4 * {bytes}",
                    "jnz 2b",
                    $end,
                    bytes = const $bytes,
                    inout("rdi") to => _,
                    inout("rsi") from => _,
                    inout("rcx") len => _,
                    clobber_abi("sysv64"),
                    options(nostack),
                )
            }
        }
    };
}

pub(super) use {clear_loop, copy_loop};
