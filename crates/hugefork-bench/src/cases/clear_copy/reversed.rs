//! `target-last/reversed`: Linux's order up to 6.19, subpage by subpage, with the bytes of each subpage cleared from
//! its end to its beginning, so that the lines at the beginning are the youngest in the cache.
//!
//! It is a rival and not a kernel of hugefork, since it makes no visible difference. It uses the widest cached stores
//! of the machine, one after the other downwards, so compare it with `target-last/avx512` (or `avx2`). It does not use
//! `std; rep stosb`, which stores single bytes: 4 KiB take a thousand cycles, whatever the order.

use hugefork_kernels::{Primitive, PrimitiveName, SUBPAGE, target_last};

/// Clears one subpage downwards.
type ClearDown = unsafe fn(*mut u8);

/// The stores of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reversed {
    /// The primitive whose stores are as wide.
    pub(super) stores: Primitive,
    clear_down: ClearDown,
}

impl Reversed {
    pub(super) fn new() -> Reversed {
        #[cfg(target_arch = "x86_64")]
        for (name, clear_down) in
            [(PrimitiveName::Avx512, avx512 as ClearDown), (PrimitiveName::Avx2, avx2 as ClearDown)]
        {
            if let Some(stores) = Primitive::new(name) {
                return Reversed { stores, clear_down };
            }
        }
        Reversed { stores: Primitive::PORTABLE, clear_down: words }
    }

    /// Clears the block, ending with the subpage of `target`.
    ///
    /// # Safety
    /// `block` is valid for writes of `len` bytes and aligned to [`SUBPAGE`]; `len` is a positive multiple of it;
    /// nobody else accesses the block meanwhile.
    pub(super) unsafe fn clear(self, block: *mut u8, len: usize, target: usize) {
        for index in target_last(len / SUBPAGE, target / SUBPAGE) {
            // SAFETY: the order has each subpage of the block once; the CPU has the stores, as `new` saw.
            unsafe { (self.clear_down)(block.add(index * SUBPAGE)) };
        }
    }
}

/// Stores `zero` over a subpage, from its end to its beginning. Stores are volatile, or the compiler would make a
/// `memset` of them.
///
/// # Safety
/// `page` is valid for writes of [`SUBPAGE`] bytes and aligned to as many. Zero bytes are a value of `V`.
#[inline(always)]
unsafe fn store_down<V: Copy>(page: *mut u8, zero: V) {
    for index in (0..SUBPAGE / size_of::<V>()).rev() {
        // SAFETY: within the page, aligned as it is.
        unsafe { page.cast::<V>().add(index).write_volatile(zero) };
    }
}

/// # Safety
/// As [`store_down`].
unsafe fn words(page: *mut u8) {
    // SAFETY: by contract.
    unsafe { store_down(page, 0u64) };
}

/// # Safety
/// As [`store_down`], on a CPU with AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512(page: *mut u8) {
    // SAFETY: by contract.
    unsafe { store_down(page, std::arch::x86_64::_mm512_setzero_si512()) };
}

/// # Safety
/// As [`store_down`], on a CPU with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(page: *mut u8) {
    // SAFETY: by contract.
    unsafe { store_down(page, std::arch::x86_64::_mm256_setzero_si256()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    #[derive(Clone)]
    struct Page([u8; SUBPAGE]);

    #[test]
    fn clears_the_block_and_nothing_beside_it() {
        for target in [0, SUBPAGE + 5, 5 * SUBPAGE - 1] {
            for reversed in [Reversed::new(), Reversed { stores: Primitive::PORTABLE, clear_down: words }] {
                let mut pages = vec![Page([0xa5; SUBPAGE]); 7];
                // SAFETY: the five pages in the middle of seven of our own.
                unsafe { reversed.clear(pages.as_mut_ptr().add(1).cast(), 5 * SUBPAGE, target) };
                for (index, page) in pages.iter().enumerate() {
                    let expected = if (1..6).contains(&index) { 0 } else { 0xa5 };
                    assert!(page.0.iter().all(|byte| *byte == expected), "page {index}, target {target}");
                }
            }
        }
    }
}
