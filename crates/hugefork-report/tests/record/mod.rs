//! This machine's record.

use std::fs;
use std::path::{Path, PathBuf};

use hugefork_report::{Record, load};

/// This machine's record, all files.
pub(crate) fn record() -> Vec<Record> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/record");
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|path| load(path).unwrap()).collect()
}
