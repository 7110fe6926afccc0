//! Checks the whole world after an operation: the bytes of the interesting pages, each entry against the software MMU's
//! mapping, each block's references against its holders, the reservations, and the mappings against the budget.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::is_interesting;
use super::world::{SnapshotModel, World};
use crate::pool::frames::Content;
use crate::region::state::RegionCore;
use crate::snapshot::read::Destination;
use crate::sys::soft::{Page, SoftMmu};
use crate::sys::{Access, Sys};
use crate::table::Entry;
use crate::table::split::SplitPage;
use crate::types::extents::Extent;
use crate::types::options::Reserve;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

impl World {
    pub(super) fn check(&mut self) {
        self.notice_what_was_dropped();
        let mut holders = vec![0u32; self.shape.blocks];
        let (mut mappings, mut reserved) = (0, 0);
        for model in &self.regions {
            let space = &model.space;
            for index in 0..space.table.len() {
                let entry = space.table.get(EntryIndex(index));
                if let Some(block) = entry.block() {
                    holders[block.index()] += 1;
                }
                reserved += usize::from(space.table.is_reserved(EntryIndex(index)));
                self.check_entry(space, index, entry);
                assert!(entry != Entry::Revoked || model.reserve == Reserve::None, "revoked in spite of a reservation");
            }
            let is_there = |offset: usize| !model.is_revoked(offset, self.shape.block);
            self.check_bytes(&model.bytes, is_there, |offset| {
                self.mmu().load(space.addresses.base() + offset).unwrap()
            });
            let count = |is: fn(&Entry) -> bool| space.table.iter().filter(is).count();
            let atomic = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            assert_eq!(atomic(&space.accounts.lazy_blocks), count(|entry| matches!(entry, Entry::Lazy(_))));
            assert_eq!(atomic(&space.accounts.revoked), count(|entry| *entry == Entry::Revoked));
            assert_eq!(atomic(&space.accounts.cow_mappings), count(|entry| entry.is_cow_mapping()));
            assert_eq!(atomic(&space.accounts.charged), count(|entry| entry.is_charged()));
            mappings += space.addresses.mappings();
        }
        for model in &self.snapshots {
            let entries = &model.frozen.entries;
            entries.iter().filter_map(Entry::block).for_each(|block| holders[block.index()] += 1);
            let is_there = |offset: usize| entries.get(EntryIndex(offset / self.shape.block)) != Entry::Revoked;
            assert!(!model.frozen.is_irrevocable() || !model.frozen.is_revoked(), "revoked in spite of a promise");
            if model.frozen.is_irrevocable() {
                self.check_extents(model);
            }
            self.check_bytes(&model.bytes, is_there, |offset| {
                let mut byte = [0];
                model.frozen.read(offset, &mut byte, Destination::Region).unwrap();
                byte[0]
            });
            for index in 0..entries.len() {
                let offset = index * self.shape.block;
                if !is_there(offset) {
                    assert!(
                        model.frozen.read(offset, &mut [0], Destination::Elsewhere).is_err(),
                        "what was revoked is read"
                    );
                    if let Some(view) = model.frozen.view() {
                        assert_eq!(self.mmu().page(view + offset), Some(Page::Hidden), "what was revoked is seen");
                    }
                }
            }
            if let Some(view) = model.frozen.view() {
                let is_seen = |offset| self.mmu().page(view + offset) != Some(Page::Hidden);
                let may_be_hidden = |offset: usize| entries.get(EntryIndex(offset / self.shape.block)).is_cow_mapping();
                let is_there = |offset: usize| is_there(offset) && (is_seen(offset) || !may_be_hidden(offset));
                self.check_bytes(&model.bytes, is_there, |offset| self.mmu().load(view + offset).unwrap());
                let taken = self.mmu().mappings(view, model.bytes.len(), self.shape.block);
                assert!(taken <= model.frozen.mappings(), "a view takes {taken} mappings");
                mappings += model.frozen.mappings();
            }
        }
        self.pool.slots.blocks().iter().for_each(|block| holders[block.index()] += 1);
        let leaked = self.pool.leaked.load(Ordering::Relaxed);
        let mut unaccounted = 0;
        for (block, &holders) in holders.iter().enumerate() {
            let references = self.pool.frames.references(BlockId(block as u32));
            if references != holders {
                assert!(references > holders, "block {block} has {references} references and {holders} holders");
                unaccounted += 1;
            }
        }
        assert!(unaccounted <= leaked, "{unaccounted} blocks lost, {leaked} counted as leaked");
        let held = (0..self.shape.blocks as u32).filter(|&block| self.pool.frames.references(BlockId(block)) > 0);
        assert_eq!(self.pool.frames.free() + held.count(), self.shape.blocks);
        assert_eq!(self.pool.frames.reserved(), reserved, "reservations");
        self.check_zeroed();
        assert_eq!(self.mmu().budget_used(), mappings, "the budget is off");
    }

    /// Checks that the extents of an export have the snapshot's bytes, and that all bytes outside of them are zeros.
    fn check_extents(&self, model: &SnapshotModel) {
        let extents = model.frozen.extents(BASE_PAGE);
        self.check_bytes(
            &model.bytes,
            |_| true,
            |offset| {
                let is_in = |extent: &Extent| (extent.offset..extent.offset + extent.len).contains(&offset);
                let Some(extent) = extents.iter().find(is_in) else { return 0 };
                // SAFETY: the direct map spans the byte, which nobody writes while the snapshot keeps it.
                unsafe { self.pool.sys.direct().add(extent.file_offset + offset - extent.offset).read() }
            },
        );
    }

    /// Checks that each free block marked as zeroed has memory, and that this is zero.
    fn check_zeroed(&self) {
        let frames = &self.pool.frames;
        let free = (0..self.shape.blocks as u32).map(BlockId).filter(|&block| frames.references(block) == 0);
        let mut zeroed = 0;
        for block in free.filter(|&block| frames.content(block) == Content::Clean) {
            zeroed += 1;
            for page in (0..self.shape.block).step_by(BASE_PAGE).filter(|&page| is_interesting(page, self.shape.block))
            {
                assert!(self.mmu().memory_at(self.pool.offset(block) + page).0, "{block:?} has no memory");
                // SAFETY: within the block, which nobody holds.
                let bytes = unsafe { self.pool.direct(block).add(page).cast::<[u8; BASE_PAGE]>().read() };
                assert_eq!(bytes, [0; BASE_PAGE], "{block:?} is not zero");
            }
        }
        assert_eq!(frames.zeroed(), zeroed);
    }

    /// Updates the model for lazily freed pages that the engine no longer counts as lazy: they read as before, or as
    /// zeros if they were dropped. In either case they cannot be dropped any more.
    pub(super) fn notice_what_was_dropped(&mut self) {
        let block = self.shape.block;
        for model in &mut self.regions {
            for page in 0..model.lazy.len() {
                let start = page * BASE_PAGE;
                if !model.lazy[page] || is_lazy(&model.space, start, block) || model.is_revoked(start, block) {
                    continue;
                }
                model.lazy[page] = false;
                let now = [start, start + 1, start + BASE_PAGE - 1]
                    .map(|offset| self.pool.sys.load(model.space.addresses.base() + offset).unwrap());
                if now == [0; 3] {
                    model.bytes[start..start + BASE_PAGE].fill(0);
                }
            }
        }
    }

    fn check_entry(&self, space: &RegionCore<SoftMmu>, index: usize, entry: Entry) {
        let split = space.table.split(EntryIndex(index)).filter(|_| matches!(entry, Entry::Split(_)));
        for (nth, page) in (space.address_of(index)..space.address_of(index + 1)).step_by(BASE_PAGE).enumerate() {
            let offset = |block| self.pool.offset(block) + (page - space.address_of(index));
            let is_alone = |block| self.pool.frames.references(block) == 1;
            match (entry, self.mmu().page(page).expect("a region is mapped everywhere")) {
                (Entry::Zero, Page::Zeros) | (Entry::Revoked, Page::Hidden) => {}
                (Entry::Private(block), Page::Memory { start: at, access: Access::ReadWrite }) => {
                    assert_eq!(at, offset(block));
                    assert!(is_alone(block), "writable, and held by others");
                }
                // Beside pinned pages, a page may lack the right to be written.
                (Entry::Private(block), Page::Memory { start: at, access: Access::Read })
                    if at == offset(block) && space.pins.may_lack_right() =>
                {
                    assert!(is_alone(block), "the region's own, and held by others");
                }
                (Entry::Shared(block, _), Page::Memory { start: at, access }) if at == offset(block) => {
                    // It is writable only after a failed protection, and then nobody else may hold the block.
                    assert!(access == Access::Read || is_alone(block), "writable and shared");
                }
                // It is read-only only after a failed call.
                (Entry::CowMapped(block, _, Access::ReadWrite), Page::CowMapping { start: at, .. })
                    if at == offset(block) => {}
                (Entry::CowMapped(block, _, Access::Read), Page::CowMapping { start: at, access: Access::Read }) => {
                    assert_eq!(at, offset(block));
                }
                (Entry::Lazy(block), Page::Memory { start: at, access: Access::Read }) if at == offset(block) => {}
                (Entry::Split(block), shown) => match (split.expect("pages").get(nth), shown) {
                    (SplitPage::Dropped, Page::Zeros) => assert!(is_alone(block), "a block with holes is shared"),
                    (SplitPage::Lazy, Page::Memory { start: at, access: Access::Read }) if at == offset(block) => {}
                    (SplitPage::Readable, Page::Memory { start: at, access }) if at == offset(block) => {
                        assert!(access == Access::Read || is_alone(block), "writable and shared");
                    }
                    (SplitPage::Writable, Page::Memory { start: at, access: Access::ReadWrite }) => {
                        assert!(at == offset(block) && is_alone(block));
                    }
                    (page, shown) => panic!("{page:?} of {index}, mapped {shown:?}"),
                },
                (entry, page) => panic!("{entry:?} at {index}, mapped {page:?}"),
            }
        }
    }

    /// Compares the first two bytes and the last byte of each interesting page, where all writes of the tests go.
    fn check_bytes(&self, expected: &[u8], is_there: impl Fn(usize) -> bool, actual: impl Fn(usize) -> u8) {
        for page in (0..expected.len()).step_by(BASE_PAGE) {
            if !is_interesting(page, self.shape.block) || !is_there(page) {
                continue;
            }
            for offset in [page, page + 1, page + BASE_PAGE - 1] {
                assert_eq!(actual(offset), expected[offset], "at {offset}");
            }
        }
    }
}

/// Whether the engine may drop the page at `offset`.
pub(super) fn is_lazy(space: &RegionCore<SoftMmu>, offset: usize, block: usize) -> bool {
    let index = EntryIndex(offset / block);
    match space.table.get(index) {
        Entry::Lazy(_) => true,
        Entry::Split(_) => space.table.split(index).unwrap().get(offset % block / BASE_PAGE) == SplitPage::Lazy,
        _ => false,
    }
}

impl SoftMmu {
    fn budget_used(&self) -> usize {
        crate::sys::Sys::budget(self).used()
    }
}

pub(super) fn mmu_fits(mmu: &SoftMmu) -> bool {
    crate::sys::Sys::budget(mmu).fits(2)
}
