//! What a region's recent faults say about the next ones.
//!
//! A program that writes memory from end to end faults at the first subpage of one block after the other. Such a stream is
//! recognised at its third block. Its blocks are then prepared for being written as a whole, and a few of the next ones
//! in the same fault: the signal, the mapping and the page walk cost 8 µs, a third of the clear.
//!
//! ```text
//!   streams   [ next entry : 32 | length : 32 ] × 8         any number of threads, one stream each, in one region
//! ```
//! Guesses only: entries are read and written without a lock, and a lost update costs a stream its head start.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::units::{BASE_PAGE, EntryIndex};

/// Streams that are followed at once.
const STREAMS: usize = 8;

/// Faults after which a stream is believed.
const BELIEVED: u32 = 2;

/// Blocks prepared in one fault at most, the one that faulted among them.
pub(crate) const MOST: usize = 4;

/// The recent faults of a region.
#[derive(Debug)]
pub(crate) struct History {
    streams: [AtomicU64; STREAMS],
    /// Where the next stream is noted.
    next: AtomicUsize,
}

/// The stream that a fault belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    slot: usize,
    /// Faults of it so far, before this one.
    length: u32,
}

impl Default for History {
    fn default() -> Self {
        // No entry has this index, so nothing continues a stream that never began.
        History { streams: [const { AtomicU64::new(u32::MAX as u64) }; STREAMS], next: AtomicUsize::new(0) }
    }
}

impl History {
    /// The stream of a fault at byte `target` of the block at `index`, if it may be part of one.
    pub(crate) fn stream(&self, index: EntryIndex, target: usize) -> Option<Stream> {
        if target >= BASE_PAGE {
            return None;
        }
        let continues = |stream: &AtomicU64| stream.load(Ordering::Relaxed) as u32 == index.0 as u32;
        let Some(slot) = self.streams.iter().position(continues) else {
            let slot = self.next.fetch_add(1, Ordering::Relaxed) % STREAMS;
            return Some(Stream { slot, length: 0 });
        };
        Some(Stream { slot, length: (self.streams[slot].load(Ordering::Relaxed) >> 32) as u32 + 1 })
    }

    /// Notes that a fault of `stream` has prepared the blocks before `next`.
    pub(crate) fn advance(&self, stream: Stream, next: EntryIndex) {
        self.streams[stream.slot].store(u64::from(stream.length) << 32 | next.0 as u64, Ordering::Relaxed);
    }
}

impl Stream {
    /// Whether the program is taken to write whole blocks.
    pub(crate) fn is_believed(self) -> bool {
        self.length >= BELIEVED
    }

    /// Blocks to prepare beside the one that faulted: none until the stream is believed, then one, and more as it goes on.
    pub(crate) fn ahead(self) -> usize {
        if self.is_believed() { (1 << (self.length - BELIEVED + 1).min(8)).min(MOST) - 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults at each of `indices`, as if one block at a time were prepared; the ahead of each.
    fn run(history: &History, indices: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let ahead = |index| {
            let stream = history.stream(EntryIndex(index), 8).unwrap();
            history.advance(stream, EntryIndex(index + 1));
            stream.ahead()
        };
        indices.into_iter().map(ahead).collect()
    }

    #[test]
    fn a_stream_is_believed_at_its_third_block_and_followed_further_each_time() {
        assert_eq!(run(&History::default(), 10..17), [0, 0, 1, 3, 3, 3, 3]);
    }

    #[test]
    fn interleaved_streams_are_told_apart_and_jumps_are_no_stream() {
        let history = History::default();
        let interleaved = (0..4).flat_map(|step| [step, 100 + step, 200 + step]);
        assert_eq!(run(&history, interleaved), [0, 0, 0, 0, 0, 0, 1, 1, 1, 3, 3, 3]);
        assert_eq!(run(&History::default(), [5, 4, 3, 9, 7, 1, 3]), [0; 7]);
    }

    #[test]
    fn a_fault_inside_a_block_is_no_part_of_a_stream() {
        assert!(History::default().stream(EntryIndex(3), BASE_PAGE).is_none());
    }
}
