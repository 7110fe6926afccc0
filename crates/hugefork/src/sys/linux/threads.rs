//! Whether the process has threads beside this one and the engine's own. Only others can write to a region while this
//! thread is in a call.
//!
//! The kernel tells how many threads there are: it counts them as links of `/proc/self/task`. A thread of the engine is
//! counted as such by itself, from its first line to its last, so no moment makes a thread of the program pass for one
//! of them: what is counted was there all the time that the count did not change.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Stat, fstat};

/// The engine's threads that run.
static OWN: AtomicUsize = AtomicUsize::new(0);
/// Rises when one begins or ends.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// Counts the calling thread as one of the engine's until this is dropped.
pub(crate) struct OfEngine(());

impl OfEngine {
    pub(crate) fn begin() -> OfEngine {
        OWN.fetch_add(1, Ordering::SeqCst);
        CHANGES.fetch_add(1, Ordering::SeqCst);
        OfEngine(())
    }
}

impl Drop for OfEngine {
    fn drop(&mut self) {
        // In this order: while the change is not seen, the thread is still there.
        OWN.fetch_sub(1, Ordering::SeqCst);
        CHANGES.fetch_add(1, Ordering::SeqCst);
    }
}

/// `/proc/self/task`, and what says that the descriptor is still that: a program may close what it did not open.
struct Tasks {
    folder: OwnedFd,
    device: u64,
    inode: u64,
}

impl Tasks {
    fn open() -> Option<Tasks> {
        let folder: OwnedFd = File::open("/proc/self/task").ok()?.into();
        let stat = fstat(&folder).ok()?;
        Some(Tasks { folder, device: stat.st_dev, inode: stat.st_ino })
    }

    /// How many threads the process has.
    fn count(&self) -> Option<usize> {
        let is_it = |stat: &Stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode);
        let stat = fstat(self.folder.as_fd()).ok().filter(is_it)?;
        // A folder has two links of its own.
        (stat.st_nlink as usize).checked_sub(2).filter(|&count| count > 0)
    }
}

/// Whether the process has no thread but the calling one and those of the engine. False if the kernel does not tell.
pub(crate) fn is_only_one() -> bool {
    static TASKS: OnceLock<Option<Tasks>> = OnceLock::new();
    let Some(tasks) = TASKS.get_or_init(Tasks::open) else { return false };
    let (changes, own) = (CHANGES.load(Ordering::SeqCst), OWN.load(Ordering::SeqCst));
    let is_alone = tasks.count().is_some_and(|count| count <= own + 1);
    is_alone && CHANGES.load(Ordering::SeqCst) == changes
}

/// The calling thread's number, as `/proc` and debuggers name it.
pub(crate) fn own_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_program_is_seen() {
        // The test runs in a thread of its own, or beside others.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(std::thread::park);
            assert!(!is_only_one());
            waiting.thread().unpark();
        });
    }

    #[test]
    fn the_kernel_tells_how_many_there_are() {
        let tasks = Tasks::open().expect("there is a /proc");
        let listed = std::fs::read_dir("/proc/self/task").unwrap().count();
        // Other tests start and end some.
        assert!(tasks.count().unwrap().abs_diff(listed) < 200);
        let other = Tasks { folder: File::open("/proc/self").unwrap().into(), ..tasks };
        assert_eq!(other.count(), None, "another folder in its place");
    }
}
