//! The description of the command line. It executes nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use hugefork::{BlockSize, ByteSize};
use hugefork_bench::plan::COUNTED_MINIMUM;
use hugefork_bench::{Case, Subject, cases};

/// Huge-page memory whose faults are resolved in user space: measure it, and check this machine's support for it.
#[derive(Debug, Parser)]
#[command(name = "hugefork", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the command line. Help, and mistakes, end the process.
    pub(crate) fn read() -> Cli {
        Cli::try_parse().unwrap_or_else(|mut error| {
            if let Some((kind, meant)) = meant(&error, std::env::args_os().filter_map(|word| word.into_string().ok())) {
                error.insert(kind, ContextValue::String(meant));
            }
            error.exit()
        })
    }
}

/// The word that was probably meant, where clap has a worse tip or none. `words` are the whole command line.
fn meant(error: &clap::Error, words: impl Iterator<Item = String>) -> Option<(ContextKind, String)> {
    let text =
        |kind| error.get(kind).and_then(|value| if let ContextValue::String(text) = value { Some(text) } else { None });
    if let Some(name) = text(ContextKind::InvalidSubcommand) {
        let is_of_bench = name == "compare" || cases::named(name).is_some();
        return is_of_bench.then(|| (ContextKind::SuggestedSubcommand, format!("hugefork bench {name}")));
    }
    // `-size` is parsed as `-s -i -z -e`.
    let short = text(ContextKind::InvalidArg)?;
    let all = Cli::command();
    let mut options = all.get_subcommands().flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_long);
    let word = words.skip(1).find(|word| !word.starts_with("--") && word.starts_with(short.as_str()))?;
    let name = word[1..].split('=').next()?;
    options.any(|option| option == name).then(|| (ContextKind::SuggestedArg, format!("--{name}")))
}

/// The command to execute.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure hugefork beside the kernel: the same work, interleaved, all samples kept
    Bench(Box<BenchArgs>),
    /// Run a program unchanged, with huge pages that remain huge across fork(2)
    Run(RunArgs),
    /// Keep running programs in huge pages across fork(2), from outside the programs
    Keep(KeepArgs),
    /// Draw results of `bench --json` as one page that needs no network
    Report(ReportArgs),
    /// Check this machine's support for hugefork, and print the command for each remedy
    Doctor(DoctorArgs),
    /// Print the completions of this command line for a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell to print completions for
        shell: Shell,
    },
    /// Print the man page, or write one for each command
    #[command(after_help = MAN_HELP)]
    Man {
        /// Write hugefork.1 and a page for each command to DIR, which is created if need be; without DIR, print
        /// hugefork.1
        dir: Option<PathBuf>,
    },
}

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
  clear, copy   clear or copy a block, then use 64 KiB there; only if named, or with --full

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

const COMPARE_HELP: &str = "\
A figure is `better` or `worse` if all its samples in B are better or worse than all in A. Such figures come first.

Examples:
  hugefork bench compare before.json after.json
  hugefork bench compare main.json branch.json --fail-above 10   # for a CI job

Exit status: 0 compared, 1 --fail-above was exceeded, 2 called wrongly or a file cannot be read.";

/// Options of `bench compare`.
#[derive(Args, Debug)]
#[command(after_help = COMPARE_HELP)]
pub(crate) struct CompareArgs {
    /// A result of `bench --json`
    #[arg(value_name = "A.json")]
    pub(crate) a: PathBuf,

    /// The result to put beside it
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,

    /// Fail if a figure is worse by more than PERCENT, from A's worst sample to B's best
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    pub(crate) fail_above: Option<f64>,
}

fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "write a whole number, such as 2".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..f64::INFINITY).contains(percent))
        .ok_or_else(|| "not a percentage: write a number such as 10".to_owned())
}

const RUN_HELP: &str = "\
Becomes the program, and starts a second process that keeps the program and its children in huge \
pages from outside, like `hugefork keep`: after a fork, it puts their memory into huge pages again \
before the next one. Nothing is loaded into the program. It needs CAP_SYS_NICE (`hugefork keep \
--help` explains how to get it) and Linux 6.7; without them the program runs unchanged, and a line \
says so.

With --pool, hugefork's library is loaded into the program instead, but not into programs that it \
starts. Its mappings of 2 MiB and more lie on a pool of huge pages, and a fork(2) copies no page \
tables of them. These are the memory of jemalloc, tcmalloc and mimalloc, and a server's own \
mappings; memory of libc's malloc still comes from the kernel. The program must be linked \
dynamically against glibc. If it is not, or if the machine cannot have a pool, it runs unchanged, \
and a line gives the reason. The pool is given up when the program does something incompatible: \
when it filters its system calls, changes its user, or pins memory for devices. A child could read \
its parent's later writes if it means to.

Examples:
  hugefork run -- redis-server redis.conf
  hugefork run --pool -- redis-server redis.conf     saves every few seconds

Exit status: that of the program; 126 the program cannot be run, 127 it is not found, 2 wrong arguments.";

/// Options of `run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Put the program's big memory on a pool of huge pages, so that fork(2) copies no page tables of it
    #[arg(long)]
    pub(crate) pool: bool,

    /// Print nothing unless something fails
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

const KEEP_HELP: &str = "\
A fork(2) copies a page-table entry for each 4 KiB page, and one for each huge page. Programs that \
fork again and again lose their huge pages, since the kernel splits them while a child lives. This \
command watches such programs from outside and collapses the pages into huge pages again, one by \
one, spread over the time between two forks. It loads nothing into them, and leaves only huge pages.

It needs CAP_SYS_NICE and Linux 6.7. Give the command that capability once:
  sudo setcap cap_sys_nice+ep \"$(command -v hugefork)\"

Examples:
  hugefork keep --name redis-server           each redis-server, until Ctrl-C
  hugefork keep \"$(pidof redis-server)\"       one process and its children, until it ends
  hugefork keep --unit valkey-server          the processes of a systemd unit
  hugefork keep --json --name redis-server    a line of JSON each second

Exit status: 0 stopped, or all have ended; 1 no process can be kept here, 2 wrong arguments.";

/// Options of `keep`.
#[derive(Args, Debug)]
#[command(after_help = KEEP_HELP)]
pub(crate) struct KeepArgs {
    /// Processes to keep, with all that they start
    #[arg(value_name = "PID", value_parser = whole::<u32>, required_unless_present_any = ["names", "units", "groups"])]
    pub(crate) pids: Vec<u32>,

    /// Keep each present and future process with this name, or whose executable has it
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<OsString>,

    /// Keep each present and future process in this systemd unit
    #[arg(long = "unit", value_name = "UNIT")]
    pub(crate) units: Vec<PathBuf>,

    /// Keep each process in this control group or below it (a directory in /sys/fs/cgroup)
    #[arg(long = "cgroup", value_name = "DIRECTORY")]
    pub(crate) groups: Vec<PathBuf>,

    /// Print a line of JSON each second
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing unless something fails
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

const REPORT_HELP: &str = "\
Examples:
  hugefork bench --json here.json && hugefork report here.json
  hugefork report laptop.json server.json -o both.html

Files of one machine share pictures; machines stand one after the other.
Exit status: 0 written, 1 no file holds figures, 2 called wrongly or a file cannot be read or written.";

/// Options of `report`.
#[derive(Args, Debug)]
#[command(after_help = REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// Results of `bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The page to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
}

const DOCTOR_HELP: &str = "\
Each line begins with one of:
  pass  as good as possible
  warn  hugefork works, but not at its best
  FAIL  hugefork does not work
  skip  irrelevant here, or could not be checked
The names that follow are stable. The JSON has schema 3.

--fix sets shmem_enabled to advise (but does not change `deny`), and raises vm.max_map_count and, with \
--hugepages, the pool of 2 MiB pages. Settings last until the next boot. For other settings, the command is \
printed.

Examples:
  hugefork doctor                             check this machine
  sudo hugefork doctor --fix --hugepages 512  fix it, with 1 GiB of hugetlb pages; prints the undo
  hugefork doctor --json --strict             for provisioning scripts
  hugefork doctor --root ./copy               check a copy of another machine's /proc and /sys

Exit status: 0 success; 1 it failed, or --fix could not set everything; 2 wrong arguments; \
with --strict, by the worst line: 0 pass or skip, 3 warn, 4 fail.";

/// Options of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// As root: change the settings that can be undone, print the undo commands, then check again
    #[arg(long)]
    pub(crate) fix: bool,

    /// Ask for a hugetlb pool of at least N pages of 2 MiB; --fix grows it
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) hugepages: Option<u64>,

    /// Set the exit status by the worst finding
    #[arg(long)]
    pub(crate) strict: bool,

    /// Print for every line why it matters
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) verbose: bool,

    /// Read proc and sys below DIR, and with --fix write there; checks that need this machine are skipped
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

const COMPLETIONS_HELP: &str = "\
Examples:
  hugefork completions bash > ~/.local/share/bash-completion/completions/hugefork
  hugefork completions zsh > ~/.zfunc/_hugefork        with ~/.zfunc in $fpath
  hugefork completions fish > ~/.config/fish/completions/hugefork.fish";

const MAN_HELP: &str = "\
Examples:
  hugefork man | man -l -
  hugefork man ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_documented_command_line_is_parsed() {
        let line = "hugefork bench clear snapshot --size 256MiB,1GiB --size 512MiB --tasks 2 --block-size 64KiB,1GiB \
                    --full --runs 7 --subjects hugefork,fork-4k --json out.json --tune";
        let Command::Bench(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
            panic!("bench was asked for");
        };
        assert_eq!(args.cases, ["clear", "snapshot"].map(|name| cases::named(name).unwrap()));
        assert_eq!(args.size, Some(vec![ByteSize(256 << 20), ByteSize(1 << 30), ByteSize(512 << 20)]));
        assert_eq!(args.block_size, [BlockSize::KIB_64, BlockSize::GIB_1]);
        assert_eq!(args.subjects.unwrap().len(), 2);
        assert!(args.tune && args.full);
    }

    #[test]
    fn mistakes_have_the_word_that_was_meant() {
        for (line, wanted) in [
            ("hugefork compare a b", Some("hugefork bench compare")),
            ("hugefork snapshot", Some("hugefork bench snapshot")),
            ("hugefork bench -size 1GiB", Some("--size")),
            ("hugefork bench snapshot -size=1GiB", Some("--size")),
            ("hugefork doctor -json", Some("--json")),
            ("hugefork bench -x", None),
            ("hugefork benhc", None),
        ] {
            let words = || line.split(' ').map(str::to_owned);
            let error = Cli::try_parse_from(words()).unwrap_err();
            assert_eq!(meant(&error, words()).map(|(_, meant)| meant).as_deref(), wanted, "{line}");
        }
    }
}
