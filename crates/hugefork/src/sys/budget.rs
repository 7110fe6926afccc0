//! How many mappings (VMAs) the process may still make: a budget out of `vm.max_map_count`. When it runs out, `fork()`
//! or `region()` returns an error, and no fault fails with `ENOMEM` half-way.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Mappings that regions leave to the rest of the program.
pub(crate) const MARGIN_MAPPINGS: usize = 1024;

/// The limit of the process, and how much of it the engine uses.
#[derive(Debug)]
pub(crate) struct MappingBudget {
    /// The limit of the kernel for the process.
    most: AtomicUsize,
    /// Those of the rest of the program.
    others: AtomicUsize,
    /// Those of all regions.
    used: AtomicUsize,
}

impl MappingBudget {
    pub(crate) const fn new(most: usize) -> MappingBudget {
        MappingBudget { most: AtomicUsize::new(most), others: AtomicUsize::new(0), used: AtomicUsize::new(0) }
    }

    /// The kernel allows `most`, of which the rest of the program has `others`.
    pub(crate) fn set(&self, most: usize, others: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.others.store(others, Ordering::Relaxed);
    }

    /// Those that all regions may have together.
    pub(crate) fn limit(&self) -> usize {
        self.most().saturating_sub(self.others.load(Ordering::Relaxed) + MARGIN_MAPPINGS)
    }

    /// The limit of the kernel for the process (`vm.max_map_count`).
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Those of the process: the regions', and those of the rest of the program when they were last counted.
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
        if after >= before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            // It never goes below zero: a count that is off by one must not turn into an endless or an exhausted
            // budget.
            let less = before - after;
            let _ =
                self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(less)));
        }
    }
}
