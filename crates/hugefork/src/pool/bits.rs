//! The free blocks of a pool as bits, found without a look at each.
//!
//! ```text
//! bits      one bit a block, set when it is free
//! summary   one bit for 64 of those: a hint that one of them may be set
//! ```

use crate::mem::{self, EngineBox};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A set of numbers below a limit. It is lock-free: the fault handler may call every method.
pub(super) struct FreeBits {
    bits: EngineBox<[AtomicU64]>,
    summary: EngineBox<[AtomicU64]>,
}

impl FreeBits {
    /// All of the numbers below `count`.
    pub(super) fn all(count: usize) -> FreeBits {
        let bits = all(count);
        FreeBits { summary: all(bits.len()), bits }
    }

    /// Bytes that this takes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.bits) + size_of_val(&*self.summary)
    }

    /// Adds `index`, after all that the caller has written.
    pub(super) fn put(&self, index: usize) {
        let (word, bit) = place(index);
        self.bits[word].fetch_or(bit, Ordering::Release);
        let (summary_word, summary_bit) = place(word);
        self.summary[summary_word].fetch_or(summary_bit, Ordering::Release);
    }

    /// Takes `index` out. True if it was there and the caller is the one that took it.
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

    /// Clears the hint that `word` has a bit, unless one was set meanwhile.
    fn clear_summary(&self, word: usize) {
        let (summary_word, summary_bit) = place(word);
        self.summary[summary_word].fetch_and(!summary_bit, Ordering::AcqRel);
        if self.bits[word].load(Ordering::Acquire) != 0 {
            self.summary[summary_word].fetch_or(summary_bit, Ordering::Release);
        }
    }

    /// Whether `index` is there at this moment.
    pub(super) fn has(&self, index: usize) -> bool {
        let (word, bit) = place(index);
        self.bits[word].load(Ordering::Acquire) & bit != 0
    }

    /// The first number from `from` on, as the bits stood at that moment.
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

/// Words in which the first `count` bits are set.
fn all(count: usize) -> EngineBox<[AtomicU64]> {
    let words: EngineBox<[AtomicU64]> = mem::zeroed(count.div_ceil(64));
    words.iter().enumerate().for_each(|(at, word)| word.store(low_bits(count - at * 64), Ordering::Relaxed));
    words
}

/// The word and the bit of a number.
pub(super) fn place(index: usize) -> (usize, u64) {
    (index / 64, 1 << (index % 64))
}

/// The lowest `count` bits of a word, or all of it.
pub(super) fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
