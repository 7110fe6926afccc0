//! Random programs on the software MMU, against plain vectors, with every call of the operating system failing in turn.
//!
//! After each operation everything that can be looked at is looked at: every byte that was ever interesting, every
//! entry against what is mapped, every block's references against its holders, every mapping against the budget.

use std::ops::Range;
use std::sync::Arc;

use hugefork_kernels::Kernels;
use proptest::prelude::*;

use crate::fault::resolver::Unresolved;
use crate::frozen::Frozen;
use crate::options::{OnLimit, RegionOptions, Reserve};
use crate::pool::core::PoolCore;
use crate::pool::holders::Droppable;
use crate::pool::stock::Stock;
use crate::space::Space;
use crate::sys::soft::{Call, Page, SoftMmu};
use crate::sys::{Access, Merging};
use crate::table::Entry;
use crate::table::split::SplitPage;
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex};

#[derive(Clone, Debug)]
enum Op {
    Create {
        blocks: usize,
        with: usize,
    },
    Write {
        region: usize,
        offset: usize,
        value: u8,
    },
    Fork {
        region: usize,
        with: usize,
    },
    Snapshot {
        region: usize,
        with: usize,
    },
    ForkSnapshot {
        snapshot: usize,
    },
    LazyFree {
        region: usize,
        start: usize,
        len: usize,
    },
    CancelLazyFree {
        region: usize,
        start: usize,
        len: usize,
    },
    Reclaim {
        blocks: usize,
    },
    Trim,
    Pin {
        region: usize,
        start: usize,
        len: usize,
    },
    Unpin {
        region: usize,
    },
    /// A write to physical memory, past the page table.
    DeviceWrite {
        region: usize,
        value: u8,
    },
    MapSnapshot {
        snapshot: usize,
    },
    Discard {
        region: usize,
        start: usize,
        len: usize,
    },
    Populate {
        region: usize,
    },
    PrepareWrite {
        region: usize,
        start: usize,
        len: usize,
    },
    DropRegion {
        region: usize,
    },
    DropSnapshot {
        snapshot: usize,
    },
    FailNext {
        call: usize,
        after: usize,
    },
}

/// The shape of a pool under test.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block: usize,
    blocks: usize,
    merging: Merging,
    mappings: usize,
}

/// 4 KiB blocks share a window of 512 and are given in runs; 2 MiB blocks are alone in theirs.
const SMALL: Shape = Shape { block: 4 << 10, blocks: 48, merging: Merging::Merge, mappings: 1000 };
const SPLITTING: Shape = Shape { block: 64 << 10, blocks: 12, merging: Merging::Merge, mappings: 1000 };
const HUGE: Shape = Shape { block: 2 << 20, blocks: 6, merging: Merging::Merge, mappings: 1000 };
const HUGETLB: Shape = Shape { block: 2 << 20, blocks: 6, merging: Merging::Separate, mappings: 1000 };
const SCARCE_MAPPINGS: Shape = Shape { block: 16 << 10, blocks: 48, merging: Merging::Merge, mappings: 14 };

struct RegionModel {
    space: Box<Space<SoftMmu>>,
    bytes: Vec<u8>,
    /// Pages that may be dropped.
    lazy: Vec<bool>,
    pins: Vec<Range<usize>>,
    /// Whether it was made with a reservation.
    reserve: Reserve,
}

impl RegionModel {
    fn new(space: Box<Space<SoftMmu>>, bytes: Vec<u8>, reserve: Reserve) -> RegionModel {
        let lazy = vec![false; bytes.len() / BASE_PAGE];
        RegionModel { space, bytes, lazy, pins: Vec::new(), reserve }
    }

    /// Takes back the permission to drop the unit that holds byte `offset`: a block that may be dropped as a whole, else a
    /// page.
    fn cancel(&mut self, offset: usize, block: usize) {
        let pages = offset / block * block / BASE_PAGE..(offset / block + 1) * block / BASE_PAGE;
        if self.lazy[pages.clone()].iter().all(|&lazy| lazy) {
            self.lazy[pages].fill(false);
        } else {
            self.lazy[offset / BASE_PAGE] = false;
        }
    }

    fn is_revoked(&self, offset: usize, block: usize) -> bool {
        self.space.table.get(EntryIndex(offset / block)) == Entry::Revoked
    }
}

struct SnapshotModel {
    frozen: Box<Frozen<SoftMmu>>,
    bytes: Vec<u8>,
    reserve: Reserve,
}

/// What regions and forks are made with.
fn options(with: usize, block: usize) -> RegionOptions {
    match with % 6 {
        0 => RegionOptions::new().reserve(Reserve::Full),
        1 => RegionOptions::new().max_cow_bytes(block, OnLimit::Revoke),
        2 => RegionOptions::new().max_cow_bytes(2 * block, OnLimit::Fail),
        _ => RegionOptions::new(),
    }
}

struct World {
    shape: Shape,
    pool: Arc<PoolCore<SoftMmu>>,
    regions: Vec<RegionModel>,
    snapshots: Vec<SnapshotModel>,
}

impl World {
    fn new(shape: Shape) -> World {
        let mmu = SoftMmu::new(shape.block * shape.blocks, shape.merging, shape.mappings);
        let size = BlockSize::new(shape.block).unwrap();
        let kernels = Kernels::default_for_this_cpu();
        let pool = Arc::new(PoolCore::new(mmu, "model".to_owned(), size, shape.blocks, kernels, Stock::default()));
        World { shape, pool, regions: Vec::new(), snapshots: Vec::new() }
    }

    fn mmu(&self) -> &SoftMmu {
        &self.pool.sys
    }

    /// A write as hardware does it: fault, resolve, repeat.
    fn write(&mut self, region: usize, offset: usize, value: u8) {
        let (mmu, block) = (&self.pool.sys, self.shape.block);
        let model = &mut self.regions[region];
        let address = model.space.addresses.base + offset;
        let is_first = model.space.table.get(EntryIndex(offset / block)) == Entry::Zero;
        let failing = mmu.failure_pending();
        for _ in 0..3 {
            if mmu.store(address, value).is_ok() {
                model.cancel(offset, block);
                model.bytes[offset] = value;
                return;
            }
            match model.space.resolve(offset) {
                Ok(_) => {}
                Err(Unresolved::PoolFull) => {
                    assert_eq!(self.pool.frames.available(), 0, "said full, and was not");
                    let excused = !mmu_fits(mmu) || failing && !mmu.failure_pending();
                    assert!(excused || !self.pool.drop_some_lazy(), "said full, and something may be dropped");
                    // A region that was told to leave its reservation, by a discard that found no other block, is not promised any.
                    let index = EntryIndex(offset / block);
                    assert!(!(is_first && model.space.table.is_booked(index)), "a block was promised");
                    return;
                }
                Err(Unresolved::TooManyMappings) => return assert!(!mmu_fits(mmu)),
                Err(Unresolved::Revoked) => return assert!(model.is_revoked(offset, block)),
                Err(Unresolved::CowLimit(on_limit)) => return assert_eq!(on_limit, OnLimit::Fail),
                Err(Unresolved::OutOfMemory(_) | Unresolved::Unmappable(_)) => return,
            }
        }
        panic!("a write does not get through");
    }

    fn apply(&mut self, op: &Op) {
        let pick = |index: usize, len: usize| (len > 0).then(|| index % len.max(1));
        let region = |index: &usize| pick(*index, self.regions.len());
        let snapshot = |index: &usize| pick(*index, self.snapshots.len());
        match op {
            Op::Create { blocks, with } => {
                let len = (blocks % self.shape.blocks + 1) * self.shape.block;
                let options = options(*with, self.shape.block);
                if self.regions.len() < 5
                    && let Ok(space) = Space::zeros(&self.pool, len, options)
                {
                    self.regions.push(RegionModel::new(space, vec![0; len], options.reserve));
                }
            }
            Op::Write { region: at, offset, value } => {
                if let Some(at) = region(at) {
                    let offset = interesting(*offset, self.regions[at].bytes.len(), self.shape.block);
                    self.write(at, offset, *value);
                }
            }
            Op::Fork { region: at, with } => {
                let options = options(*with, self.shape.block);
                if let Some(at) = region(at)
                    && self.regions.len() < 5
                    && let Ok(space) = self.regions[at].space.freeze().and_then(|frozen| frozen.share(options))
                {
                    let bytes = self.regions[at].bytes.clone();
                    self.regions.push(RegionModel::new(space, bytes, options.reserve));
                }
            }
            Op::Snapshot { region: at, with } => {
                if let Some(at) = region(at)
                    && self.snapshots.len() < 5
                    && let Ok(frozen) = self.regions[at].space.freeze()
                {
                    let reserve = if with % 4 == 0 { Reserve::Full } else { Reserve::None };
                    if reserve == Reserve::None || frozen.reserve().is_ok() {
                        let bytes = self.regions[at].bytes.clone();
                        self.snapshots.push(SnapshotModel { frozen, bytes, reserve });
                    }
                }
            }
            Op::ForkSnapshot { snapshot: at } => {
                if let Some(at) = snapshot(at)
                    && self.regions.len() < 5
                    && let Ok(space) =
                        self.snapshots[at].frozen.duplicate().and_then(|it| it.share(RegionOptions::new()))
                {
                    let bytes = self.snapshots[at].bytes.clone();
                    self.regions.push(RegionModel::new(space, bytes, Reserve::None));
                }
            }
            Op::MapSnapshot { snapshot: at } => {
                if let Some(at) = snapshot(at) {
                    let _ = self.snapshots[at].frozen.map();
                }
            }
            Op::LazyFree { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let model = &mut self.regions[at];
                    let range = sub_range(*start, *len, model.bytes.len(), self.shape.block);
                    match model.space.lazy_free(range.clone()) {
                        Ok(done) => assert_eq!(done.freed + done.already + done.skipped(), range.len(), "{done:?}"),
                        Err(_) => assert!(!self.pool.sys.failure_pending() || !mmu_fits(&self.pool.sys)),
                    }
                    // Permitted where the engine says so, and nowhere else.
                    for page in range.start.div_ceil(BASE_PAGE)..range.end / BASE_PAGE {
                        model.lazy[page] |= is_lazy(&model.space, page * BASE_PAGE, self.shape.block);
                    }
                }
            }
            Op::CancelLazyFree { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let model = &mut self.regions[at];
                    let range = sub_range(*start, *len, model.bytes.len(), self.shape.block);
                    model.space.cancel_lazy_free(range.clone()).unwrap();
                    for page in (range.start / BASE_PAGE..range.end.div_ceil(BASE_PAGE)).filter(|_| !range.is_empty()) {
                        model.cancel(page * BASE_PAGE, self.shape.block);
                        assert!(!is_lazy(&model.space, page * BASE_PAGE, self.shape.block));
                    }
                }
            }
            Op::Reclaim { blocks } => {
                let before = self.pool.frames.free();
                let dropped = self.pool.drop_lazy(blocks % 9 * self.shape.block, Droppable::Everything);
                assert_eq!(self.pool.frames.free(), before + dropped.blocks);
            }
            Op::Trim => {
                let _ = self.pool.trim();
            }
            Op::Pin { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let range = sub_range(*start, *len, self.regions[at].bytes.len(), self.shape.block);
                    let pinned = self.regions[at].space.pin(range.clone());
                    self.notice_what_was_dropped();
                    if pinned.is_ok() {
                        let pages = range.start / BASE_PAGE..range.end.div_ceil(BASE_PAGE).max(range.start / BASE_PAGE);
                        let model = &mut self.regions[at];
                        assert!(range.is_empty() || !model.lazy[pages].contains(&true), "a pin is a write");
                        model.pins.push(range);
                    }
                }
            }
            Op::Unpin { region: at } => {
                if let Some(at) = region(at)
                    && let Some(range) = self.regions[at].pins.pop()
                {
                    let model = &mut self.regions[at];
                    model.space.unpin(&range);
                    for index in model.space.touched(&range) {
                        if !model.space.pins.has(EntryIndex(index)) {
                            // It counted as a write.
                            let pages = self.shape.block / BASE_PAGE;
                            model.lazy[index * pages..(index + 1) * pages].fill(false);
                        }
                    }
                }
            }
            Op::DeviceWrite { region: at, value } => {
                if let Some(at) = region(at)
                    && let Some(range) = self.regions[at].pins.last().filter(|range| !range.is_empty())
                {
                    let (model, offset) = (&self.regions[at], range.start);
                    let entry = model.space.table.get(EntryIndex(offset / self.shape.block));
                    let block = entry.block().expect("pinned blocks are there");
                    // SAFETY: within the block, which nobody touches but this thread.
                    unsafe { self.pool.direct(block).add(offset % self.shape.block).write(*value) };
                    self.regions[at].bytes[offset] = *value;
                }
            }
            Op::Discard { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let model = &mut self.regions[at];
                    let range = sub_range(*start, *len, model.bytes.len(), self.shape.block);
                    if model.pins.iter().any(|pin| pin.start < range.end && range.start < pin.end) {
                        // Who pins a range and discards it has lost it.
                        return;
                    }
                    let discarded = model.space.discard(range.clone());
                    // At the ends it may have needed blocks.
                    self.notice_what_was_dropped();
                    let model = &mut self.regions[at];
                    match discarded {
                        Ok(()) => model.bytes[range].fill(0),
                        // Some of it may be zero, none of it may be anything else.
                        Err(_) => {
                            for offset in range {
                                if model.is_revoked(offset, self.shape.block) {
                                    continue;
                                }
                                let now = self.pool.sys.load(model.space.addresses.base + offset).unwrap();
                                assert!(now == 0 || now == model.bytes[offset]);
                                model.bytes[offset] = now;
                            }
                        }
                    }
                }
            }
            Op::Populate { region: at } => {
                if let Some(at) = region(at) {
                    let model = &self.regions[at];
                    // What is lazily freed may be dropped for the blocks that the rest needs.
                    let has_lazy = model.lazy.contains(&true);
                    if model.space.populate(0..model.bytes.len()).is_ok() && !has_lazy {
                        assert!(model.space.table.iter().all(|entry| entry != Entry::Zero));
                    }
                }
            }
            Op::PrepareWrite { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let range = sub_range(*start, *len, self.regions[at].bytes.len(), self.shape.block);
                    let prepared = self.regions[at].space.prepare_write(range.clone());
                    self.notice_what_was_dropped();
                    let model = &mut self.regions[at];
                    if prepared.is_ok() {
                        let base = model.space.addresses.base;
                        for offset in range.step_by(BASE_PAGE) {
                            let keep = self.pool.sys.load(base + offset).unwrap();
                            assert_eq!(self.pool.sys.store(base + offset, keep), Ok(()), "prepared and faults");
                        }
                    }
                }
            }
            Op::DropRegion { region: at } => {
                if let Some(at) = region(at) {
                    self.regions.swap_remove(at);
                }
            }
            Op::DropSnapshot { snapshot: at } => {
                if let Some(at) = snapshot(at) {
                    self.snapshots.swap_remove(at);
                }
            }
            Op::FailNext { call, after } => self.mmu().fail(Some((Call::ALL[call % Call::ALL.len()], *after))),
        }
    }

    fn check(&mut self) {
        self.notice_what_was_dropped();
        let mut holders = vec![0u32; self.shape.blocks];
        let (mut mappings, mut booked) = (0, 0);
        for model in &self.regions {
            let space = &model.space;
            for index in 0..space.table.len() {
                let entry = space.table.get(EntryIndex(index));
                if let Some(block) = entry.block() {
                    holders[block.index()] += 1;
                }
                booked += usize::from(space.table.is_booked(EntryIndex(index)));
                self.check_entry(space, index, entry);
                assert!(entry != Entry::Revoked || model.reserve == Reserve::None, "revoked in spite of a reservation");
            }
            let is_there = |offset: usize| !model.is_revoked(offset, self.shape.block);
            self.check_bytes(&model.bytes, is_there, |offset| self.mmu().load(space.addresses.base + offset).unwrap());
            let count = |is: fn(&Entry) -> bool| space.table.iter().filter(is).count();
            let atomic = |count: &std::sync::atomic::AtomicUsize| count.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(atomic(&space.lazy_blocks), count(|entry| matches!(entry, Entry::Lazy(_))));
            assert_eq!(atomic(&space.revoked), count(|entry| *entry == Entry::Revoked));
            mappings += space.addresses.mappings();
        }
        for model in &self.snapshots {
            let entries = model.frozen.entries();
            entries.iter().filter_map(Entry::block).for_each(|block| holders[block.index()] += 1);
            booked += (0..entries.len()).filter(|&index| entries.is_booked(EntryIndex(index))).count();
            let is_there = |offset: usize| entries.get(EntryIndex(offset / self.shape.block)) != Entry::Revoked;
            assert!(model.reserve == Reserve::None || !model.frozen.is_revoked(), "revoked in spite of a reservation");
            self.check_bytes(&model.bytes, is_there, |offset| {
                let mut byte = [0];
                model.frozen.read(offset, &mut byte).unwrap();
                byte[0]
            });
            for index in 0..entries.len() {
                let offset = index * self.shape.block;
                if !is_there(offset) {
                    assert!(model.frozen.read(offset, &mut [0]).is_err(), "what was revoked is read");
                    if let Some(view) = model.frozen.view() {
                        assert_eq!(self.mmu().page(view + offset), Some(Page::Hidden), "what was revoked is seen");
                    }
                }
            }
            if let Some(view) = model.frozen.view() {
                self.check_bytes(&model.bytes, is_there, |offset| self.mmu().load(view + offset).unwrap());
                assert_eq!(
                    self.mmu().mappings(view, model.bytes.len(), self.shape.block),
                    model.frozen.mappings(),
                    "mappings of a view"
                );
                mappings += model.frozen.mappings();
            }
        }
        let leaked = self.pool.leaked.load(std::sync::atomic::Ordering::Relaxed);
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
        assert_eq!(self.pool.frames.reserved(), booked, "bookings");
        assert_eq!(self.mmu().budget_used(), mappings, "the budget is off");
    }

    /// What may be dropped reads as before, or as zeros once it was dropped; either way there is then nothing more to drop.
    fn notice_what_was_dropped(&mut self) {
        let block = self.shape.block;
        for model in &mut self.regions {
            for page in 0..model.lazy.len() {
                let start = page * BASE_PAGE;
                if !model.lazy[page] || is_lazy(&model.space, start, block) || model.is_revoked(start, block) {
                    continue;
                }
                model.lazy[page] = false;
                let now = [start, start + 1, start + BASE_PAGE - 1]
                    .map(|offset| self.pool.sys.load(model.space.addresses.base + offset).unwrap());
                if now == [0; 3] {
                    model.bytes[start..start + BASE_PAGE].fill(0);
                }
            }
        }
    }

    fn check_entry(&self, space: &Space<SoftMmu>, index: usize, entry: Entry) {
        let split = space.table.split(EntryIndex(index)).filter(|_| matches!(entry, Entry::Split(_)));
        for (nth, page) in (space.address_of(index)..space.address_of(index + 1)).step_by(BASE_PAGE).enumerate() {
            let offset = |block| self.pool.offset(block) + (page - space.address_of(index));
            let is_alone = |block| self.pool.frames.references(block) == 1;
            match (entry, self.mmu().page(page).expect("a region is mapped everywhere")) {
                (Entry::Zero, Page::Zeros) | (Entry::Revoked, Page::Hidden) => {}
                (Entry::Private(block), Page::Memory { offset: at, access: Access::ReadWrite }) => {
                    assert_eq!(at, offset(block));
                    assert!(is_alone(block), "writable, and held by others");
                }
                (Entry::Shared(block) | Entry::Borrowed(block), Page::Memory { offset: at, access })
                    if at == offset(block) =>
                {
                    // Writable only if a protection failed, and then nobody else may hold it.
                    assert!(access == Access::Read || is_alone(block), "writable and shared");
                }
                (Entry::Lazy(block), Page::Memory { offset: at, access: Access::Read }) if at == offset(block) => {}
                (Entry::Split(block), shown) => match (split.expect("pages").get(nth), shown) {
                    (SplitPage::Dropped, Page::Zeros) => assert!(is_alone(block), "a block with holes is shared"),
                    (SplitPage::Lazy, Page::Memory { offset: at, access: Access::Read }) if at == offset(block) => {}
                    (SplitPage::Readable, Page::Memory { offset: at, access }) if at == offset(block) => {
                        assert!(access == Access::Read || is_alone(block), "writable and shared");
                    }
                    (SplitPage::Writable, Page::Memory { offset: at, access: Access::ReadWrite }) => {
                        assert!(at == offset(block) && is_alone(block));
                    }
                    (page, shown) => panic!("{page:?} of {index}, mapped {shown:?}"),
                },
                (entry, page) => panic!("{entry:?} at {index}, mapped {page:?}"),
            }
        }
    }

    /// The first and last bytes of each page, where the interesting offsets lie.
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

/// Whether the engine holds that the page at `offset` may be dropped.
fn is_lazy(space: &Space<SoftMmu>, offset: usize, block: usize) -> bool {
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

fn mmu_fits(mmu: &SoftMmu) -> bool {
    crate::sys::Sys::budget(mmu).fits(2)
}

/// Of a huge block only the first, a middle and the last page are looked at, or a run would take minutes.
fn is_interesting(page: usize, block: usize) -> bool {
    let within = page % block / BASE_PAGE;
    within == 0 || within == 100 || within == block / BASE_PAGE - 1
}

/// One of the bytes that `check_bytes` looks at.
fn interesting(seed: usize, len: usize, block: usize) -> usize {
    let pages = [0, 100 * BASE_PAGE % block, block - BASE_PAGE];
    let start = seed / 9 % (len / block) * block;
    start + pages[seed / 3 % 3] + [0, 1, BASE_PAGE - 1][seed % 3]
}

/// A range whose ends lie at blocks, pages, or neither.
fn sub_range(start: usize, len: usize, whole: usize, block: usize) -> std::ops::Range<usize> {
    let unit = [block, BASE_PAGE, 1][start % 3];
    let start = start % whole / unit * unit;
    let len = len % (whole - start + 1) / unit * unit;
    start..start + len
}

fn op() -> impl Strategy<Value = Op> {
    let index = 0..5usize;
    let any = 0..usize::MAX / 2;
    let part = (index.clone(), any.clone(), any.clone());
    prop_oneof![
        2 => (0..64usize, 0..12usize).prop_map(|(blocks, with)| Op::Create { blocks, with }),
        14 => (index.clone(), any, 1..=255u8)
            .prop_map(|(region, offset, value)| Op::Write { region, offset, value }),
        2 => (index.clone(), 0..12usize).prop_map(|(region, with)| Op::Fork { region, with }),
        2 => (index.clone(), 0..12usize).prop_map(|(region, with)| Op::Snapshot { region, with }),
        1 => index.clone().prop_map(|snapshot| Op::ForkSnapshot { snapshot }),
        1 => index.clone().prop_map(|snapshot| Op::MapSnapshot { snapshot }),
        5 => part.clone().prop_map(|(region, start, len)| Op::LazyFree { region, start, len }),
        1 => part.clone().prop_map(|(region, start, len)| Op::CancelLazyFree { region, start, len }),
        2 => (0..9usize).prop_map(|blocks| Op::Reclaim { blocks }),
        1 => Just(Op::Trim),
        1 => part.clone().prop_map(|(region, start, len)| Op::Pin { region, start, len }),
        1 => index.clone().prop_map(|region| Op::Unpin { region }),
        1 => (index.clone(), 1..=255u8).prop_map(|(region, value)| Op::DeviceWrite { region, value }),
        3 => part.clone().prop_map(|(region, start, len)| Op::Discard { region, start, len }),
        1 => index.clone().prop_map(|region| Op::Populate { region }),
        1 => part.prop_map(|(region, start, len)| Op::PrepareWrite { region, start, len }),
        1 => index.clone().prop_map(|region| Op::DropRegion { region }),
        1 => index.prop_map(|snapshot| Op::DropSnapshot { snapshot }),
        1 => (0..Call::ALL.len(), 0..3usize).prop_map(|(call, after)| Op::FailNext { call, after }),
    ]
}

/// `HUGEFORK_MODEL_CASES=6000` runs a million operations.
fn cases(usual: u32) -> u32 {
    std::env::var("HUGEFORK_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

fn run(shape: Shape, ops: &[Op]) {
    let mut world = World::new(shape);
    for op in ops {
        world.apply(op);
        world.check();
    }
    // Whatever is left goes in one order or the other, and everything is accounted for.
    world.mmu().fail(None);
    while let Some(index) = world.regions.len().checked_sub(1) {
        world.apply(&Op::DropRegion { region: index });
        world.apply(&Op::DropSnapshot { snapshot: 0 });
        world.check();
    }
    while !world.snapshots.is_empty() {
        world.apply(&Op::DropSnapshot { snapshot: 0 });
        world.check();
    }
    let leaked = world.pool.leaked.load(std::sync::atomic::Ordering::Relaxed);
    assert!(world.pool.frames.available() + leaked >= world.shape.blocks);
    assert_eq!(world.pool.frames.reserved(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(150), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_blocks_behave_like_vectors(ops in prop::collection::vec(op(), 1..80)) {
        run(SMALL, &ops);
    }

    #[test]
    fn blocks_that_split_behave_like_vectors(ops in prop::collection::vec(op(), 1..80)) {
        run(SPLITTING, &ops);
    }

    #[test]
    fn scarce_mappings_are_an_error_and_nothing_worse(ops in prop::collection::vec(op(), 1..80)) {
        run(SCARCE_MAPPINGS, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(12), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn huge_blocks_behave_like_vectors(ops in prop::collection::vec(op(), 1..40)) {
        run(HUGE, &ops);
    }

    #[test]
    fn separate_mappings_behave_like_vectors(ops in prop::collection::vec(op(), 1..40)) {
        run(HUGETLB, &ops);
    }
}

/// Each call of the operating system fails, the first time and the third, in a program that makes all of them.
#[test]
fn every_call_may_fail() {
    for shape in [SMALL, SPLITTING, SCARCE_MAPPINGS] {
        for call in 0..Call::ALL.len() {
            for after in [0, 2] {
                let mut ops = vec![Op::Create { blocks: 7, with: 5 }, Op::FailNext { call, after }];
                for round in 0..4 {
                    ops.extend((0..6).map(|n| Op::Write { region: 0, offset: n * 12345, value: 1 + round }));
                    ops.extend([
                        Op::Snapshot { region: 0, with: 1 },
                        Op::MapSnapshot { snapshot: round as usize },
                        Op::Fork { region: 0, with: 5 },
                        Op::Write { region: 0, offset: 7, value: 9 },
                        Op::Write { region: 1, offset: 7, value: 8 },
                        Op::LazyFree { region: 0, start: shape.block * 3, len: shape.block * 3 },
                        Op::LazyFree { region: 0, start: 1, len: shape.block * 2 + BASE_PAGE },
                        Op::Reclaim { blocks: 8 },
                        Op::Trim,
                        Op::Discard { region: 0, start: 3, len: shape.block * 3 + 1 },
                        Op::DropRegion { region: 1 },
                        Op::DropSnapshot { snapshot: 0 },
                        Op::Create { blocks: 3, with: 5 },
                        Op::Populate { region: 1 },
                        Op::LazyFree { region: 1, start: 1, len: shape.block + BASE_PAGE },
                        Op::Reclaim { blocks: 8 },
                        Op::Write { region: 1, offset: 0, value: 3 },
                        Op::DropRegion { region: 1 },
                    ]);
                }
                let mut world = World::new(shape);
                for op in &ops {
                    world.apply(op);
                    world.check();
                }
                let is_due = match Call::ALL[call] {
                    // Failed by `what_was_promised_at_exhaustion`.
                    Call::Hide => false,
                    // Blocks of one page do not split, and with few mappings none does.
                    Call::Punch => shape.block == SPLITTING.block,
                    _ => true,
                };
                assert!(
                    !(is_due && world.mmu().failure_pending()),
                    "{:?} was not called {after} times",
                    Call::ALL[call]
                );
            }
        }
    }
}

/// What the engine asks of the system is what the design says: one call for a run, not one for each block.
#[test]
fn runs_are_one_system_call() {
    let mut world = World::new(SMALL);
    world.apply(&Op::Create { blocks: 31, with: 5 });
    world.write(0, 5 * SMALL.block, 1);
    assert_eq!(world.mmu().calls(Call::Map), 1, "32 never-written small blocks are one run");
    world.apply(&Op::Snapshot { region: 0, with: 1 });
    assert_eq!(world.mmu().calls(Call::Protect), 1);
    world.apply(&Op::MapSnapshot { snapshot: 0 });
    assert_eq!(world.mmu().calls(Call::Map), 2, "a snapshot of one run is mapped at once");
    world.apply(&Op::DropSnapshot { snapshot: 0 });
    world.write(0, 9 * SMALL.block, 2);
    assert_eq!(world.mmu().calls(Call::Protect), 2);
    world.write(0, 3 * SMALL.block, 2);
    assert_eq!(world.mmu().calls(Call::Protect), 2, "the whole run was made writable again");
    world.apply(&Op::Discard { region: 0, start: 0, len: 32 * SMALL.block });
    assert_eq!(world.mmu().calls(Call::MapZeros), 1);
    world.check();
}
