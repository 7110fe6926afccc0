//! The memory of regions that the child of a fork under way gets ([`Children`](crate::Children)).
//!
//! libc calls the handlers of `pthread_atfork` in a child in the order of their registration. So a library that is
//! older than the first pool runs before the engine there, and may touch a region, as an allocator does whose data lie
//! in one. Then the fault handler shows the memory.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::mem::{EngineVec, Own};
use crate::sys::SystemError;
use crate::sys::linux::children::{Piece, Witness};
use crate::sys::linux::stderr::say;
use crate::sys::linux::threads;

/// The memory that a child gets. This value lies in the engine's memory, where it does not move while it is announced.
pub(crate) struct Inheritance {
    /// The thread that forks, by its handle.
    thread: usize,
    parts: EngineVec<Part>,
    is_shown: bool,
    /// Why the child lacks a region, if it does.
    pub(crate) lacks: Option<SystemError>,
}

/// The part of it that belongs to one pool.
struct Part {
    witness: Witness,
    shown: EngineVec<Shown>,
}

/// The contents of a region's addresses in a child.
pub(crate) struct Shown {
    pub(crate) addresses: Range<usize>,
    /// Parts of the pool's file.
    pub(crate) mapped: EngineVec<Piece>,
    /// Pages in place of some in the parts above.
    pub(crate) copied: EngineVec<Piece>,
}

/// That of the fork under way.
static ANNOUNCED: AtomicPtr<Inheritance> = AtomicPtr::new(ptr::null_mut());

impl Inheritance {
    /// For a child that the calling thread is about to fork.
    pub(crate) fn new() -> Inheritance {
        let thread = threads::own_handle();
        Inheritance { thread, parts: EngineVec::new_in(Own), is_shown: false, lacks: None }
    }

    /// Adds a pool, and returns its number.
    pub(crate) fn add_pool(&mut self, witness: Witness) -> usize {
        self.parts.push(Part { witness, shown: EngineVec::new_in(Own) });
        self.parts.len() - 1
    }

    /// Adds a region of the pool with that number.
    pub(crate) fn add_region(&mut self, pool: usize, shown: Shown) {
        self.parts[pool].shown.push(shown);
    }

    /// The child has nothing.
    pub(crate) fn give_nothing(&mut self) {
        self.parts.clear();
    }

    /// From now on, a fault of the child shows the memory.
    ///
    /// # Safety
    /// It does not move, and is not dropped, before [`Inheritance::withdraw`]. Only one is announced at a time.
    pub(crate) unsafe fn announce(&mut self) {
        ANNOUNCED.store(self, Ordering::Release);
    }

    /// Ends what [`Inheritance::announce`] has begun.
    pub(crate) fn withdraw() {
        ANNOUNCED.store(ptr::null_mut(), Ordering::Release);
    }

    /// In the child: shows the memory, unless that is done. Returns whether it was not.
    pub(crate) fn show_regions(&mut self) -> bool {
        if self.is_shown {
            return false;
        }
        self.is_shown = true;
        for part in &self.parts {
            for Shown { addresses, mapped, copied } in &part.shown {
                // SAFETY: the addresses of a region, which the child does not have.
                if let Err(error) = unsafe { part.witness.show(addresses, mapped, copied) } {
                    say(format_args!("this child of fork(2) lacks the region at {:#x}: {error}", addresses.start));
                    self.lacks = Some(error);
                }
            }
        }
        true
    }
}

/// For a fault in a child: shows the memory if the calling thread has just been forked. Returns whether it has shown
/// any.
pub(crate) fn show_announced() -> bool {
    // SAFETY: it is announced, so it is there. A child has one thread, which the fault has interrupted outside of the
    // engine: the engine touches no region while it uses this value.
    let Some(announced) = (unsafe { ANNOUNCED.load(Ordering::Acquire).as_mut() }) else { return false };
    // A child that another thread has made without libc, meanwhile, is not the one.
    announced.thread == threads::own_handle() && announced.show_regions()
}
