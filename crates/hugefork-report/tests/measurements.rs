//! The figures of the documents are those of the record.
//!
//! With `HUGEFORK_GOLDEN=write` it writes the files instead of comparing them.

#[path = "common/record.rs"]
mod record;

use std::fs;
use std::path::{Path, PathBuf};

use hugefork_report::{Record, Scheme, highlights, measurements, pause_picture, summary};
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

/// The rows that the README has of the summary: case, work and subject. The highlights above them tell of other cases,
/// which say where hugefork loses most, and `docs/measurements.md` has all rows.
const OF_README: [(&str, &str, &str); 6] = [
    ("writer-latency", "5000 writes, random, epoch 1, 1 GiB", "hugefork"),
    ("zero-fault", "1 GiB, 64 KiB used", "hugefork-default"),
    ("anon-w-seq", "2 tasks, 1 GiB", "hugefork"),
    ("lazy-free", "1 GiB, 2 MiB blocks", "hugefork"),
    ("changes", "random, 1 GiB, changed 10%", "hugefork"),
    ("reset", "1 GiB, read what is written, written 44", "hugefork"),
];

/// The summary of `records`, with those rows only. What no row is about is not explained below the table.
fn of_readme(mut records: Vec<Record>) -> String {
    for record in &mut records {
        record.entries.retain(|entry| OF_README.iter().any(|(case, ..)| *case == entry.case));
    }
    let wanted = OF_README.map(|(case, work, subject)| format!("| {case} | {work} | {subject} | "));
    let is_row = |line: &str| line.starts_with("| ") && !line.starts_with("| case |");
    let is_wanted = |line: &str| !is_row(line) || wanted.iter().any(|row| line.starts_with(row));
    let text: String = summary(&records).split_inclusive('\n').filter(|line| is_wanted(line)).collect();
    let rows = text.lines().filter(|line| is_row(line)).count();
    assert_eq!(rows, OF_README.len(), "the record has not all rows of the README:\n{text}");
    text
}

#[test]
fn the_readme_holds_the_record() {
    let record = record();
    check_parts("README.md", &[("highlights", highlights(&record)), ("measurements", of_readme(record))]);
}

#[test]
fn the_measurements_hold_the_record() {
    check_parts("docs/measurements.md", &[("measurements", measurements(&record()))]);
}

#[test]
fn the_picture_of_the_readme_is_of_the_record_on_light_and_on_dark() {
    let readme = fs::read_to_string(path("README.md")).unwrap();
    for (file, scheme) in [("docs/pause-light.svg", Scheme::Light), ("docs/pause-dark.svg", Scheme::Dark)] {
        assert!(readme.contains(&format!("\"{file}\"")), "the README does not show {file}");
        check(file, &pause_picture(&record(), scheme).expect("the record has a snapshot beside fork"));
    }
}
