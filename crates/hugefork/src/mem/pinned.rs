//! Values that stay in place because others know them by pointer: the fault handler through the arena, and the pool
//! through its list of holders.
//!
//! In practice a `Box` would do. But a move of a `Box` claims that it is the only way to its value, and so does the
//! `&mut` of a `drop`, while a handler or the pool may be reading the value. A [`PinnedBox`] makes no such claim until
//! all who know the value have forgotten it ([`Known::withdraw`]).

use core::ops::Deref;
use core::ptr::NonNull;

use crate::mem::{EngineBox, Own};
use crate::sys::linux::owner;

/// A value that others may know by pointer.
pub(crate) trait Known {
    /// Ends all access by pointer: after this returns, no thread reads the value through a pointer any more.
    fn withdraw(&self);
}

/// Owns a value that stays in place until it is withdrawn and dropped. A child of `fork(2)` keeps it.
pub(crate) struct PinnedBox<T: Known> {
    value: NonNull<T>,
}

// SAFETY: it hands out `&T`, and drops the `T` on the thread that drops it.
unsafe impl<T: Known + Send + Sync> Send for PinnedBox<T> {}
// SAFETY: as above.
unsafe impl<T: Known + Send + Sync> Sync for PinnedBox<T> {}

impl<T: Known> PinnedBox<T> {
    pub(crate) fn new(value: T) -> PinnedBox<T> {
        PinnedBox { value: EngineBox::into_non_null(EngineBox::new_in(value, Own)) }
    }
}

impl<T: Known> Deref for PinnedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value lives until this is dropped, and only shared references to it are made until then.
        unsafe { self.value.as_ref() }
    }
}

impl<T: Known> Drop for PinnedBox<T> {
    fn drop(&mut self) {
        // In a child of fork(2), the memory is the parent's, and missing threads may hold locks.
        if owner::is_forked_child() {
            return;
        }
        self.withdraw();
        // SAFETY: `new` made it from a box, and nobody else knows it any more.
        drop(unsafe { EngineBox::from_non_null_in(self.value, Own) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    struct Notes<'a>(&'a RefCell<Vec<&'static str>>);

    impl Known for Notes<'_> {
        fn withdraw(&self) {
            self.0.borrow_mut().push("withdrawn");
        }
    }

    impl Drop for Notes<'_> {
        fn drop(&mut self) {
            self.0.borrow_mut().push("dropped");
        }
    }

    #[test]
    fn a_value_stays_in_place_when_its_owner_moves_and_is_withdrawn_before_it_goes() {
        let notes = RefCell::new(Vec::new());
        let owner = PinnedBox::new(Notes(&notes));
        let at: *const Notes<'_> = &raw const *owner;
        let moved = Some(owner);
        assert_eq!(moved.as_deref().map(core::ptr::from_ref), Some(at));
        assert!(notes.borrow().is_empty());
        drop(moved);
        assert_eq!(*notes.borrow(), ["withdrawn", "dropped"]);
    }
}
