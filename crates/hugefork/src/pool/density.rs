//! How many private pages over a block make a copy of the whole block worth more than copies of its pages.
//!
//! | pages of a block of 2 MiB | |
//! |---|---|
//! | 5 | [`never_promoted_pages`]: with fewer, the pool's thread does not count a block's pages again |
//! | 15 | [`dense_everywhere_pages`]: if most blocks of a region have so many, all its writes are by block |
//! | 23 | [`promoted_pages`]: the pool's thread copies the block beside its writer |
//! | 39 | [`dense_pages`]: the next write to the block copies it as a whole |
//! | 97 | [`left_to_writer_pages`]: the writer copies the block at once |
//! | 128, or 448 where writes are tracked | [`most_captured_pages`]: a snapshot copies the block, and no pages |
//!
//! All follow from [`dense_pages`], which weighs the costs of the two ways of copying. The others are fractions of it:
//! `bench snapshot`, `bench anon-cow-seq` and paced writes were measured with other fractions, and got slower.

use crate::units::{BASE_PAGE, BlockSize};

/// A page costs 2.3 us at the write and 0.7 us when it is written back; a block costs 12 us and 110 us for 2 MiB
/// (docs/design.md).
pub(crate) fn dense_pages(size: BlockSize) -> usize {
    4 + size.bytes() / (58 << 10)
}

/// Fewer than [`dense_pages`], because the copy is made beside the writer, and a block that has got so many pages soon
/// will mostly get more.
pub(crate) fn promoted_pages(size: BlockSize) -> usize {
    dense_pages(size) * 3 / 5
}

pub(crate) fn never_promoted_pages(size: BlockSize) -> usize {
    promoted_pages(size) / 4
}

/// 5 000 random writes to 1 GiB make 10 pages a block, and some blocks have more: the median of a sample of 16 is 11 or
/// 12 now and then.
pub(crate) fn dense_everywhere_pages(size: BlockSize) -> usize {
    (dense_pages(size) * 2 / 5).max(2)
}

/// So many that the pool's thread should have promoted the block before.
pub(crate) fn left_to_writer_pages(size: BlockSize) -> usize {
    dense_pages(size) * 5 / 2
}

/// A copy of the block takes as much memory as all its pages. Where writes are not tracked, each snapshot compares all
/// captured pages, so fewer are worth it.
pub(crate) fn most_captured_pages(size: BlockSize, are_tracked: bool) -> usize {
    let pages = size.bytes() / BASE_PAGE;
    if are_tracked { pages / 8 * 7 } else { pages / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_of_2_mib_are_those_of_the_table_and_larger_blocks_take_more_pages() {
        let of = [never_promoted_pages, dense_everywhere_pages, promoted_pages, dense_pages, left_to_writer_pages];
        assert_eq!(of.map(|pages| pages(BlockSize::MIB_2)), [5, 15, 23, 39, 97]);
        assert_eq!([false, true].map(|tracked| most_captured_pages(BlockSize::MIB_2, tracked)), [128, 448]);
        let [small, large] = [BlockSize::KIB_4, BlockSize::new(1 << 30).unwrap()].map(dense_pages);
        assert!((4..6).contains(&small) && large > 16_000, "{small}, {large}");
    }
}
