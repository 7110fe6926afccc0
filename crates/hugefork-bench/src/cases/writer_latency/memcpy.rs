//! `memcpy` of the whole area, to memory that is present.

use crate::cases::rival::{Read, Rival};
use crate::error::BenchError;
use crate::measure::work::{self, reader};
use crate::memory::kernel_memory::{KernelMemory, PageKind};

#[derive(Default)]
pub(super) struct MemcpyRival {
    held: Option<(KernelMemory, KernelMemory)>,
}

impl MemcpyRival {
    fn held(&self) -> &(KernelMemory, KernelMemory) {
        self.held.as_ref().expect("populated before used")
    }
}

impl Rival for MemcpyRival {
    type Snapshot = ();

    fn populate(&mut self, size: usize, bias: u64) -> Result<(), BenchError> {
        match &self.held {
            // SAFETY: our own mapping.
            Some((from, _)) => unsafe { work::write_words(from.as_ptr().cast(), size / 8, bias) },
            None => {
                let huge = |bias| KernelMemory::written(PageKind::Thp, size, bias);
                self.held = Some((huge(bias)?, huge(0)?));
            }
        }
        Ok(())
    }

    fn start(&self) -> *mut u8 {
        self.held().0.as_ptr()
    }

    fn take(&mut self, _: impl Fn(Read<'_>) -> bool) -> Result<(), BenchError> {
        let (from, to) = self.held();
        // SAFETY: two mappings of our own of the same length.
        unsafe { libc::memcpy(to.as_ptr().cast(), from.as_ptr().cast(), from.len()) };
        Ok(())
    }

    fn copied(&self, _: &dyn Fn(usize) -> usize, _: usize) -> Option<usize> {
        Some(self.held().0.len())
    }

    /// The copy was there before the sample, so the kernel would not count it.
    fn memory(&self, held: &[()]) -> Option<usize> {
        Some(if held.is_empty() { 0 } else { self.held().1.len() })
    }

    fn let_go(&mut self, (): (), check: impl FnOnce(Read<'_>) -> Result<(), BenchError>) -> Result<(), BenchError> {
        // SAFETY: our own mapping.
        check(&unsafe { reader(self.held().1.as_ptr()) })
    }

    fn release(&mut self) {
        self.held = None;
    }

    /// Huge pages stay huge.
    fn end_sample(&mut self) {}
}
