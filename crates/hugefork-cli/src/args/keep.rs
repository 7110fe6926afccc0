//! `hugefork keep`: the processes to keep, and the form of the output.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

const HELP: &str = "\
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
#[command(after_help = HELP)]
pub(crate) struct KeepArgs {
    /// Processes to keep, with all that they start
    #[arg(
        value_name = "PID",
        value_parser = super::number::whole::<u32>,
        required_unless_present_any = ["names", "units", "groups"]
    )]
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
