//! `fork(2)`: the child holds the memory, and sleeps until it is asked whether it still does.

use super::rival::{Ground, Rival};
use super::words::{BIAS, Words, reader};
use crate::cases::footprint::Footprint;
use crate::error::BenchError;
use crate::measure::warm::{warm, warm_page_tables};
use crate::memory::holder::Holder;
use crate::memory::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};

pub(super) struct Fork {
    kind: PageKind,
    area: Option<KernelMemory>,
}

impl Fork {
    pub(super) fn new(kind: PageKind) -> Fork {
        Fork { kind, area: None }
    }

    fn area(&self) -> &KernelMemory {
        self.area.as_ref().expect("populated before used")
    }

    /// What the kernel copies at a write to a shared page.
    fn copied_at_once(&self) -> usize {
        match self.kind {
            PageKind::Hugetlb => HUGE_PAGE,
            PageKind::Base | PageKind::Thp => 4096,
        }
    }
}

/// Bytes that the kernel has copied, if each of `faults` has copied a page of `page` bytes. None if there are fewer
/// faults than pages that were written: then it has copied larger pieces.
pub(super) fn copied_by_faults(faults: usize, page: usize, words: &Words) -> Option<usize> {
    (faults >= words.distinct(page)).then_some(faults * page)
}

impl Rival for Fork {
    type Snapshot = Holder;

    fn populate(&mut self, ground: &Ground) -> Result<(), BenchError> {
        self.area = None;
        let area = KernelMemory::written(self.kind, ground.size, BIAS)?;
        area.check_huge()?;
        self.area = Some(area);
        Ok(())
    }

    fn warm(&self, ground: &Ground) -> Result<(), BenchError> {
        let copies = if self.kind == PageKind::Hugetlb { PageKind::Hugetlb } else { PageKind::Base };
        warm(copies, ground.size, 1, &[ground.cpu])?;
        warm_page_tables(ground.cpu)
    }

    fn start(&self) -> *mut u8 {
        self.area().as_ptr()
    }

    fn ready(&mut self) -> Result<(), BenchError> {
        self.area().inherit(Inherit::Yes)
    }

    fn take(&mut self, words: &Words) -> Result<Holder, BenchError> {
        // SAFETY: the child's own copy of the mapping.
        let read = unsafe { reader(self.start()) };
        // SAFETY: the child compares words.
        unsafe { Holder::fork(|| words.check_kept(read).is_ok()) }
    }

    fn copied(&self, words: &Words, minor_faults: usize) -> Option<usize> {
        copied_by_faults(minor_faults, self.copied_at_once(), words)
    }

    fn memory(&self, held: Option<&Holder>) -> Option<usize> {
        let own = Footprint::by_this()?;
        match held {
            Some(child) => Some(own.with_child(Footprint::by(child.pid()?)?)),
            None => Some(own.alone()),
        }
    }

    fn let_go(&mut self, child: Holder, _: &Words) -> Result<(), BenchError> {
        child.let_go()
    }

    fn release(&mut self) {
        self.area = None;
    }
}
