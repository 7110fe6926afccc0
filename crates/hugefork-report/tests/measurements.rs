//! What the repository says was measured is what the record holds.
//!
//! Writes the files instead of comparing them under `HUGEFORK_GOLDEN=write`.

#[path = "common/record.rs"]
mod record;

use std::fs;
use std::path::Path;

use hugefork_report::{measurements, summary};
use record::record;

const COMMAND: &str = "HUGEFORK_GOLDEN=write cargo test -p hugefork-report --test measurements";
const BEGIN: &str =
    "<!-- measurements: written by `HUGEFORK_GOLDEN=write cargo test -p hugefork-report --test measurements` -->\n";
const END: &str = "<!-- /measurements -->";

/// What `file` has between its markers has to be `text`.
fn check(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let found = fs::read_to_string(&path).unwrap();
    let (before, rest) = found.split_once(BEGIN).unwrap_or_else(|| panic!("{file} has no line {BEGIN}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{file} has no line {END}"));
    let wanted = format!("{before}{BEGIN}{text}{END}{after}");
    if std::env::var_os("HUGEFORK_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(&path, wanted).unwrap();
    } else {
        assert!(found == wanted, "{file} does not say what benchmarks/record/ holds; run\n    {COMMAND}");
    }
}

#[test]
fn the_readme_holds_the_record() {
    check("README.md", &summary(&record()));
}

#[test]
fn the_measurements_hold_the_record() {
    check("docs/measurements.md", &measurements(&record()));
}
