//! Decides for the extents of an import whether they are mapped, or copied over a mapping.
//!
//! ```text
//!   extents    pages 0 … 2 at 7000 │ page 3 at 5210 │ pages 4 … 89 at 7004 │ page 90 at 5211 │ pages 91 … at 7091
//!   mapped     pages 0 …                                                                               at 7000
//!   copied                           page 3                                  page 90
//! ```
//! A snapshot may hold a page of its own in place of one page of a shared block. The exporter then
//! lists three extents: the part of the block before, the page, and the part after. Mapping the
//! page takes two more mappings, of which a process has 65 530, and 20 us until all is read and
//! unmapped; copying it takes 8 us, and 4 KiB of this process's memory (docs/design.md). So short
//! extents are copied. Long runs are mapped, and all importers share their memory.
//!
//! Lists from untrusted processes are placed in the same way. The memory mapped below a copy lies
//! between two extents of the file.

use crate::types::extents::{Extent, Extents};
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// Maximum lengths of a copied run: the smallest that leaves fewer than [`MANY_MAPPINGS`] mappings is used. At the
/// first length, mapping takes as long as copying.
const COPIED_AT_MOST_BYTES: [usize; 3] = [16 << 10, 128 << 10, HUGE_PAGE];

/// A sixteenth of a process's mappings.
const MANY_MAPPINGS: usize = 4096;

/// The extents to map, and the extents to copy over them, each in the order of offsets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Placing {
    pub(super) mapped: Vec<Extent>,
    pub(super) copied: Vec<Extent>,
}

impl Placing {
    /// `memory` is the number of bytes of the file that have memory. In an export, each copied page has memory of its
    /// own there. If a list has more extents than that, they are mapped, because otherwise the importer would use
    /// memory that the exporter does not have.
    pub(super) fn of(extents: &Extents, memory: u64) -> Placing {
        let mut placing = Placing::with(extents, 0);
        if extents.page_size() > BASE_PAGE {
            // A copy of a hugetlb page would take one of the pages that the system has reserved.
            return placing;
        }
        for longest in COPIED_AT_MOST_BYTES {
            let copying = Placing::with(extents, longest);
            if copying.copied.iter().map(|extent| extent.len as u64).sum::<u64>() > memory {
                break;
            }
            placing = copying;
            if placing.mapped.len() <= MANY_MAPPINGS {
                break;
            }
        }
        placing
    }

    /// Copies the extents between two parts of one mapping, if they have at most `longest` bytes.
    fn with(extents: &Extents, longest: usize) -> Placing {
        let mut placing = Placing::default();
        let mut rest = extents.iter();
        while let Some(mut mapped) = rest.next() {
            while let Some(between) = extents_before_more_of(&mapped, rest.clone(), longest) {
                placing.copied.extend(rest.by_ref().take(between).filter(|_| !seeded!("import-leaves-pages-out")));
                let Some(more) = rest.next() else { break };
                mapped.len = more.offset + more.len - mapped.offset;
            }
            placing.mapped.push(mapped);
        }
        placing
    }
}

/// Number of `later` extents between a mapping and its continuation. `None` if there is no continuation within
/// `longest` bytes, or if a gap comes first.
fn extents_before_more_of(mapped: &Extent, later: impl Iterator<Item = Extent>, longest: usize) -> Option<usize> {
    let first = mapped.offset + mapped.len;
    let mut end = first;
    for (nth, extent) in later.enumerate() {
        if extent.offset != end || end - first > longest {
            return None;
        }
        let Extent { offset, file_offset, len } = extent;
        if file_offset.wrapping_sub(offset) == mapped.file_offset.wrapping_sub(mapped.offset) {
            return Some(nth);
        }
        end += len;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = BASE_PAGE;

    /// Extents in pages: offset, offset in the file, length.
    fn extents(len: usize, list: &[[usize; 3]]) -> Extents {
        let mut extents = Extents::new(len * PAGE, PAGE);
        for [offset, file_offset, len] in list {
            extents.push(Extent::new(offset * PAGE, file_offset * PAGE, len * PAGE));
        }
        extents
    }

    /// The same for the mapped and the copied extents.
    fn placed(placing: &Placing) -> [Vec<[usize; 3]>; 2] {
        [&placing.mapped, &placing.copied].map(|list| {
            let pages = |extent: &Extent| [extent.offset, extent.file_offset, extent.len].map(|number| number / PAGE);
            list.iter().map(pages).collect()
        })
    }

    #[test]
    fn what_lies_between_parts_of_a_mapping_is_copied_if_it_is_short() {
        for (list, mapped, copied) in [
            // Not a page of a block: each extent is mapped, with or without gaps.
            (
                &[[0, 512, 512], [512, 0, 512], [1500, 9000, 20]][..],
                &[[0, 512, 512], [512, 0, 512], [1500, 9000, 20]][..],
                &[][..],
            ),
            (&[[0, 512, 3], [3, 90, 1], [4, 516, 508]], &[[0, 512, 512]], &[[3, 90, 1]]),
            // Two adjacent extents with separate places in the file, and then one more.
            (
                &[[0, 512, 3], [3, 90, 1], [4, 70, 2], [6, 518, 1], [7, 72, 1], [8, 520, 504]],
                &[[0, 512, 512]],
                &[[3, 90, 1], [4, 70, 2], [7, 72, 1]],
            ),
            // At the beginning and the end of a block.
            (&[[0, 90, 1], [1, 513, 510], [511, 91, 1]], &[[0, 90, 1], [1, 513, 510], [511, 91, 1]], &[]),
            // The next block continues where this one ended.
            (&[[0, 512, 511], [511, 91, 1], [512, 1024, 512]], &[[0, 512, 1024]], &[[511, 91, 1]]),
            // 16 KiB, and more.
            (&[[0, 512, 1], [1, 90, 4], [5, 517, 1]], &[[0, 512, 6]], &[[1, 90, 4]]),
            (&[[0, 512, 1], [1, 90, 5], [6, 518, 1]], &[[0, 512, 1], [1, 90, 5], [6, 518, 1]], &[]),
            (
                &[[0, 512, 1], [1, 90, 3], [4, 50, 2], [6, 518, 1]],
                &[[0, 512, 1], [1, 90, 3], [4, 50, 2], [6, 518, 1]],
                &[],
            ),
            // A gap is not copied.
            (&[[0, 512, 1], [2, 514, 1]], &[[0, 512, 1], [2, 514, 1]], &[]),
            (&[[0, 512, 1], [1, 90, 1], [3, 515, 1]], &[[0, 512, 1], [1, 90, 1], [3, 515, 1]], &[]),
            // The same page three times.
            (&[[0, 7, 1], [1, 7, 1], [2, 7, 1]], &[[0, 7, 1], [1, 7, 1], [2, 7, 1]], &[]),
        ] {
            let found = placed(&Placing::of(&extents(2000, list), u64::MAX));
            assert_eq!(found, [mapped.to_vec(), copied.to_vec()], "{list:?}");
        }
    }

    #[test]
    fn more_is_copied_where_there_would_be_too_many_mappings() {
        // In each 40 pages, 20 neighbouring ones lie elsewhere.
        let list = |count: usize| -> Vec<[usize; 3]> {
            let of = |nth: usize| [[nth * 40, nth * 40, 20], [nth * 40 + 20, (1 << 30) + nth * 32, 20]];
            (0..count).flat_map(of).collect()
        };
        for (count, mapped, copied) in [(2048, 4096, 0), (2049, 2, 2048)] {
            let placing = Placing::of(&extents(count * 40, &list(count)), u64::MAX);
            assert_eq!((placing.mapped.len(), placing.copied.len()), (mapped, copied));
        }
    }

    #[test]
    fn no_more_is_copied_than_the_file_has() {
        let between = [[0, 512, 3], [3, 90, 1], [4, 516, 4], [8, 90, 1], [9, 521, 1]];
        let extents = extents(2000, &between);
        let placed_with = |pages: usize| placed(&Placing::of(&extents, (pages * PAGE) as u64));
        assert_eq!(placed_with(1), [between.to_vec(), Vec::new()]);
        assert_eq!(placed_with(2), [vec![[0, 512, 10]], vec![[3, 90, 1], [8, 90, 1]]]);
    }

    #[test]
    fn pages_of_hugetlb_are_mapped() {
        let mut extents = Extents::new(6 * HUGE_PAGE, HUGE_PAGE);
        for (offset, file_offset) in [(0, 0), (1, 9), (2, 2)] {
            extents.push(Extent::new(offset * HUGE_PAGE, file_offset * HUGE_PAGE, HUGE_PAGE));
        }
        assert_eq!(Placing::of(&extents, u64::MAX), Placing { mapped: extents.iter().collect(), copied: Vec::new() });
    }
}
