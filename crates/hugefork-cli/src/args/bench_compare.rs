//! `hugefork bench compare`: two results, and how much worse one may be.

use std::path::PathBuf;

use clap::Args;

const COMPARE_HELP: &str = "\
A verdict is `better` or `worse` where the 95 % interval of the ratio does not contain 1.

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

    /// Fail if a figure of B is surely worse than that of A by more than PERCENT
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    pub(crate) fail_above: Option<f64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..f64::INFINITY).contains(percent))
        .ok_or_else(|| "not a percentage: write a number such as 10".to_owned())
}
