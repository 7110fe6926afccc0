//! `hugefork report`: results, and the page to write.

use std::path::PathBuf;

use clap::Args;

const REPORT_HELP: &str = "\
Examples:
  hugefork bench --json here.json && hugefork report here.json
  hugefork report laptop.json server.json -o both.html

Files of one machine share pictures; machines stand one after the other.
Exit status: 0 written, 1 no file holds figures, 2 called wrongly or a file cannot be read or written.";

/// Options of `report`.
#[derive(Args, Debug)]
#[command(after_help = REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// Results of `bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The page to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
}
