//! Whether the calling thread is in the middle of something that a cut waits for. A signal handler of the program may
//! interrupt it there and fork, and the cut for the child must not wait for its own thread then.

use core::cell::Cell;
use core::marker::PhantomData;

thread_local! {
    /// How many [`Engaged`] of this thread are alive.
    static ENGAGED: Cell<usize> = const { Cell::new(0) };
}

/// Marks the calling thread until it is dropped.
#[derive(Debug)]
pub(crate) struct Engaged(PhantomData<*mut ()>);

impl Engaged {
    pub(crate) fn new() -> Engaged {
        ENGAGED.replace(ENGAGED.get() + 1);
        Engaged(PhantomData)
    }

    /// Whether the calling thread is marked.
    pub(crate) fn is_this_thread() -> bool {
        ENGAGED.get() > 0
    }
}

impl Drop for Engaged {
    fn drop(&mut self) {
        ENGAGED.replace(ENGAGED.get() - 1);
    }
}
