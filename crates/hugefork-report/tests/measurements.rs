//! The figures of the documents are those of the record.
//!
//! With `HUGEFORK_GOLDEN=write` it writes the files instead of comparing them.

mod record;

use std::fs;
use std::path::{Path, PathBuf};

use hugefork_report::{Scheme, highlights, measurements, pause_picture};
use record::record;

const COMMAND: &str = "HUGEFORK_GOLDEN=write cargo test -p hugefork-report --test measurements";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// Checks that `file` holds `wanted`.
fn check(file: &str, wanted: &str) {
    if std::env::var_os("HUGEFORK_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(path(file), wanted).unwrap();
    } else {
        let found = fs::read_to_string(path(file)).unwrap_or_default();
        assert!(found == wanted, "{file} does not say what benchmarks/record/ holds; run\n    {COMMAND}");
    }
}

/// Checks that `file` has the text of each part between the markers of that part.
fn check_parts(file: &str, parts: &[(&str, String)]) {
    let mut wanted = fs::read_to_string(path(file)).unwrap();
    for (part, text) in parts {
        let begin = format!("<!-- {part}: written by `{COMMAND}` -->\n");
        let end = format!("<!-- /{part} -->");
        let (before, rest) = wanted.split_once(&begin).unwrap_or_else(|| panic!("{file} has no line {begin}"));
        let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{file} has no line {end}"));
        wanted = format!("{before}{begin}{text}{end}{after}");
    }
    check(file, &wanted);
}

#[test]
fn the_readme_holds_the_record() {
    let highlights = highlights(&record());
    // A new hugefork has cases that an older record lacks.
    highlights.missing.iter().for_each(|figure| println!("benchmarks/record/ lacks {figure}"));
    check_parts("README.md", &[("highlights", highlights.text)]);
}

#[test]
fn the_measurements_hold_the_record() {
    check_parts("docs/measurements.md", &[("measurements", measurements(&record()))]);
}

#[test]
fn the_readmes_picture_is_of_the_record_in_light_and_dark() {
    let readme = fs::read_to_string(path("README.md")).unwrap();
    for (file, scheme) in [("docs/pause-light.svg", Scheme::Light), ("docs/pause-dark.svg", Scheme::Dark)] {
        assert!(readme.contains(&format!("\"{file}\"")), "the README does not show {file}");
        match pause_picture(&record(), scheme) {
            Some(picture) => check(file, &picture),
            None => println!("benchmarks/record/ lacks the figures of {file}"),
        }
    }
}
