//! The threads of a pool: how they start, sleep without a timer until there is work, and end.

use std::io;
use std::time::Duration;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{self, SignalsBlocked};
use crate::sys::linux::owner;
use crate::sys::linux::threads::Thread;

/// A thread of a pool. The drop tells the thread to end, and waits for it if `tell_to_end` returns true. A `fork(2)`
/// child does not have the thread, so the drop there does neither.
pub(crate) struct Worker {
    thread: Option<Thread>,
    tell_to_end: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Worker {
    /// Starts a thread that does `work`, which must return soon after `tell_to_end` is called.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce() + Send + 'static,
        tell_to_end: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Worker> {
        // The thread inherits this signal mask, so the program's signals are not delivered to it.
        let _signals = SignalsBlocked::new();
        Ok(Worker { thread: Some(Thread::start(name, work)?), tell_to_end: Box::new(tell_to_end) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !owner::is_forked_child() && (self.tell_to_end)() {
            thread.join();
        }
    }
}

/// A place where a thread sleeps until there is work.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    /// 1 while the thread sleeps on this word.
    asleep: AtomicU32,
    /// 1 when the thread has to end. The thread also waits on this word when it pauses.
    stop: AtomicU32,
}

impl Parker {
    /// Whether the thread must end.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst) == 1
    }

    /// Tells the thread to end. Returns true, because that always works.
    pub(crate) fn tell_to_end(&self) -> bool {
        self.stop.store(1, Ordering::SeqCst);
        self.asleep.store(0, Ordering::SeqCst);
        sync::wake(&self.stop, 1);
        sync::wake(&self.asleep, 1);
        true
    }

    /// Whether the thread is asleep. The fault handler asks this after it has made work.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) == 1
    }

    /// Wakes the thread, unless it is awake, which takes a single load, or another thread has just done so. The fault
    /// handler calls this.
    pub(crate) fn wake(&self) {
        if self.is_asleep() && self.asleep.swap(0, Ordering::SeqCst) == 1 {
            sync::wake(&self.asleep, 1);
        }
    }

    /// Sleeps until another thread wakes it or tells it to end, but no longer than `time` if that is given. Does not
    /// sleep if there is work now. True if no other thread ended the sleep.
    pub(crate) fn sleep(&self, time: Option<Duration>, is_work: impl FnOnce() -> bool) -> bool {
        self.asleep.store(1, Ordering::SeqCst);
        // A thread that made work before the line above did not see this thread asleep, so this thread checks for work
        // itself.
        if is_work() || self.is_over() {
            self.asleep.store(0, Ordering::SeqCst);
            std::thread::yield_now();
            return false;
        }
        match time {
            Some(time) => sync::wait_at_most(&self.asleep, 1, time),
            None => sync::wait(&self.asleep, 1),
        }
        // A thread that wakes this one stores 0 first.
        self.asleep.swap(0, Ordering::SeqCst) == 1
    }

    /// Sleeps for `time`, or until another thread tells it to end. [`Parker::wake`] does not end this sleep.
    pub(crate) fn pause(&self, time: Duration) {
        sync::wait_at_most(&self.stop, 0, time);
    }
}
