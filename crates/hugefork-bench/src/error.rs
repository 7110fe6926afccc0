//! Errors of a bench: the user asked for something impossible ([`UsageError`]), or a subject gave no sample
//! ([`BenchError`]).

use std::io;

use hugefork::ByteSize;
use thiserror::Error;

use crate::words::in_words_of_the_command;

/// A request that this machine cannot meet in any state. The check of the options finds it before anything runs, and
/// the message names the option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The reason why a subject gave no sample.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The machine lacks something that the subject needs. The text names a remedy.
    #[error("{0}")]
    CannotRun(String),
    /// A system call of the bench itself failed.
    #[error("{what}: {source}")]
    System {
        /// The activity of the bench.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// hugefork gave no pool.
    #[error("{}", in_words_of_the_command(.0))]
    Build(hugefork::BuildError),
    /// hugefork gave no region, fork or snapshot.
    #[error("{}", in_words_of_the_command(.0))]
    Region(hugefork::RegionError),
    /// A task ended before it had finished its work.
    #[error("task {task} of {tasks} {how}")]
    Task {
        /// The number of the task, from 0.
        task: usize,
        /// The number of tasks.
        tasks: usize,
        /// How the task ended.
        how: String,
    },
    /// The memory does not hold the words that the work should have left in it. The subject did not do the work, so its
    /// time means nothing.
    #[error("wrong contents at offset {offset:#x}: found {found:#x}, must be {expected:#x}")]
    WrongContents {
        /// Offset in the area.
        offset: usize,
        /// The word that the memory holds.
        found: u64,
        /// The word that the work should have left at this offset.
        expected: u64,
    },
    /// A wrong number of bytes was lazily freed, reclaimed or found, so the subject did other work than its rivals.
    #[error("{bytes} were {done}, must be {expected}")]
    NotAll {
        /// The treatment of the bytes, such as "reclaimed".
        done: &'static str,
        /// The number of bytes that were treated so.
        bytes: ByteSize,
        /// The number of bytes that should have been treated so.
        expected: ByteSize,
    },
    /// The observer could not keep the results.
    #[error("{0}")]
    Results(String),
}

impl From<hugefork::BuildError> for BenchError {
    fn from(error: hugefork::BuildError) -> BenchError {
        BenchError::Build(error)
    }
}

impl From<hugefork::RegionError> for BenchError {
    fn from(error: hugefork::RegionError) -> BenchError {
        BenchError::Region(error)
    }
}

impl BenchError {
    /// A system call that failed while the bench was doing `what`.
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> Self {
        BenchError::System { what, source: source.into() }
    }

    /// Checks that the number of bytes that were `done` is the expected one.
    pub(crate) fn unless_all(done: &'static str, bytes: usize, expected: usize) -> Result<(), BenchError> {
        let (bytes, expected) = (ByteSize(bytes), ByteSize(expected));
        if bytes == expected { Ok(()) } else { Err(BenchError::NotAll { done, bytes, expected }) }
    }

    /// Whether the machine lacks something that the subject needs. Then the report lists the subject as not run, and
    /// not as failed.
    pub(crate) fn is_lack(&self) -> bool {
        matches!(self, BenchError::CannotRun(_) | BenchError::Build(_))
    }
}
