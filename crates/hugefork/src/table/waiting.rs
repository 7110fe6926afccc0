//! Queues of the windows that have lazily freed pages, in the order in which reclaim visits them.
//!
//! ```text
//!   lazy_free ─▶ [ line ] ─▶ reclaim visits ─▶ all of it dropped or written again ─▶ gone
//!                   ▲                      └─▶ others hold the rest ─▶ [ shelved ]
//!                   └──────────── a holder has let go of a block since ──────┘
//! ```
//! Reclaim visits a window once, and again only if the holders of its blocks may have changed. So the work of a reclaim
//! is in proportion to the memory that it drops, even if much more is lazily freed but cannot be dropped.
//!
//! The mark of a window is not zero exactly while the window is in one of the two queues or in the hands of the holder
//! of [`Waiting::look`]. A link is a window number plus one, so zeroed memory is an empty queue.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::mem::{self, EngineBox};
use crate::sync::{WordGuard, WordLock};

/// The waiting windows of one region.
pub(crate) struct Waiting {
    /// For each window: the number of the `lazy_free` call since which it waits, or 0.
    marks: EngineBox<[AtomicU32]>,
    /// For each window: the link to the next one in its queue.
    next: EngineBox<[AtomicU32]>,
    /// The links to the first and the last window in line.
    first: AtomicU32,
    last: AtomicU32,
    /// The link to the window that was shelved last. The link of each leads to the one that was shelved before it.
    shelved: AtomicU32,
    /// Guards all of the above. The holder takes no other lock.
    links: WordLock,
    /// Held by the thread that visits windows taken from the line. Taken before the locks of windows and regions.
    looking: WordLock,
    /// The last `change` that [`Waiting::recall`] got.
    recalled_at: AtomicU64,
}

impl Waiting {
    /// Empty queues for `windows` windows.
    pub(crate) fn new(windows: usize) -> Waiting {
        Waiting {
            marks: mem::zeroed(windows),
            next: mem::zeroed(windows),
            first: AtomicU32::new(0),
            last: AtomicU32::new(0),
            shelved: AtomicU32::new(0),
            links: WordLock::default(),
            looking: WordLock::default(),
            recalled_at: AtomicU64::new(0),
        }
    }

    /// Bytes of metadata.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.marks) + size_of_val(&*self.next)
    }

    /// Whether the window waits.
    pub(crate) fn is_waiting(&self, window: usize) -> bool {
        self.marks[window].load(Ordering::Relaxed) != 0
    }

    /// Puts windows at the end of the line, as waiting since the call `mark`. A window that waits already keeps its
    /// place.
    pub(crate) fn enter(&self, windows: Range<usize>, mark: u32) {
        let _links = self.links.lock();
        for window in windows.filter(|window| !self.is_waiting(*window)) {
            self.marks[window].store(mark, Ordering::Relaxed);
            self.put_last(window);
        }
    }

    /// Gives the caller alone the right to take windows out of the line. Waits while another thread still visits some.
    pub(crate) fn look(&self) -> WordGuard<'_> {
        self.looking.lock()
    }

    /// The call since which the first window in line waits.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let _links = self.links.lock();
        let first = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.marks[first as usize].load(Ordering::Relaxed))
    }

    /// Takes the first window out of the line, and with it the following windows in line that are its upper neighbours:
    /// at most `most`, and none that waits since a call after `until`.
    pub(crate) fn take(&self, until: u32, most: usize) -> Option<Range<usize>> {
        let _links = self.links.lock();
        let first = self.first.load(Ordering::Relaxed).checked_sub(1)? as usize;
        let mut end = first;
        while end - first < most
            && self.first.load(Ordering::Relaxed) == end as u32 + 1
            && self.marks[end].load(Ordering::Relaxed) <= until
        {
            let behind = self.next[end].swap(0, Ordering::Relaxed);
            self.first.store(behind, Ordering::Relaxed);
            end += 1;
        }
        (end > first).then_some(first..end)
    }

    /// Puts a window that was taken back at the front of the line.
    pub(crate) fn put_back(&self, window: usize) {
        let _links = self.links.lock();
        self.put_first(window);
    }

    /// Shelves a window that was taken: none of its lazily freed blocks can be dropped now.
    pub(crate) fn shelve(&self, window: usize) {
        let _links = self.links.lock();
        self.next[window].store(self.shelved.swap(window as u32 + 1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Ends the wait of a window that was taken.
    pub(crate) fn leave(&self, window: usize) {
        self.marks[window].store(0, Ordering::Relaxed);
    }

    /// Moves all shelved windows to the front of the line if `change` is new. True if there were any. The guard proves
    /// that no thread visits windows meanwhile.
    pub(crate) fn recall(&self, _looking: &WordGuard<'_>, change: u64) -> bool {
        let _links = self.links.lock();
        let mut shelved = self.shelved.load(Ordering::Relaxed);
        if shelved == 0 || self.recalled_at.swap(change, Ordering::Relaxed) == change {
            return false;
        }
        // The last one that was shelved comes first here, so the first one is the first in line in the end.
        while let Some(window) = shelved.checked_sub(1) {
            shelved = self.next[window as usize].load(Ordering::Relaxed);
            self.put_first(window as usize);
        }
        self.shelved.store(0, Ordering::Relaxed);
        true
    }

    /// Puts a window at the front of the line. The caller holds `links`.
    fn put_first(&self, window: usize) {
        let first = self.first.swap(window as u32 + 1, Ordering::Relaxed);
        self.next[window].store(first, Ordering::Relaxed);
        if first == 0 {
            self.last.store(window as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Puts a window at the end of the line. The caller holds `links`.
    fn put_last(&self, window: usize) {
        let link = window as u32 + 1;
        self.next[window].store(0, Ordering::Relaxed);
        let last = self.last.swap(link, Ordering::Relaxed);
        if self.first.load(Ordering::Relaxed) == 0 {
            self.first.store(link, Ordering::Relaxed);
        } else {
            self.next[last as usize - 1].store(link, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    // The lists hold ranges; some have only one.
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    /// Takes all windows in line, run by run.
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
        assert_eq!(empty(&waiting, 2), [4..6, 2..4, 6..7], "a window that waits keeps its place");
        assert_eq!((waiting.oldest(), waiting.take(2, 1)), (Some(3), None));
        assert_eq!(empty(&waiting, 3), [9..10]);
        assert_eq!((waiting.oldest(), waiting.take(u32::MAX, 1)), (None, None));
        waiting.enter(2..7, 4);
        assert_eq!(waiting.take(4, 1), None, "they are taken");
    }

    #[test]
    fn what_is_put_back_is_first_and_what_is_shelved_waits_for_a_change() {
        let waiting = Waiting::new(10);
        waiting.enter(0..6, 1);
        assert_eq!(waiting.take(1, 4), Some(0..4));
        [3, 2].into_iter().for_each(|window| waiting.put_back(window));
        [0, 1].into_iter().for_each(|window| waiting.shelve(window));
        assert_eq!(empty(&waiting, 1), [2..6]);
        (2..6).for_each(|window| waiting.leave(window));
        assert!((2..6).all(|window| !waiting.is_waiting(window)) && waiting.is_waiting(0));
        waiting.put_back(7);
        assert!(waiting.recall(&waiting.look(), 5));
        assert_eq!(empty(&waiting, 1), [0..2, 7..8]);
        [0, 1].into_iter().for_each(|window| waiting.shelve(window));
        assert!(!waiting.recall(&waiting.look(), 5), "nothing has changed");
        assert!(waiting.recall(&waiting.look(), 6) && !waiting.recall(&waiting.look(), 7), "once");
        waiting.enter(8..9, 2);
        assert_eq!(empty(&waiting, 2), [0..2, 8..9]);
    }
}
