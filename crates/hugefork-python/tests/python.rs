//! Runs `test.sh`, the tests of the Python package. Its last line counts like those of other tests.
//!
//! If Python 3.11 or one of its needed packages is missing, prints that. Fails in that case only if
//! `HUGEFORK_REQUIRE` contains `python`.

use std::process::{Command, ExitCode};

/// The exit status of `test.sh` if the tests cannot run here.
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
