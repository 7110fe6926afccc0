//! `hugefork bench`: cases, subjects, and how they are measured.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hugefork::{Backing, BlockSize, ByteSize};
use hugefork_bench::plan::COUNTED_MINIMUM;
use hugefork_bench::plan::writes::{Density, Epoch, HeldSnapshots, Pattern};
use hugefork_bench::{Case, Subject};

use super::bench_compare::CompareArgs;
use super::number::whole;

/// The longest time budget.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const BENCH_HELP: &str = "\
Cases:
  clear           clear a block around a random target, then use 64 KiB there
  copy            copy a block around a random target, then use 64 KiB there
  zero-fault      first write at a random offset of each 2 MiB, then use 64 KiB there
  anon-w-seq      each task writes every word of its own new area
  anon-cow-seq    each task writes every word of its own fork of one populated area
  snapshot        pause to take a fork or snapshot of a populated area
  writer-latency  8-byte writes to a populated area, while a fork or snapshot of it is held
  paced           puts to a populated area at a fixed rate, while snapshots of it are taken
  lazy-free       lazily free a populated area; then write to it again, or reclaim it
  fork            fork(2) in a program as it is, and its 8-byte writes while the child lives
  changes         find the pages of a populated area that were written since a snapshot
  reset           put a populated area back after some of its pages were written

Subjects:
  hugefork                               a pool of used blocks, which are cleared at the fault
  hugefork-default                       a new pool with all defaults: blocks have no memory yet
  hugefork-zeroed                        a pool with a stock of zeroed blocks, filled before
  hugefork-refilling                     the same, but the stock begins empty and is refilled
  hugefork-block, hugefork-page          copies of whole blocks only, or of pages only
  kernel-thp, kernel-hugetlb, kernel-4k  fresh anonymous memory
  kernel                                 anonymous memory in folios of --block-size
  fork-thp, fork-hugetlb, fork-4k        fork(2) over anonymous memory
  run-pool                               the program under `hugefork run --pool`
  memfd-private                          a memfd that is mapped privately at the snapshot
  memset, memcpy, memcmp                 those of the C library
  pagemap-scan                           the kernel's marks of written pages (PAGEMAP_SCAN)
  limit                                  nothing to clear, copy or map: the best that is possible
  For clear and copy also any kernel, such as target-last/rep or hybrid/avx512-nt+rep@256KiB.

If clear is named, it also tells how many times longer another CPU takes to walk through its cache \
while blocks are cleared (victim_slowdown).

Examples:
  hugefork bench                                   every case, quick, as any user
  sudo hugefork bench --tune --json here.json      also the subjects that need settings
  hugefork bench zero-fault snapshot --size 4GiB   two cases, larger
  hugefork bench writer-latency --densities 10,dense --epochs 1,3
  hugefork bench clear --block-size 4KiB,2MiB      every kernel, on blocks of two sizes
  hugefork report here.json                        the results as a page

Sizes are written as 64KiB, 512MiB, 1GiB or in bytes; 64k, 512mb and 1G mean the same.
Exit status: 0 done, 1 a subject failed or nothing was measured, 2 called wrongly, 130 stopped by \
Ctrl-C (the results so far are kept).";

/// Options of `bench`.
#[derive(Args, Debug)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) instead: Option<BenchCommand>,

    /// Cases to run [default: a quick suite of all cases, 2 to 5 minutes with 2 idle CPUs; a case or two take seconds]
    #[arg(value_name = "CASE")]
    pub(crate) cases: Vec<&'static dyn Case>,

    /// Size of the area that clear and copy rotate over, that is faulted in, that a task writes, or that is forked;
    /// several are run one after the other
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Option<Vec<ByteSize>>,

    /// Number of tasks in the anon-* cases [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(crate) tasks: Option<usize>,

    /// Size of a block in clear, copy, lazy-free and hugefork's pools, from 4KiB to 1GiB; several are compared
    /// [default: 2MiB; lazy-free: every folio size]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub(crate) block_size: Option<Vec<BlockSize>>,

    /// Memory of hugefork's pools: auto, hugetlb, shmem-thp or shmem-base; several are compared
    #[arg(long, value_name = "BACKING", value_delimiter = ',', default_value = "auto")]
    pub(crate) backing: Vec<Backing>,

    /// Numbers of writes to 1GiB after a snapshot in writer-latency and fork; sparse is 5000, dense 500000
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) densities: Vec<Density>,

    /// Where writer-latency and fork write: random, or clustered in one of every 16 blocks of 2MiB [default: random]
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) patterns: Vec<Pattern>,

    /// Snapshots after which writer-latency and fork measure: 1, the first, or 3, the steady state [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) epochs: Vec<Epoch>,

    /// Snapshots that history holds [default: 100]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) held: Vec<HeldSnapshots>,

    /// Number of counted rounds after the warm-up round; figures to publish need 5
    #[arg(long, value_name = "N", default_value_t = COUNTED_MINIMUM, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(crate) runs: usize,

    /// Run only these subjects
    #[arg(long, value_name = "SUBJECT", value_delimiter = ',')]
    pub(crate) subjects: Option<Vec<Subject>>,

    /// Fit into TIME, such as 90, 90s, 2m or 1h, with smaller areas (unless --size is given) and fewer rounds, but not
    /// fewer than figures need
    #[arg(long, value_name = "TIME", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) time_budget: Option<Duration>,

    /// Write results to FILE after every case that counted something; - is standard output, and tables then go to
    /// standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write samples to FILE after every case, one a line; - is standard output, as with --json
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Print every figure, every note, and why a subject did not run, and not only the answer; cases that are named
    /// always do
    #[arg(long)]
    pub(crate) details: bool,

    /// Show no progress, only results
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// As root: set shmem huge pages, the hugetlb pool and folio sizes as the subjects need them, and put everything
    /// back at the end
    #[arg(long)]
    pub(crate) tune: bool,
}

/// What `bench` does instead of measuring. No case has such a name.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Put two results side by side: two machines, kernels or builds
    Compare(CompareArgs),
}

/// Seconds, or minutes with an `m`, or hours with an `h`.
fn duration(text: &str) -> Result<Duration, String> {
    let scales = [('h', 3600.0), ('m', 60.0), ('s', 1.0)];
    let scaled = scales.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (number, scale) = scaled.unwrap_or((text, 1.0));
    let seconds = number.parse::<f64>().ok().map(|number| number * scale).filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.filter(|time| *time <= DAY).ok_or_else(|| "not a time of up to a day: write 90, 90s, 2m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_unless_it_names_its_unit() {
        assert_eq!(["90", "90s", "2m", "1h"].map(|text| duration(text).unwrap().as_secs()), [90, 90, 120, 3600]);
    }
}
