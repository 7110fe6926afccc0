//! `hugefork report`: results as one page.

use std::fs;

use hugefork_report::{Record, load, report};

use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::output::{Sink, print};

/// Writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let load = |file| load(file).map_err(Failure::usage);
    let records = args.files.iter().map(|file| load(file)).collect::<Result<Vec<_>, _>>()?;
    if records.iter().all(|record| record.entries.is_empty()) {
        return Err(Failure(1, records.iter().map(without_figures).collect::<Vec<_>>().join("; ")));
    }
    let target = fs::canonicalize(&args.output).ok();
    if let Some(file) = args.files.iter().find(|file| target.is_some() && fs::canonicalize(file).ok() == target) {
        let why = format!("--output {}: is one of the results to read; name another file", file.display());
        return Err(Failure::usage(why));
    }
    let sink = Sink::open("--output", &args.output)?;
    sink.write(&report(&records))?;
    if !sink.is_stdout() {
        print(&format!("{}\n", args.output.display()))?;
    }
    Ok(())
}

fn without_figures(record: &Record) -> String {
    let why = if record.interrupted {
        "its bench was stopped before anything was counted"
    } else {
        "nothing could be measured"
    };
    format!("{} holds no figures: {why}", record.name)
}
