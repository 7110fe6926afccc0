//! `hugefork doctor`: what to look at, and whether to mend it.

use std::path::PathBuf;

use clap::Args;

const HELP: &str = "\
Lines: pass, as good as it gets; warn, hugefork works, though not at its best; fail, it does not
work; skip, does not matter here or could not be looked at. Names stay as they are; schema 2.

--fix sets, where they are lower or off: shmem_enabled to advise (`deny` is left alone),
vm.max_map_count, and with --hugepages the pool of 2 MiB pages. Settings last until the next boot.
What it cannot set it prints as a command.

Examples:
  hugefork doctor                             what is here
  sudo hugefork doctor --fix --hugepages 512  mend it, with 1 GiB of hugetlb pages; prints the undo
  hugefork doctor --json --strict             for provisioning scripts
  hugefork doctor --root ./copy               judge a copy of another machine's /proc and /sys

Exit status: 0 looked; 1 it could not, or --fix could not set everything; 2 called wrongly;
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
    #[arg(long, value_name = "N")]
    pub(crate) hugepages: Option<u64>,

    /// Tell by the exit status how bad the worst line is
    #[arg(long)]
    pub(crate) strict: bool,

    /// Say why it matters of every line, and what was measured to choose the kernels
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) verbose: bool,

    /// Read, and with --fix write, the proc and sys below DIR; what has to be tried is skipped
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}
