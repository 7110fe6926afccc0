//! The kernel's ways to put an area back.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::rounds::{BIAS, ResetSetup, Resettable, word_of, write_words};
use crate::error::BenchError;
use crate::measure::tasks::{fork_child, wait_for};
use crate::measure::work;
use crate::memory::kernel_memory::{Inherit, KernelMemory, PageKind, Reserve};

/// A private mapping of a file, which stays as it is.
pub(super) struct File {
    area: KernelMemory,
    _file: OwnedFd,
}

impl File {
    pub(super) fn open(setup: ResetSetup) -> Result<File, BenchError> {
        let failed = |what| move |errno: rustix::io::Errno| BenchError::system(what, errno);
        let file = memfd_create("bench", MemfdFlags::CLOEXEC).map_err(failed("making a memfd"))?;
        ftruncate(&file, setup.size as u64).map_err(failed("sizing a memfd"))?;
        let area = KernelMemory::map(PageKind::Base, setup.size, Reserve::Yes)?;
        for how in [MapFlags::SHARED, MapFlags::PRIVATE] {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, how | MapFlags::FIXED);
            // SAFETY: only a mapping of our own is replaced, to which nobody has a reference.
            unsafe { mmap(area.as_ptr().cast(), area.len(), access, flags, &file, 0) }
                .map_err(failed("mapping a memfd"))?;
            if how == MapFlags::SHARED {
                // SAFETY: our own mapping of a new file.
                unsafe { work::write_words(area.as_ptr().cast(), area.len() / 8, BIAS) };
            }
        }
        Ok(File { area, _file: file })
    }
}

impl Resettable for File {
    fn write(&mut self, pages: &[usize]) -> Result<(), BenchError> {
        // SAFETY: our own mapping.
        unsafe { write_words(self.area.as_ptr(), pages) };
        Ok(())
    }

    fn reset(&mut self) -> Result<(), BenchError> {
        self.area.discard()
    }

    fn word(&self, page: usize) -> u64 {
        // SAFETY: our own mapping.
        unsafe { word_of(self.area.as_ptr(), page) }
    }
}

/// An area that children write to.
pub(super) struct Forked {
    area: KernelMemory,
}

impl Forked {
    pub(super) fn open(setup: ResetSetup) -> Result<Forked, BenchError> {
        let area = KernelMemory::written(PageKind::Thp, setup.size, BIAS)?;
        area.inherit(Inherit::Yes)?;
        Ok(Forked { area })
    }
}

impl Resettable for Forked {
    fn write(&mut self, pages: &[usize]) -> Result<(), BenchError> {
        let write = || {
            // SAFETY: the child's copy of our own mapping.
            unsafe { write_words(self.area.as_ptr(), pages) };
            0
        };
        // SAFETY: the child only writes.
        let child = unsafe { fork_child(write) }?;
        wait_for(child).map_err(|how| BenchError::Task { task: 0, tasks: 1, how }).map(drop)
    }

    /// The child is gone.
    fn reset(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn word(&self, page: usize) -> u64 {
        // SAFETY: our own mapping.
        unsafe { word_of(self.area.as_ptr(), page) }
    }

    fn writes_and_resets(&self) -> bool {
        true
    }
}
