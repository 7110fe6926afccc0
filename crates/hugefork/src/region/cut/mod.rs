//! A cut takes snapshots of one region or several at one moment: the order of the locks, and the undo after a failure.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `freeze`, `freeze_for_fork`, `forget` | make a snapshot of one region, and take that back |
//! | `prepare_snapshot` | does the work that can be done before a snapshot |
//!
//! ```text
//!   ahead    write back, or capture, while others write ─▶ wait until operations are over
//!   pause    take all locks, parents first ─▶ share each region ─▶ resume the writers of each
//!                                             └─ one fails: undo all that were shared
//!   behind   release all locks except those of written blocks ─▶ capture these, while others write elsewhere
//! ```
//! All regions are locked before the first one is shared, and no writer goes on before the last one is. So the argument
//! for one region (freeze.rs) holds for all together: if a write is in the cut, every write that happened before it is
//! too, whichever of the regions they went to.
//!
//! Regions are locked by age, the oldest first. A fork is younger than its parent, and a thread that has a window of a
//! region waits only for windows of that region's forks and snapshots (write/revoke.rs).
//!
//! While a cut waits for operations, it holds none of these locks and no region's turn. A thread inside an operation
//! may need them: it may cut a region without operations that is also one of the regions of the waiting cut. So the cut
//! takes the turns twice, before it writes pages back ahead and when the operations are over. If another thread has had
//! one of the turns in between, the cut scans in the pause for the private pages that the other thread may have left.

mod ahead;
mod capture;
mod freeze;
mod part;

use std::sync::atomic::Ordering;

pub(crate) use self::part::Part;

use self::ahead::When;
use self::freeze::MOST_PASSES;
use self::part::Keeps;
use crate::mem::pinned::PinnedBox;
use crate::mem::{EngineVec, Own, list};
use crate::pool::lineage::Derived;
use crate::region::private::Quiesced;
use crate::region::state::operations;
use crate::region::state::{RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::stats::counters::count;
use crate::sync::{ExclusiveGuard, SignalsBlocked};
use crate::sys::Sys;
use crate::table::Locked;
use crate::types::error::RegionError;
use crate::types::snapshot_id::SnapshotId;

/// How often a snapshot is tried again if it finds the pool full while others write by page.
const FULL_POOL_TRIES: usize = 16;

/// The use of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The program gets the snapshot, and may ask for its place in the tree of snapshots.
    Snapshot,
    /// It becomes a fork at once.
    Fork,
    /// A child of `fork(2)` gets it. The caller has waited for operations.
    Child,
}

impl<S: Sys> RegionCore<S> {
    /// Makes a snapshot of the region as it is now. It becomes the region's place in the tree of snapshots.
    pub(crate) fn freeze(&self) -> Result<PinnedBox<SnapshotCore<S>>, RegionError> {
        Ok(cut(&[self], Purpose::Snapshot)?.pop().expect("a cut has a snapshot of each region"))
    }

    /// As [`RegionCore::freeze`], for a fork: the region keeps its place in the tree of snapshots.
    pub(crate) fn freeze_for_fork(&self) -> Result<PinnedBox<SnapshotCore<S>>, RegionError> {
        Ok(cut(&[self], Purpose::Fork)?.pop().expect("a cut has a snapshot of each region"))
    }

    /// Moves the region back to its earlier place in the tree of snapshots, because the program does not get this
    /// snapshot.
    pub(crate) fn forget(&self, frozen: &SnapshotCore<S>) {
        self.accounts.origin.go_back(frozen.id, frozen.from.get());
    }
}

/// Makes snapshots of all regions as they are at one moment, in the order of `regions`. No region occurs twice.
pub(crate) fn freeze_all<S: Sys>(
    regions: &[&RegionCore<S>],
) -> Result<EngineVec<PinnedBox<SnapshotCore<S>>>, RegionError> {
    freeze_all_as(regions, Purpose::Snapshot)
}

/// As [`freeze_all`], for a child of `fork(2)`: the regions keep their places in the tree of snapshots. Does not wait
/// for operations.
pub(crate) fn freeze_for_children<S: Sys>(
    regions: &[&RegionCore<S>],
) -> Result<EngineVec<PinnedBox<SnapshotCore<S>>>, RegionError> {
    freeze_all_as(regions, Purpose::Child)
}

fn freeze_all_as<S: Sys>(
    regions: &[&RegionCore<S>],
    purpose: Purpose,
) -> Result<EngineVec<PinnedBox<SnapshotCore<S>>>, RegionError> {
    let mut by_age = list(0..regions.len());
    by_age.sort_unstable_by_key(|nth| regions[*nth].accounts.cow.id);
    let ordered = list(by_age.iter().map(|nth| regions[*nth]));
    let mut made = list(by_age.into_iter().zip(cut(&ordered, purpose)?));
    made.sort_unstable_by_key(|(nth, _)| *nth);
    Ok(list(made.into_iter().map(|(_, frozen)| frozen)))
}

/// Makes snapshots of `regions`, the oldest of which comes first.
fn cut<S: Sys>(
    regions: &[&RegionCore<S>],
    purpose: Purpose,
) -> Result<EngineVec<PinnedBox<SnapshotCore<S>>>, RegionError> {
    if regions.iter().any(|region| region.accounts.revoked.load(Ordering::Relaxed) > 0) {
        return Err(RegionError::Revoked);
    }
    regions.iter().for_each(|region| region.captured.forget_some_density());
    let take_turns = || list(regions.iter().map(|region| region.take_turn()));
    let (mut tries, mut may_stay_writable) = (0, true);
    loop {
        let mut turns = take_turns();
        // While this thread has the turns, no region is given operations.
        let waits = purpose != Purpose::Child && operations::of_all(regions.iter().copied())?.is_some();
        // Signals are blocked until the pause, if nothing may be written before it.
        let mut signals =
            (!waits && regions.iter().all(|region| region.may_capture_tracked())).then(SignalsBlocked::new);
        let mut parts: EngineVec<Part<'_, S>> = EngineVec::with_capacity_in(regions.len(), Own);
        for region in regions {
            region.captured.end_prepared();
            region.check_captured();
            region.captured.begin_cut(|index| region.table.get(index).block());
            let look = if may_stay_writable { region.capture_ahead(&mut signals)? } else { None };
            if look.is_none() {
                signals = None;
                region.write_back_for_snapshot(When::BeforePause)?;
            }
            parts.push(Part::new(region, begin(region, purpose), look));
        }
        if signals.is_none() {
            // A signal handler of this thread may have written, too.
            parts.iter().for_each(|part| part.faults.set(None));
        }
        let (mut between, mut began) = (None, None);
        let mut held_back: EngineVec<_> = EngineVec::with_capacity_in(regions.len(), Own);
        let mut hold_back = || held_back.extend(regions.iter().map(|region| region.pool().ahead.hold_back()));
        if !waits {
            hold_back();
        } else {
            // Operations go on while pages are written back ahead, and a thread inside one may wait for these turns.
            let next = list(turns.iter().map(|turn| turn.number.wrapping_add(1)));
            let waiting_cuts = || regions.iter().map(|region| &region.captured.waiting_cuts);
            waiting_cuts().for_each(|cuts| _ = cuts.fetch_add(1, Ordering::Relaxed));
            drop(turns);
            let over = operations::over_and_then(regions.iter().copied(), take_turns);
            waiting_cuts().for_each(|cuts| _ = cuts.fetch_sub(1, Ordering::Relaxed));
            (between, turns) = over?;
            began = regions.first().map(|region| region.pool().sys.now());
            hold_back();
            let are_others = !turns.iter().map(|turn| turn.number).eq(next);
            for part in &mut parts {
                if are_others {
                    // Other threads may have taken snapshots, whose ids are greater.
                    part.region.captured.begin_cut(|index| part.region.table.get(index).block());
                    part.frozen = begin(part.region, purpose);
                }
                let is_looked_at = match part.keeps {
                    Keeps::Writable => part.region.capture_between_operations(),
                    Keeps::Protected => !are_others,
                };
                if !is_looked_at {
                    // Pages may be marked that could not be captured, for example because the pool is full.
                    (part.is_looked_at, part.keeps) = (false, Keeps::Protected);
                }
            }
        }
        let filled = fill(&parts, began, || drop((between, held_back)));
        drop(signals);
        let stay_writable = parts.iter().any(|part| part.keeps == Keeps::Writable);
        match filled {
            Ok(()) => {
                return Ok(list(parts.into_iter().map(|Part { region, frozen, .. }| {
                    frozen.keep_placement(region.placement.move_on(region.pool(), region.table.len()));
                    frozen
                })));
            }
            // Pages take slots, and pinned blocks are copied.
            Err(RegionError::PoolFull { .. }) if regions.iter().any(|region| region.pool().make_room()) => {}
            // CoW mappings that are write-protected one by one take more mappings, and blocks. The next try protects
            // all.
            Err(_) if stay_writable => may_stay_writable = false,
            // CoW mappings that have got private pages since they were written back are copied, too. To write them back
            // ahead makes room.
            Err(RegionError::PoolFull { .. })
                if regions.iter().any(|region| region.accounts.has_cow_mappings()) && tries < FULL_POOL_TRIES =>
            {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A snapshot without blocks, whose id is greater than those of all earlier snapshots of the region. The caller has the
/// region's turn.
fn begin<S: Sys>(region: &RegionCore<S>, purpose: Purpose) -> PinnedBox<SnapshotCore<S>> {
    let id = (purpose == Purpose::Snapshot).then(SnapshotId::next);
    let frozen = SnapshotCore::empty(region.pool(), region.table.len(), Derived::of(&region.accounts.cow), None, id);
    frozen.keep_captured(&region.captured);
    if region.captured.are_any() || region.accounts.has_cow_mappings() {
        frozen.make_room_for_pages();
    }
    frozen
}

/// Makes the pause, in which each snapshot gets the blocks of its region, and does the work behind it. Writers wait
/// since `began`, or else since this call, until `resume` is called. After a failure, all regions are as before.
pub(crate) fn fill<S: Sys>(
    parts: &[Part<'_, S>],
    began: Option<u64>,
    resume: impl FnOnce(),
) -> Result<(), RegionError> {
    let Some(clock) = parts.first().map(|part| &part.region.pool().sys) else { return Ok(()) };
    // Memory is allocated before any lock is taken.
    let mut filling: EngineVec<ExclusiveGuard<'_>> = EngineVec::with_capacity_in(parts.len(), Own);
    let mut alone: EngineVec<Quiesced<'_, S>> = EngineVec::with_capacity_in(parts.len(), Own);
    let _signals = SignalsBlocked::new();
    // A region that wants to revoke a block of a snapshot waits until the snapshot holds all of its blocks.
    filling.extend(parts.iter().map(|part| part.frozen.lock.exclusive()));
    let started = began.unwrap_or_else(|| clock.now());
    alone.extend(parts.iter().map(|part| part.region.hold_all()));
    parts.iter().for_each(|part| part.region.captured.end_prepared());
    let mut begun = 0;
    let share = |part: &Part<'_, S>, alone: &mut Quiesced<'_, S>| {
        begun += 1;
        part.region.share_all(alone, part)?;
        if seeded!("writers-go-on-before-the-cut-is-over") {
            part.region.resume_writers(alone, part)?;
        }
        Ok(())
    };
    let shared = each(parts, &mut alone, share)
        .and_then(|()| keep_each(parts, &mut alone))
        .and_then(|()| each(parts, &mut alone, |part, alone| part.region.resume_writers(alone, part)));
    match &shared {
        // Each snapshot gets its place in the tree of snapshots, and the regions move there.
        Ok(()) => {
            for Part { region, frozen, .. } in parts {
                frozen.from.set(region.accounts.origin.get());
                if frozen.id.is_some() {
                    region.accounts.origin.set(frozen.id);
                }
            }
        }
        // Takes back what was shared, even if the last part was not shared completely. This happens under the region
        // locks: otherwise faults would take a block with two holders for write-protected, and copy it.
        Err(_) => {
            for ((part, filling), alone) in parts[..begun].iter().zip(&filling).zip(&mut alone) {
                alone.fail();
                if !seeded!("references-kept-after-a-failure") {
                    part.frozen.give_up_all(Locked::alone(filling));
                }
            }
        }
    }
    parts.iter().for_each(|part| part.region.count_mappings_anew());
    let behind = list(parts.iter().zip(alone.drain(..)).map(|(part, alone)| part.release(alone)));
    resume();
    if let Err((failed, reason)) = shared {
        // The locks are released first, since the error's text allocates.
        drop((behind, filling));
        return Err(parts[failed].region.error(reason));
    }
    let pause = clock.now().saturating_sub(started);
    for Part { region, .. } in parts {
        region.counters.longest_pause.fetch_max(pause, Ordering::Relaxed);
        region.counters.paused.fetch_add(pause, Ordering::Relaxed);
    }
    let mut failed = None;
    for (part, behind) in parts.iter().zip(behind) {
        if failed.is_none() {
            failed = part.region.capture_behind(part, behind).err().map(|reason| (part.region, reason));
        }
    }
    let Some((region, reason)) = failed else {
        parts.iter().for_each(|part| count(&part.region.counters.snapshots, 1));
        return Ok(());
    };
    // The snapshots go as if they were taken and dropped.
    for (part, filling) in parts.iter().zip(filling) {
        part.region.forget(&part.frozen);
        part.frozen.give_up_all(Locked::alone(&filling));
    }
    Err(region.error(reason))
}

/// Takes a step for each part. An error says which part failed, and why.
fn each<'a, S: Sys>(
    parts: &[Part<'a, S>],
    alone: &mut [Quiesced<'a, S>],
    mut step: impl FnMut(&Part<'a, S>, &mut Quiesced<'a, S>) -> Result<(), Unresolved>,
) -> Result<(), (usize, Unresolved)> {
    let mut each = parts.iter().zip(alone).enumerate();
    each.try_for_each(|(nth, (part, alone))| step(part, alone).map_err(|reason| (nth, reason)))
}

/// Write-protects the CoW mappings that are written to meanwhile, until a pass through all parts finds none. Then gives
/// each snapshot what was not captured before. An error says which part failed, and why.
///
/// A write to a CoW mapping that no pass has found raises a page fault. So no pass is needed if other threads have had
/// no fault since all pages were captured, and no further pass if they have had none since the last one began.
///
/// Pinned pages are copied after that moment. So that no thread goes on to them after a write that the cut does not
/// have, everything else is write-protected then.
fn keep_each<'a, S: Sys>(parts: &[Part<'a, S>], alone: &mut [Quiesced<'a, S>]) -> Result<(), (usize, Unresolved)> {
    // All parts are asked, because each keeps its own count.
    let are_more_faults = || parts.iter().filter(|part| part.are_more_faults()).count() > 0;
    let stay_writable = parts.iter().any(|part| part.keeps == Keeps::Writable);
    let are_pinned = parts.iter().any(|part| part.region.pins.pinned(0..part.region.table.len()).next().is_some());
    let mut are_any = stay_writable && (are_more_faults() && !seeded!("pause-trusts-its-look") || are_pinned);
    for passes in if are_pinned { MOST_PASSES } else { 0 }.. {
        if !are_any {
            break;
        }
        are_any = false;
        each(parts, alone, |part, alone| {
            are_any |= part.region.protect_what_was_written(alone, part, passes)?;
            Ok(())
        })?;
        are_any &= are_more_faults() && !seeded!("cut-looks-once");
    }
    each(parts, alone, |part, alone| part.region.keep_rest(alone, part))
}
