//! Checkpoints of hugefork's snapshots on the disk: a save writes a snapshot, or the pages that have changed since an
//! earlier save, while the program goes on; a load compares checksums and gives regions.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use hugefork_checkpoint::{Part, Since, load, save, save_since};
//! # let folder = std::env::temp_dir().join(format!("hugefork-doc-{}", std::process::id()));
//! # let (one, two) = (folder.join("1"), folder.join("2"));
//! let pool = hugefork::Pool::builder().capacity(64 << 20).build()?;
//! let mut state = pool.region(16 << 20)?;
//! state.as_mut_slice()[..5].copy_from_slice(b"hello");
//! let first = state.snapshot()?;
//! let saved = save(&one, &[Part::of("state", &first)])?; // in a thread of its own, if the program is to go on
//!
//! state.as_mut_slice()[0] = b'j';
//! let second = state.snapshot()?;
//! save_since(&two, &[Part::of("state", &second).since(&first)], Since::Save(&saved))?; // writes 4 KiB
//! std::fs::remove_dir_all(&one)?; // each directory is complete
//!
//! let mut loaded = load(&two, &pool)?;
//! assert_eq!(&loaded.get_mut("state").unwrap().as_mut_slice()[..5], b"jello");
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! # The format
//! It is that of `hugefork.checkpoint` in Python, and numpy reads its files. A checkpoint is a directory:
//!
//! ```text
//! manifest.json              the list of its files; replaced atomically as the last step of a save
//! data/w.3.npy               array w at save 3
//! data/w.4.ranges.npy        the changes at save 4: bytes start..stop of the array in memory, int64, shape (n, 2)
//! data/w.4.bytes.npy         these bytes, one range after another, uint8
//! .lock                      locked by a save that is going on; empty
//! ```
//! `manifest.json` is
//!
//! ```text
//! {"format": "hugefork-checkpoint", "version": 1, "save": 4, "meta": "…",
//!  "arrays": {"w": [{"file": "w.3.npy", "nbytes": 80000128, "crc32": 123},
//!                   {"ranges": {"file": "w.4.ranges.npy", …}, "bytes": {"file": "w.4.bytes.npy", …}}]},
//!  "crc32": 456}
//! ```
//! `nbytes` and `crc32` (that of zlib) describe a whole file. The last `crc32` is the checksum of the text of the
//! manifest before it, up to the comma. A file is never written to after it was made, so directories share
//! files by hard links. (`rsync -H` and `tar` keep these.)
//!
//! # Failures
//! A save that fails or is killed leaves the checkpoint before; the next save removes its files. A full disk is a
//! [`CheckpointError::Io`] with the file's name. A load of files that are missing, truncated or altered is a
//! [`CheckpointError::Altered`], and no region is made of them.
//!
//! Saves may replace a checkpoint while it is loaded: they leave the files that the load began with, and the next save
//! removes them.

mod alone;
mod error;
mod files;
mod kept;
mod load;
mod manifest;
mod open;
mod save;

use std::path::Path;

pub use error::CheckpointError;
pub use load::{Checkpoint, load};
pub use save::{Part, Save, Saved, Since};

/// Saves parts to a directory. Like [`Save::write`] without options.
///
/// # Errors
/// Those of [`Save::write`].
pub fn save(directory: impl AsRef<Path>, parts: &[Part<'_>]) -> Result<Saved, CheckpointError> {
    Save::to(directory).write(parts)
}

/// Saves the changes since an earlier checkpoint to a directory, the same or another. See [`Save::since`].
///
/// # Errors
/// Those of [`Save::write`].
pub fn save_since(directory: impl AsRef<Path>, parts: &[Part<'_>], since: Since<'_>) -> Result<Saved, CheckpointError> {
    Save::to(directory).since(since).write(parts)
}

/// Checks whether the directory belongs to checkpoints, or to nobody. Makes nothing there, so a save may still find
/// that it has no right or room to write.
///
/// # Errors
/// [`CheckpointError::Foreign`] if it may belong to another program, and [`CheckpointError::Io`].
pub fn check_directory(directory: impl AsRef<Path>) -> Result<(), CheckpointError> {
    manifest::Manifest::before(directory.as_ref()).map(|_| ())
}

/// Runs the code of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
