//! Sets of numbers as bitmaps, and the free blocks of a pool: a bitmap with a summary, which finds the next free block
//! without a scan of all bits.
//!
//! ```text
//! bits      one bit a block, set when the block is free
//! summary   one bit for each 64-bit word of those: a hint that a bit of the word may be set
//! ```

use std::iter;
use std::ops::Range;

use crate::mem::{self, EngineBox};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A set of numbers below a limit, one bit for each. It is lock-free: the fault handler may call every method.
pub(crate) struct Bits(EngineBox<[AtomicU64]>);

impl Bits {
    /// The empty set.
    pub(crate) fn none(count: usize) -> Bits {
        Bits(mem::zeroed(count.div_ceil(64)))
    }

    /// The set of all numbers below `count`.
    fn all(count: usize) -> Bits {
        let bits = Bits::none(count);
        bits.0.iter().enumerate().for_each(|(at, word)| word.store(low_bits(count - at * 64), Ordering::Relaxed));
        bits
    }

    /// The size of the bitmap in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Adds `index`.
    pub(crate) fn put(&self, index: usize, order: Ordering) {
        self.0[index / 64].fetch_or(bit(index), order);
    }

    /// Takes `index` out. Returns its word from before.
    pub(super) fn take(&self, index: usize, order: Ordering) -> u64 {
        self.0[index / 64].fetch_and(!bit(index), order)
    }

    /// Whether `index` is in the set at this moment.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.0[index / 64].load(Ordering::Acquire) & bit(index) != 0
    }

    /// The first number in the set from `from` on that lies in the same word.
    fn next_in_word(&self, from: usize) -> Option<usize> {
        let rest = self.0.get(from / 64)?.load(Ordering::Relaxed) & !low_bits(from % 64);
        (rest != 0).then(|| from / 64 * 64 + rest.trailing_zeros() as usize)
    }

    /// The first number of `within` in the set. Other threads may add and take numbers during the search.
    pub(super) fn next(&self, within: Range<usize>) -> Option<usize> {
        let words = within.start / 64..within.end.div_ceil(64).min(self.0.len());
        let found = words.into_iter().find_map(|word| self.next_in_word(within.start.max(word * 64)));
        found.filter(|index| *index < within.end)
    }

    /// The numbers of the set, in order.
    pub(crate) fn each(&self) -> impl Iterator<Item = usize> {
        iter::successors(self.next(0..usize::MAX), |at| self.next(at + 1..usize::MAX))
    }
}

/// The free blocks of a pool. It is lock-free: the fault handler may call every method.
pub(super) struct FreeBits {
    bits: Bits,
    summary: Bits,
}

impl FreeBits {
    /// The set of all numbers below `count`.
    pub(super) fn all(count: usize) -> FreeBits {
        FreeBits { bits: Bits::all(count), summary: Bits::all(count.div_ceil(64)) }
    }

    /// The size of the bitmaps in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bits.bytes() + self.summary.bytes()
    }

    /// Adds `index`. A thread that takes it out sees everything that the caller wrote before.
    pub(super) fn put(&self, index: usize) {
        let order = if seeded!("block-given-back-without-order") { Ordering::Relaxed } else { Ordering::Release };
        self.bits.put(index, order);
        self.summary.put(index / 64, Ordering::Release);
    }

    /// Takes `index` out. Returns true if this call took it, and false if it was not in the set.
    pub(super) fn take(&self, index: usize) -> bool {
        let word = index / 64;
        if self.bits.0.get(word).is_none_or(|bits| bits.load(Ordering::Relaxed) & bit(index) == 0) {
            return false;
        }
        let before = self.bits.take(index, Ordering::Acquire);
        if before == bit(index) {
            self.summary.take(word, Ordering::AcqRel);
            // Another thread may have set a bit of the word meanwhile.
            if self.bits.0[word].load(Ordering::Acquire) != 0 {
                self.summary.put(word, Ordering::Release);
            }
        }
        before & bit(index) != 0
    }

    /// Whether `index` is in the set at this moment.
    pub(super) fn has(&self, index: usize) -> bool {
        self.bits.has(index)
    }

    /// The first number in the set from `from` on. Other threads may add and take numbers during the search.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        if let Some(found) = self.bits.next_in_word(from) {
            return Some(found);
        }
        let mut from = from / 64 + 1;
        loop {
            let word = self.summary.next(from..usize::MAX)?;
            if let Some(found) = self.bits.next_in_word(word * 64) {
                return Some(found);
            }
            from = word + 1;
        }
    }
}

/// The bit of `index` in its word.
fn bit(index: usize) -> u64 {
    1 << (index % 64)
}

/// A word whose lowest `count` bits are set; all bits if `count` is 64 or more.
fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
