//! The capabilities of this machine that no pool reports, for `hugefork doctor`.

use std::ops::RangeInclusive;

use hugefork_kernels::{Figure, Kernels};

use super::pool::Pool;
use crate::pool::kernels;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::own_tmpfs::{self, Swap};
pub use crate::sys::linux::pressure::PressureError;
use crate::sys::linux::{arena, hold, track_writes};
use crate::types::error::BuildError;
use crate::units::HUGE_PAGE;

/// Bytes of addresses that a process reserves for all its regions: the minimum, and the amount without a limit by
/// `RLIMIT_AS`.
pub const ADDRESSES: RangeInclusive<usize> = arena::TAKES_BYTES;

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

/// The times of the kernels that hugefork measured, to choose those for clearing and copying. Empty if
/// `HUGEFORK_KERNEL` pins them, and before the first pool with 8 MiB of huge pages.
pub fn calibration() -> Vec<Figure> {
    kernels::calibration().map(|measured| measured.table().collect()).unwrap_or_default()
}

/// The reason why a pool cannot have a tmpfs of its own ([`Granted::ShmemOwnTmpfs`](crate::Granted)); `None` if it can.
pub fn no_own_tmpfs() -> Option<String> {
    own_tmpfs::create(HUGE_PAGE, Swap::Allowed).err().map(|why| why.to_string())
}

/// The reason why system calls that write to shared pages fail during a write-back, even with
/// [`RegionOptions::calls_wait`](crate::RegionOptions::calls_wait); `None` if this process may handle their faults.
///
/// ```
/// if let Some(why) = hugefork::machine::no_waiting() {
///     println!("system calls may fail with EFAULT: {why}");
/// }
/// ```
pub fn no_waiting() -> Option<String> {
    hold::Holder::open().err().map(|why| why.to_string())
}

/// Whether the kernel reports which pages were written since a snapshot (Linux 6.14). If not, each snapshot that is
/// held beside an older one keeps writers off while it looks for them.
pub fn tracks_writes() -> bool {
    track_writes::open().is_some()
}
