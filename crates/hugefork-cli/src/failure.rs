//! Errors that end the command, with their exit status.

use std::fmt::Display;
use std::process::ExitCode;

/// The exit status of the command, and the reason in one line.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) u8, pub(crate) String);

impl Failure {
    /// Wrong arguments, or an argument that names a file that cannot be read or written.
    pub(crate) fn usage(why: impl Display) -> Failure {
        Failure(2, format!("{why:#}"))
    }

    /// Prints the error line, and returns the status.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("error: {}", self.1);
        ExitCode::from(self.0)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        // All causes on one line.
        Failure(1, format!("{:#}", error.into()))
    }
}
