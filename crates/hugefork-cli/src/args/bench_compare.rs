//! `hugefork bench compare`: two results, and a limit on the loss from one to the other.

use std::path::PathBuf;

use clap::Args;

const COMPARE_HELP: &str = "\
A figure is `better` or `worse` if all its samples in B are better or worse than all in A. Such figures come first.

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

    /// The result to put beside it
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,

    /// Fail if a figure is worse by more than PERCENT, from A's worst sample to B's best
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    pub(crate) fail_above: Option<f64>,
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..f64::INFINITY).contains(percent))
        .ok_or_else(|| "not a percentage: write a number such as 10".to_owned())
}
