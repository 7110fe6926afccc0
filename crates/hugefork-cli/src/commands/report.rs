//! `hugefork report`: results as one page, or as pictures.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::anyhow;
use hugefork_report::{Record, load, pictures, report};

use crate::args::report::ReportArgs;
use crate::failure::Failure;
use crate::output::sink::{Sink, is_same, unwritable};
use crate::output::stdout::print;

/// The page that is written unless another is named.
const PAGE: &str = "report.html";

/// Writes what was asked for.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let records = args.files.iter().map(|file| load(file)).collect::<Result<Vec<_>, _>>()?;
    if records.iter().all(holds_no_figures) {
        return Err(anyhow!(records.iter().map(without_figures).collect::<Vec<_>>().join("; ")).into());
    }
    let wanted = args.output.as_deref().or_else(|| args.png.is_none().then_some(Path::new(PAGE)));
    if let Some(page) = wanted {
        if let Some(file) = args.files.iter().find(|file| is_same(file, page)) {
            return Err(Failure::Usage(format!(
                "--output {}: is one of the results to read; name another file",
                file.display()
            )));
        }
        let sink = Sink::open("--output", page)?;
        let html = report(&records).map_err(|error| anyhow!(error))?;
        sink.write(html.as_bytes()).map_err(|error| Failure::usage(&error))?;
        if !sink.is_stdout() {
            print(&format!("{}\n", page.display()))?;
        }
    }
    if let Some(directory) = &args.png {
        draw(&records, directory)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn holds_no_figures(record: &Record) -> bool {
    record.entries.is_empty() && record.curves.is_empty()
}

fn without_figures(record: &Record) -> String {
    let why = if record.interrupted {
        "its bench was stopped before anything was counted"
    } else {
        "nothing could be measured"
    };
    format!("{} holds no figures: {why}", record.name)
}

fn draw(records: &[Record], directory: &Path) -> Result<(), Failure> {
    let refused =
        |path: &Path, kind, error| Failure::usage(&unwritable(&format!("--png {}", path.display()), kind, &error));
    fs::create_dir_all(directory).map_err(|error| refused(directory, "directory", error))?;
    for picture in pictures(records).map_err(|error| anyhow!(error))? {
        let file = directory.join(&picture.name);
        for (ending, contents) in [("png", picture.png.as_slice()), ("svg", picture.svg.as_bytes())] {
            let file = file.with_added_extension(ending);
            fs::write(&file, contents).map_err(|error| refused(&file, "file", error))?;
        }
        print(&format!("{}.png\n", file.display()))?;
    }
    Ok(())
}
