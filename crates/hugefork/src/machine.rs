//! What this machine offers hugefork, for `hugefork doctor` and for programs that log it at start-up.

use std::fs;

use hugefork_kernels::{Kernel, Primitive};

use crate::pool::{Backing, Commit, Fallback, Granted, Pool};
use crate::sys::linux::{memory, settings};
use crate::units::BlockSize;

/// What this machine offers hugefork.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// `uname -r`.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Memory in bytes that a pool could have at most.
    pub memory_total: usize,
    /// Memory in bytes that could be had now.
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
    /// Ways to clear and copy, and whether this processor and kernel offer each.
    pub primitives: Vec<(Primitive, bool)>,
    /// What a small pool of each backing got, or why it got nothing.
    pub backings: Vec<(Backing, Result<Granted, String>)>,
    /// What `Backing::Auto` chooses, and why not something better.
    pub chosen: Result<(Granted, Option<String>), String>,
    /// How blocks would be cleared.
    pub clear_kernel: Kernel,
    /// How blocks would be copied.
    pub copy_kernel: Kernel,
}

/// The hugetlb pool of one page size.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Hugetlb {
    /// Bytes in a page.
    pub page: usize,
    /// Pages in the pool.
    pub total: usize,
    /// Pages that nobody uses or has reserved.
    pub available: usize,
}

/// Looks at the machine, and builds a pool of one block on each backing to see what it gets: some milliseconds.
pub fn survey() -> Survey {
    memory::refresh_budget();
    let try_backing = |backing, fallback| {
        let block_size = BlockSize::MIB_2;
        let pool = Pool::builder()
            .name("survey")
            .capacity(block_size.bytes())
            .block_size(block_size)
            .backing(backing)
            .fallback(fallback)
            .commit(Commit::Upfront)
            .build();
        pool.map_err(|error| error.to_string())
    };
    let fixed = [Backing::ShmemHuge, Backing::Hugetlb, Backing::ShmemBase];
    Survey {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu: cpu_name().unwrap_or_else(|| "unknown".to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_total: settings::memory_total().bytes,
        memory_available: settings::memory_available().bytes,
        thp: settings::thp("enabled"),
        shmem_thp: settings::thp("shmem_enabled"),
        hugetlb: settings::hugetlb_pools()
            .iter()
            .map(|pool| Hugetlb { page: pool.page, total: pool.total, available: pool.available() })
            .collect(),
        map_count_limit: settings::map_count_limit(),
        map_count: settings::map_count().unwrap_or(0),
        primitives: Primitive::ALL.iter().map(|&primitive| (primitive, primitive.is_available())).collect(),
        backings: fixed
            .into_iter()
            .map(|backing| (backing, try_backing(backing, Fallback::Refused).map(|pool| pool.backing())))
            .collect(),
        chosen: try_backing(Backing::Auto, Fallback::Allowed)
            .map(|pool| (pool.backing(), pool.fallback_reason().map(str::to_owned))),
        clear_kernel: Kernel::for_clear(),
        copy_kernel: Kernel::for_copy(),
    }
}

fn cpu_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}
