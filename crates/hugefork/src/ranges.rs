//! Ranges of numbered places. [`Ranges`] hands out free ones: ranges of blocks as the placement of regions, slots of
//! the address arena. [`runs`] finds the ranges whose places have a property.

use std::collections::BTreeMap;
use std::ops::Range;

/// A first-fit allocator of ranges. Free ranges merge when they are given back.
#[derive(Debug)]
pub struct Ranges {
    /// Start and end of each free range. No two of them touch.
    free: BTreeMap<usize, usize>,
}

impl Ranges {
    /// An allocator in which all of `0..len` is free.
    pub fn new(len: usize) -> Ranges {
        Ranges { free: BTreeMap::from([(0, len)]) }
    }

    /// Takes the first free range of `len` places that starts at a multiple of `align`.
    pub fn take(&mut self, len: usize, align: usize) -> Option<Range<usize>> {
        let (free, start) = self.free.iter().find_map(|(&start, &end)| {
            let aligned = start.next_multiple_of(align);
            (aligned.checked_add(len)? <= end).then_some((start..end, aligned))
        })?;
        self.take_from(free, start..start + len);
        Some(start..start + len)
    }

    /// Takes a part of a free range.
    fn take_from(&mut self, free: Range<usize>, taken: Range<usize>) {
        self.free.remove(&free.start);
        for (start, end) in [(free.start, taken.start), (taken.end, free.end)] {
            if start < end {
                self.free.insert(start, end);
            }
        }
    }

    /// Takes exactly this place. False if it is not free.
    pub fn take_at(&mut self, place: usize) -> bool {
        let Some((&start, &end)) = self.free.range(..=place).next_back().filter(|(_, end)| **end > place) else {
            return false;
        };
        self.take_from(start..end, place..place + 1);
        true
    }

    /// Gives back a range that `take` or `take_at` handed out.
    pub fn give_back(&mut self, range: Range<usize>) {
        let mut merged = range;
        if let Some((&start, &end)) = self.free.range(..merged.start).next_back()
            && end == merged.start
        {
            self.free.remove(&start);
            merged.start = start;
        }
        if let Some(end) = self.free.remove(&merged.end) {
            merged.end = end;
        }
        self.free.insert(merged.start, merged.end);
    }
}

/// The maximal runs of places in `within` for which `is` holds, found on demand. It asks about each place only once, so
/// no run is empty even if the answer changes meanwhile.
pub(crate) fn runs(within: Range<usize>, is: impl Fn(usize) -> bool) -> impl Iterator<Item = Range<usize>> {
    let mut rest = within;
    std::iter::from_fn(move || {
        let start = rest.clone().find(|&place| is(place))?;
        rest.start = (start + 1..rest.end).find(|&place| !is(place)).unwrap_or(rest.end);
        Some(start..rest.start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_is_empty_though_its_first_place_changes() {
        let asked = std::cell::Cell::new(0);
        let only_at_first = |_| asked.replace(asked.get() + 1) == 0;
        assert_eq!(runs(0..4, only_at_first).next(), Some(0..1));
    }

    #[test]
    fn ranges_are_disjoint_aligned_and_merge_when_they_come_back() {
        let mut ranges = Ranges::new(100);
        let a = ranges.take(10, 1).unwrap();
        let b = ranges.take(20, 16).unwrap();
        let c = ranges.take(5, 1).unwrap();
        assert_eq!((a.clone(), b.clone(), c.clone()), (0..10, 16..36, 10..15));
        assert_eq!(ranges.take(65, 1), None);
        assert_eq!(ranges.take(usize::MAX, 1), None);
        for range in [b, a, c] {
            ranges.give_back(range);
        }
        assert_eq!(ranges.free, BTreeMap::from([(0, 100)]));
        assert_eq!(ranges.take(100, 1), Some(0..100));
    }

    #[test]
    fn one_place_is_taken_wherever_it_is() {
        let mut ranges = Ranges::new(10);
        for place in [0, 9, 5] {
            assert!(ranges.take_at(place) && !ranges.take_at(place));
        }
        assert!(!ranges.take_at(10));
        assert_eq!(ranges.free, BTreeMap::from([(1, 5), (6, 9)]));
        for place in [5, 9, 0] {
            ranges.give_back(place..place + 1);
        }
        assert_eq!(ranges.free, BTreeMap::from([(0, 10)]));
    }
}
