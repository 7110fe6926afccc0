//! Runs `test.sh`: the tests of the package, in Python. Its last line is counted with those of other tests.
//!
//! Where Python 3.11 or what it takes is not to be had, this says so. It fails then only if `HUGEFORK_REQUIRE` has
//! `python`.

use std::process::{Command, ExitCode};

/// What `test.sh` ends with if the tests cannot be run here.
const CANNOT: i32 = 77;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (options, filters): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    let is_asked_for = filters.is_empty() || filters.iter().any(|filter| "python".contains(filter.as_str()));
    if options.iter().any(|option| *option == "--list") || !is_asked_for {
        return ExitCode::SUCCESS;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/test.sh");
    match Command::new(script).status().map(|status| status.code()) {
        Ok(Some(0)) => ExitCode::SUCCESS,
        Ok(Some(CANNOT)) => {
            let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
            ExitCode::from(u8::from(required.split(',').any(|name| name == "python")))
        }
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{script}: {error}");
            ExitCode::FAILURE
        }
    }
}
