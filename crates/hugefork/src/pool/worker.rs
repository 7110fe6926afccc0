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

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// Another thread woke it, or there was work at once.
    UntilWoken,
    /// The time was over.
    ToTheEnd,
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

    /// Wakes the thread, unless another thread has just done so.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(0, Ordering::SeqCst) == 1 {
            sync::wake(&self.asleep, 1);
        }
    }

    /// Sleeps until another thread wakes it or tells it to end. Does not sleep if there is work now.
    pub(crate) fn sleep_unless(&self, is_work: impl FnOnce() -> bool) {
        self.asleep.store(1, Ordering::SeqCst);
        // A thread that made work before the line above did not see this thread asleep, so this thread checks for work
        // itself.
        if is_work() || self.is_over() {
            self.asleep.store(0, Ordering::SeqCst);
            std::thread::yield_now();
        } else {
            sync::wait(&self.asleep, 1);
        }
    }

    /// As [`Parker::sleep_unless`], but for at most `time`.
    pub(crate) fn sleep_at_most(&self, time: Duration, is_work: impl FnOnce() -> bool) -> Slept {
        self.asleep.store(1, Ordering::SeqCst);
        if is_work() || self.is_over() {
            self.asleep.store(0, Ordering::SeqCst);
            std::thread::yield_now();
            return Slept::UntilWoken;
        }
        sync::wait_at_most(&self.asleep, 1, time);
        // A thread that wakes this one stores 0 first.
        match self.asleep.swap(0, Ordering::SeqCst) {
            0 => Slept::UntilWoken,
            _ => Slept::ToTheEnd,
        }
    }

    /// Sleeps for `time`, or until another thread wakes it or tells it to end.
    pub(crate) fn rest(&self, time: Duration) {
        self.asleep.store(1, Ordering::SeqCst);
        if !self.is_over() {
            sync::wait_at_most(&self.asleep, 1, time);
        }
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// Sleeps for `time`, or until another thread tells it to end. [`Parker::wake`] does not end this sleep.
    pub(crate) fn pause(&self, time: Duration) {
        sync::wait_at_most(&self.stop, 0, time);
    }
}
