//! Reads memory that other threads may write to at the same time. Each word is read once, by an atomic load, so that a
//! race is not undefined behaviour: the load returns the word as it was before the other thread's write, or after it.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::units::BASE_PAGE;

const WORD_BYTES: usize = size_of::<u64>();

/// The bytes of one base page.
pub(crate) type PageBytes = [u8; BASE_PAGE];

/// A page of zeros.
pub(crate) static ZERO_PAGE: PageBytes = [0; BASE_PAGE];

/// Copies bytes that other threads may change meanwhile.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
pub(crate) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    // Copies by word once `from` is aligned, and by byte before and after.
    let lead = from.align_offset(WORD_BYTES).min(to.len());
    let (head, rest) = to.split_at_mut(lead);
    let byte = |at: usize| {
        // SAFETY: the byte lies within `to.len()` bytes of `from`; an atomic byte needs no alignment.
        unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed)
    };
    head.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    let mut words = rest.chunks_exact_mut(WORD_BYTES);
    let mut at = lead;
    for to in &mut words {
        // SAFETY: as above, and aligned by `lead`.
        let word = unsafe { AtomicU64::from_ptr(from.add(at).cast_mut().cast()) };
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        at += WORD_BYTES;
    }
    words.into_remainder().iter_mut().enumerate().for_each(|(by, to)| *to = byte(at + by));
}

/// Copies a page that other threads may change meanwhile. No thread will read the copy soon, so it is written past the
/// caches where the processor can do that.
///
/// # Safety
/// `from` is valid for reads of a base page, and `to` for writes of one that no other code uses. Both are aligned to
/// it.
pub(crate) unsafe fn copy_page(from: *const u8, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this reads and writes the two pages and nothing else, and a prefetch is no access. SSE2 is part of
    // x86-64. A race on these reads is no data race in the language's sense, because the compiler does not see them.
    // The fence orders the stores past the caches before all later stores.
    unsafe {
        core::arch::asm!(
            "2:",
            "prefetcht0 [{from} + 1024]",
            "movdqa {a}, [{from}]",
            "movdqa {b}, [{from} + 16]",
            "movdqa {c}, [{from} + 32]",
            "movdqa {d}, [{from} + 48]",
            "movntdq [{to}], {a}",
            "movntdq [{to} + 16], {b}",
            "movntdq [{to} + 32], {c}",
            "movntdq [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jnz 2b",
            "sfence",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) BASE_PAGE => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this reads and writes the two pages and nothing else, and a prefetch is no access. NEON is part of
    // AArch64 on Linux. A race on these reads is no data race in the language's sense, because the compiler does not
    // see them. The barrier orders the stores, which hint that nobody reads the bytes soon, before all later stores.
    unsafe {
        core::arch::asm!(
            "2:",
            "prfm pldl1strm, [{from}, #1024]",
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "stnp {a:q}, {b:q}, [{to}]",
            "stnp {c:q}, {d:q}, [{to}, #32]",
            "add {from}, {from}, #64",
            "add {to}, {to}, #64",
            "subs {left}, {left}, #64",
            "b.ne 2b",
            "dmb ishst",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) BASE_PAGE => _,
            a = out(vreg) _,
            b = out(vreg) _,
            c = out(vreg) _,
            d = out(vreg) _,
            options(nostack),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: by this function's contract.
    unsafe {
        copy_out(from, core::slice::from_raw_parts_mut(to, BASE_PAGE))
    };
}

/// Whether a page that other threads may change meanwhile differs from one that stays the same.
///
/// # Safety
/// `page` is valid for reads of a base page, and aligned to words.
pub(crate) unsafe fn differs(page: *const u8, from: &PageBytes) -> bool {
    let (mut at, mut is_same) = (0, true);
    while is_same && at < BASE_PAGE {
        // SAFETY: the line lies within the pages.
        is_same = unsafe { is_same_line(page.add(at), from.as_ptr().add(at)) };
        at += LINE_BYTES;
    }
    !is_same
}

/// The number of bytes that one step compares: a line of the cache.
const LINE_BYTES: usize = 64;

// A comparison word by word takes 2.5 times as long as `memcmp`. Blocks of a pool lie a power of two apart, and some
// processors are slow if reads alternate between two such blocks. So this reads all of one line before the other. A
// prefetch, which may lead into the next page, brings the cost down to 1.9 times.
#[cfg(target_arch = "x86_64")]
/// Whether two lines are the same. The first may change meanwhile.
///
/// # Safety
/// Both are valid for reads of [`LINE_BYTES`] bytes.
unsafe fn is_same_line(line: *const u8, other: *const u8) -> bool {
    let equal: u32;
    // SAFETY: this reads both lines and nothing else; a prefetch is no access. SSE2 is part of x86-64. A race on these
    // reads is no data race in the language's sense, because the compiler does not see them: each byte is read as it
    // was before the other thread's write, or after it.
    unsafe {
        core::arch::asm!(
            "prefetcht0 [{line} + 1024]",
            "prefetcht0 [{other} + 1024]",
            "movdqu {a}, [{line}]",
            "movdqu {b}, [{line} + 16]",
            "movdqu {c}, [{line} + 32]",
            "movdqu {d}, [{line} + 48]",
            "movdqu {e}, [{other}]",
            "pcmpeqd {a}, {e}",
            "movdqu {e}, [{other} + 16]",
            "pcmpeqd {b}, {e}",
            "movdqu {e}, [{other} + 32]",
            "pcmpeqd {c}, {e}",
            "movdqu {e}, [{other} + 48]",
            "pcmpeqd {d}, {e}",
            "pand {a}, {b}",
            "pand {c}, {d}",
            "pand {a}, {c}",
            "pmovmskb {equal:e}, {a}",
            line = in(reg) line,
            other = in(reg) other,
            equal = out(reg) equal,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            e = out(xmm_reg) _,
            options(readonly, nostack, preserves_flags),
        );
    }
    equal == 0xffff
}

#[cfg(not(target_arch = "x86_64"))]
/// Whether two lines are the same. The first may change meanwhile.
///
/// # Safety
/// Both are valid for reads of [`LINE_BYTES`] bytes, and aligned to words.
unsafe fn is_same_line(line: *const u8, other: *const u8) -> bool {
    let mut difference = 0;
    for at in (0..LINE_BYTES).step_by(WORD_BYTES) {
        // SAFETY: the word lies within the line, which is aligned to words.
        let now = unsafe { AtomicU64::from_ptr(line.add(at).cast_mut().cast()) }.load(Ordering::Relaxed);
        // SAFETY: the word lies within the line, and no thread writes to it.
        difference |= now ^ unsafe { other.add(at).cast::<u64>().read_unaligned() };
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Aligned(PageBytes);

    #[test]
    fn a_difference_in_any_byte_is_found() {
        let (mut one, other) = (Aligned([7; BASE_PAGE]), Aligned([7; BASE_PAGE]));
        // SAFETY: both are pages.
        let differ = |one: &Aligned| unsafe { differs(one.0.as_ptr(), &other.0) };
        assert!(!differ(&one));
        for at in 0..BASE_PAGE {
            one.0[at] ^= 1 << (at % 8);
            assert!(differ(&one), "at {at}");
            one.0[at] = 7;
        }
        assert!(!differ(&one));
    }

    #[test]
    fn bytes_are_copied_from_any_place() {
        let from: Vec<u8> = (0..100).collect();
        for (start, len) in [(0, 100), (1, 99), (3, 4), (8, 16), (5, 0), (7, 60)] {
            let mut to = vec![0; len];
            // SAFETY: the range lies within the list.
            unsafe { copy_out(from.as_ptr().add(start), &mut to) };
            assert_eq!(to, from[start..start + len]);
        }
    }
}
