//! Programs of ours that cases start, each a process of its own: hidden commands of `hugefork`.

use std::path::PathBuf;
use std::process::Command;

use hugefork::ByteSize;

use crate::error::BenchError;

/// The command `hugefork`, or why `case` cannot run without it.
pub(super) fn hugefork<'a>(command: &'a Option<PathBuf>, case: &str) -> Result<&'a PathBuf, BenchError> {
    command.as_ref().ok_or_else(|| {
        BenchError::CannotRun(format!("its program is a part of the command `hugefork`: run `hugefork bench {case}`"))
    })
}

/// Runs a program that has `size` bytes. Gives what `parse` makes of what it prints.
pub(super) fn run<T>(
    command: &mut Command,
    size: usize,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, BenchError> {
    let output = command.output().map_err(|error| BenchError::system("starting a program", error))?;
    let said = String::from_utf8_lossy(&output.stdout);
    parse(&said).filter(|_| output.status.success()).ok_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        BenchError::CannotRun(format!(
            "a program with {} ended with {}: {}",
            ByteSize(size),
            output.status,
            why.trim().lines().last().unwrap_or("it said nothing"),
        ))
    })
}

/// The words of a program, which must be those that its case gives it.
pub(super) fn parsed<T>(program: Option<T>, case: &str) -> Result<T, BenchError> {
    program.ok_or_else(|| BenchError::CannotRun(format!("this is for `hugefork bench {case}` to call")))
}
