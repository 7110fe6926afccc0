//! Values with several owners. The fault handler reads them, but never makes, clones or drops one.

use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use super::{EngineBox, Own};

/// A value with several owners; the last one drops it.
pub(crate) struct EngineArc<T> {
    inner: NonNull<Inner<T>>,
}

struct Inner<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: owners on any thread hand out `&T`, and the last one drops the `T`.
unsafe impl<T: Send + Sync> Send for EngineArc<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for EngineArc<T> {}

impl<T> EngineArc<T> {
    pub(crate) fn new(value: T) -> EngineArc<T> {
        let inner = EngineBox::new_in(Inner { owners: AtomicUsize::new(1), value }, Own);
        EngineArc { inner: EngineBox::into_non_null(inner) }
    }

    /// Exclusive access to the value. If it has other owners, this one gets a copy of it first, so no other sees a
    /// change.
    pub(crate) fn make_mut(&mut self) -> &mut T
    where
        T: Clone,
    {
        if self.inner().owners.load(Ordering::Acquire) > 1 {
            *self = EngineArc::new(T::clone(self));
        }
        // SAFETY: this is the only owner, so nobody else can make or have a reference while this one is borrowed.
        unsafe { &mut self.inner.as_mut().value }
    }

    /// Whether both own the same value.
    pub(crate) fn is(&self, other: &EngineArc<T>) -> bool {
        self.inner == other.inner
    }

    /// The number of owners at this moment.
    pub(crate) fn owners(&self) -> usize {
        self.inner().owners.load(Ordering::Relaxed)
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: the value is there while it has an owner, and only shared references to it are made until it has
        // none.
        unsafe { self.inner.as_ref() }
    }
}

impl<T> Clone for EngineArc<T> {
    fn clone(&self) -> EngineArc<T> {
        self.inner().owners.fetch_add(1, Ordering::Relaxed);
        EngineArc { inner: self.inner }
    }
}

impl<T> Deref for EngineArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: core::fmt::Debug> core::fmt::Debug for EngineArc<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Default> Default for EngineArc<T> {
    fn default() -> EngineArc<T> {
        EngineArc::new(T::default())
    }
}

impl<T> Drop for EngineArc<T> {
    fn drop(&mut self) {
        if self.inner().owners.fetch_sub(1, Ordering::Release) == 1 {
            // Everything that other owners did happens before the drop.
            fence(Ordering::Acquire);
            // SAFETY: `new` made it from a box, and nobody owns it any more.
            drop(unsafe { EngineBox::from_non_null_in(self.inner, Own) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_last_owner_drops() {
        let watched = Arc::new(());
        let first = EngineArc::new(Arc::clone(&watched));
        let owners: Vec<_> = (0..50).map(|_| first.clone()).collect();
        assert!(owners[3].is(&first) && !first.is(&EngineArc::new(Arc::clone(&watched))));
        std::thread::scope(|scope| {
            for owner in owners {
                scope.spawn(move || assert!(Arc::strong_count(&owner) > 1));
            }
        });
        assert_eq!(Arc::strong_count(&watched), 2);
        drop(first);
        assert_eq!(Arc::strong_count(&watched), 1);
    }
}
