//! Thresholds of density: how many private pages over a block make a copy of the whole block worth more than copies of
//! its pages.
//!
//! | pages of a block of 2 MiB | |
//! |---|---|
//! | 5 | [`never_promoted_pages`]: with fewer unmarked pages, the maintenance thread does not count the private ones |
//! | 15 | [`dense_everywhere_pages`]: if most blocks of a region have as many, all its writes copy whole blocks |
//! | 23 | [`promoted_pages`]: the maintenance thread copies the block, and its writers go on |
//! | 39 | [`dense_pages`]: the next write to the block copies the whole block |
//! | 97 | [`left_to_writer_pages`]: the writer copies the block at once |
//! | 128 | [`most_captured_pages`]: where writes are not tracked, a snapshot copies the block, and no pages |
//! | 384 | [`mostly_captured_pages`]: a snapshot or the maintenance thread copies the block beside a history |
//!
//! All but the last two are fractions of [`dense_pages`], which weighs the costs of the two ways of copying. With other
//! fractions, `bench snapshot`, `bench anon-cow-seq` and paced writes were slower.

use crate::units::{BASE_PAGE, BlockSize};

/// The number of pages whose copies cost as much as a copy of the block. A page costs 2.3 us at the write and 0.7 us
/// when it is written back; a block costs 12 us, and 110 us for each 2 MiB (docs/design.md).
pub(crate) fn dense_pages(size: BlockSize) -> usize {
    4 + size.bytes() / (58 << 10)
}

/// Fewer than [`dense_pages`], because the writers go on during this copy, and a block that soon has this many pages
/// mostly gets more.
pub(crate) fn promoted_pages(size: BlockSize) -> usize {
    dense_pages(size) * 3 / 5
}

pub(crate) fn never_promoted_pages(size: BlockSize) -> usize {
    promoted_pages(size) / 4
}

/// More than random writes reach: 5 000 of them to 1 GiB make 10 pages a block, and some blocks have more, so that the
/// median of a sample of 16 blocks is 11 or 12 now and then.
pub(crate) fn dense_everywhere_pages(size: BlockSize) -> usize {
    (dense_pages(size) * 2 / 5).max(2)
}

/// With this many pages, the maintenance thread should have promoted the block before.
pub(crate) fn left_to_writer_pages(size: BlockSize) -> usize {
    dense_pages(size) * 5 / 2
}

/// With more pages that were written since the last snapshot, a snapshot copies the block, which takes less time than
/// the pages. With more captured pages, the maintenance thread copies it: the copy takes as much memory as the next
/// captures would.
pub(crate) fn mostly_captured_pages(size: BlockSize) -> usize {
    size.bytes() / BASE_PAGE / 4 * 3
}

/// Where writes are not tracked, a snapshot copies a block with more private pages, since each compares all captured
/// pages.
pub(crate) fn most_captured_pages(size: BlockSize) -> usize {
    size.bytes() / BASE_PAGE / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_of_2_mib_are_those_of_the_table_and_larger_blocks_take_more_pages() {
        let of = [never_promoted_pages, dense_everywhere_pages, promoted_pages, dense_pages, left_to_writer_pages];
        assert_eq!(of.map(|pages| pages(BlockSize::MIB_2)), [5, 15, 23, 39, 97]);
        let of_sets = [most_captured_pages, mostly_captured_pages];
        assert_eq!(of_sets.map(|pages| pages(BlockSize::MIB_2)), [128, 384]);
        let [small, large] = [BlockSize::KIB_4, BlockSize::new(1 << 30).unwrap()].map(dense_pages);
        assert!((4..6).contains(&small) && large > 16_000, "{small}, {large}");
    }
}
