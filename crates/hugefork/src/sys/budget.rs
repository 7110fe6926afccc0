//! The budget of mappings (VMAs): how many the process may still make before it reaches `vm.max_map_count`. When it
//! runs out, `fork()` or `region()` returns an error, and no fault fails with `ENOMEM` half-way.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Mappings that regions leave to the rest of the program.
pub(crate) const MARGIN_MAPPINGS: usize = 1024;

/// The mapping limit of the process, and the mappings that count against it.
#[derive(Debug)]
pub(crate) struct MappingBudget {
    /// The kernel's limit for the process.
    most: AtomicUsize,
    /// The mappings of the rest of the program.
    others: AtomicUsize,
    /// The mappings of all regions.
    used: AtomicUsize,
    /// The mappings that all regions could still make when the others were last counted.
    left: AtomicUsize,
}

impl MappingBudget {
    pub(crate) const fn new(most: usize) -> MappingBudget {
        let [others, used] = [const { AtomicUsize::new(0) }; 2];
        MappingBudget { most: AtomicUsize::new(most), others, used, left: AtomicUsize::new(most) }
    }

    /// Sets the kernel's limit `most`, and the number of mappings of the rest of the program.
    pub(crate) fn set(&self, most: usize, others: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.others.store(others, Ordering::Relaxed);
        self.left.store(self.limit().saturating_sub(self.used()), Ordering::Relaxed);
    }

    /// Whether the mappings of the rest of the program should be counted before `more` are made: if half of what was
    /// left at the last count is used. To count 30 000 mappings takes 30 ms, and 200 ms on a busy machine, in which
    /// threads that change mappings wait.
    pub(crate) fn is_count_due(&self, more: usize) -> bool {
        !self.fits(more + self.left.load(Ordering::Relaxed) / 2)
    }

    /// How many mappings all regions may have together.
    pub(crate) fn limit(&self) -> usize {
        self.most().saturating_sub(self.others.load(Ordering::Relaxed) + MARGIN_MAPPINGS)
    }

    /// The kernel's limit for the process (`vm.max_map_count`).
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// The mappings of the process: those of the regions, and those of the rest of the program as they were last
    /// counted.
    pub(crate) fn of_process(&self) -> usize {
        self.others.load(Ordering::Relaxed) + self.used()
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether `more` mappings fit.
    pub(crate) fn fits(&self, more: usize) -> bool {
        self.used().saturating_add(more) <= self.limit()
    }

    /// Counts `after` mappings in place of `before`.
    pub(crate) fn replace(&self, before: usize, after: usize) {
        // The count never goes below zero: an error of one must not wrap it around, which would use up the budget.
        self.used.update(Ordering::Relaxed, Ordering::Relaxed, |used| (used + after).saturating_sub(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_program_is_counted_whenever_half_of_what_was_left_is_gone() {
        let budget = MappingBudget::new(65_530);
        budget.set(65_530, 500);
        let mut counted = 0;
        while budget.fits(2) {
            if budget.is_count_due(2) {
                counted += 1;
                budget.set(65_530, 500);
            }
            budget.replace(0, 2);
        }
        assert!((10..20).contains(&counted), "{counted}");
    }
}
