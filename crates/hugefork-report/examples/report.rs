//! `report [--png DIR] FILE…` writes report.html; `report compare A B` prints a comparison.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hugefork_report::{Record, compare, load, pictures, report};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match args.as_slice() {
        [word, a, b] if word == Path::new("compare") => print!("{}", compare(&load(a)?, &load(b)?)),
        [word, directory, files @ ..] if word == Path::new("--png") => {
            for picture in pictures(&records(files)?)? {
                fs::write(directory.join(&picture.name).with_added_extension("png"), picture.png)?;
                fs::write(directory.join(&picture.name).with_added_extension("svg"), picture.svg)?;
            }
        }
        files => fs::write("report.html", report(&records(files)?)?)?,
    }
    Ok(())
}

fn records(files: &[PathBuf]) -> Result<Vec<Record>, hugefork_report::LoadError> {
    files.iter().map(|file| load(file)).collect()
}
