//! The free blocks of a pool as a bitmap with a summary, which finds the next free block without a scan of all bits.
//!
//! ```text
//! bits      one bit a block, set when the block is free
//! summary   one bit for each 64-bit word of those: a hint that a bit of the word may be set
//! ```

use crate::mem::{self, EngineBox};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A set of numbers below a limit. It is lock-free: the fault handler may call every method.
pub(super) struct FreeBits {
    bits: EngineBox<[AtomicU64]>,
    summary: EngineBox<[AtomicU64]>,
}

impl FreeBits {
    /// The set of all numbers below `count`.
    pub(super) fn all(count: usize) -> FreeBits {
        let bits = all(count);
        FreeBits { summary: all(bits.len()), bits }
    }

    /// The size of the bitmaps in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.bits) + size_of_val(&*self.summary)
    }

    /// Adds `index`. A thread that takes it out sees everything that the caller wrote before.
    pub(super) fn put(&self, index: usize) {
        let (word, bit) = place(index);
        let order = if seeded!("block-given-back-without-order") { Ordering::Relaxed } else { Ordering::Release };
        self.bits[word].fetch_or(bit, order);
        let (summary_word, summary_bit) = place(word);
        self.summary[summary_word].fetch_or(summary_bit, Ordering::Release);
    }

    /// Takes `index` out. Returns true if this call took it, and false if it was not in the set.
    pub(super) fn take(&self, index: usize) -> bool {
        let (word, bit) = place(index);
        if self.bits.get(word).is_none_or(|bits| bits.load(Ordering::Relaxed) & bit == 0) {
            return false;
        }
        let before = self.bits[word].fetch_and(!bit, Ordering::Acquire);
        if before == bit {
            self.clear_summary(word);
        }
        before & bit != 0
    }

    /// Clears the summary bit of `word`, unless another thread has set a bit of the word meanwhile.
    fn clear_summary(&self, word: usize) {
        let (summary_word, summary_bit) = place(word);
        self.summary[summary_word].fetch_and(!summary_bit, Ordering::AcqRel);
        if self.bits[word].load(Ordering::Acquire) != 0 {
            self.summary[summary_word].fetch_or(summary_bit, Ordering::Release);
        }
    }

    /// Whether `index` is in the set at this moment.
    pub(super) fn has(&self, index: usize) -> bool {
        let (word, bit) = place(index);
        self.bits[word].load(Ordering::Acquire) & bit != 0
    }

    /// The first number in the set from `from` on. Other threads may add and take numbers during the search.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let first = from / 64;
        let rest = self.bits.get(first)?.load(Ordering::Relaxed) & !low_bits(from % 64);
        if rest != 0 {
            return Some(first * 64 + rest.trailing_zeros() as usize);
        }
        let mut word = first + 1;
        while word < self.bits.len() {
            let hint = self.summary[word / 64].load(Ordering::Relaxed) & !low_bits(word % 64);
            if hint == 0 {
                word = (word / 64 + 1) * 64;
                continue;
            }
            word = word / 64 * 64 + hint.trailing_zeros() as usize;
            let bits = self.bits[word].load(Ordering::Relaxed);
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
        }
        None
    }
}

/// Words whose first `count` bits are set, and no others.
fn all(count: usize) -> EngineBox<[AtomicU64]> {
    let words: EngineBox<[AtomicU64]> = mem::zeroed(count.div_ceil(64));
    words.iter().enumerate().for_each(|(at, word)| word.store(low_bits(count - at * 64), Ordering::Relaxed));
    words
}

/// The word that holds the bit of `index`, and that bit as a mask.
pub(super) fn place(index: usize) -> (usize, u64) {
    (index / 64, 1 << (index % 64))
}

/// A word whose lowest `count` bits are set; all bits if `count` is 64 or more.
pub(super) fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
