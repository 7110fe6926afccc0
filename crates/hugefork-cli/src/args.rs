//! The command line.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use hugefork::{Backing, BlockSize, ByteSize};
use hugefork_bench::{Case, Subject};

use crate::failure::Failure;

/// Huge-page memory whose faults are resolved in user space: measure it here, see what this machine offers it.
#[derive(Debug, Parser)]
#[command(name = "hugefork", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure hugefork beside the kernel: same work, interleaved, raw samples kept
    Bench(BenchArgs),
    /// Say what this machine offers hugefork, and the command that mends what it does not
    Doctor(DoctorArgs),
    /// Restore settings once standard input ends (started by `bench --tune`)
    #[command(hide = true)]
    TuneGuardian(GuardianArgs),
}

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

Sizes are written 64KiB, 512MiB, 1GiB, or in bytes. Exit status: 0 done, 1 a subject failed,
2 called wrongly, 130 stopped by Ctrl-C (results so far are kept).";

/// Options of `bench`.
#[derive(Args, Debug)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchArgs {
    /// Cases to run; none runs a quick suite of them all in under a minute
    #[arg(value_name = "CASE")]
    pub(crate) cases: Vec<Case>,

    /// Size of one area: what clear and copy rotate over, what faults, what a task writes, what is forked
    #[arg(long)]
    pub(crate) size: Option<ByteSize>,

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

    /// Write results to FILE, after every case
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// As root: set shmem huge pages, the hugetlb pool and folio sizes as the subjects need them, and put all back at the end
    #[arg(long)]
    pub(crate) tune: bool,
}

/// Options of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of the guardian.
#[derive(Args, Debug)]
pub(crate) struct GuardianArgs {
    /// The file that makes sure there is one guardian, and keeps the values to restore
    #[arg(long, value_name = "FILE")]
    pub(crate) lock: PathBuf,
    /// The settings to restore
    #[arg(value_name = "SETTING")]
    pub(crate) settings: Vec<PathBuf>,
}

/// Reads the command line. `--help` and `--version` print and leave.
pub(crate) fn parse() -> Result<Command, Failure> {
    Cli::try_parse().map(|cli| cli.command).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.exit()
        }
        _ => Failure::Usage(one_line(&error)),
    })
}

/// clap's message without its usage block: what is wrong, the nearest name where there is one, and where to read on.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut line = text
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ")
        .trim_start_matches("error: ")
        .to_owned();
    for (kind, value) in error.context() {
        let nearest = match (kind, value) {
            (ContextKind::SuggestedArg | ContextKind::SuggestedSubcommand, ContextValue::String(name)) => name,
            (ContextKind::SuggestedSubcommand, ContextValue::Strings(names)) if !names.is_empty() => &names[0],
            _ => continue,
        };
        line.push_str(&format!("; did you mean `{nearest}`?"));
    }
    line + " (see `hugefork --help` and `hugefork bench --help`)"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn refused(line: &str) -> String {
        let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
        let line = one_line(&error);
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_can_be_asked_for() {
        let line = "hugefork bench clear snapshot --size 512MiB --tasks 2 --block-size 64KiB,1GiB \
                    --backing hugetlb,shmem-thp --runs 7 --subjects hugefork,fork-4k --json out.json --tune --sweep";
        let Command::Bench(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
            panic!("bench was asked for");
        };
        assert_eq!(args.cases, [Case::Clear, Case::Snapshot]);
        assert_eq!(args.size, Some(ByteSize(512 << 20)));
        assert_eq!(args.block_size, Some(vec![BlockSize::KIB_64, BlockSize::GIB_1]));
        assert_eq!(args.backing, [Backing::Hugetlb, Backing::ShmemHuge]);
        assert_eq!(args.subjects.unwrap().len(), 2);
        assert!(args.tune && args.sweep);
    }

    #[test]
    fn slips_are_one_line_that_names_the_nearest() {
        assert!(refused("hugefork bench zero-falt").contains("did you mean `zero-fault`?"));
        assert!(refused("hugefork bench --subjects kernel-tph").contains("did you mean `kernel-thp`?"));
        assert!(refused("hugefork bench --sizes 1GiB").contains("--size"));
        assert!(refused("hugefork benhc").contains("did you mean `bench`?"));
        assert!(refused("hugefork bench --size 1.5GiB").contains("--size"));
        assert!(refused("hugefork bench --block-size 3MiB").contains("power of two"));
        assert!(refused("hugefork bench --backing disk").contains("--backing"));
        assert!(refused("hugefork bench --runs many").contains("--runs"));
    }
}
