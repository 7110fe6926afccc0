//! `fork(2)`: the child holds the memory, and sleeps until it is asked whether it still does.

use super::{Read, Rival};
use crate::cases::footprint::Footprint;
use crate::error::BenchError;
use crate::measure::warm::warm_for_copies;
use crate::measure::work::reader;
use crate::memory::holder::Holder;
use crate::memory::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};

pub(in crate::cases) struct ForkRival {
    kind: PageKind,
    area: Option<KernelMemory>,
}

impl ForkRival {
    pub(in crate::cases) fn new(kind: PageKind) -> ForkRival {
        ForkRival { kind, area: None }
    }

    fn area(&self) -> &KernelMemory {
        self.area.as_ref().expect("populated before used")
    }
}

/// Bytes that the kernel has copied, if each of `faults` has copied a page of `page` bytes. None if there are fewer
/// faults than pages that were written: then it has copied larger pieces.
pub(in crate::cases) fn copied_by_faults(
    faults: usize,
    page: usize,
    distinct: &dyn Fn(usize) -> usize,
) -> Option<usize> {
    (faults >= distinct(page)).then_some(faults * page)
}

impl Rival for ForkRival {
    type Snapshot = Holder;

    fn populate(&mut self, size: usize, bias: u64) -> Result<(), BenchError> {
        self.area = None;
        let area = KernelMemory::written(self.kind, size, bias)?;
        area.check_huge()?;
        self.area = Some(area);
        Ok(())
    }

    fn warm(&self, size: usize, cpus: &[usize]) -> Result<(), BenchError> {
        let copies = if self.kind == PageKind::Hugetlb { PageKind::Hugetlb } else { PageKind::Base };
        warm_for_copies(copies, size, cpus)
    }

    fn start(&self) -> *mut u8 {
        self.area().as_ptr()
    }

    fn ready(&mut self) -> Result<(), BenchError> {
        self.area().inherit(Inherit::Yes)
    }

    fn take(&mut self, is_kept: impl Fn(Read<'_>) -> bool) -> Result<Holder, BenchError> {
        // SAFETY: the child's own copy of the mapping.
        let read = unsafe { reader(self.start()) };
        // SAFETY: the child reads and compares.
        unsafe { Holder::fork(|| is_kept(&read)) }
    }

    fn copied(&self, distinct: &dyn Fn(usize) -> usize, minor_faults: usize) -> Option<usize> {
        // What the kernel copies at a write to a shared page.
        let page = if self.kind == PageKind::Hugetlb { HUGE_PAGE } else { 4096 };
        copied_by_faults(minor_faults, page, distinct)
    }

    fn memory(&self, held: &[Holder]) -> Option<usize> {
        let own = Footprint::by_this()?;
        held.iter().try_fold(own.alone(), |sum, child| Some(sum + Footprint::by(child.pid()?)?.own()))
    }

    fn discard(&mut self, child: Holder) -> Result<(), BenchError> {
        child.let_go()
    }

    /// The child has checked it.
    fn let_go(&mut self, child: Holder, _: impl FnOnce(Read<'_>) -> Result<(), BenchError>) -> Result<(), BenchError> {
        child.let_go()
    }

    fn release(&mut self) {
        self.area = None;
    }
}
