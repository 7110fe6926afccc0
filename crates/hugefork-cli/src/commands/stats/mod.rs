//! `hugefork stats`: what the library has counted in a running program.

mod text;

use std::process::ExitCode;

use anyhow::Context;
use hugefork_preload::stats;

use self::text::{json, table};
use crate::args::stats::StatsArgs;
use crate::failure::Failure;
use crate::output::stdout::print;
use crate::output::terminal::fitted;

/// Prints what is known of the process.
pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode, Failure> {
    let report = stats::of(args.pid).map_err(anyhow::Error::new)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&json(args.pid, &report)).context("writing JSON")? + "\n",
        false => fitted(table(args.pid, &report)),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
