//! `hugefork report`: results, and what to draw of them.

use std::path::PathBuf;

use clap::Args;

const REPORT_HELP: &str = "\
Examples:
  hugefork bench --json here.json && hugefork report here.json
  hugefork report laptop.json server.json -o both.html
  hugefork report here.json --png pictures

Files of one machine share charts; machines stand one after the other.
Exit status: 0 written, 1 no file holds figures or no picture could be drawn, 2 called wrongly or a file cannot be read or written.";

/// Options of `report`.
#[derive(Args, Debug)]
#[command(after_help = REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// Results of `bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The page to write; - is standard output [default: report.html, unless --png is given]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Write each chart to DIR as PNG and as SVG
    #[arg(long, value_name = "DIR")]
    pub(crate) png: Option<PathBuf>,
}
