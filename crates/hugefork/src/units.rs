//! Sizes and indices as types, so that nobody confuses a length with an address or an index.
//!
//! ```text
//! region   | entry 0 | entry 1 | entry 2 | …      EntryIndex: the number of a block-sized piece of a region
//!               │          │
//! pool     … | block 7 | block 8 | …              BlockId: the number of a block of the pool
//! ```

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// A base page: 4 KiB, the smallest unit that the processor maps.
pub(crate) const BASE_PAGE: usize = 4096;

/// The memory that one huge entry of the processor's page table maps on x86-64: 2 MiB. Small blocks are mapped in runs
/// of up to this size.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The error of an impossible size.
///
/// ```
/// use hugefork::{ByteSize, SizeError};
/// let error = "ten".parse::<ByteSize>().unwrap_err();
/// assert!(matches!(error, SizeError::Unreadable { .. }));
/// assert_eq!(error.to_string(), "`ten` is not a size: write 4KiB, 512MiB, 1GiB or plain bytes");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The size is not a power of two from 4 KiB to 1 GiB.
    #[error("{} is not a block size: take a power of two from 4KiB to 1GiB", Bytes(*.bytes))]
    #[non_exhaustive]
    NotABlockSize {
        /// The size that was asked for.
        bytes: usize,
    },
    /// The size is zero.
    #[error("a size of zero, or none was given: take at least one block of {block_size}")]
    #[non_exhaustive]
    Zero {
        /// The pool's block size.
        block_size: BlockSize,
    },
    /// The size is not a whole number of blocks.
    #[error(
        "{} is not a whole number of {block_size} blocks: the next multiple is {} bytes",
        Bytes(*.bytes), bytes.next_multiple_of(block_size.bytes())
    )]
    #[non_exhaustive]
    NotAMultiple {
        /// The size that was asked for.
        bytes: usize,
        /// The pool's block size.
        block_size: BlockSize,
    },
    /// The text is not a size.
    #[error("`{text}` is not a size: write 4KiB, 512MiB, 1GiB or plain bytes")]
    #[non_exhaustive]
    Unreadable {
        /// The text.
        text: String,
    },
}

/// The size of a pool's blocks: a power of two from 4 KiB to 1 GiB. A block is the unit of placement, like a folio in
/// Linux: hugefork clears, copies and gives back whole blocks.
///
/// ```
/// use hugefork::BlockSize;
/// assert_eq!("2MiB".parse::<BlockSize>(), Ok(BlockSize::MIB_2));
/// assert_eq!(BlockSize::new(64 << 10).unwrap().to_string(), "64KiB");
/// assert!(BlockSize::new(3000).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize {
    shift: u8,
}

impl BlockSize {
    /// 4 KiB, a base page: the smallest.
    pub const KIB_4: BlockSize = BlockSize { shift: 12 };
    /// 64 KiB.
    pub const KIB_64: BlockSize = BlockSize { shift: 16 };
    /// 2 MiB, a huge page on x86-64: the default.
    pub const MIB_2: BlockSize = BlockSize { shift: 21 };
    /// 1 GiB: the largest.
    pub const GIB_1: BlockSize = BlockSize { shift: 30 };

    /// The block size of `bytes`.
    ///
    /// # Errors
    /// [`SizeError::NotABlockSize`] unless `bytes` is a power of two from 4 KiB to 1 GiB.
    pub const fn new(bytes: usize) -> Result<BlockSize, SizeError> {
        if !bytes.is_power_of_two() || bytes < Self::KIB_4.bytes() || bytes > Self::GIB_1.bytes() {
            return Err(SizeError::NotABlockSize { bytes });
        }
        Ok(BlockSize { shift: bytes.trailing_zeros() as u8 })
    }

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// Number of whole blocks in `len` bytes.
    pub(crate) const fn count(self, len: usize) -> usize {
        len >> self.shift
    }

    /// Bytes in `count` blocks.
    pub(crate) const fn len_of(self, count: usize) -> usize {
        count << self.shift
    }

    /// The offset in its block of byte `offset`.
    pub(crate) const fn within(self, offset: usize) -> usize {
        offset & (self.bytes() - 1)
    }

    /// Checks that `len` is a non-zero multiple of this size.
    pub(crate) const fn check_len(self, len: usize) -> Result<(), SizeError> {
        if len == 0 {
            return Err(SizeError::Zero { block_size: self });
        }
        if self.within(len) != 0 {
            return Err(SizeError::NotAMultiple { bytes: len, block_size: self });
        }
        Ok(())
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::MIB_2
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ByteSize(self.bytes()), f)
    }
}

impl fmt::Debug for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSize({self})")
    }
}

impl FromStr for BlockSize {
    type Err = SizeError;

    /// Parses a [`ByteSize`] that is a block size.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        BlockSize::new(text.parse::<ByteSize>()?.0)
    }
}

/// A number of bytes. It prints as `4KiB`, `2MiB` or `1GiB` if it is a whole number of such units, and otherwise in
/// plain bytes.
///
/// It parses in upper and lower case, with the letter alone or with `iB`, `i` or `B`. Every unit is a power of two, so
/// `1GB` and `1g` are 1 GiB too.
///
/// ```
/// use hugefork::ByteSize;
/// assert_eq!(ByteSize(6 << 20).to_string(), "6MiB");
/// for text in ["1GiB", "1gib", "1GB", "1 g", "1073741824"] {
///     assert_eq!(text.parse(), Ok(ByteSize(1 << 30)));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub usize);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let unreadable = || SizeError::Unreadable { text: text.to_owned() };
        let (digits, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "ki" | "kib" => 10,
            "m" | "mb" | "mi" | "mib" => 20,
            "g" | "gb" | "gi" | "gib" => 30,
            "t" | "tb" | "ti" | "tib" => 40,
            _ => return Err(unreadable()),
        };
        let number: usize = digits.trim().parse().map_err(|_| unreadable())?;
        number.checked_mul(1 << shift).map(ByteSize).ok_or_else(unreadable)
    }
}

/// A number of bytes within a sentence.
pub(crate) struct Bytes(pub(crate) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 1 { f.write_str("1 byte") } else { write!(f, "{} bytes", self.0) }
    }
}

/// The number of a block of the pool, below [`BlockId::LIMIT`]: an entry of the page table stores it beside its state
/// in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

impl BlockId {
    /// The number of blocks that an entry can name: 512 GiB of 4 KiB blocks, 256 TiB of 2 MiB blocks.
    pub(crate) const LIMIT: usize = 1 << 27;

    /// The block `by` places further on.
    pub(crate) fn offset(self, by: usize) -> BlockId {
        BlockId(self.0 + by as u32)
    }

    /// Whether `other` is `by` places further on.
    pub(crate) fn is_by(self, by: isize, other: BlockId) -> bool {
        self.0 as isize + by == other.0 as isize
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a block-sized piece of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryIndex(pub(crate) usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_in_their_largest_whole_unit_and_read_back() {
        for (bytes, text) in [(4096, "4KiB"), (2 << 20, "2MiB"), (3 << 30, "3GiB"), (1 << 40, "1TiB"), (4097, "4097B")]
        {
            assert_eq!(ByteSize(bytes).to_string(), text);
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
        assert_eq!("12".parse(), Ok(ByteSize(12)));
        for (unit, shift) in UNITS {
            let letter = &unit[..1];
            let (byte, spaced, upper) =
                (format!("{letter}b"), format!(" {}", unit.to_lowercase()), unit.to_uppercase());
            for unit in [unit, letter, &unit[..2], &byte, &spaced, &upper] {
                assert_eq!(format!("3{unit}").parse(), Ok(ByteSize(3 << shift)), "3{unit}");
            }
        }
        for bad in ["", "KiB", "x", "-1KiB", "99999999999TiB", "1.5GiB", "1i", "1iB", "1PiB", "1 k k"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_powers_of_two_from_4_kib_to_1_gib_are_block_sizes() {
        for bytes in [0, 1, 2048, 4097, 3 << 20, 2 << 30, usize::MAX] {
            assert!(BlockSize::new(bytes).is_err(), "{bytes}");
        }
        for shift in 12..=30 {
            assert_eq!(BlockSize::new(1 << shift).unwrap().bytes(), 1 << shift);
        }
    }
}
