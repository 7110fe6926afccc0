//! For the tests, and for the fuzzer in fuzz/.

use hugefork_report::{compare, parse, report};

/// Reads `bytes`, and does all that can be done with a record if they give one.
pub(crate) fn survive(bytes: &[u8]) {
    match parse("some\nfile.json", bytes) {
        Ok(record) => {
            let _ = compare(&record, &record).to_string();
            let _ = report(&[record]).unwrap();
        }
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("some\u{fffd}file.json: ") && !line.contains(char::is_control), "{line:?}");
        }
    }
}
