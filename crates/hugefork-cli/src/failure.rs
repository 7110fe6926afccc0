//! Errors that end the command, with their exit status.

use std::fmt;
use std::process::ExitCode;

/// The reason why the command ends, and its exit status.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong arguments: status 2.
    Usage(String),
    /// A program could not be run: the status says why.
    Status(u8, String),
    /// The work failed: status 1.
    Failed(anyhow::Error),
}

impl Failure {
    /// An argument names a file that cannot be read or written.
    pub(crate) fn usage(error: &anyhow::Error) -> Failure {
        Failure::Usage(format!("{error:#}"))
    }

    /// Prints the error line, and returns the status.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("error: {self}");
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Status(status, _) => ExitCode::from(*status),
            Failure::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(line) | Failure::Status(_, line) => f.write_str(line),
            // All causes on one line.
            Failure::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Failed(error)
    }
}

impl From<hugefork_bench::UsageError> for Failure {
    fn from(error: hugefork_bench::UsageError) -> Self {
        Failure::Usage(error.0)
    }
}

impl From<hugefork_report::LoadError> for Failure {
    fn from(error: hugefork_report::LoadError) -> Self {
        Failure::Usage(error.to_string())
    }
}
