//! `hugefork bench compare`: two results side by side.

use hugefork_report::{compare, load};

use crate::args::CompareArgs;
use crate::failure::Failure;
use crate::output::print;

/// Prints the comparison, and fails if a figure is worse by more than `--fail-above`, or if there is none.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let (a, b) = (load(&args.a).map_err(Failure::usage)?, load(&args.b).map_err(Failure::usage)?);
    let comparison = compare(&a, &b);
    print(&comparison.to_string())?;
    let Some(percent) = args.fail_above else { return Ok(()) };
    if comparison.rows.is_empty() {
        return Err(Failure::usage(format!("--fail-above: {} and {} have nothing in common", a.name, b.name)));
    }
    let worse = comparison.worse_by_more_than(percent);
    let Some(row) = worse.first() else { return Ok(()) };
    let more = if worse.len() > 1 { format!(" and {} more", worse.len() - 1) } else { String::new() };
    let figure = format!("{} {} {}", row.a.case, row.a.subject, row.a.metric);
    Err(Failure(1, format!("--fail-above {percent}: worse by more than that: {figure}{more}")))
}
