//! `hugefork bench compare`: two results side by side.

use std::process::ExitCode;

use anyhow::anyhow;
use hugefork_report::{Comparison, compare, load};

use crate::args::bench_compare::CompareArgs;
use crate::failure::Failure;
use crate::output::{stdout::print, terminal};

/// Prints the comparison, and fails if a figure is worse by more than `--fail-above`.
pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let (a, b) = (load(&args.a)?, load(&args.b)?);
    let comparison = compare(&a, &b);
    print(&terminal::fitted(comparison.to_string()))?;
    args.fail_above.map_or(Ok(()), |percent| check(&comparison, percent))?;
    Ok(ExitCode::SUCCESS)
}

/// A comparison without a row fails, too: it says nothing of the limit.
fn check(comparison: &Comparison, percent: f64) -> Result<(), Failure> {
    if comparison.rows.is_empty() {
        let (a, b) = (&comparison.a.name, &comparison.b.name);
        return Err(Failure::Usage(format!("--fail-above: {a} and {b} have nothing in common")));
    }
    let worse = comparison.worse_by_more_than(percent);
    let Some(row) = worse.first() else { return Ok(()) };
    let more = if worse.len() > 1 { format!(" and {} more", worse.len() - 1) } else { String::new() };
    let figure = format!("{} {} {}", row.a.case, row.a.subject, row.a.metric);
    Err(anyhow!("--fail-above {percent}: worse by more than that: {figure}{more}").into())
}
