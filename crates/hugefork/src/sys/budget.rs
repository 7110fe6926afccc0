//! How many mappings (VMAs) the process may still make: `vm.max_map_count` as a budget to count against, so that
//! running out is an error from `fork()` or `region()`, not an `ENOMEM` in the middle of a fault.

use core::sync::atomic::{AtomicUsize, Ordering};

/// The limit of the process, and what of it the engine uses.
#[derive(Debug)]
pub(crate) struct MappingBudget {
    /// What regions may use together: the kernel's limit less what the rest of the program has and a margin.
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

    /// Counts a change from `before` to `after` mappings.
    pub(crate) fn replace(&self, before: usize, after: usize) {
        if after >= before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            // Never below zero: a count that is off by one must not turn into an endless budget or an exhausted one.
            let less = before - after;
            let _ =
                self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(less)));
        }
    }
}
