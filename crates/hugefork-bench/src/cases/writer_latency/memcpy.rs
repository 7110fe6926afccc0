//! `memcpy` of the whole area, to memory that is present.

use super::rival::{Ground, Rival};
use super::words::{BIAS, Words, reader};
use crate::error::BenchError;
use crate::measure::work;
use crate::memory::kernel_memory::{KernelMemory, PageKind};

#[derive(Default)]
pub(super) struct Memcpy {
    held: Option<(KernelMemory, KernelMemory)>,
}

impl Memcpy {
    fn held(&self) -> &(KernelMemory, KernelMemory) {
        self.held.as_ref().expect("populated before used")
    }
}

impl Rival for Memcpy {
    type Snapshot = ();

    fn populate(&mut self, ground: &Ground) -> Result<(), BenchError> {
        match &self.held {
            // SAFETY: our own mapping.
            Some((from, _)) => unsafe { work::write_words(from.as_ptr().cast(), ground.size / 8, BIAS) },
            None => {
                let huge = |bias| KernelMemory::written(PageKind::Thp, ground.size, bias);
                self.held = Some((huge(BIAS)?, huge(0)?));
            }
        }
        Ok(())
    }

    fn start(&self) -> *mut u8 {
        self.held().0.as_ptr()
    }

    fn take(&mut self, _: &Words) -> Result<(), BenchError> {
        let (from, to) = self.held();
        // SAFETY: two mappings of our own of the same length.
        unsafe { libc::memcpy(to.as_ptr().cast(), from.as_ptr().cast(), from.len()) };
        Ok(())
    }

    fn copied(&self, _: &Words, _: usize) -> Option<usize> {
        Some(self.held().0.len())
    }

    /// The copy was there before the sample, so the kernel would not count it.
    fn memory(&self, held: Option<&()>) -> Option<usize> {
        Some(held.map_or(0, |()| self.held().1.len()))
    }

    fn let_go(&mut self, (): (), words: &Words) -> Result<(), BenchError> {
        // SAFETY: our own mapping.
        words.check_kept(unsafe { reader(self.held().1.as_ptr()) })
    }

    fn release(&mut self) {
        self.held = None;
    }

    /// Huge pages stay huge.
    fn end_sample(&mut self) {}
}
