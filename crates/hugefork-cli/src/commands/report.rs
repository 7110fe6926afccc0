//! `hugefork report`: results as one page.

use std::process::ExitCode;

use anyhow::anyhow;
use hugefork_report::{Record, load, report};

use crate::args::report::ReportArgs;
use crate::failure::Failure;
use crate::output::sink::{Sink, is_same};
use crate::output::stdout::print;

/// Writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let records = args.files.iter().map(|file| load(file)).collect::<Result<Vec<_>, _>>()?;
    if records.iter().all(|record| record.entries.is_empty()) {
        return Err(anyhow!(records.iter().map(without_figures).collect::<Vec<_>>().join("; ")).into());
    }
    if let Some(file) = args.files.iter().find(|file| is_same(file, &args.output)) {
        let why = format!("--output {}: is one of the results to read; name another file", file.display());
        return Err(Failure::Usage(why));
    }
    let sink = Sink::open("--output", &args.output)?;
    sink.write(report(&records).as_bytes()).map_err(|error| Failure::usage(&error))?;
    if !sink.is_stdout() {
        print(&format!("{}\n", args.output.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn without_figures(record: &Record) -> String {
    let why = if record.interrupted {
        "its bench was stopped before anything was counted"
    } else {
        "nothing could be measured"
    };
    format!("{} holds no figures: {why}", record.name)
}
