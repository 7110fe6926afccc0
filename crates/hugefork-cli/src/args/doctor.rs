//! `hugefork doctor`: what to look at, and whether to mend it.

use std::path::PathBuf;

use clap::Args;

use super::number::whole;

const HELP: &str = "\
Each line begins with one of:
  pass  as good as it gets
  warn  hugefork works, but not at its best
  FAIL  hugefork does not work
  skip  does not matter here, or could not be looked at
The names that follow stay the same from version to version. The JSON has schema 2.

--fix sets shmem_enabled to advise (but leaves `deny` alone), and raises vm.max_map_count and, with \
--hugepages, the pool of 2 MiB pages. Settings last until the next boot. For what --fix cannot set, \
the command is printed.

Examples:
  hugefork doctor                             what is here
  sudo hugefork doctor --fix --hugepages 512  mend it, with 1 GiB of hugetlb pages; prints the undo
  hugefork doctor --json --strict             for provisioning scripts
  hugefork doctor --root ./copy               judge a copy of another machine's /proc and /sys

Exit status: 0 done; 1 it failed, or --fix could not set everything; 2 called wrongly; \
with --strict, by the worst line: 0 pass or skip, 3 warn, 4 fail.";

/// Options of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// As root: set what can be set and undone, print how to undo it, then look again
    #[arg(long)]
    pub(crate) fix: bool,

    /// Ask for a hugetlb pool of at least N pages of 2 MiB; --fix grows it
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) hugepages: Option<u64>,

    /// Tell by the exit status how bad the worst line is
    #[arg(long)]
    pub(crate) strict: bool,

    /// Say of every line why it matters, and what was measured to choose the kernels
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) verbose: bool,

    /// Read proc and sys below DIR, and with --fix write there; what has to be tried is skipped
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}
