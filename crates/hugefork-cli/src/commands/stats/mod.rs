//! `hugefork stats`: what the library has counted in a running program.

mod text;

use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hugefork_preload::stats::{self, ReadError};

use self::text::{json, table};
use crate::args::stats::StatsArgs;
use crate::failure::Failure;
use crate::output::stdout::print;
use crate::output::terminal::fitted;

/// Prints what is known of the process.
pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode, Failure> {
    let report = stats::of(args.pid).map_err(refused)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&json(args.pid, &report)).context("writing JSON")? + "\n",
        false => fitted(table(args.pid, &report)),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Why nothing is known. The library advises to be root, which is no advice to root.
fn refused(error: ReadError) -> anyhow::Error {
    if !rustix::process::geteuid().is_root() {
        return anyhow::Error::new(error);
    }
    match error {
        ReadError::Denied(pid, why) => anyhow!("process {pid} may not be looked at: {why}; {NO_CAPABILITY}"),
        ReadError::Unreadable(pid, why) if why.kind() == ErrorKind::PermissionDenied => {
            anyhow!("the statistics of process {pid} cannot be read: {why}; {NO_CAPABILITY}")
        }
        ReadError::Unreadable(pid, why) => {
            anyhow!("the statistics of process {pid} cannot be read: {why}; take the `hugefork` that started it")
        }
        other => anyhow::Error::new(other),
    }
}

/// What keeps root from looking at a process.
const NO_CAPABILITY: &str = "root lacks CAP_SYS_PTRACE here, as in most containers, or a security module forbids it: run this outside of the container";
