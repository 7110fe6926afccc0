//! `hugefork bench compare`: two results side by side.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hugefork_report::{Comparison, Row, compare, load};

use crate::args::bench_compare::CompareArgs;
use crate::failure::Failure;
use crate::output::{stdout::print, terminal};

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

/// Fails as `--fail-above` asks. A comparison without a row fails, too.
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
