//! Keeps the files of a checkpoint for the loads that read them, while saves replace it.
//!
//! A load holds a shared lock of `flock(2)` on the folder of the files, since before it read the manifest. A save asks
//! for the exclusive lock after it has replaced the manifest. If it gets the lock at once, all loads from then on read
//! the new manifest, so the save removes the files that this does not name. Otherwise the files remain, and the next
//! save removes them. Neither side waits for the other, and no load has to begin again.
//!
//! Without a lock, a load may find that a save has removed a file: where the file system has no locks or does not pass
//! them on between machines, and where the process may not list the folder.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use crate::manifest::{DATA, Manifest, is_of_a_save};
use crate::open::open_folder;

/// The lock of a load. Saves remove no files while it lives.
#[derive(Debug)]
pub(crate) struct Kept {
    folder: Option<fs::File>,
    process: u32,
}

impl Kept {
    /// The caller has seen the manifest of the directory, so the folder is there: a save makes it first.
    pub(crate) fn of(directory: &Path) -> Kept {
        let folder = open_folder(&directory.join(DATA)).ok();
        let folder = folder.filter(|folder| retry_on_intr(|| flock(folder, FlockOperation::LockShared)).is_ok());
        Kept { folder, process: std::process::id() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A child of `fork(2)` has a copy of the descriptor, which holds the lock too. It must not end the parent's.
        if self.process == std::process::id() {
            _ = self.folder.as_ref().map(|folder| flock(folder, FlockOperation::Unlock));
        }
    }
}

/// Removes the files of earlier saves, unless loads go on. The checkpoint is complete, so a file that cannot be removed
/// only takes room.
pub(crate) fn remove_others(data: &Path, manifest: &Manifest) {
    let Ok(folder) = open_folder(data) else { return };
    let loads_go_on = flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
    // A child of `fork(2)` may have a copy of the descriptor.
    _ = flock(&folder, FlockOperation::Unlock);
    if loads_go_on {
        return;
    }
    let kept: HashSet<&str> = manifest.files().map(|file| file.name.as_str()).collect();
    for entry in fs::read_dir(data).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(|name| is_of_a_save(name) && !kept.contains(name)) {
            _ = fs::remove_file(entry.path());
        }
    }
}
