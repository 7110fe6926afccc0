//! `hugefork bench compare`: two results side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use hugefork_report::{Comparison, Row, compare, load};

use crate::bench::print;
use crate::failure::Failure;
use crate::terminal;

const COMPARE_HELP: &str = "\
A verdict is `better` or `worse` where the 95 % interval of the ratio does not hold 1.

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

    /// The one to put beside it
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,

    /// Fail if anything is surely worse in B by more than PERCENT of A
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    pub(crate) fail_above: Option<f64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the comparison, and fails if that was asked for.
pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let comparison = compare(&load(&args.a)?, &load(&args.b)?);
    let text = if args.json {
        serde_json::to_string_pretty(&comparison).context("writing the comparison as JSON")? + "\n"
    } else {
        terminal::fitted(comparison.to_string())
    };
    print(&text)?;
    args.fail_above.map_or(Ok(()), |percent| judge(&comparison, percent))?;
    Ok(ExitCode::SUCCESS)
}

/// What `--fail-above` says. A comparison of nothing passes nobody.
fn judge(comparison: &Comparison, percent: f64) -> Result<(), Failure> {
    if comparison.rows.is_empty() {
        let Comparison { a, b, .. } = comparison;
        return Err(Failure::Usage(format!("--fail-above: {} and {} have nothing in common", a.file, b.file)));
    }
    let worse = comparison.worse_by_more_than(percent);
    let Some(Row { case, subject, metric, .. }) = worse.first() else { return Ok(()) };
    let more = if worse.len() > 1 { format!(" and {} more", worse.len() - 1) } else { String::new() };
    Err(anyhow!("--fail-above {percent}: surely worse by more than that: {case} {subject} {metric}{more}").into())
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..f64::INFINITY).contains(percent))
        .ok_or_else(|| "not a percentage, such as 10".to_owned())
}
