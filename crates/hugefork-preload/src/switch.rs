//! Whether the library is active in this process.

use std::sync::atomic::{AtomicU8, Ordering};

/// Inactive: before the constructor, without the command's variable, and after a withdrawal.
pub(crate) const OFF: u8 = 0;
pub(crate) const ON: u8 = 1;
/// Active, with small mappings in the pool, too.
pub(crate) const ON_FOR_SMALL: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(OFF);

/// Whether the library is active.
pub(crate) fn is_on() -> bool {
    STATE.load(Ordering::Acquire) != OFF
}

/// Whether small mappings lie in the pool, too.
pub(crate) fn takes_small() -> bool {
    STATE.load(Ordering::Relaxed) == ON_FOR_SMALL
}

/// Sets the state.
pub(crate) fn set(state: u8) {
    STATE.store(state, Ordering::Release);
}
