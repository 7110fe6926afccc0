//! The threads of a pool.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::sync::SignalsBlocked;
use crate::sys::linux::owner;

/// A thread of a pool; told to end, and waited for, when this is dropped. In a `fork(2)` child, into which it did not come
/// along, it is forgotten.
pub(crate) struct Worker {
    thread: Option<JoinHandle<()>>,
    tell_to_end: Box<dyn Fn() + Send + Sync>,
}

impl Worker {
    /// Starts a thread that does `work` until `tell_to_end` is called.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce() + Send + 'static,
        tell_to_end: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Worker> {
        // The thread inherits the mask: signals of the program are not for it.
        let _signals = SignalsBlocked::new();
        let thread = Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Worker { thread: Some(thread), tell_to_end: Box::new(tell_to_end) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if owner::is_forked_child() {
            std::mem::forget(thread);
            return;
        }
        (self.tell_to_end)();
        // It does not panic; if it did, the pool is going away all the same.
        let _ = thread.join();
    }
}
