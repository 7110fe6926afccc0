//! This machine's support for hugefork, for `hugefork doctor` and for programs that log it at
//! start-up.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hugefork_kernels::{Figure, Kernel, Kernels, Primitive, PrimitiveName, Use};

use super::pool::Pool;
use crate::pool::kernels;
use crate::pool::pressure::PressureWatch;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::own_tmpfs::{self, OnSwap};
pub use crate::sys::linux::pressure::PressureError;
use crate::sys::linux::{arena, hold, memory, settings};
use crate::types::advice::Advice;
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
/// println!("{} with Linux {}", survey.cpu, survey.kernel);
/// match &survey.chosen {
///     Ok((granted, None)) => println!("pools are made of {granted}"),
///     Ok((granted, Some(why))) => println!("pools are made of {granted}, since {why}"),
///     Err(error) => println!("no pool can be built: {error}"),
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// `uname -r`.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Maximum memory of a pool, in bytes.
    pub memory_total: usize,
    /// Memory that is available now, in bytes.
    pub memory_available: usize,
    /// `transparent_hugepage/enabled`; `None` without THP.
    pub thp: Option<String>,
    /// `transparent_hugepage/shmem_enabled`; `None` without THP.
    pub shmem_thp: Option<String>,
    /// The hugetlb pools, small pages first.
    pub hugetlb: Vec<Hugetlb>,
    /// `vm.max_map_count`.
    pub map_count_limit: usize,
    /// Mappings that this process has.
    pub map_count: usize,
    /// All primitives to clear and copy, and whether this processor and kernel support each.
    pub primitives: Vec<(PrimitiveName, bool)>,
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
    /// The cost of the first write to a block with [`Backing::Auto`], or the reason why it could not be measured: a
    /// [`BuildError`] or [`RegionError`](crate::RegionError), inside an [`io::Error`].
    pub first_write: io::Result<FirstWrite>,
    /// The file that [`PoolBuilder::reclaim_under_pressure`](crate::PoolBuilder::reclaim_under_pressure) watches by
    /// default, or the reason why none can be watched.
    pub pressure: Result<PathBuf, PressureError>,
    /// The times of the kernels that hugefork measured, to choose those for clearing and copying. Empty if
    /// `HUGEFORK_KERNEL` pins them.
    pub calibration: Vec<Figure>,
    /// The kernel for clearing blocks.
    pub clear_kernel: Kernel,
    /// The kernel for copying blocks.
    pub copy_kernel: Kernel,
}

/// The cost of the first write to a block of 2 MiB, as the median of several.
///
/// ```
/// if let Ok(cost) = hugefork::machine::survey().first_write {
///     println!("{:?} with its memory, {:?} without", cost.ready, cost.late);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FirstWrite {
    /// To a block that gets its memory at that write ([`Commit::OnDemand`]).
    pub late: Duration,
    /// To a block that has its memory already.
    pub ready: Duration,
}

/// The hugetlb pool of one page size.
///
/// ```
/// for pool in hugefork::machine::survey().hugetlb {
///     println!("{} of {} pages of {} bytes are free", pool.available, pool.total, pool.page);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Hugetlb {
    /// Bytes in a page.
    pub page: usize,
    /// Pages in the pool.
    pub total: usize,
    /// Pages that are neither used nor reserved.
    pub available: usize,
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

/// Examines the machine. It builds a pool of one block on each backing, writes to 32 new blocks, and sets a pressure
/// trigger for a moment, which takes some ten milliseconds together. Like any first pool, it installs the fault
/// handler.
pub fn survey() -> Survey {
    memory::refresh_budget();
    // A pool that is large enough for the measurement of the kernels. Its own refusal is reported below.
    let _ = Pool::builder().name("survey").capacity(kernels::CALIBRATION_BYTES).build();
    let chosen = kernels::choose::<Linux>(None).unwrap_or_else(|_| Kernels::default_for_this_cpu());
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
        kernel: settings::kernel_release(),
        cpu: settings::cpu_name().unwrap_or_else(|| "unknown".to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_total: settings::memory_total().bytes,
        memory_available: settings::memory_available().bytes,
        thp: settings::thp("enabled").ok().flatten(),
        shmem_thp: settings::thp("shmem_enabled").ok().flatten(),
        hugetlb: settings::hugetlb_pools()
            .unwrap_or_default()
            .iter()
            .map(|pool| Hugetlb { page: pool.page, total: pool.total, available: pool.available() })
            .collect(),
        map_count_limit: settings::map_count_limit(),
        map_count: settings::map_count().unwrap_or(0),
        primitives: PrimitiveName::ALL.iter().map(|&name| (name, Primitive::new(name).is_some())).collect(),
        backings: fixed
            .into_iter()
            .map(|backing| (backing, try_backing(backing, Fallback::Refused).map(|pool| pool.backing())))
            .collect(),
        chosen: try_backing(Backing::Auto, Fallback::Allowed)
            .map(|pool| (pool.backing(), pool.fallback_reason().map(str::to_owned))),
        no_page_grain: try_backing(Backing::ShmemBase, Fallback::Refused)
            .map_or_else(|error| Some(error.to_string()), |pool| pool.no_page_grain()),
        no_own_tmpfs: own_tmpfs::create(HUGE_PAGE, OnSwap::Allowed).err().map(|why| why.to_string()),
        no_waiting: hold::Holder::open().err().map(|why| why.to_string()),
        first_write: first_write(),
        pressure: PressureWatch::new().try_out(),
        calibration: kernels::calibration().map(|measured| measured.table().collect()).unwrap_or_default(),
        clear_kernel: chosen.clear(HUGE_PAGE, Use::Near),
        copy_kernel: chosen.copy(HUGE_PAGE, Use::Near),
    }
}

fn first_write() -> io::Result<FirstWrite> {
    Ok(FirstWrite { late: median_first_write(Commit::OnDemand)?, ready: median_first_write(Commit::Upfront)? })
}

fn median_first_write(commit: Commit) -> io::Result<Duration> {
    const BLOCKS: usize = 16;
    let len = BLOCKS * HUGE_PAGE;
    let pool = Pool::builder().name("survey").capacity(len).commit(commit).build()?;
    let mut region = pool.region(len)?;
    // One block at a time.
    region.advise(Advice::Near);
    let mut times: Vec<Duration> = region
        .as_mut_slice()
        .chunks_exact_mut(HUGE_PAGE)
        .map(|block| {
            let started = Instant::now();
            block[HUGE_PAGE / 2] = 1;
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    Ok(times[BLOCKS / 2])
}
