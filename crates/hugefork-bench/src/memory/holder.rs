//! A child of `fork(2)` that holds memory as it was at the fork, as a program's own snapshot would.
//!
//! The child sleeps in `read(2)` on a pipe until its parent writes a byte. Then it checks the memory, and reports the
//! result in its exit status. The kernel kills the child when its parent dies.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;

use crate::error::BenchError;
use crate::measure::tasks::{fork_child, wait_for};

/// Exit status of a child that still saw the memory as it was at the fork.
const KEPT: u32 = 1;
const LOST: u32 = 2;

/// A child that holds memory.
pub(crate) struct Holder {
    /// The child's process number; `None` once the parent has waited for the child.
    pid: Option<libc::pid_t>,
    /// The parent's end of the pipe: the child sleeps until the pipe has a byte.
    hold: Option<PipeWriter>,
}

impl Holder {
    /// Forks a child that runs `is_kept` before it leaves.
    ///
    /// # Safety
    /// `is_kept` keeps to the rules for a child of a process with threads: no allocation, no locks, no unwinding.
    pub(crate) unsafe fn fork(is_kept: impl FnOnce() -> bool) -> Result<Holder, BenchError> {
        let (sleep, hold) = std::io::pipe().map_err(|error| BenchError::system("making a pipe", error))?;
        // SAFETY: the child closes and reads a descriptor and calls `is_kept`, which neither allocate nor lock.
        let pid = unsafe { fork_child(|| live(&sleep, &hold, is_kept)) }?;
        Ok(Holder { pid: Some(pid), hold: Some(hold) })
    }

    /// Wakes the child, and returns the result of its check.
    pub(crate) fn let_go(mut self) -> Result<(), BenchError> {
        let failed = |how: String| BenchError::Task { task: 0, tasks: 1, how };
        match self.wait().map_err(failed)? {
            status if status == KEPT as libc::c_int => Ok(()),
            _ => Err(failed("no longer saw memory as it was when it was forked".to_owned())),
        }
    }

    fn wait(&mut self) -> Result<libc::c_int, String> {
        // Children forked later have this end of the pipe too, so closing it would not wake this child. If the child
        // has died, the write fails, and the wait below returns its status.
        let _ = self.hold.take().map(|mut hold| hold.write_all(&[0]));
        self.pid.take().map_or(Ok(0), wait_for)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The result of the check is no longer needed.
        let _ = self.wait();
    }
}

/// Runs the child: sleeps, then checks the memory, and returns the exit status.
fn live(mut sleep: &PipeReader, hold: &PipeWriter, is_kept: impl FnOnce() -> bool) -> u32 {
    // Only the parent may hold the writing end.
    // SAFETY: the child leaves without destructors, so no code closes this end a second time.
    unsafe { libc::close(hold.as_raw_fd()) };
    let _ = sleep.read_exact(&mut [0]);
    if is_kept() { KEPT } else { LOST }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::work;
    use crate::memory::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};

    #[test]
    fn a_child_keeps_what_was_there_and_says_so_if_it_does_not() {
        let area = KernelMemory::written(PageKind::Base, HUGE_PAGE, 1).unwrap();
        area.inherit(Inherit::Yes).unwrap();
        // SAFETY: the child's own copy of the mapping.
        let is_kept = || unsafe { work::check_area(area.as_ptr(), HUGE_PAGE, 1) }.is_ok();
        // SAFETY: the child compares words.
        let held = unsafe { Holder::fork(is_kept) }.unwrap();
        // SAFETY: our own mapping.
        unsafe { work::write_words(area.as_ptr().cast(), HUGE_PAGE / 8, 2) };
        held.let_go().unwrap();
        // The second child is forked from contents that the first must not have seen.
        // SAFETY: as above.
        let error = unsafe { Holder::fork(is_kept) }.unwrap().let_go().unwrap_err();
        assert!(error.to_string().contains("no longer saw"), "{error}");
        // No code asks these children for their results, and they must end all the same, in any order.
        // SAFETY: as above.
        drop([(); 2].map(|()| unsafe { Holder::fork(is_kept) }.unwrap()));
    }
}
