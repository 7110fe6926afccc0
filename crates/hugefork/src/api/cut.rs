//! Snapshots and resets of several regions at one moment.

use super::operations::check_cut;
use super::pool::check_owner_and_addresses;
use super::region::Region;
use super::snapshot::{Snapshot, before_any_is_lost};
use crate::mem::pinned::PinnedBox;
use crate::mem::{EngineVec, Own};
use crate::region::cut;
use crate::region::reset::{self, Pair};
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::linux::memory::Linux;
use crate::types::error::{RegionError, ResetError};
use crate::types::options::{RegionOptions, Reserve};

impl Region {
    /// Takes snapshots of several regions at one moment, in the order of `regions`. The cut is consistent across all of
    /// them: if one of the snapshots contains a write, they contain every write that happened before it, in whichever
    /// region. The regions may belong to different pools.
    ///
    /// It takes as long as the single snapshots together ([`Region::fork`]), and threads that write to any of the
    /// regions wait for all of them.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(16 << 20).build()?;
    /// use hugefork::Region;
    /// let (mut accounts, mut log) = (pool.region(4 << 20)?, pool.region(2 << 20)?);
    /// accounts.as_mut_slice()[0] = 1;
    /// log.as_mut_slice()[0] = 1;
    /// let cut = Region::snapshot_all(&[&accounts, &log])?;
    /// accounts.as_mut_slice()[0] = 2;
    /// assert_eq!((cut[0][0], cut[1][0]), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Region::fork`] for any of the regions, and [`RegionError::AnotherOperations`] if two of them have
    /// different [`Operations`](crate::Operations). No snapshot is taken then.
    ///
    /// # Panics
    /// If a region occurs twice.
    pub fn snapshot_all(regions: &[&Region]) -> Result<Vec<Snapshot>, RegionError> {
        Region::snapshot_all_with(regions, RegionOptions::new())
    }

    /// Like [`Region::snapshot_all`], with options for each of the snapshots.
    ///
    /// # Errors
    /// Those of [`Region::snapshot_with`].
    ///
    /// # Panics
    /// If a region occurs twice.
    pub fn snapshot_all_with(regions: &[&Region], options: RegionOptions) -> Result<Vec<Snapshot>, RegionError> {
        check_owner_and_addresses()?;
        if options.limit.is_some() {
            return Err(RegionError::LimitOnSnapshot);
        }
        assert!(!is_any_twice(regions.iter().copied()), "a region is named twice: take one snapshot of it");
        check_cut(regions.iter().map(|region| region.core()))?;
        let mut cores: EngineVec<&RegionCore<Linux>> = EngineVec::with_capacity_in(regions.len(), Own);
        cores.extend(regions.iter().map(|region| region.core()));
        let keep = |made: EngineVec<PinnedBox<SnapshotCore<Linux>>>| {
            if options.reserve == Reserve::Full {
                let kept = made.iter().try_for_each(|frozen| frozen.make_irrevocable());
                kept.inspect_err(|_| cores.iter().zip(&made).for_each(|(core, frozen)| core.forget(frozen)))?;
            }
            Ok(made)
        };
        let made = before_any_is_lost(|| cut::freeze_all(&cores), keep)?;
        let with_pool = |(region, frozen): (&&Region, _)| Snapshot::new(region.pool().clone(), frozen);
        Ok(regions.iter().zip(made).map(with_pool).collect())
    }

    /// Resets each region to the snapshot beside it, at one moment. The cut is consistent across all of them: if a
    /// write is lost, every write that happened before it is lost too, in whichever region. So regions can return to
    /// the cut of [`Region::snapshot_all`] while other threads write. The regions may belong to different pools, and
    /// several may be reset to the same snapshot.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(16 << 20).build()?;
    /// use hugefork::Region;
    /// let (mut accounts, mut log) = (pool.region(4 << 20)?, pool.region(2 << 20)?);
    /// let cut = Region::snapshot_all(&[&accounts, &log])?;
    /// accounts.as_mut_slice()[0] = 1;
    /// log.as_mut_slice()[0] = 1;
    /// Region::reset_all(&[(&accounts, &cut[0]), (&log, &cut[1])])?;
    /// assert_eq!((accounts.as_mut_slice()[0], log.as_mut_slice()[0]), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It takes as long as the single resets together ([`Region::reset_to`]), and threads that write to any of the
    /// regions wait until all of them are reset. If only single pages differ, in one mapping in each region, they wait
    /// for some microseconds a region, twice. Threads that only read may see one region reset before another; a region
    /// with [`CopyGrain::Page`](crate::CopyGrain::Page) and [`calls_wait`](crate::RegionOptions::calls_wait) makes them
    /// wait, too, if more than that differs.
    ///
    /// # Errors
    /// Those of [`Region::reset_to`] for any of the regions. [`ResetError::done`] counts through the regions in their
    /// order. The pages after that offset are as [`ResetError`] says, and other threads' writes may remain or be lost.
    /// Another call completes the reset. After [`RegionError::AnotherPool`],
    /// [`RegionError::AnotherLength`], [`RegionError::AnotherOperations`] and [`RegionError::Revoked`], no region has
    /// changed.
    ///
    /// # Panics
    /// If a region occurs twice.
    pub fn reset_all(pairs: &[(&Region, &Snapshot)]) -> Result<(), ResetError> {
        let may_reset =
            check_owner_and_addresses().and_then(|()| check_cut(pairs.iter().map(|(region, _)| region.core())));
        may_reset.map_err(|reason| ResetError { done: 0, reason })?;
        let is_twice = is_any_twice(pairs.iter().map(|(region, _)| *region));
        assert!(!is_twice, "a region is named twice: it can go back to one snapshot");
        let mut cores: EngineVec<Pair<'_, Linux>> = EngineVec::with_capacity_in(pairs.len(), Own);
        cores.extend(pairs.iter().map(|(region, snapshot)| (region.core(), snapshot.core())));
        reset::reset_all(&cores)
    }
}

/// Whether a region occurs twice.
pub(super) fn is_any_twice<'a>(regions: impl Iterator<Item = &'a Region>) -> bool {
    let mut cores: EngineVec<&RegionCore<Linux>> = EngineVec::new_in(Own);
    cores.extend(regions.map(Region::core));
    cores.sort_unstable_by_key(|core| core.accounts.cow.id);
    cores.windows(2).any(|pair| std::ptr::eq(pair[0], pair[1]))
}
