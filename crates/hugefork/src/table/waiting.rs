//! Windows in which something was lazily freed, in the order in which reclaim looks at them.
//!
//! ```text
//!   lazy_free ─▶ [ line ] ─▶ reclaim looks ─▶ all of it dropped or written again ─▶ gone
//!                   ▲                     └─▶ others hold what is left ─▶ [ aside ]
//!                   └──────────── somebody has let go of something since ─────┘
//! ```
//! A window is looked at once, and again only if what it found there may have changed. So the work of a reclaim is in
//! proportion to what it drops, however much is lazily freed that cannot be dropped.
//!
//! A window is in one of the two queues, or in the hands of who holds [`Waiting::look`], exactly while its mark is not
//! zero. Links are window numbers plus one, so that zeroed memory is an empty queue.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::own::{self, Boxed};
use crate::sync::{WordGuard, WordLock};

/// The windows of one region that wait.
pub(crate) struct Waiting {
    /// The `lazy_free` call that a window waits since, 0 if it does not.
    marks: Boxed<[AtomicU32]>,
    /// The window behind each in its queue.
    next: Boxed<[AtomicU32]>,
    line: Queue,
    aside: Queue,
    /// Guards all of the above. A leaf: nothing is locked under it.
    links: WordLock,
    /// Held by who looks at windows that were taken out of the line. Before windows and the region lock.
    looking: WordLock,
    /// What [`Waiting::recall`] was told last.
    recalled_at: AtomicU64,
}

#[derive(Default)]
struct Queue {
    first: AtomicU32,
    last: AtomicU32,
}

impl Waiting {
    /// Nothing waits.
    pub(crate) fn new(windows: usize) -> Waiting {
        Waiting {
            marks: own::zeroed(windows),
            next: own::zeroed(windows),
            line: Queue::default(),
            aside: Queue::default(),
            links: WordLock::default(),
            looking: WordLock::default(),
            recalled_at: AtomicU64::new(0),
        }
    }

    /// Bytes of metadata.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.marks) + size_of_val(&*self.next)
    }

    /// The call that the window waits since, if it does.
    pub(crate) fn is_waiting(&self, window: usize) -> bool {
        self.marks[window].load(Ordering::Relaxed) != 0
    }

    /// Puts windows at the end of the line, since the call `mark`. What waits already keeps its place.
    pub(crate) fn enter(&self, windows: Range<usize>, mark: u32) {
        let _links = self.links.lock();
        let (mut first, mut last) = (self.line.first.load(Ordering::Relaxed), self.line.last.load(Ordering::Relaxed));
        for (at, waits) in windows.clone().zip(&self.marks[windows]) {
            if waits.load(Ordering::Relaxed) != 0 {
                continue;
            }
            waits.store(mark, Ordering::Relaxed);
            let link = at as u32 + 1;
            if first == 0 {
                first = link;
            } else {
                self.next[last as usize - 1].store(link, Ordering::Relaxed);
            }
            last = link;
        }
        // What waits nowhere has no link: `take` clears it, and so does `recall` for the last one.
        self.line.first.store(first, Ordering::Relaxed);
        self.line.last.store(last, Ordering::Relaxed);
    }

    /// Keeps others from taking windows out of the line, and waits for who has some.
    pub(crate) fn look(&self) -> WordGuard<'_> {
        self.looking.lock()
    }

    /// The call that the first window in line waits since.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let _links = self.links.lock();
        let first = self.line.first.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.marks[first as usize].load(Ordering::Relaxed))
    }

    /// Takes the first window out of the line, and those behind it that are its neighbours: `most` at most, and none that waits
    /// since a call after `until`.
    pub(crate) fn take(&self, until: u32, most: usize) -> Option<Range<usize>> {
        let _links = self.links.lock();
        let first = self.line.first.load(Ordering::Relaxed).checked_sub(1)? as usize;
        let mut end = first;
        while end - first < most
            && self.line.first.load(Ordering::Relaxed) == end as u32 + 1
            && self.marks[end].load(Ordering::Relaxed) <= until
        {
            let behind = self.next[end].swap(0, Ordering::Relaxed);
            self.line.first.store(behind, Ordering::Relaxed);
            end += 1;
        }
        (end > first).then_some(first..end)
    }

    /// Puts a window back that was taken, before all others.
    pub(crate) fn put_back(&self, window: usize) {
        let _links = self.links.lock();
        let first = self.line.first.load(Ordering::Relaxed);
        if first == 0 {
            self.push(&self.line, window);
        } else {
            self.next[window].store(first, Ordering::Relaxed);
            self.line.first.store(window as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Sets a window that was taken aside: nothing of what is lazily freed there can be dropped now.
    pub(crate) fn set_aside(&self, window: usize) {
        let _links = self.links.lock();
        self.push(&self.aside, window);
    }

    /// A window that was taken waits no more.
    pub(crate) fn leave(&self, window: usize) {
        self.marks[window].store(0, Ordering::Relaxed);
    }

    /// Puts all that was set aside back, before all others, if `change` is not what it was at the last time. True if there
    /// was anything. Nobody has windows in hand meanwhile.
    pub(crate) fn recall(&self, _looking: &WordGuard<'_>, change: u64) -> bool {
        let _links = self.links.lock();
        let first = self.aside.first.load(Ordering::Relaxed);
        if first == 0 || self.recalled_at.swap(change, Ordering::Relaxed) == change {
            return false;
        }
        let last = self.aside.last.load(Ordering::Relaxed);
        let line = self.line.first.load(Ordering::Relaxed);
        self.next[last as usize - 1].store(line, Ordering::Relaxed);
        self.line.first.store(first, Ordering::Relaxed);
        if line == 0 {
            self.line.last.store(last, Ordering::Relaxed);
        }
        self.aside.first.store(0, Ordering::Relaxed);
        true
    }

    /// At the end of a queue. Under `links`.
    fn push(&self, queue: &Queue, window: usize) {
        let link = window as u32 + 1;
        self.next[window].store(0, Ordering::Relaxed);
        if queue.first.load(Ordering::Relaxed) == 0 {
            queue.first.store(link, Ordering::Relaxed);
        } else {
            let last = queue.last.load(Ordering::Relaxed) as usize - 1;
            self.next[last].store(link, Ordering::Relaxed);
        }
        queue.last.store(link, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    // Lists of runs, some of one run.
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    /// All that is in line, run by run.
    fn empty(waiting: &Waiting, until: u32) -> Vec<Range<usize>> {
        std::iter::from_fn(|| waiting.take(until, usize::MAX)).collect()
    }

    #[test]
    fn windows_come_in_the_order_of_their_calls_and_neighbours_together() {
        let waiting = Waiting::new(10);
        waiting.enter(4..6, 1);
        waiting.enter(2..7, 2);
        waiting.enter(9..10, 3);
        assert_eq!(waiting.oldest(), Some(1));
        assert_eq!(empty(&waiting, 2), [4..6, 2..4, 6..7], "what waits keeps its place");
        assert_eq!((waiting.oldest(), waiting.take(2, 1)), (Some(3), None));
        assert_eq!(empty(&waiting, 3), [9..10]);
        assert_eq!((waiting.oldest(), waiting.take(u32::MAX, 1)), (None, None));
        waiting.enter(2..7, 4);
        assert_eq!(waiting.take(4, 1), None, "they are in somebody's hands");
    }

    #[test]
    fn what_is_put_back_is_first_and_what_is_set_aside_waits_for_a_change() {
        let waiting = Waiting::new(10);
        waiting.enter(0..6, 1);
        assert_eq!(waiting.take(1, 4), Some(0..4));
        [3, 2].into_iter().for_each(|window| waiting.put_back(window));
        [0, 1].into_iter().for_each(|window| waiting.set_aside(window));
        assert_eq!(empty(&waiting, 1), [2..6]);
        (2..6).for_each(|window| waiting.leave(window));
        assert!((2..6).all(|window| !waiting.is_waiting(window)) && waiting.is_waiting(0));
        waiting.put_back(7);
        assert!(waiting.recall(&waiting.look(), 5));
        assert_eq!(empty(&waiting, 1), [0..2, 7..8]);
        [0, 1].into_iter().for_each(|window| waiting.set_aside(window));
        assert!(!waiting.recall(&waiting.look(), 5), "nothing has changed");
        assert!(waiting.recall(&waiting.look(), 6) && !waiting.recall(&waiting.look(), 7), "once");
        waiting.enter(8..9, 2);
        assert_eq!(empty(&waiting, 2), [0..2, 8..9]);
    }
}
