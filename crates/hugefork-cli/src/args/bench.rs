//! `hugefork bench`: cases, subjects, and sizes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hugefork::{BlockSize, ByteSize};
use hugefork_bench::plan::COUNTED_MINIMUM;
use hugefork_bench::{Case, Subject};

use super::bench_compare::CompareArgs;
use super::number::whole;

const BENCH_HELP: &str = "\
Cases:
  first-touch   first write to each 2 MiB of a new area
  anon-w-seq    each task writes every word of its own new area
  anon-cow-seq  each task writes every word of its own fork of one populated area
  snapshot      take a snapshot of a populated area, then write to it at a steady pace
  reset         put a populated area back after some of its pages were written
  changes       find the pages of a populated area that were written since a snapshot
  lazy-free     lazily free a populated area; then write to it again, or reclaim it
  read-after    random reads before a snapshot, while it is held, and after its drop
  clear, copy   clear or copy a block around a random target, then use 64 KiB there; only if named, or with --full

Subjects:
  hugefork                               pools and regions with all defaults
  hugefork-upfront                       a pool that gets its memory when it is built
  kernel-thp, kernel-hugetlb, kernel-4k  anonymous memory
  kernel                                 anonymous memory in folios of --block-size
  fork-thp, fork-hugetlb, fork-4k        fork(2) over anonymous memory
  memcpy, memcmp, memset                 those of the C library
  pagemap-scan                           the kernel's marks of written pages (PAGEMAP_SCAN)
  shadow-copy                            a copy, kept up to date with these marks
  known-pages                            copies by a program that knows which pages it wrote
  memfd-private                          a memfd that is mapped privately
  For clear and copy also any kernel, such as target-last/rep or hybrid/avx512-nt+rep@256KiB.

Examples:
  hugefork bench                                    the answer, in about a minute, as any user
  hugefork bench snapshot                           all figures of a case
  sudo hugefork bench --full --tune --json here.json  the figures of a record; report draws them

Sizes are written as 64KiB, 512MiB, 1GiB or in bytes; 64k, 512mb and 1G mean the same.
Exit status: 0 done, 1 a subject failed or nothing was measured, 2 called wrongly, 130 stopped by \
Ctrl-C (the results so far are kept).";

/// Options of `bench`.
#[derive(Args, Debug)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) instead: Option<BenchCommand>,

    /// Cases to run, with all their figures [default: a short answer from all but clear and copy]
    #[arg(value_name = "CASE")]
    pub(crate) cases: Vec<&'static dyn Case>,

    /// Run every work, on the sizes that figures are published for; all cases together take 25 minutes
    #[arg(long)]
    pub(crate) full: bool,

    /// Size of an area; several are run one after the other
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Option<Vec<ByteSize>>,

    /// Number of tasks in the anon-* cases [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(crate) tasks: Option<usize>,

    /// Size of a block in clear, copy and lazy-free; several are compared
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub(crate) block_size: Vec<BlockSize>,

    /// Number of counted rounds after the warm-up round; figures to publish need 5
    #[arg(long, value_name = "N", default_value_t = COUNTED_MINIMUM, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(crate) runs: usize,

    /// Run only these subjects
    #[arg(long, value_name = "SUBJECT", value_delimiter = ',')]
    pub(crate) subjects: Option<Vec<Subject>>,

    /// Write results to FILE after every case that counted something; - is standard output, and text then goes to
    /// standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Show no progress, only results
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// As root: set the hugetlb pool and folio sizes as the rivals need them, and put them back at the end
    #[arg(long)]
    pub(crate) tune: bool,
}

/// The commands under `bench`. No case has such a name.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Put two results side by side: two machines, kernels or builds
    Compare(CompareArgs),
}
