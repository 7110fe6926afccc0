//! A reset of several regions, each to a snapshot of its own, as one cut through all of them.
//!
//! ```text
//!   take all locks, oldest first ─▶ keep off the writers of each ─▶ set each back ─▶ resume the writers of each
//!     ─▶ release all locks
//! ```
//! No region is set back before the writers of all are kept off, and no writer goes on before all regions are set back.
//! So the argument for one region (reset/mod.rs) holds for all together: if a write is gone, every write that happened
//! before it is gone too, whichever of the regions they went to.
//!
//! | way | how writers are kept off | how the region is set back |
//! |---|---|---|
//! | alone | there are none | as in a reset of one region |
//! | staged | private pages go at one moment (at_once.rs), the rest is protected | drops pages written since |
//! | held | as in a reset of one region | as in a reset of one region |
//!
//! Staged pages are moved back after the writers of their region have been resumed.
//!
//! Locks are taken in the order of a cut (cut/mod.rs): regions by age. The snapshots follow, by address. Each is locked
//! once, even if several regions go back to it.

use std::ptr;

use super::{Reset, Stop};
use crate::mem::{EngineVec, Own, list};
use crate::region::private::Quiesced;
use crate::region::state::operations;
use crate::region::state::{RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::sync::{ExclusiveGuard, SignalsBlocked};
use crate::sys::Sys;
use crate::table::{Locked, WindowsGuard};
use crate::types::error::ResetError;

/// A region, and the snapshot that it goes back to.
pub(crate) type Pair<'a, S> = (&'a RegionCore<S>, &'a SnapshotCore<S>);

/// The reset of region `nth` has ended early. The first `done` bytes, counted over all regions, are as in the
/// snapshots.
pub(super) struct Failed {
    pub(super) nth: usize,
    pub(super) done: usize,
    pub(super) stop: Stop,
}

/// Gives each region the bytes of its snapshot. No region occurs twice.
pub(crate) fn reset_all<S: Sys>(pairs: &[Pair<'_, S>]) -> Result<(), ResetError> {
    if let [(region, frozen)] = pairs {
        return region.reset_to(frozen);
    }
    let mut by_age = list(0..pairs.len());
    by_age.sort_unstable_by_key(|nth| pairs[*nth].0.accounts.cow.id);
    let take_turns = || list(by_age.iter().map(|nth| pairs[*nth].0.take_turn()));
    reset_each(pairs, take_turns, || try_to_reset_all(pairs, &by_age))
}

/// Tries to reset these regions until the snapshots are complete. `attempt` is one try, in the turns of all regions.
pub(super) fn reset_each<S: Sys, T>(
    pairs: &[Pair<'_, S>],
    take_turns: impl Fn() -> T,
    attempt: impl Fn() -> Result<(), Failed>,
) -> Result<(), ResetError> {
    let nothing_done = |reason| ResetError { done: 0, reason };
    pairs.iter().try_for_each(|(region, frozen)| region.check_goal(frozen)).map_err(nothing_done)?;
    loop {
        let over = operations::over_and_then(pairs.iter().map(|(region, _)| *region), &take_turns);
        let (between, turns) = over.map_err(nothing_done)?;
        let signals = SignalsBlocked::new();
        let came = attempt();
        drop(signals);
        pairs.iter().for_each(|(region, _)| region.captured.drop_replaced());
        drop((between, turns));
        // No lock is held from here on, because errors allocate.
        let Err(Failed { nth, done, stop }) = came else { break };
        match stop {
            Stop::Incomplete => pairs[nth].1.complete().map_err(nothing_done)?,
            Stop::At { done: within, reason } => {
                return Err(ResetError { done: done + within, reason: pairs[nth].0.error(reason) });
            }
        }
    }
    let reserved = pairs
        .iter()
        .map(|(region, _)| region.reserve_again(0..region.table.len()))
        .reduce(Result::and)
        .unwrap_or(Ok(()));
    reserved.map_err(|reason| ResetError { done: pairs.iter().map(|(region, _)| region.len()).sum(), reason })
}

/// One try. The caller has the turns of all regions.
fn try_to_reset_all<S: Sys>(pairs: &[Pair<'_, S>], by_age: &[usize]) -> Result<(), Failed> {
    let mut dirty = list(pairs.iter().map(|(region, frozen)| region.dirty_list(frozen)));
    let is_held = pairs.iter().any(|(region, _)| !region.pool().sys.is_alone());
    let mut goals = list(pairs.iter().map(|(_, frozen)| *frozen));
    goals.sort_unstable_by_key(|frozen| ptr::from_ref(*frozen).addr());
    goals.dedup_by(|one, other| ptr::eq(*one, *other));
    let _maintenance = list(by_age.iter().map(|nth| pairs[*nth].0.maintenance.lock()));
    // Memory is allocated before any lock is taken that a fault takes, too.
    let mut alone: EngineVec<(WindowsGuard<'_>, ExclusiveGuard<'_>)> = EngineVec::with_capacity_in(pairs.len(), Own);
    let mut frozen_alone: EngineVec<ExclusiveGuard<'_>> = EngineVec::with_capacity_in(goals.len(), Own);
    let mut resets: EngineVec<Reset<'_, S>> = EngineVec::with_capacity_in(pairs.len(), Own);
    for (region, _) in by_age.iter().map(|nth| pairs[*nth]) {
        let windows =
            if is_held { region.table.lock_windows(0..region.table.windows()) } else { WindowsGuard::default() };
        alone.push((windows, region.lock.exclusive()));
    }
    frozen_alone.extend(goals.iter().map(|frozen| frozen.lock.exclusive()));
    for (nth, ((region, frozen), dirty)) in pairs.iter().zip(&mut dirty).enumerate() {
        let age = by_age.iter().position(|of| *of == nth).expect("each region has its place");
        let goal = goals.iter().position(|goal| ptr::eq(*goal, *frozen)).expect("each snapshot is a goal");
        let locks = (Locked::alone(&alone[age].1), Some(Locked::alone(&frozen_alone[goal])));
        resets.push(Reset::new((region, frozen), locks, dirty, is_held));
    }
    if let Some(nth) = resets.iter().position(|reset| reset.frozen.is_revoked()) {
        return Err(Failed { nth, done: 0, stop: Unresolved::Revoked.into() });
    }
    for (nth, reset) in resets.iter_mut().enumerate() {
        reset.take_sets().map_err(|stop| Failed { nth, done: 0, stop })?;
    }
    let mut count = 0;
    let kept = if is_held { keep_each_off(&mut resets) } else { Ok(()) };
    let came = kept.and_then(|()| set_each_back(&mut resets, &mut count));
    for (nth, reset) in resets.iter_mut().enumerate() {
        match reset.staged.take() {
            None => reset.release(nth < count),
            Some(run) => {
                reset.quiesced.take().into_iter().for_each(|quiesced| reset.resume(quiesced));
                reset.settle(&run);
            }
        }
    }
    came
}

/// Keeps the writers of each region off.
fn keep_each_off<S: Sys>(resets: &mut [Reset<'_, S>]) -> Result<(), Failed> {
    for (nth, reset) in resets.iter_mut().enumerate() {
        let kept = match reset.stage_at_once() {
            Some(run) => {
                reset.staged = Some(run.clone());
                let quiesced = Quiesced::begin_briefly(reset.region, reset.locked, run);
                quiesced.map(|quiesced| reset.quiesced = Some(quiesced))
            }
            None => reset.hold(),
        };
        kept.map_err(|reason| Failed { nth, done: 0, stop: reason.into() })?;
    }
    Ok(())
}

/// Sets each region back, and counts those that are done.
fn set_each_back<S: Sys>(resets: &mut [Reset<'_, S>], count: &mut usize) -> Result<(), Failed> {
    let mut done = 0;
    for (nth, reset) in resets.iter_mut().enumerate() {
        let came = match reset.staged.clone() {
            Some(_) if seeded!("writes-before-the-cut-stay") => Ok(()),
            Some(run) => reset.forget_since(&run).map_err(Stop::from),
            None => reset.set_back(),
        };
        came.map_err(|stop| Failed { nth, done, stop })?;
        (done, *count) = (done + reset.region.len(), nth + 1);
    }
    Ok(())
}
