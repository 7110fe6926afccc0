//! `hugefork doctor`: the checks, and whether to fix settings.

use std::path::PathBuf;

use clap::Args;

use super::number::whole;

const HELP: &str = "\
Each line begins with one of:
  pass  as good as possible
  warn  hugefork works, but not at its best
  FAIL  hugefork does not work
  skip  irrelevant here, or could not be checked
The names that follow are stable. The JSON has schema 2.

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
#[command(after_help = HELP)]
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

    /// Print for every line why it matters, and the measurements behind the choice of kernels
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) verbose: bool,

    /// Read proc and sys below DIR, and with --fix write there; checks that need this machine are skipped
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}
