//! Random programs on the software MMU, against plain vectors, with every call of the operating system failing in turn.
//!
//! After each operation everything that can be looked at is looked at: every byte that was ever interesting, every
//! entry against what is mapped, every block's references against its holders, every mapping against the budget.

use std::sync::Arc;

use hugefork_kernels::Kernels;
use proptest::prelude::*;

use crate::fault::resolver::Unresolved;
use crate::frozen::{Frozen, View};
use crate::pool::core::PoolCore;
use crate::pool::stock::Stock;
use crate::space::Space;
use crate::sys::soft::{Call, Page, SoftMmu};
use crate::sys::{Access, Merging};
use crate::table::Entry;
use crate::units::{BASE_PAGE, BlockSize, EntryIndex};

#[derive(Clone, Debug)]
enum Op {
    Create { blocks: usize },
    Write { region: usize, offset: usize, value: u8 },
    Fork { region: usize },
    Snapshot { region: usize },
    ForkSnapshot { snapshot: usize },
    MapSnapshot { snapshot: usize },
    Discard { region: usize, start: usize, len: usize },
    Populate { region: usize },
    PrepareWrite { region: usize, start: usize, len: usize },
    DropRegion { region: usize },
    DropSnapshot { snapshot: usize },
    FailNext { call: usize, after: usize },
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
const HUGE: Shape = Shape { block: 2 << 20, blocks: 6, merging: Merging::Merge, mappings: 1000 };
const HUGETLB: Shape = Shape { block: 2 << 20, blocks: 6, merging: Merging::Separate, mappings: 1000 };
const SCARCE_MAPPINGS: Shape = Shape { block: 16 << 10, blocks: 48, merging: Merging::Merge, mappings: 14 };

struct RegionModel {
    space: Space<SoftMmu>,
    bytes: Vec<u8>,
}

struct SnapshotModel {
    frozen: Frozen<SoftMmu>,
    view: Option<View<SoftMmu>>,
    bytes: Vec<u8>,
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
        let mmu = &self.pool.sys;
        let model = &mut self.regions[region];
        let address = model.space.addresses.base + offset;
        for _ in 0..3 {
            if mmu.store(address, value).is_ok() {
                model.bytes[offset] = value;
                return;
            }
            match model.space.resolve(offset) {
                Ok(_) => {}
                Err(Unresolved::PoolFull) => {
                    assert_eq!(self.pool.frames.available(), 0, "said full, and was not");
                    return;
                }
                Err(Unresolved::TooManyMappings) => return assert!(!mmu_fits(mmu)),
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
            Op::Create { blocks } => {
                let len = self.shape.block * (blocks % self.shape.blocks + 1);
                if self.regions.len() < 5
                    && let Ok(space) = Space::zeros(&self.pool, len)
                {
                    self.regions.push(RegionModel { space, bytes: vec![0; len] });
                }
            }
            Op::Write { region: at, offset, value } => {
                if let Some(at) = region(at) {
                    let offset = interesting(*offset, self.regions[at].bytes.len(), self.shape.block);
                    self.write(at, offset, *value);
                }
            }
            Op::Fork { region: at } => {
                if let Some(at) = region(at)
                    && self.regions.len() < 5
                    && let Ok(space) = self.regions[at].space.freeze().and_then(Frozen::share)
                {
                    let bytes = self.regions[at].bytes.clone();
                    self.regions.push(RegionModel { space, bytes });
                }
            }
            Op::Snapshot { region: at } => {
                if let Some(at) = region(at)
                    && self.snapshots.len() < 5
                    && let Ok(frozen) = self.regions[at].space.freeze()
                {
                    let bytes = self.regions[at].bytes.clone();
                    self.snapshots.push(SnapshotModel { frozen, view: None, bytes });
                }
            }
            Op::ForkSnapshot { snapshot: at } => {
                if let Some(at) = snapshot(at)
                    && self.regions.len() < 5
                    && let Ok(space) = self.snapshots[at].frozen.duplicate().share()
                {
                    let bytes = self.snapshots[at].bytes.clone();
                    self.regions.push(RegionModel { space, bytes });
                }
            }
            Op::MapSnapshot { snapshot: at } => {
                if let Some(at) = snapshot(at) {
                    let snapshot = &mut self.snapshots[at];
                    if snapshot.view.is_none() {
                        snapshot.view = snapshot.frozen.map().ok();
                    }
                }
            }
            Op::Discard { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let model = &mut self.regions[at];
                    let range = sub_range(*start, *len, model.bytes.len(), self.shape.block);
                    match model.space.discard(range.clone()) {
                        Ok(()) => model.bytes[range].fill(0),
                        // Some of it may be zero, none of it may be anything else.
                        Err(_) => {
                            for offset in range {
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
                    if model.space.populate(0..model.bytes.len()).is_ok() {
                        assert!(
                            (0..model.space.table.len()).all(|i| model.space.table.get(EntryIndex(i)) != Entry::Zero)
                        );
                    }
                }
            }
            Op::PrepareWrite { region: at, start, len } => {
                if let Some(at) = region(at) {
                    let model = &self.regions[at];
                    let range = sub_range(*start, *len, model.bytes.len(), self.shape.block);
                    if model.space.prepare_write(range.clone()).is_ok() {
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
                    let SnapshotModel { frozen, view, .. } = self.snapshots.swap_remove(at);
                    match view.map(View::close) {
                        Some(Err(_)) => frozen.leak(),
                        _ => drop(frozen),
                    }
                }
            }
            Op::FailNext { call, after } => self.mmu().fail(Some((Call::ALL[call % Call::ALL.len()], *after))),
        }
    }

    fn check(&self) {
        let mut holders = vec![0u32; self.shape.blocks];
        let mut mappings = 0;
        for model in &self.regions {
            let space = &model.space;
            for index in 0..space.table.len() {
                let entry = space.table.get(EntryIndex(index));
                if let Some(block) = entry.block() {
                    holders[block.index()] += 1;
                }
                self.check_entry(space, index, entry);
            }
            self.check_bytes(&model.bytes, |offset| self.mmu().load(space.addresses.base + offset).unwrap());
            mappings += space.addresses.mappings();
        }
        for model in &self.snapshots {
            model.frozen.blocks().iter().flatten().for_each(|block| holders[block.index()] += 1);
            self.check_bytes(&model.bytes, |offset| {
                let mut byte = [0];
                model.frozen.read(offset, &mut byte);
                byte[0]
            });
            if let Some(view) = &model.view {
                self.check_bytes(&model.bytes, |offset| self.mmu().load(view.as_ptr().addr() + offset).unwrap());
                mappings += self.mmu().mappings(view.as_ptr().addr(), model.bytes.len(), self.shape.block);
            }
        }
        let leaked = self.pool.leaked.load(std::sync::atomic::Ordering::Relaxed);
        let mut unaccounted = 0;
        for (block, &holders) in holders.iter().enumerate() {
            let references = self.pool.frames.references(crate::units::BlockId(block as u32));
            if references != holders {
                assert!(references > holders, "block {block} has {references} references and {holders} holders");
                unaccounted += 1;
            }
        }
        assert!(unaccounted <= leaked, "{unaccounted} blocks lost, {leaked} counted as leaked");
        let held = (0..self.shape.blocks as u32)
            .filter(|&block| self.pool.frames.references(crate::units::BlockId(block)) > 0);
        assert_eq!(self.pool.frames.available() + held.count(), self.shape.blocks);
        assert_eq!(self.mmu().budget_used(), mappings, "the budget is off");
    }

    fn check_entry(&self, space: &Space<SoftMmu>, index: usize, entry: Entry) {
        for page in (space.address_of(index)..space.address_of(index + 1)).step_by(BASE_PAGE) {
            let offset = |block| self.pool.offset(block) + (page - space.address_of(index));
            match (entry, self.mmu().page(page).expect("a region is mapped everywhere")) {
                (Entry::Zero, Page::Zeros) => {}
                (Entry::Private(block), Page::Memory { offset: at, access: Access::ReadWrite }) => {
                    assert_eq!(at, offset(block));
                    assert_eq!(self.pool.frames.references(block), 1, "writable, and held by others");
                }
                (Entry::Shared(block), Page::Memory { offset: at, access }) if at == offset(block) => {
                    // Writable only if a protection failed, and then nobody else may hold it.
                    assert!(access == Access::Read || self.pool.frames.references(block) == 1, "writable and shared");
                }
                (entry, page) => panic!("{entry:?} at {index}, mapped {page:?}"),
            }
        }
    }

    /// The first and last bytes of each page, where the interesting offsets lie.
    fn check_bytes(&self, expected: &[u8], actual: impl Fn(usize) -> u8) {
        for page in (0..expected.len()).step_by(BASE_PAGE) {
            if !is_interesting(page, self.shape.block) {
                continue;
            }
            for offset in [page, page + 1, page + BASE_PAGE - 1] {
                assert_eq!(actual(offset), expected[offset], "at {offset}");
            }
        }
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
    prop_oneof![
        2 => (0..64usize).prop_map(|blocks| Op::Create { blocks }),
        12 => (index.clone(), any.clone(), 1..=255u8)
            .prop_map(|(region, offset, value)| Op::Write { region, offset, value }),
        2 => index.clone().prop_map(|region| Op::Fork { region }),
        2 => index.clone().prop_map(|region| Op::Snapshot { region }),
        1 => index.clone().prop_map(|snapshot| Op::ForkSnapshot { snapshot }),
        1 => index.clone().prop_map(|snapshot| Op::MapSnapshot { snapshot }),
        3 => (index.clone(), any.clone(), any.clone())
            .prop_map(|(region, start, len)| Op::Discard { region, start, len }),
        1 => index.clone().prop_map(|region| Op::Populate { region }),
        1 => (index.clone(), any.clone(), any)
            .prop_map(|(region, start, len)| Op::PrepareWrite { region, start, len }),
        1 => index.clone().prop_map(|region| Op::DropRegion { region }),
        1 => index.prop_map(|snapshot| Op::DropSnapshot { snapshot }),
        1 => (0..6usize, 0..3usize).prop_map(|(call, after)| Op::FailNext { call, after }),
    ]
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
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_blocks_behave_like_vectors(ops in prop::collection::vec(op(), 1..80)) {
        run(SMALL, &ops);
    }

    #[test]
    fn scarce_mappings_are_an_error_and_nothing_worse(ops in prop::collection::vec(op(), 1..80)) {
        run(SCARCE_MAPPINGS, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

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
    for shape in [SMALL, SCARCE_MAPPINGS] {
        for call in 0..Call::ALL.len() {
            for after in [0, 2] {
                let mut ops = vec![Op::Create { blocks: 7 }, Op::FailNext { call, after }];
                for round in 0..4 {
                    ops.extend((0..6).map(|n| Op::Write { region: 0, offset: n * 12345, value: 1 + round }));
                    ops.extend([
                        Op::Snapshot { region: 0 },
                        Op::MapSnapshot { snapshot: round as usize },
                        Op::Fork { region: 0 },
                        Op::Write { region: 0, offset: 7, value: 9 },
                        Op::Write { region: 1, offset: 7, value: 8 },
                        Op::Discard { region: 0, start: 3, len: shape.block * 3 + 1 },
                        Op::DropRegion { region: 1 },
                        Op::DropSnapshot { snapshot: 0 },
                        Op::Create { blocks: 3 },
                        Op::Populate { region: 1 },
                        Op::DropRegion { region: 1 },
                    ]);
                }
                let mut world = World::new(shape);
                for op in &ops {
                    world.apply(op);
                    world.check();
                }
                assert!(!world.mmu().failure_pending(), "{:?} was not called {after} times", Call::ALL[call]);
            }
        }
    }
}

/// What the engine asks of the system is what the design says: one call for a run, not one for each block.
#[test]
fn runs_are_one_system_call() {
    let mut world = World::new(SMALL);
    world.apply(&Op::Create { blocks: 31 });
    world.write(0, 5 * SMALL.block, 1);
    assert_eq!(world.mmu().calls(Call::Map), 1, "32 never-written small blocks are one run");
    world.apply(&Op::Snapshot { region: 0 });
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
