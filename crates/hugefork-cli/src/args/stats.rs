//! `hugefork stats`: the process to look at.

use clap::Args;

const HELP: &str = "\
The program does not notice. Names in the JSON are those of Redis's INFO where they mean the same: \
latest_fork_usec, total_forks.

Examples:
  hugefork stats 4711
  watch hugefork stats \"$(pidof redis-server)\"
  hugefork stats --json 4711

Exit status: 0 printed, 1 nothing is known of that process, 2 called wrongly.";

/// Options of `stats`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct StatsArgs {
    /// A process that was started by `hugefork run`
    #[arg(value_name = "PID", value_parser = super::number::whole::<u32>)]
    pub(crate) pid: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
