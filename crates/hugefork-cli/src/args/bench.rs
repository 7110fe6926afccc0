//! `hugefork bench`: cases, subjects, and how they are measured.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hugefork::{Backing, BlockSize, ByteSize};
use hugefork_bench::{Case, Subject};

use super::bench_compare::CompareArgs;

/// The longest time budget.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const BENCH_HELP: &str = "\
Cases:
  clear           clear a block around a random target, then use 64 KiB there
  copy            copy a block likewise
  zero-fault      first write at a random offset of each 2 MiB, then use 64 KiB there
  anon-w-seq      each task writes every word of its own new area
  anon-cow-seq    each task writes every word of its own fork of one populated area
  snapshot        pause to take a fork or snapshot of a populated area
  writer-latency  random 8-byte writes to a populated area, while a fork or snapshot of it is held
  lazy-free       lazily free a populated area; then write to it again, or reclaim it

Subjects:
  hugefork                                   clears blocks at the fault
  hugefork-default                           gets their memory first: a new pool with all defaults
  hugefork-zeroed                            takes them from a stock of zeroed blocks, filled before
  hugefork-refilling                         likewise, empty at first and refilled beside the tasks
  kernel-thp, kernel-hugetlb, kernel-4k      fresh anonymous memory
  kernel                                     anonymous memory in folios of --block-size
  fork-thp, fork-hugetlb, fork-4k            fork(2) over anonymous memory
  memset, memcpy                             libc's
  and for clear and copy any kernel, such as target-last/rep or hybrid/avx512-nt+rep@256KiB;
  target-last/reversed clears like Linux, but each 4 KiB from end to begin

Clear, when it is named, also tells how many times longer another CPU takes to walk through its
cache while blocks are cleared (victim_slowdown).

Examples:
  hugefork bench                                   every case, quick, as any user
  sudo hugefork bench --tune --json here.json      with the kernel's subjects that need settings
  hugefork bench zero-fault snapshot --size 4GiB   two cases, larger
  hugefork bench clear --sweep --time-budget 2m    every kernel, order, window and block that fits
  hugefork report here.json                        the results as a page

Sizes are written 64KiB, 512MiB, 1GiB, or in bytes; 64k, 512mb and 1G mean the same, powers of two.
Exit status: 0 done, 1 a subject failed or nothing was measured, 2 called wrongly, 130 stopped by
Ctrl-C (results so far are kept).";

/// Options of `bench`.
#[derive(Args, Debug)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) instead: Option<BenchCommand>,

    /// Cases to run; none runs a quick suite of them all, in a minute or two
    #[arg(value_name = "CASE")]
    pub(crate) cases: Vec<Case>,

    /// Size of one area: what clear and copy rotate over, what faults, what a task writes, what is forked; several are run one
    /// after the other
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Option<Vec<ByteSize>>,

    /// Tasks of the anon-* cases [default: one for each CPU]
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<usize>,

    /// The block of clear, copy and lazy-free, and of hugefork's pools, 4KiB to 1GiB; several are compared [default: 2MiB,
    /// lazy-free: every folio size]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub(crate) block_size: Option<Vec<BlockSize>>,

    /// Clear and copy with every window too, and blocks of 4KiB, 64KiB, 2MiB and, where memory allows, 1GiB
    #[arg(long)]
    pub(crate) sweep: bool,

    /// What hugefork's pools stand on: auto, hugetlb, shmem-thp, shmem-base; several are compared
    #[arg(long, value_name = "BACKING", value_delimiter = ',', default_value = "auto")]
    pub(crate) backing: Vec<Backing>,

    /// Counted rounds after the warm-up round; figures to publish need 5
    #[arg(long, value_name = "N", default_value_t = hugefork_bench::plan::COUNTED_MINIMUM)]
    pub(crate) runs: usize,

    /// Only these subjects
    #[arg(long, value_name = "SUBJECT", value_delimiter = ',')]
    pub(crate) subjects: Option<Vec<Subject>>,

    /// Fit into TIME, such as 90, 90s, 2m or 1h: smaller areas (unless --size) and fewer rounds, no less than figures need
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) time_budget: Option<Duration>,

    /// Write results to FILE, after every case that counted something; - is standard output, and tables go to standard error
    /// then
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write samples to FILE, a line each, after every case; - likewise
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Show no progress, only results
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// As root: set shmem huge pages, the hugetlb pool and folio sizes as the subjects need them, and put all back at the end
    #[arg(long)]
    pub(crate) tune: bool,
}

/// What `bench` does instead of measuring. The name of no case.
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
    duration.filter(|time| *time <= DAY).ok_or_else(|| "not a time up to a day, such as 90, 90s, 2m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_unless_it_names_its_unit() {
        assert_eq!(["90", "90s", "2m", "1h"].map(|text| duration(text).unwrap().as_secs()), [90, 90, 120, 3600]);
    }
}
