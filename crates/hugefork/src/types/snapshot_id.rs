//! [`SnapshotId`]: identifies snapshots, in the order in which they were taken.
//!
//! ```text
//!   region ──▶ 1 ──▶ 2 ──▶ 5 ──▶ (the region is here)
//!                    └───▶ 3 ──▶ 4 ──▶ (a fork of snapshot 2 is here)
//! ```
//! Each snapshot knows its parent, and each region its origin, the region's latest base snapshot:

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a [`Snapshot`](crate::Snapshot) among all snapshots of this process.
///
/// Of two snapshots of one region, the later has the greater id. The same holds for any two snapshots if one was
/// complete before the other was requested. The numbers are for programs that maintain a tree of snapshots, and mean
/// nothing to another process.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let region = pool.region(2 << 20)?;
/// assert_eq!(region.origin(), None); // it is new
/// let (first, second) = (region.snapshot()?, region.snapshot()?);
/// assert!(first.id() < second.id());
/// assert_eq!((first.parent(), second.parent()), (None, Some(first.id())));
/// let branch = first.fork()?;
/// assert_eq!((region.origin(), branch.origin()), (Some(second.id()), Some(first.id())));
/// assert_eq!(branch.snapshot()?.parent(), Some(first.id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(NonZeroU64);

impl SnapshotId {
    /// A new, unused id.
    pub(crate) fn next() -> SnapshotId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // At one per nanosecond, the ids last for five hundred years.
        SnapshotId(NonZeroU64::new(LAST.fetch_add(1, Ordering::Relaxed) + 1).unwrap_or(NonZeroU64::MAX))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A position in the tree: at a snapshot, or before the first one.
#[derive(Debug, Default)]
pub(crate) struct Place(AtomicU64);

impl Place {
    pub(crate) fn get(&self) -> Option<SnapshotId> {
        NonZeroU64::new(self.0.load(Ordering::Acquire)).map(SnapshotId)
    }

    pub(crate) fn set(&self, to: Option<SnapshotId>) {
        self.0.store(number(to), Ordering::Release);
    }

    /// Moves back from `id` to `to`, unless the position has changed meanwhile.
    pub(crate) fn go_back(&self, id: Option<SnapshotId>, to: Option<SnapshotId>) {
        let _ = self.0.compare_exchange(number(id), number(to), Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn number(id: Option<SnapshotId>) -> u64 {
    id.map_or(0, SnapshotId::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_and_a_place_is_one_of_them_or_none() {
        let (first, second) = (SnapshotId::next(), SnapshotId::next());
        assert!(first < second && first.to_string() == first.get().to_string());
        let place = Place::default();
        assert_eq!(place.get(), None);
        place.set(Some(second));
        place.go_back(Some(first), None);
        assert_eq!(place.get(), Some(second), "it is elsewhere");
        place.go_back(Some(second), Some(first));
        assert_eq!(place.get(), Some(first));
        place.set(None);
        assert_eq!(place.get(), None);
    }
}
