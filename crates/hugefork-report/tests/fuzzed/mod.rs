//! For the tests, and for the fuzzer in fuzz/.

use hugefork_report::{Scheme, compare, highlights, measurements, parse, pause_picture, report};

/// Reads `bytes`. If they give a record, calls every function that takes one.
pub(crate) fn survive(bytes: &[u8]) {
    match parse("some\nfile.json", bytes) {
        Ok(record) => {
            let _ = compare(&record, &record).to_string();
            let records = [record];
            let _ = (report(&records), measurements(&records), highlights(&records).text);
            let _ = pause_picture(&records, Scheme::Light);
        }
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("some\u{fffd}file.json: ") && !line.contains(char::is_control), "{line:?}");
        }
    }
}
