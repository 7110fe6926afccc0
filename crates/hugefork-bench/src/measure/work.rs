//! The loads and stores that are timed. Every subject of a case runs the same function on its own memory. No function
//! is inlined into a subject, and stores are volatile, so that the compiler can neither merge them into vector stores
//! for one subject nor drop the stores of another.

use crate::error::BenchError;

/// Bytes around the target that a case uses after the fault, clear or copy.
pub const NEAR: usize = 64 << 10;

/// A cache line.
const LINE: usize = 64;

/// A page of the sparse passes.
const PAGE: usize = 4096;

/// The byte that [`rewrite_blocks`] writes, and the offset of this byte in a block.
const REWRITTEN: u8 = 0xa5;
const REWRITTEN_AT: usize = 8;

/// Writes every 8-byte word of an area in order, `p[i] = i + bias`: the work of vm-scalability's `anon-*-seq` (its
/// `usemem` has no bias).
///
/// # Safety
/// `area` is valid for writes of `words` words and aligned to 8; nobody else accesses it meanwhile.
#[inline(never)]
pub unsafe fn write_words(area: *mut u64, words: usize, bias: u64) {
    for i in 0..words {
        // SAFETY: `i < words`, within the area by contract.
        unsafe { area.add(i).write_volatile(i as u64 + bias) };
    }
}

/// Checks one word of each page that [`write_words`] wrote. The error is the first wrong word, as (offset, found,
/// expected).
///
/// # Safety
/// `area` is valid for reads of `words` words and aligned to 8; nobody writes it meanwhile.
#[inline(never)]
pub unsafe fn check_words(area: *const u64, words: usize, bias: u64) -> Result<(), (usize, u64, u64)> {
    for i in (0..words).step_by(PAGE / 8) {
        // SAFETY: `i < words`, within the area by contract.
        let found = unsafe { area.add(i).read_volatile() };
        if found != i as u64 + bias {
            return Err((i * 8, found, i as u64 + bias));
        }
    }
    Ok(())
}

/// Calls [`check_words`] for an area of `len` bytes, and turns a wrong word into a [`BenchError`].
///
/// # Safety
/// As [`check_words`].
pub(crate) unsafe fn check_area(area: *const u8, len: usize, bias: u64) -> Result<(), BenchError> {
    // SAFETY: by contract.
    unsafe { check_words(area.cast(), len / 8, bias) }.map_err(|(offset, found, expected)| BenchError::WrongContents {
        offset,
        found,
        expected,
    })
}

/// Writes one byte of each block of `block` bytes: the ninth, which [`check_words`] does not look at.
///
/// # Safety
/// `area` is valid for writes of `len` bytes; nobody else accesses it meanwhile.
#[inline(never)]
pub unsafe fn rewrite_blocks(area: *mut u8, len: usize, block: usize) {
    for offset in (0..len).step_by(block) {
        // SAFETY: a block is at least a page, so the byte is in it, and within the area by contract.
        unsafe { area.add(offset + REWRITTEN_AT).write_volatile(REWRITTEN) };
    }
}

/// Checks the bytes that [`rewrite_blocks`] wrote.
///
/// # Safety
/// As [`rewrite_blocks`], for reads.
pub(crate) unsafe fn check_rewritten(area: *const u8, len: usize, block: usize) -> Result<(), BenchError> {
    for offset in (0..len).step_by(block).map(|start| start + REWRITTEN_AT) {
        // SAFETY: by contract.
        let found = unsafe { area.add(offset).read_volatile() };
        if found != REWRITTEN {
            return Err(BenchError::WrongContents { offset, found: found.into(), expected: REWRITTEN.into() });
        }
    }
    Ok(())
}

/// Checks that the first word of each page is zero.
///
/// # Safety
/// `area` is valid for reads of `len` bytes and aligned to 8; nobody writes it meanwhile.
pub(crate) unsafe fn check_zeros(area: *const u8, len: usize) -> Result<(), BenchError> {
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: within the area by contract, and a multiple of 4096.
        let found = unsafe { area.add(offset).cast::<u64>().read_volatile() };
        if found != 0 {
            return Err(BenchError::WrongContents { offset, found, expected: 0 });
        }
    }
    Ok(())
}

/// Returns a function that reads the word at an offset of an area.
///
/// # Safety
/// `area` is valid for reads of a word at each offset that is asked for, aligned to 8; nobody writes it meanwhile.
pub(crate) unsafe fn reader(area: *const u8) -> impl Fn(usize) -> u64 {
    // SAFETY: by contract.
    move |offset| unsafe { area.add(offset).cast::<u64>().read_volatile() }
}

/// The first write to a block: one word at `offset`.
///
/// # Safety
/// The word at `offset` in the block is valid for writes and aligned to 8; nobody else accesses it meanwhile.
#[inline(never)]
pub unsafe fn first_write(block: *mut u8, offset: usize, value: u64) {
    // SAFETY: valid by contract.
    unsafe { block.add(offset).cast::<u64>().write_volatile(value) };
}

/// The part of a block that [`near_use`] reads and writes: the aligned 64 KiB that contain `offset`, or the whole block
/// if the block is smaller.
pub fn near_range(block_len: usize, offset: usize) -> std::ops::Range<usize> {
    let len = NEAR.min(block_len);
    let start = offset / len * len;
    start..start + len
}

/// The use of memory right after the fault: it reads, changes and writes back one word of each cache line around the
/// target, so that the time is that in which the lines reach the core, and not that of arithmetic.
///
/// # Safety
/// `block` is valid for reads and writes of `block_len` bytes, a multiple of 4 KiB, and aligned to 8; nobody else
/// accesses it meanwhile.
#[inline(never)]
pub unsafe fn near_use(block: *mut u8, block_len: usize, offset: usize) {
    for line in near_range(block_len, offset).step_by(LINE) {
        // SAFETY: `near_range` lies in the block.
        unsafe {
            let word = block.add(line).cast::<u64>();
            word.write_volatile(word.read_volatile().wrapping_add(1));
        }
    }
}

/// Writes the first word of each 4 KiB page back as it was, which makes the memory present and writable, and leaves its
/// contents unchanged. No figure includes this time.
///
/// # Safety
/// `area` is valid for reads and writes of `len` bytes and aligned to 8; nobody else accesses it meanwhile.
#[inline(never)]
pub unsafe fn touch_pages(area: *mut u8, len: usize) {
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: `offset < len`, within the area by contract, and a multiple of 4096.
        unsafe {
            let word = area.add(offset).cast::<u64>();
            word.write_volatile(word.read_volatile());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_in_order_and_checked() {
        let mut area = vec![0u64; 4096];
        // SAFETY: the vector's own memory, twice.
        unsafe {
            write_words(area.as_mut_ptr(), area.len(), 5);
            assert_eq!(check_words(area.as_ptr(), area.len(), 5), Ok(()));
        }
        assert!(area.iter().enumerate().all(|(i, word)| *word == i as u64 + 5));
        area[512] = 1;
        // SAFETY: the vector's own memory.
        assert_eq!(unsafe { check_words(area.as_ptr(), area.len(), 5) }, Err((4096, 1, 517)));
    }

    #[test]
    fn one_byte_of_each_block_is_rewritten_and_zeros_are_zeros() {
        let (len, block) = (64 << 10, 16 << 10);
        let mut area = vec![0u64; len / 8];
        let base = area.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector's own memory, throughout.
        unsafe {
            check_zeros(base, len).unwrap();
            write_words(base.cast(), len / 8, 1);
            assert!(check_zeros(base, len).is_err() && check_rewritten(base, len, block).is_err());
            rewrite_blocks(base, len, block);
            check_rewritten(base, len, block).unwrap();
            check_area(base, len, 1).unwrap();
            assert!(check_rewritten(base, len, PAGE).is_err(), "of each block, not of each page");
        }
    }

    #[test]
    fn near_use_goes_over_the_64_kib_around_the_target_and_nothing_else() {
        let len = 256 << 10;
        let mut block = vec![0u64; len / 8];
        let offset = (130 << 10) + 8;
        let base = block.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector's own memory, `offset` within it.
        unsafe {
            first_write(base, offset, 77);
            near_use(base, len, offset);
        }
        let range = near_range(len, offset);
        assert_eq!(range, 128 << 10..192 << 10);
        for (i, word) in block.iter().enumerate() {
            let (written, at) = (if i * 8 == offset { 77 } else { 0 }, i * 8);
            let used = u64::from(range.contains(&at) && at.is_multiple_of(LINE));
            assert_eq!(*word, written + used, "word {i}");
        }
    }

    #[test]
    fn a_small_block_is_used_whole() {
        assert_eq!(near_range(4096, 4088), 0..4096);
        assert_eq!(near_range(2 << 20, (2 << 20) - 8), (2 << 20) - NEAR..2 << 20);
    }

    #[test]
    fn touching_changes_nothing() {
        let mut area: Vec<u64> = (0..2048).collect();
        // SAFETY: the vector's own memory.
        unsafe { touch_pages(area.as_mut_ptr().cast(), area.len() * 8) };
        assert!(area.iter().enumerate().all(|(i, word)| *word == i as u64));
    }
}
