//! Errors of a bench: what the user asked for cannot be ([`UsageError`]), or a subject did not get through
//! ([`BenchError`]).

use std::io;
use std::time::Duration;

use hugefork::ByteSize;
use thiserror::Error;

/// A request that cannot be met on any machine state: found before anything runs. The message names the option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Why a subject gave no sample.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The machine does not offer what the subject stands on. The text says what would mend it.
    #[error("{0}")]
    CannotRun(String),
    /// A system call of the bench itself failed.
    #[error("{what}: {source}")]
    System {
        /// What the bench was doing.
        what: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// hugefork gave no pool.
    #[error(transparent)]
    Build(#[from] hugefork::BuildError),
    /// hugefork gave no region, fork or snapshot.
    #[error(transparent)]
    Region(#[from] hugefork::RegionError),
    /// A task ended otherwise than by finishing its work.
    #[error("task {task} of {tasks} {how}")]
    Task {
        /// Which task, from 0.
        task: usize,
        /// How many there were.
        tasks: usize,
        /// How it ended.
        how: String,
    },
    /// Memory held other bytes than it must: the subject did not do the work, so its time means nothing.
    #[error("wrong contents at offset {offset:#x}: found {found:#x}, must be {expected:#x}")]
    WrongContents {
        /// Offset in the area.
        offset: usize,
        /// The word found.
        found: u64,
        /// The word that the work leaves there.
        expected: u64,
    },
    /// The pool's zeroing thread did not keep up with what was asked of it.
    #[error("the zeroed stock holds {zeroed} of {wanted} and has not grown for {after:?}")]
    StockNotFilled {
        /// Bytes of free blocks that are zero.
        zeroed: ByteSize,
        /// Bytes that a sample needs.
        wanted: ByteSize,
        /// How long it was waited for.
        after: Duration,
    },
    /// Other bytes were lazily freed or reclaimed than must be: the time is that of other work.
    #[error("{bytes} were {done}, must be {expected}")]
    NotAll {
        /// What was done to them.
        done: &'static str,
        /// How many it was done to.
        bytes: ByteSize,
        /// How many it must be.
        expected: ByteSize,
    },
    /// The observer could not keep the results.
    #[error("{0}")]
    Results(String),
}

impl BenchError {
    /// A failed system call while `what`.
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> Self {
        BenchError::System { what, source: source.into() }
    }

    /// Whether the machine is at fault, so that the subject is listed as not run, rather than as failed.
    pub(crate) fn is_lack(&self) -> bool {
        matches!(self, BenchError::CannotRun(_) | BenchError::Build(_))
    }
}
