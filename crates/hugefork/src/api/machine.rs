//! This machine's support for hugefork, for `hugefork doctor` and for programs that log it at
//! start-up.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use hugefork_kernels::{Figure, Kernels};

use super::pool::Pool;
use crate::pool::kernels;
use crate::pool::pressure::PressureWatch;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::own_tmpfs::{self, Swap};
pub use crate::sys::linux::pressure::PressureError;
use crate::sys::linux::{arena, hold};
use crate::types::backing::{Backing, Commit, Fallback, Granted};
use crate::types::error::BuildError;
use crate::units::{BlockSize, HUGE_PAGE};

/// Bytes of addresses that a process reserves for all its regions: the minimum, and the amount without a limit by
/// `RLIMIT_AS`.
pub const ADDRESSES: RangeInclusive<usize> = arena::TAKES_BYTES;

/// This machine's support for hugefork: the result of [`survey`].
///
/// ```
/// let survey = hugefork::machine::survey();
/// match &survey.chosen {
///     Ok((granted, None)) => println!("pools are made of {granted}"),
///     Ok((granted, Some(why))) => println!("pools are made of {granted}, since {why}"),
///     Err(error) => println!("no pool can be built: {error}"),
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The backing granted to a small pool of each kind, or the reason why it was not built.
    pub backings: Vec<(Backing, Result<Granted, BuildError>)>,
    /// The choice of [`Backing::Auto`], and the reason against a better one; or the reason why no pool could be built.
    pub chosen: Result<(Granted, Option<String>), BuildError>,
    /// The reason why shmem pools cannot copy single pages ([`Pool::no_page_grain`]); `None` if they can. Pools of
    /// hugetlb pages copy blocks on any machine.
    pub no_page_grain: Option<String>,
    /// The reason why a pool cannot have a tmpfs of its own ([`Granted::ShmemOwnTmpfs`](crate::Granted)); `None` if it
    /// can.
    pub no_own_tmpfs: Option<String>,
    /// The reason why system calls that write to shared pages fail during a write-back, even with
    /// [`RegionOptions::calls_wait`](crate::RegionOptions::calls_wait); `None` if this process may handle their faults.
    pub no_waiting: Option<String>,
    /// The file that [`PoolBuilder::reclaim_under_pressure`](crate::PoolBuilder::reclaim_under_pressure) watches by
    /// default, or the reason why none can be watched.
    pub pressure: Result<PathBuf, PressureError>,
    /// The times of the kernels that hugefork measured, to choose those for clearing and copying. Empty if
    /// `HUGEFORK_KERNEL` pins them.
    pub calibration: Vec<Figure>,
}

/// The kernels with which pools of this process clear and copy. The environment pins them (`HUGEFORK_KERNEL`,
/// `HUGEFORK_WINDOW`), or they were measured; before the first pool, this function measures them on a pool of 8 MiB.
///
/// # Errors
/// Those of [`PoolBuilder::build`](crate::PoolBuilder::build), [`BuildError::Setting`] among them.
pub fn kernels() -> Result<Kernels, BuildError> {
    if kernels::calibration().is_none() {
        Pool::builder().name("survey").capacity(kernels::CALIBRATION_BYTES).build()?;
    }
    kernels::choose::<Linux>(None)
}

/// Examines the machine. It builds a pool of one block on each backing, and sets a pressure trigger for a moment, which
/// takes some ten milliseconds together. Like any first pool, it installs the fault handler.
pub fn survey() -> Survey {
    // Measures the kernels. A refusal of the pool for that is reported below.
    let _ = kernels();
    let try_backing = |backing, fallback| {
        let block_size = BlockSize::MIB_2;
        Pool::builder()
            .name("survey")
            .capacity(block_size.bytes())
            .block_size(block_size)
            .backing(backing)
            .fallback(fallback)
            .commit(Commit::Upfront)
            .build()
    };
    let fixed = [Backing::ShmemHuge, Backing::Hugetlb, Backing::ShmemBase];
    Survey {
        backings: fixed
            .into_iter()
            .map(|backing| (backing, try_backing(backing, Fallback::Refused).map(|pool| pool.backing())))
            .collect(),
        chosen: try_backing(Backing::Auto, Fallback::Allowed)
            .map(|pool| (pool.backing(), pool.fallback_reason().map(str::to_owned))),
        no_page_grain: try_backing(Backing::ShmemBase, Fallback::Refused)
            .map_or_else(|error| Some(error.to_string()), |pool| pool.no_page_grain()),
        no_own_tmpfs: own_tmpfs::create(HUGE_PAGE, Swap::Allowed).err().map(|why| why.to_string()),
        no_waiting: hold::Holder::open().err().map(|why| why.to_string()),
        pressure: PressureWatch::new().try_out(),
        calibration: kernels::calibration().map(|measured| measured.table().collect()).unwrap_or_default(),
    }
}
