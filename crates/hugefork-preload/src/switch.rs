//! Whether anything is done in this process.

use std::sync::atomic::{AtomicU8, Ordering};

/// Nothing is done before the constructor, where nobody asks for it, and once the library has stepped aside.
pub(crate) const OFF: u8 = 0;
pub(crate) const ON: u8 = 1;
/// The same, and small mappings lie in the pool, too.
pub(crate) const ON_FOR_SMALL: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(OFF);

/// Whether the library does anything.
pub(crate) fn is_on() -> bool {
    STATE.load(Ordering::Acquire) != OFF
}

/// Whether small mappings lie in the pool, too.
pub(crate) fn takes_small() -> bool {
    STATE.load(Ordering::Relaxed) == ON_FOR_SMALL
}

/// From now on, it is so.
pub(crate) fn set(state: u8) {
    STATE.store(state, Ordering::Release);
}
