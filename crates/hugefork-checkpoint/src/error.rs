//! The error of saves and loads.

use std::io;
use std::path::{Path, PathBuf};

use hugefork::RegionError;
use thiserror::Error;

/// The reason why a checkpoint could not be saved or loaded. The message names the file and says what to do. After a
/// failed save, the checkpoint that was in the directory is as before.
///
/// ```
/// use hugefork_checkpoint::{Checkpoint, CheckpointError};
/// match Checkpoint::open("/nowhere") {
///     Err(CheckpointError::Missing { path, .. }) => println!("{} does not exist", path.display()),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The directory has no manifest.
    #[error("there is no checkpoint: give the directory of a save that is done; there is not a file: {}", .path.display())]
    #[non_exhaustive]
    Missing {
        /// The manifest.
        path: PathBuf,
    },
    /// A file is missing, is truncated, has another checksum, or was never a part of a checkpoint.
    #[error("{} {why}", .path.display())]
    #[non_exhaustive]
    Altered {
        /// The file.
        path: PathBuf,
        /// The difference from the file that a save has written, and a remedy.
        why: String,
    },
    /// The directory belongs to another program, or to a newer hugefork. Nothing there was changed.
    #[error("{why}; save to another directory, or remove {} if nobody needs it", .path.display())]
    #[non_exhaustive]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A part cannot be saved so.
    #[error("part `{name}`: {why}")]
    #[non_exhaustive]
    Part {
        /// Its name.
        name: String,
        /// The reason, and a remedy.
        why: &'static str,
    },
    /// The call that reports progress ended the save.
    #[error("the save was ended: {0}")]
    Ended(#[source] io::Error),
    /// The system refused something, for example because the disk is full.
    #[error("{}: {source}{}", .path.display(), remedy(.source.kind()))]
    #[non_exhaustive]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The refusal.
        source: io::Error,
    },
    /// A snapshot could not be read, or a region not be made. [`RegionError::Revoked`] if the pool was full and a part
    /// of a snapshot was revoked.
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl CheckpointError {
    pub(crate) fn altered(path: &Path, why: impl std::fmt::Display) -> CheckpointError {
        CheckpointError::Altered { path: path.to_owned(), why: format!("{why}; load another checkpoint") }
    }
}

fn remedy(refused: io::ErrorKind) -> &'static str {
    match refused {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            "; give a directory, or the path of one that can be made"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; give this user access to it, or take another directory"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there, or take another disk",
        _ => "",
    }
}

/// `None` if there is no such file.
pub(crate) fn if_found<T>(result: Result<T, CheckpointError>) -> Result<Option<T>, CheckpointError> {
    match result {
        Err(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Puts the name of a file into errors of the system.
pub(crate) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, CheckpointError> {
    result.map_err(|source| CheckpointError::Io { path: path.to_owned(), source })
}
