//! Compares the differences that the engine reports between a region or snapshot and a snapshot with those of the
//! vectors.

use std::ops::Range;

use super::world::World;
use crate::snapshot::changes::{Found, Newer, Precision};
use crate::snapshot::core::SnapshotCore;
use crate::sys::soft::SoftMmu;
use crate::table::{Entries, Entry};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// The items of one comparison.
struct Told {
    ranges: Vec<Range<usize>>,
    error: Option<RegionError>,
}

fn told(newer: &dyn Newer<SoftMmu>, older: &SnapshotCore<SoftMmu>, precision: Precision) -> Told {
    let (mut ranges, mut error): (Vec<Range<usize>>, _) = (Vec::new(), None);
    let mut found = Found::new(newer, older, precision);
    for item in &mut found {
        assert_eq!(error, None, "something after an error");
        match item {
            Ok(range) => {
                assert!(!range.is_empty() && ranges.last().is_none_or(|last| last.end < range.start), "in order");
                ranges.push(range);
            }
            Err(why) => error = Some(why),
        }
    }
    assert_eq!(found.next(), None, "it is over");
    Told { ranges, error }
}

fn has(ranges: &[Range<usize>], at: usize) -> bool {
    ranges.iter().any(|range| range.contains(&at))
}

impl World {
    fn references(&self) -> Vec<u32> {
        let blocks = (0..self.shape.blocks as u32).map(BlockId);
        blocks.map(|block| self.pool.frames.references(block)).collect()
    }

    /// Compares a region (`newer` below 5) or snapshot with the snapshot `older`, if they have the same length.
    pub(super) fn compare(&self, newer: usize, older: usize) {
        let old = &self.snapshots[older];
        let block = self.shape.block;
        let (is_region, at) = (newer < 5 && !self.regions.is_empty(), newer % 5);
        let references = self.references();
        let (core, bytes, entries): (&dyn Newer<SoftMmu>, &[u8], &Entries) = if is_region {
            let model = &self.regions[at % self.regions.len()];
            (&*model.space, &model.bytes, &model.space.table)
        } else {
            let model = &self.snapshots[at % self.snapshots.len()];
            (&*model.frozen, &model.bytes, &model.frozen.entries)
        };
        let newer_snapshot = (!is_region).then(|| &self.snapshots[at % self.snapshots.len()].frozen);
        let pages_at = |index| newer_snapshot.and_then(|frozen| frozen.pages_at(index));
        let entry = |index| entries.get(EntryIndex(index));
        if bytes.len() != old.bytes.len() {
            return;
        }
        let old_entry = |index| old.frozen.entries.get(EntryIndex(index));
        let is_lost = |index: usize| entry(index) == Entry::Revoked || old_entry(index) == Entry::Revoked;
        let count = bytes.len() / block;
        let [blocks, written, pages] =
            [Precision::Block, Precision::Written, Precision::Page].map(|precision| told(core, &old.frozen, precision));
        for told in [&blocks, &written, &pages] {
            let expected = (0..count).any(is_lost).then_some(RegionError::Revoked);
            assert_eq!(told.error, expected);
            if expected.is_some() {
                // The ranges before the error are right.
                let end = told.ranges.last().map_or(0, |last| last.end);
                assert!(end.div_ceil(block) <= count);
            }
        }
        let until = |told: &Told| match told.error {
            Some(_) => told.ranges.last().map_or(0, |last| last.end),
            None => bytes.len(),
        };
        for page in (0..until(&pages)).step_by(BASE_PAGE) {
            let differs = bytes[page..page + BASE_PAGE] != old.bytes[page..page + BASE_PAGE];
            assert_eq!(has(&pages.ranges, page), differs, "the page at {page}");
        }
        for page in (0..until(&written)).step_by(BASE_PAGE) {
            assert!(has(&written.ranges, page) || !has(&pages.ranges, page), "the page at {page} was written");
            assert!(!has(&written.ranges, page) || has(&blocks.ranges, page), "the page at {page} is in no such block");
        }
        for index in 0..until(&blocks) / block {
            let at = index * block;
            let differs = bytes[at..at + block] != old.bytes[at..at + block];
            let is_told = has(&blocks.ranges, at);
            assert!(is_told || !differs, "block {index} differs");
            let pages = [old.frozen.pages_at(EntryIndex(index)), pages_at(EntryIndex(index))];
            let are_alike = match &pages {
                [Some(old), Some(new)] => old.is(new),
                pages => pages.iter().all(Option::is_none),
            };
            let is_live = is_region && entry(index).is_cow_mapping();
            let is_the_same = entry(index).block() == old_entry(index).block() && are_alike && !is_live;
            assert!(!is_told || !is_the_same, "block {index} is the same");
        }
        assert_eq!(self.references(), references, "whoever compares holds blocks only meanwhile");
    }
}
