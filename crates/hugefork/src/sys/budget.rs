//! How many mappings (VMAs) the process may still make: a budget out of `vm.max_map_count`. When it runs out, `fork()`
//! or `region()` returns an error, and no fault fails with `ENOMEM` half-way.

use core::sync::atomic::{AtomicUsize, Ordering};

/// The limit of the process, and how much of it the engine uses.
#[derive(Debug)]
pub(crate) struct MappingBudget {
    /// What all regions may use together: the kernel's limit less a margin and less what the rest of the program has.
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl MappingBudget {
    pub(crate) const fn new(limit: usize) -> MappingBudget {
        MappingBudget { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
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
