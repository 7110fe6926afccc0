//! Snapshots of several regions at one moment.

use super::pool::check_owner;
use super::region::Region;
use super::snapshot::Snapshot;
use crate::own::fixed::Fixed;
use crate::own::{List, Own};
use crate::region::core::RegionCore;
use crate::region::cut;
use crate::snapshot::core::SnapshotCore;
use crate::sys::linux::memory::Linux;
use crate::terms::error::RegionError;
use crate::terms::options::{RegionOptions, Reserve};

impl Region {
    /// Snapshots of several regions as they are at one moment, in the order of `regions`. The cut is consistent across
    /// all of them: if a write is in one of the snapshots, every write that happened before it is in them too,
    /// whichever of the regions it went to. The regions may be of different pools.
    ///
    /// It takes what the snapshots take one by one ([`Region::fork`]), and threads that write to any of the regions
    /// wait for all of that.
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
    /// Those of [`Region::fork`], of whichever region it is. There is no snapshot of any of them then.
    ///
    /// # Panics
    /// If a region is named twice.
    pub fn snapshot_all(regions: &[&Region]) -> Result<Vec<Snapshot>, RegionError> {
        Region::snapshot_all_with(regions, RegionOptions::new())
    }

    /// As [`Region::snapshot_all`], with a reservation for each of the snapshots.
    ///
    /// # Errors
    /// Those of [`Region::snapshot_with`].
    ///
    /// # Panics
    /// If a region is named twice.
    pub fn snapshot_all_with(regions: &[&Region], options: RegionOptions) -> Result<Vec<Snapshot>, RegionError> {
        check_owner()?;
        if options.limit.is_some() {
            return Err(RegionError::LimitOnSnapshot);
        }
        let mut cores: List<&RegionCore<Linux>> = List::with_capacity_in(regions.len(), Own);
        cores.extend(regions.iter().map(|region| region.core()));
        cores.sort_unstable_by_key(|core| core.books.cow.id());
        let is_twice = |pair: &[&RegionCore<Linux>]| std::ptr::eq(pair[0], pair[1]);
        assert!(!cores.windows(2).any(is_twice), "a region is named twice: take one snapshot of it");
        cores.clear();
        cores.extend(regions.iter().map(|region| region.core()));
        let made = loop {
            let made = cut::freeze_all(&cores)?;
            let reserved = match options.reserve {
                Reserve::Full => made.iter().try_for_each(|frozen| frozen.reserve()),
                Reserve::None => Ok(()),
            };
            match reserved {
                Ok(()) => break made,
                Err(error) => {
                    forget_all(&cores, &made);
                    // A part was lost before it was set aside; what is lost for good is told by the next cut.
                    if error != RegionError::Revoked {
                        return Err(error);
                    }
                }
            }
        };
        let with_pool = |(region, frozen): (&&Region, _)| Snapshot::new(region.pool().clone(), frozen);
        Ok(regions.iter().zip(made).map(with_pool).collect())
    }
}

/// The program does not get these snapshots, so none of the regions is at one of them.
fn forget_all(cores: &[&RegionCore<Linux>], made: &[Fixed<SnapshotCore<Linux>>]) {
    cores.iter().zip(made).for_each(|(core, frozen)| core.forget(frozen));
}
