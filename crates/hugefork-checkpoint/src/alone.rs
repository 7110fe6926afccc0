//! One save at a time to a directory.
//!
//! The file `.lock` has a lock of `fcntl(2)`, which excludes other processes. It ends with the process, and a child of
//! `fork(2)` does not have it: no child that lives on keeps others waiting after its parent was killed. But such a lock
//! does not exclude other threads of the process, so there is also a list of the directories that these save to.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;

use crate::error::{CheckpointError, at};
use crate::manifest::LOCK;
use crate::open::open;

/// A directory by its device and inode, whichever path leads to it.
type Place = (u64, u64);

/// The directories that threads of one process save to.
struct Turns {
    process: u32,
    taken: Mutex<HashSet<Place>>,
    ended: Condvar,
}

impl Turns {
    /// Those of this process. A child of `fork(2)` begins with none, and with a lock of its own: a thread of the parent
    /// may have held the parent's at the fork.
    fn of_process() -> &'static Turns {
        static NOW: AtomicPtr<Turns> = AtomicPtr::new(ptr::null_mut());
        let process = std::process::id();
        let mut now = NOW.load(Ordering::Acquire);
        loop {
            // SAFETY: it is null or was leaked below, and is never freed.
            if let Some(turns) = unsafe { now.as_ref() }.filter(|turns| turns.process == process) {
                return turns;
            }
            let new = Turns { process, taken: Mutex::default(), ended: Condvar::new() };
            let new = ptr::from_mut(Box::leak(Box::new(new)));
            match NOW.compare_exchange(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => now = new,
                Err(other) => now = other,
            }
        }
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<Place>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of a thread.
struct Turn(Place);

impl Turn {
    fn wait(place: Place) -> Turn {
        let turns = Turns::of_process();
        let mut taken = turns.taken();
        while !taken.insert(place) {
            taken = turns.ended.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(place)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = Turns::of_process();
        turns.taken().remove(&self.0);
        turns.ended.notify_all();
    }
}

/// Excludes other saves to a directory while it lives.
pub(crate) struct Alone {
    // The lock ends before the next thread has its turn: it ends when any descriptor of the file is closed.
    _file: fs::File,
    _turn: Turn,
}

impl Alone {
    /// Waits for other saves to the directory.
    pub(crate) fn wait(directory: &Path) -> Result<Alone, CheckpointError> {
        let found = at(directory, fs::metadata(directory))?;
        let turn = Turn::wait((found.dev(), found.ino()));
        let path = directory.join(LOCK);
        // The program may have a file of this name: nothing is written to it, and it is not removed.
        let file = open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW)?;
        loop {
            match fcntl_lock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                // Two threads of a process wait for two directories; the kernel takes them for one.
                Err(Errno::DEADLK) => std::thread::sleep(Duration::from_millis(10)),
                locked => {
                    at(&path, locked.map_err(Into::into))?;
                    return Ok(Alone { _file: file, _turn: turn });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn threads_have_their_turns_one_after_the_other() {
        let directory = std::env::temp_dir().join(format!("hugefork-alone-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _alone = Alone::wait(&directory).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        fs::remove_dir_all(directory).unwrap();
    }
}
