//! A pool of the software MMU with its regions and snapshots, and for each of these the plain bytes that it should
//! hold.

use std::ops::Range;

use hugefork_kernels::Kernels;

use super::check::{is_lazy, mmu_fits};
use super::{Op, Shape, interesting, is_interesting, sub_range};
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::pool::ahead::Ahead;
use crate::pool::core::PoolCore;
use crate::pool::holders::Droppable;
use crate::pool::shortage::Found;
use crate::pool::stock::Stock;
use crate::pool::supply::Got;
use crate::region::reset::{Pair, reset_all};
use crate::region::state::{RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::sys::soft::{Call, Page, SoftMmu};
use crate::table::Entry;
use crate::types::error::{RegionError, ResetError};
use crate::types::options::{CopyGrain, RegionOptions, Reserve};
use crate::units::{BASE_PAGE, BlockSize, EntryIndex};

pub(super) struct RegionModel {
    pub(super) space: PinnedBox<RegionCore<SoftMmu>>,
    pub(super) bytes: Vec<u8>,
    /// Pages that the engine may drop.
    pub(super) lazy: Vec<bool>,
    pub(super) pins: Vec<Range<usize>>,
    /// Whether it was made with a reservation.
    pub(super) reserve: Reserve,
}

impl RegionModel {
    pub(super) fn new(space: PinnedBox<RegionCore<SoftMmu>>, bytes: Vec<u8>, reserve: Reserve) -> RegionModel {
        let lazy = vec![false; bytes.len() / BASE_PAGE];
        RegionModel { space, bytes, lazy, pins: Vec::new(), reserve }
    }

    /// Cancels lazy free of the unit at byte `offset`: the block if it is lazily freed as a whole, or else the page.
    fn cancel(&mut self, offset: usize, block: usize) {
        let pages = offset / block * block / BASE_PAGE..(offset / block + 1) * block / BASE_PAGE;
        if self.lazy[pages.clone()].iter().all(|&lazy| lazy) {
            self.lazy[pages].fill(false);
        } else {
            self.lazy[offset / BASE_PAGE] = false;
        }
    }

    pub(super) fn is_revoked(&self, offset: usize, block: usize) -> bool {
        self.space.table.get(EntryIndex(offset / block)) == Entry::Revoked
    }
}

pub(super) struct SnapshotModel {
    pub(super) frozen: PinnedBox<SnapshotCore<SoftMmu>>,
    pub(super) bytes: Vec<u8>,
}

impl Shape {
    /// The entries that are pinned.
    fn pinned(self, model: &RegionModel) -> impl Iterator<Item = EntryIndex> {
        let entries = (0..model.bytes.len() / self.block).map(EntryIndex);
        entries.filter(|index| model.space.pins.has(*index))
    }
}

/// The options number `with` for regions and forks.
fn options(with: usize, block: usize) -> RegionOptions {
    let grain = [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block][with / 6 % 3];
    let waits = (grain == CopyGrain::Page) == (with / 18).is_multiple_of(2);
    let options = RegionOptions::new().copy_grain(grain).calls_wait(waits);
    match with % 6 {
        0 => options.reserve(Reserve::Full),
        1 => options.max_cow_bytes(block),
        2 => options.max_cow_bytes(2 * block),
        _ => options,
    }
}

pub(super) struct World {
    pub(super) shape: Shape,
    pub(super) pool: EngineArc<PoolCore<SoftMmu>>,
    pub(super) regions: Vec<RegionModel>,
    pub(super) snapshots: Vec<SnapshotModel>,
}

impl World {
    pub(super) fn new(shape: Shape) -> World {
        let mmu = SoftMmu::new(shape.block * shape.blocks, shape.merging, shape.mappings);
        let mmu = mmu.with_cow_mappings().with_few_parkings();
        let size = BlockSize::new(shape.block).unwrap();
        let kernels = Kernels::default_for_this_cpu();
        let core = PoolCore::new(mmu, "model".to_owned(), size, shape.blocks, kernels, Stock::default());
        let pool =
            EngineArc::new(PoolCore { ahead: Ahead::new(shape.block * shape.blocks, size, || usize::MAX), ..core });
        World { shape, pool, regions: Vec::new(), snapshots: Vec::new() }
    }

    pub(super) fn mmu(&self) -> &SoftMmu {
        &self.pool.sys
    }

    /// Writes as hardware does: the write faults, the engine resolves the fault, and the write is repeated.
    pub(super) fn write(&mut self, region: usize, offset: usize, value: u8) {
        let (mmu, block) = (&self.pool.sys, self.shape.block);
        let model = &mut self.regions[region];
        let address = model.space.addresses.base() + offset;
        let is_first = model.space.table.get(EntryIndex(offset / block)) == Entry::Zero;
        let failing = mmu.failure_pending();
        for _ in 0..3 {
            if mmu.store(address, value).is_ok() {
                model.cancel(offset, block);
                model.bytes[offset] = value;
                return;
            }
            match model.space.resolve(offset) {
                Ok(_) | Err(Unresolved::NotYet) => {}
                Err(Unresolved::PoolFull) => {
                    assert_eq!(self.pool.frames.available(), 0, "said full, and was not");
                    let excused = !mmu_fits(mmu) || failing && !mmu.failure_pending();
                    assert!(
                        excused || self.pool.drop_some_lazy() == Found::None,
                        "said full, and something may be dropped"
                    );
                    // A discard that found no other block has made its region give up a reservation.
                    let index = EntryIndex(offset / block);
                    assert!(!(is_first && model.space.table.is_reserved(index)), "a block was promised");
                    return;
                }
                Err(Unresolved::TooManyMappings) => return assert!(!mmu_fits(mmu)),
                Err(Unresolved::Revoked) => return assert!(model.is_revoked(offset, block)),
                Err(Unresolved::CowLimit) => panic!("a limit is no error"),
                Err(Unresolved::OutOfMemory(_) | Unresolved::Unmappable(_)) => return,
            }
        }
        panic!("a write does not get through");
    }

    fn reset(&mut self, region: usize, snapshot: usize) {
        self.reset_each(&[(region, snapshot)], |pairs| pairs[0].0.reset_to(pairs[0].1));
    }

    /// Resets regions to snapshots, and checks the outcome of each.
    fn reset_each(
        &mut self,
        asked: &[(usize, usize)],
        reset: impl FnOnce(&[Pair<'_, SoftMmu>]) -> Result<(), ResetError>,
    ) {
        let entries = |model: &RegionModel| -> Vec<Entry> { model.space.table.iter().collect() };
        let of = |(region, snapshot): (usize, usize)| (&self.regions[region], &self.snapshots[snapshot]);
        let pinned = |model: &RegionModel| -> Vec<EntryIndex> { self.shape.pinned(model).collect() };
        let failing = self.pool.sys.failure_pending();
        let before: Vec<_> = asked.iter().map(|&pair| (entries(of(pair).0), pinned(of(pair).0))).collect();
        let was_revoked = asked.iter().any(|&pair| of(pair).1.frozen.is_revoked());
        let is_other = asked.iter().any(|&pair| of(pair).0.bytes.len() != of(pair).1.bytes.len());
        let had_pages = asked.iter().any(|&pair| of(pair).1.frozen.has_pages());
        let pairs: Vec<Pair<'_, SoftMmu>> =
            asked.iter().map(|&pair| (&*of(pair).0.space, &*of(pair).1.frozen)).collect();
        let came = reset(&pairs);
        for (&pair, (before, pinned)) in asked.iter().zip(&before) {
            let after = entries(of(pair).0);
            assert!(pinned.iter().all(|index| after[index.0] == before[index.0]), "a pinned block was moved");
        }
        let whole = asked.iter().map(|&pair| of(pair).0.bytes.len()).sum();
        let mut done = match &came {
            Ok(()) => whole,
            Err(error) => {
                match error.reason {
                    RegionError::AnotherLength { .. } => assert!(is_other),
                    RegionError::Revoked => assert!(was_revoked),
                    // The region may lose blocks that it has from another region from now on, so it cannot keep a
                    // reservation.
                    RegionError::NotReservable { .. } => {}
                    RegionError::TooManyMappings { .. } => {}
                    RegionError::PoolFull { .. } => assert!(had_pages && error.done == 0),
                    ref other => assert!(failing && !self.pool.sys.failure_pending(), "{other:?}"),
                }
                if is_other || was_revoked {
                    let is_same = asked.iter().zip(&before).all(|(&pair, (before, _))| entries(of(pair).0) == *before);
                    assert!(error.done == 0 && is_same, "something has changed");
                    return;
                }
                error.done
            }
        };
        for &(region, snapshot) in asked {
            if came.is_err() {
                self.regions[region].reserve = Reserve::None;
            }
            let len = self.regions[region].bytes.len();
            self.is_as_before_or_then(region, snapshot, done.min(len));
            done -= done.min(len);
        }
    }

    /// Checks that each page of a region is as before or as in the snapshot, and that the first `done` bytes are as in
    /// the snapshot.
    fn is_as_before_or_then(&mut self, region: usize, snapshot: usize, done: usize) {
        let block = self.shape.block;
        for start in (0..self.regions[region].bytes.len()).step_by(BASE_PAGE) {
            let (model, goal) = (&self.regions[region], &self.snapshots[snapshot]);
            let now = |offset: usize| self.pool.sys.load(model.space.addresses.base() + offset).ok();
            let page = start..start + BASE_PAGE;
            let differ = model.bytes[page.clone()] != goal.bytes[page.clone()];
            // The bytes that tell the snapshot from the contents before, and some others.
            let is_as = |bytes: &[u8]| {
                let is_as = |at: usize| now(at) == Some(bytes[at]);
                let mut telling = page.clone().filter(|&at| differ && model.bytes[at] != goal.bytes[at]);
                let is_looked_at = is_interesting(start, block);
                telling.all(is_as) && (!is_looked_at || [0, 1, BASE_PAGE - 1].iter().all(|by| is_as(start + by)))
            };
            if is_as(&goal.bytes) {
                let bytes = goal.bytes[page.clone()].to_vec();
                let model = &mut self.regions[region];
                model.bytes[page].copy_from_slice(&bytes);
                if start < done {
                    model.lazy[start / BASE_PAGE] = false;
                }
            } else {
                assert!(start >= done, "byte {start} is not as the snapshot, {done} bytes are done");
                let is_as_before =
                    model.is_revoked(start, block) || model.lazy[start / BASE_PAGE] || is_as(&model.bytes);
                assert!(is_as_before, "neither as before nor as the snapshot");
            }
        }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        let pick = |index: usize, len: usize| (len > 0).then(|| index % len.max(1));
        let region = |index: &usize| pick(*index, self.regions.len());
        let snapshot_of = |index: &usize| pick(*index, self.snapshots.len());
        match op {
            Op::Create { blocks, with } => {
                let len = (blocks % self.shape.blocks + 1) * self.shape.block;
                let options = options(*with, self.shape.block);
                if self.regions.len() < 5
                    && let Ok(space) = RegionCore::zeros(&self.pool, len, options)
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
                    && let Ok(space) =
                        self.regions[at].space.freeze().and_then(|frozen| RegionCore::of_snapshot(&frozen, options))
                {
                    // The copies of pinned blocks may have needed blocks, for which lazily freed ones were dropped.
                    self.notice_what_was_dropped();
                    let bytes = self.regions[at].bytes.clone();
                    self.regions.push(RegionModel::new(space, bytes, options.reserve));
                }
            }
            Op::SnapshotBeside { region: at, offset, value } => {
                if let Some(at) = region(at) {
                    let offset = offset % self.regions[at].bytes.len();
                    self.mmu().store_when_taken([(self.regions[at].space.addresses.base() + offset, *value)]);
                    let made = self.regions[at].space.freeze();
                    self.notice_what_was_dropped();
                    let model = &mut self.regions[at];
                    if self.pool.sys.stores_left().is_empty() {
                        model.cancel(offset, self.shape.block);
                        model.bytes[offset] = *value;
                    }
                    if let Ok(frozen) = made
                        && self.snapshots.len() < 5
                    {
                        let bytes = model.bytes.clone();
                        self.snapshots.push(SnapshotModel { frozen, bytes });
                    }
                }
            }
            Op::Snapshot { region: at, with } => {
                if let Some(at) = region(at)
                    && self.snapshots.len() < 5
                    && let Ok(frozen) = self.regions[at].space.freeze()
                {
                    self.notice_what_was_dropped();
                    if with % 4 != 0 || frozen.make_irrevocable().is_ok() {
                        let bytes = self.regions[at].bytes.clone();
                        self.snapshots.push(SnapshotModel { frozen, bytes });
                    }
                }
            }
            Op::ForkSnapshot { snapshot: at } => {
                if let Some(at) = snapshot_of(at)
                    && self.regions.len() < 5
                    && let Ok(space) = self.snapshots[at]
                        .frozen
                        .duplicate()
                        .and_then(|it| RegionCore::of_snapshot(&it, RegionOptions::new()))
                {
                    let bytes = self.snapshots[at].bytes.clone();
                    self.regions.push(RegionModel::new(space, bytes, Reserve::None));
                }
            }
            Op::MapSnapshot { snapshot: at } => {
                if let Some(at) = snapshot_of(at) {
                    let frozen = &self.snapshots[at].frozen;
                    if let Ok(view) = frozen.map(|_| {}) {
                        let mut pages = (0..frozen.len()).step_by(BASE_PAGE);
                        let hidden = pages.find(|page| self.mmu().page(view + page) == Some(Page::Hidden));
                        let _ = hidden.map(|page| frozen.show_more(page));
                    }
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
                    // The model may lose a page exactly where the engine says so.
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
                let _ = self.pool.trim(usize::MAX);
            }
            Op::GetAhead => {
                let (free, ready) = (self.pool.frames.free(), self.pool.frames.ready());
                let got = self.pool.get_one_ahead(usize::MAX);
                assert_eq!(self.pool.frames.free(), free);
                match got {
                    Got::Blocks(blocks) => assert_eq!(self.pool.frames.ready(), ready + blocks),
                    Got::Nothing => assert_eq!(self.pool.frames.fresh(), 0),
                    Got::Refused => assert!(self.pool.frames.ready() >= ready),
                    Got::HeldBack => panic!("no cut is made"),
                }
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
                            // The end of the pin counts as a write.
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
                    let pinned = self.shape.pinned(model).map(|index| (index, model.space.table.get(index)));
                    let pinned: Vec<_> = pinned.collect();
                    let discarded = model.space.discard(range.clone());
                    // The parts of blocks at both ends may have needed blocks, for which lazily freed ones were
                    // dropped.
                    self.notice_what_was_dropped();
                    let model = &mut self.regions[at];
                    for (index, entry) in pinned {
                        assert_eq!(model.space.table.get(index), entry, "a pinned block was moved");
                    }
                    match discarded {
                        Ok(()) => model.bytes[range].fill(0),
                        // Some bytes may be zero already; all others must be as before.
                        Err(_) => {
                            for offset in range {
                                if model.is_revoked(offset, self.shape.block) {
                                    continue;
                                }
                                let now = self.pool.sys.load(model.space.addresses.base() + offset).unwrap();
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
                    // Lazily freed blocks may be dropped to give others their blocks.
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
                        let base = model.space.addresses.base();
                        for offset in range.step_by(BASE_PAGE) {
                            let keep = self.pool.sys.load(base + offset).unwrap();
                            assert_eq!(self.pool.sys.store(base + offset, keep), Ok(()), "prepared and faults");
                        }
                    }
                }
            }
            Op::PrepareSnapshot { region: at } => {
                if let Some(at) = region(at) {
                    // The pool may be full, or a call may fail: the bytes stay the same in any case.
                    let _ = self.regions[at].space.prepare_snapshot();
                    self.notice_what_was_dropped();
                }
            }
            Op::Keep { snapshot: at } => {
                if let Some(at) = snapshot_of(at)
                    && self.snapshots.len() < 5
                    && let Ok(frozen) = self.snapshots[at].frozen.keep()
                {
                    let bytes = self.snapshots[at].bytes.clone();
                    self.snapshots.push(SnapshotModel { frozen, bytes });
                }
            }
            Op::Compare { newer, older } => {
                if let Some(older) = snapshot_of(older) {
                    self.compare(*newer, older);
                }
            }
            Op::Reset { region: at, snapshot } => {
                if let (Some(at), Some(to)) = (region(at), snapshot_of(snapshot)) {
                    self.reset(at, to);
                }
            }
            Op::ResetAll { regions, snapshots } => {
                let found = [0, 1].map(|nth| region(&regions[nth]).zip(snapshot_of(&snapshots[nth])));
                let mut asked: Vec<_> = found.into_iter().flatten().collect();
                asked.dedup_by_key(|(region, _)| *region);
                self.reset_each(&asked, reset_all);
            }
            Op::BeAlone(alone) => self.mmu().set_alone(*alone),
            Op::TrackWrites(tracks) => self.mmu().set_tracking(*tracks),
            Op::Maintain => self.pool.maintain_all(0),
            Op::DropRegion { region: at } => {
                if let Some(at) = region(at) {
                    self.regions.swap_remove(at);
                }
            }
            Op::DropSnapshot { snapshot: at } => {
                if let Some(at) = snapshot_of(at) {
                    self.snapshots.swap_remove(at);
                }
            }
            Op::FailNext { call, after } => self.mmu().fail(Some((Call::ALL[call % Call::ALL.len()], *after))),
        }
    }
}
