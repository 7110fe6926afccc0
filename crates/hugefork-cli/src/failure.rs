//! How the command ends when it does not succeed.

use std::fmt;
use std::process::ExitCode;

/// Why the command stops, and with which status.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was called wrongly: status 2.
    Usage(String),
    /// It could not run a program: a status that tells why.
    Status(u8, String),
    /// It failed: status 1.
    Failed(anyhow::Error),
}

impl Failure {
    /// It was called with something that cannot be read or written.
    pub(crate) fn usage(error: &anyhow::Error) -> Failure {
        Failure::Usage(format!("{error:#}"))
    }

    /// Prints the line, and gives the status.
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
            // With its causes, in one line.
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
