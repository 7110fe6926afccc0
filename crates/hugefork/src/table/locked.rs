//! Guards of windows, and the proof that entries may be changed.

use core::marker::PhantomData;

use crate::sync::{ExclusiveGuard, SharedGuard, WordLock};

/// Holds the locks of neighbouring windows, perhaps of none, until dropped.
#[derive(Default)]
pub(crate) struct WindowsGuard<'a> {
    locks: &'a [WordLock],
}

impl<'a> WindowsGuard<'a> {
    /// Holds windows that the caller has locked.
    pub(super) fn of(locks: &'a [WordLock]) -> WindowsGuard<'a> {
        WindowsGuard { locks }
    }

    /// A guard for each of the windows, in order. A window whose guard is not taken from the iterator stays locked.
    pub(crate) fn each(self) -> impl Iterator<Item = WindowsGuard<'a>> {
        let locks = self.locks;
        self.keep();
        locks.chunks(1).map(WindowsGuard::of)
    }

    /// Leaves the windows locked, for [`Table::kept`].
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for WindowsGuard<'_> {
    fn drop(&mut self) {
        self.locks.iter().for_each(WordLock::release);
    }
}

/// The proof that entries of a table may be changed.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a>(PhantomData<&'a ()>);

impl<'a> Locked<'a> {
    /// The windows are locked, and no snapshot is being taken.
    pub(crate) fn windows(_windows: &'a WindowsGuard<'_>, _publishing: &'a SharedGuard<'_>) -> Locked<'a> {
        Locked(PhantomData)
    }

    /// Nobody else changes any entry.
    pub(crate) fn alone(_alone: &'a ExclusiveGuard<'_>) -> Locked<'a> {
        Locked(PhantomData)
    }
}
