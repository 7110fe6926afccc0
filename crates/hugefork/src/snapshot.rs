//! [`Snapshot`]: a region as it was at one moment.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Mutex, OnceLock};

use crate::error::RegionError;
use crate::frozen::{Frozen, View};
use crate::pool::{Pool, check_owner};
use crate::range::check_range;
use crate::region::Region;
use crate::sync::SignalsBlocked;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;

/// A region as it was at one moment, immutable: it may be read from any number of threads while the region is written
/// to, outlive the region, and be forked again.
///
/// It holds the blocks that it shares with the region, so each of them that the region writes to afterwards takes a
/// second block from the pool.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let mut region = pool.region(2 << 20)?;
/// region.as_mut_slice()[7] = 1;
/// let before = region.snapshot()?;
/// region.as_mut_slice()[7] = 2;
/// assert_eq!(before[7], 1);
/// # Ok(())
/// # }
/// ```
pub struct Snapshot {
    /// Taken out when dropped, after the view.
    frozen: Option<Frozen<Linux>>,
    /// Made on first use.
    view: OnceLock<View<Linux>>,
    mapping: Mutex<()>,
    pool: Pool,
}

impl Snapshot {
    pub(crate) fn new(pool: Pool, frozen: Frozen<Linux>) -> Snapshot {
        Snapshot { frozen: Some(frozen), view: OnceLock::new(), mapping: Mutex::new(()), pool }
    }

    fn frozen(&self) -> &Frozen<Linux> {
        self.frozen.as_ref().expect("taken only when dropped")
    }

    /// Length in bytes, that of the region.
    #[allow(clippy::len_without_is_empty)] // A region is never empty.
    pub fn len(&self) -> usize {
        self.frozen().len()
    }

    /// The pool that its blocks belong to.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The bytes. The first call maps them, which takes a system call for each run of neighbouring blocks.
    ///
    /// # Errors
    /// [`RegionError::TooManyMappings`], [`RegionError::OutOfAddresses`], [`RegionError::ForkedChild`].
    /// [`Snapshot::read_at`] needs no mapping.
    pub fn map(&self) -> Result<&[u8], RegionError> {
        check_owner()?;
        let view = match self.view.get() {
            Some(view) => view,
            None => {
                let _signals = SignalsBlocked::new();
                let _one_maps = self.mapping.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match self.view.get() {
                    Some(view) => view,
                    None => {
                        let view = self.frozen().map()?;
                        self.view.get_or_init(|| view)
                    }
                }
            }
        };
        // SAFETY: the view maps all `len` bytes for as long as `self` lives, and nobody writes to blocks that
        // `self.frozen` holds.
        Ok(unsafe { std::slice::from_raw_parts(view.as_ptr(), self.len()) })
    }

    /// Copies bytes out, without mapping the snapshot: for a look at a few places, or when mappings are scarce.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] unless `offset..offset + to.len()` lies inside; [`RegionError::ForkedChild`].
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        check_owner()?;
        let range = Range { start: offset, end: offset.saturating_add(to.len()) };
        check_range(&range, self.len())?;
        self.frozen().read(offset, to);
        Ok(())
    }

    /// A region that starts as this snapshot.
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        check_owner()?;
        Ok(Region::new(self.pool.clone(), self.frozen().duplicate().share()?))
    }
}

impl Deref for Snapshot {
    type Target = [u8];

    /// The bytes.
    ///
    /// # Panics
    /// If they cannot be mapped; [`Snapshot::map`] returns an error instead.
    fn deref(&self) -> &[u8] {
        match self.map() {
            Ok(bytes) => bytes,
            Err(error) => panic!("a snapshot cannot be mapped: {error}"),
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("len", &self.len()).field("pool", &self.pool.name()).finish_non_exhaustive()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let (Some(frozen), view) = (self.frozen.take(), self.view.take()) else { return };
        if owner::is_forked_child() {
            std::mem::forget((frozen, view));
        } else if view.is_some_and(|view| view.close().is_err()) {
            // Still visible, perhaps: nobody may have these blocks again.
            frozen.leak();
        }
    }
}
