//! Guards of locked windows, and the proof that the holder may change entries.

use core::marker::PhantomData;

use crate::sync::{ExclusiveGuard, SharedGuard, WordLock};

/// Holds the locks of neighbouring windows until it is dropped. It may hold none.
#[derive(Default)]
pub(crate) struct WindowsGuard<'a> {
    locks: &'a [WordLock],
}

impl<'a> WindowsGuard<'a> {
    /// A guard for windows that the caller has locked.
    pub(super) fn of(locks: &'a [WordLock]) -> WindowsGuard<'a> {
        WindowsGuard { locks }
    }

    /// Splits this guard into one for each window, in order. A window whose guard is not taken from the iterator stays
    /// locked.
    pub(crate) fn each(self) -> impl Iterator<Item = WindowsGuard<'a>> {
        let locks = self.locks;
        self.keep();
        locks.chunks(1).map(WindowsGuard::of)
    }

    /// Leaves the windows locked; [`Table::kept`] makes a guard for them again.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for WindowsGuard<'_> {
    fn drop(&mut self) {
        self.locks.iter().for_each(WordLock::release);
    }
}

/// The proof that its holder may change entries of a table.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a>(PhantomData<&'a ()>);

impl<'a> Locked<'a> {
    /// From the locks of the windows and the shared region lock, which keeps snapshots out.
    pub(crate) fn windows(_windows: &'a WindowsGuard<'_>, _publishing: &'a SharedGuard<'_>) -> Locked<'a> {
        Locked(PhantomData)
    }

    /// From the exclusive region lock: no other thread changes any entry.
    pub(crate) fn alone(_alone: &'a ExclusiveGuard<'_>) -> Locked<'a> {
        Locked(PhantomData)
    }
}
