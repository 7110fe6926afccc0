//! Which forks of a program have living descendants, if these inherit memory by the kernel's own means (`hugefork run
//! --pool`).
//!
//! ```text
//! prepare  a witness of an empty file ─▶ a page that is mapped through it ─▶ its descriptor is closed ─┐ mark
//!                                                                                                   fork(2)
//! parent   unmaps the page, and keeps the number of the witness ───────────────────────────────────────┤
//! child    has the page, as all its descendants that the kernel copies it for ─────────────────────────┘
//! end      the last such page goes (exit, exec) ─▶ no lock (children.rs)
//! ```
//! The file is none of the pool's, so that neither its descriptor nor the page gives access to the pool's memory.

use std::os::fd::AsRawFd;

use hugefork_linux::Descriptor;
use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, memfd_create};

use super::children::{Witness, closes_of, is_witnessed, wait_for_close, wake};
use super::kept;
use super::share::{PrivateMemory, reopen_for_reading};

/// The forks of a process.
pub struct Forks {
    file: Descriptor,
    /// The page of the fork under way.
    mark: Option<PrivateMemory>,
}

impl Forks {
    /// No forks yet. `None` if the kernel refuses.
    pub fn new() -> Option<Forks> {
        let file = Descriptor::keep(|| memfd_create("hugefork-forks", MemfdFlags::CLOEXEC)).ok()?;
        Some(Forks { file, mark: None })
    }

    /// The descriptor of the file. A child of a fork closes it.
    pub fn descriptor(&self) -> &Descriptor {
        &self.file
    }

    /// Marks this process before a fork, so that the child has the mark. Returns the number of the fork; `None` if the
    /// kernel refuses.
    pub fn mark(&mut self) -> Option<u64> {
        let witness = reopen_for_reading(&self.file).and_then(Witness::new).ok()?;
        self.mark = Some(witness.page().ok()?);
        Some(witness.byte)
    }

    /// Takes the mark from this process, after the fork.
    pub fn unmark(&mut self) {
        self.mark = None;
    }

    /// Whether a fork has living descendants, or another process has its mark. True if the kernel does not say.
    pub fn has_descendants(&self, fork: u64) -> bool {
        kept(&self.file).map_or(true, |file| is_witnessed(file, fork))
    }

    /// A descriptor that tells when a fork has no living descendants any more, for a thread with a table of descriptors
    /// of its own, in which this file is open. `None` if the kernel refuses.
    pub fn ends(&self) -> Option<Descriptor> {
        closes_of(self.file.as_raw_fd()).ok()
    }

    /// Waits for the end of some fork, for some nanoseconds at most. Returns whether one may have ended; `None` if the
    /// kernel refuses to wait. The kernel may report an end a moment early, so the caller looks again a little later.
    pub fn wait(ends: &Descriptor, nanoseconds: i64) -> Option<bool> {
        wait_for_close(ends, Some(&Timespec { tv_sec: 0, tv_nsec: nanoseconds })).ok()
    }

    /// Ends the [wait](Forks::wait) of the thread `sleeper`. False if the kernel refuses.
    pub fn wake(&self, sleeper: u32) -> bool {
        wake(sleeper, self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_descendants_until_the_last_mark_goes() {
        let mut forks = Forks::new().unwrap();
        let ends = forks.ends().unwrap();
        let one = forks.mark().unwrap();
        let page_of_one = forks.mark.take();
        let numbers = [one, forks.mark().unwrap()];
        // The child of another test's fork may have the marks for a while.
        let waits_for = |forks: &Forks, living: [bool; 2]| {
            (0..1000).any(|_| {
                numbers.map(|fork| forks.has_descendants(fork)) == living || {
                    Forks::wait(&ends, 10_000_000);
                    false
                }
            })
        };
        assert!(waits_for(&forks, [true, true]));
        drop(page_of_one);
        assert!(waits_for(&forks, [false, true]));
        forks.unmark();
        assert!(waits_for(&forks, [false, false]));
        while Forks::wait(&ends, 1_000_000) == Some(true) {}
        assert!(forks.wake(super::super::threads::own_number()) && Forks::wait(&ends, 900_000_000) == Some(true));
    }
}
