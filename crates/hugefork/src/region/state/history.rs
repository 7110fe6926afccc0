//! The recent faults of a region, as a forecast of the next ones.
//!
//! A program that writes memory from end to end faults at the first subpage of one block after another, or at the last
//! one if it goes down. The engine recognises such a stream at its third block. From then on it prepares the stream's
//! blocks for being written as a whole, and each fault also prepares a few of the next blocks. That saves the faults
//! there: the signal, the mapping and the page walk cost 8 µs, a third of the clear.
//!
//! A program that strides touches each block somewhere inside. Its direction still tells on which side of the fault
//! address it goes on. The part of the block that a clear or copy leaves in the cache is on that side.
//!
//! ```text
//!   streams   [ next entry : 32 | down : 1 | length : 31 ] × 8     any number of threads, a stream each
//!   trend     [ last entry : 32 | down : 1 | steps : 31 ]
//! ```
//! These are guesses, so threads read and write the words without a lock. A lost update only delays the recognition of
//! a stream.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use hugefork_kernels::{Side, Use};

use crate::pool::core::Manner;
use crate::types::advice::Advice;
use crate::units::{BASE_PAGE, BlockSize, EntryIndex};

const FOLLOWED_STREAMS: usize = 8;

/// The number of faults after which a stream is believed.
const BELIEVED_FAULTS: u32 = 2;

/// The number of steps in one direction after which the next step is expected to go there too. Random faults make that
/// many steps in a given direction one time in 24.
const TREND_STEPS: u32 = 3;

/// The most blocks that one fault clears or copies, its own included.
pub(crate) const MOST_BLOCKS_A_FAULT: usize = 4;

/// No entry has this index.
const NONE: u32 = u32::MAX;

const DOWN: u32 = 1 << 31;

/// The direction in which a program goes through its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// How a program writes to a region: its own advice, and its recent faults.
#[derive(Debug)]
pub(crate) struct Habits {
    streams: [AtomicU64; FOLLOWED_STREAMS],
    /// The number of streams begun so far, which gives the slot of the next one.
    next: AtomicUsize,
    trend: AtomicU64,
    /// An [`Advice`].
    advice: AtomicU8,
}

/// The writes that the program is expected to do next.
#[derive(Clone, Copy)]
pub(crate) struct Outlook {
    pub(crate) manner: Manner,
    pub(crate) stream: Option<Stream>,
}

/// The stream that a fault belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    slot: usize,
    pub(crate) direction: Direction,
    /// The number of its faults before this one.
    length: u32,
}

/// An entry, a direction and a count in one word.
#[derive(Clone, Copy)]
struct Note {
    entry: u32,
    direction: Direction,
    count: u32,
}

impl Note {
    const fn encode(self) -> u64 {
        let down = match self.direction {
            Direction::Up => 0,
            Direction::Down => DOWN,
        };
        (self.count as u64 & !(DOWN as u64) | down as u64) << 32 | self.entry as u64
    }

    fn decode(word: u64) -> Note {
        let (high, entry) = ((word >> 32) as u32, word as u32);
        let direction = if high & DOWN == 0 { Direction::Up } else { Direction::Down };
        Note { entry, direction, count: high & !DOWN }
    }
}

const NOTHING: u64 = Note { entry: NONE, direction: Direction::Up, count: 0 }.encode();

impl Default for Habits {
    fn default() -> Self {
        Habits {
            streams: [const { AtomicU64::new(NOTHING) }; FOLLOWED_STREAMS],
            next: AtomicUsize::new(0),
            trend: AtomicU64::new(NOTHING),
            advice: AtomicU8::default(),
        }
    }
}

impl Habits {
    /// Stores the program's advice, which outweighs its faults from now on.
    pub(crate) fn advise(&self, advice: Advice) {
        self.advice.store(advice as u8, Ordering::Relaxed);
    }

    /// Notes a fault at byte `target` of the block at `index`, and returns the forecast for the next faults.
    pub(in crate::region) fn outlook(&self, index: EntryIndex, target: Option<usize>, size: BlockSize) -> Outlook {
        let advice = Advice::from_u8(self.advice.load(Ordering::Relaxed));
        let stream = match advice {
            Advice::Near => None,
            Advice::Unknown | Advice::Whole => target.and_then(|byte| self.stream(index, byte, size)),
        };
        let is_whole = advice == Advice::Whole || stream.is_some_and(Stream::is_believed);
        let used = if is_whole { Use::Whole } else { Use::Near };
        Outlook { manner: Manner { used, side: self.side(index) }, stream }
    }

    /// Notes how far a stream has been prepared.
    pub(in crate::region) fn follow(&self, outlook: Outlook, start: EntryIndex, count: usize) {
        if let Some(stream) = outlook.stream {
            self.advance(stream, start, count);
        }
    }

    /// The stream that a fault at byte `target` of the block at `index` belongs to, if it may belong to one. In blocks
    /// of one base page every byte is in the first subpage, so streams there only go up.
    fn stream(&self, index: EntryIndex, target: usize, size: BlockSize) -> Option<Stream> {
        let direction = if target < BASE_PAGE {
            Direction::Up
        } else if target >= size.bytes() - BASE_PAGE {
            Direction::Down
        } else {
            return None;
        };
        let continues = |slot: usize| {
            let note = Note::decode(self.streams[slot].load(Ordering::Relaxed));
            (note.entry == index.0 as u32 && note.direction == direction).then_some((slot, note.count + 1))
        };
        let (slot, length) = (0..FOLLOWED_STREAMS)
            .find_map(continues)
            .unwrap_or_else(|| (self.next.fetch_add(1, Ordering::Relaxed) % FOLLOWED_STREAMS, 0));
        Some(Stream { slot, direction, length })
    }

    /// Notes that a fault of `stream` has prepared `count` blocks from `start` on.
    fn advance(&self, stream: Stream, start: EntryIndex, count: usize) {
        let entry = match stream.direction {
            Direction::Up => (start.0 + count) as u32,
            Direction::Down => (start.0 as u32).wrapping_sub(1),
        };
        let note = Note { entry, direction: stream.direction, count: stream.length };
        self.streams[stream.slot].store(note.encode(), Ordering::Relaxed);
    }

    /// Notes a fault in the entry `index`. Returns the side of the faulting address on which the program is expected to
    /// make its next accesses.
    fn side(&self, index: EntryIndex) -> Side {
        let (last, entry) = (Note::decode(self.trend.load(Ordering::Relaxed)), index.0 as u32);
        let direction = if entry >= last.entry { Direction::Up } else { Direction::Down };
        let count = match last.entry {
            NONE => 0,
            _ if direction == last.direction => (last.count + 1).min(TREND_STEPS),
            _ => 1,
        };
        self.trend.store(Note { entry, direction, count }.encode(), Ordering::Relaxed);
        match direction {
            _ if count < TREND_STEPS => Side::Around,
            Direction::Up => Side::After,
            Direction::Down => Side::Before,
        }
    }
}

impl Stream {
    /// Whether the program is expected to write whole blocks.
    pub(in crate::region) fn is_believed(self) -> bool {
        self.length >= BELIEVED_FAULTS
    }

    /// The number of blocks to prepare besides the one that faulted, if the fault prepares `most` blocks at most. It is
    /// 0 until the stream is believed, then 1, and grows as the stream goes on.
    pub(crate) fn ahead(self, most: usize) -> usize {
        if self.is_believed() { (1 << (self.length - BELIEVED_FAULTS + 1).min(9)).min(most) - 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: BlockSize = BlockSize::MIB_2;
    const FIRST: usize = 8;
    const LAST: usize = HUGE.bytes() - 8;

    /// Simulates faults at byte `target` of each of `indices`, each of which prepares one block. Returns `ahead` for
    /// each.
    fn run(history: &Habits, target: usize, indices: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let ahead = |index| {
            let stream = history.stream(EntryIndex(index), target, HUGE).unwrap();
            history.advance(stream, EntryIndex(index), 1);
            stream.ahead(MOST_BLOCKS_A_FAULT)
        };
        indices.into_iter().map(ahead).collect()
    }

    #[test]
    fn a_stream_is_believed_at_its_third_block_and_followed_further_each_time() {
        assert_eq!(run(&Habits::default(), FIRST, 10..17), [0, 0, 1, 3, 3, 3, 3]);
        assert_eq!(run(&Habits::default(), LAST, (0..7).rev()), [0, 0, 1, 3, 3, 3, 3]);
    }

    #[test]
    fn interleaved_streams_are_told_from_each_other_and_jumps_are_no_stream() {
        let history = Habits::default();
        let interleaved = (0..4).flat_map(|step| [step, 100 + step, 200 + step]);
        assert_eq!(run(&history, FIRST, interleaved), [0, 0, 0, 0, 0, 0, 1, 1, 1, 3, 3, 3]);
        assert_eq!(run(&Habits::default(), FIRST, [5, 4, 3, 9, 7, 1, 3]), [0; 7]);
        assert_eq!(run(&Habits::default(), LAST, [3, 4, 5, 9, 7, 1, 3]), [0; 7]);
    }

    #[test]
    fn a_stream_that_turns_begins_anew() {
        let history = Habits::default();
        assert_eq!(run(&history, FIRST, 3..7), [0, 0, 1, 3]);
        assert_eq!(run(&history, LAST, [7, 6, 5, 4]), [0, 0, 1, 3]);
    }

    #[test]
    fn a_fault_inside_a_block_is_no_part_of_a_stream() {
        for target in [BASE_PAGE, HUGE.bytes() / 2, HUGE.bytes() - BASE_PAGE - 1] {
            assert!(Habits::default().stream(EntryIndex(3), target, HUGE).is_none());
        }
        let stream = Habits::default().stream(EntryIndex(3), BASE_PAGE - 1, BlockSize::KIB_4).unwrap();
        assert_eq!(stream.direction, Direction::Up);
    }

    #[test]
    fn the_side_is_where_the_last_faults_went() {
        let sides = |indices: &[usize]| {
            let history = Habits::default();
            indices.iter().map(|&index| history.side(EntryIndex(index))).collect::<Vec<_>>()
        };
        use Side::{After, Around, Before};
        assert_eq!(sides(&[4, 7, 9, 30, 31, 2, 5]), [Around, Around, Around, After, After, Around, Around]);
        assert_eq!(sides(&[40, 30, 29, 7, 0, 1]), [Around, Around, Around, Before, Before, Around]);
        assert_eq!(sides(&[5, 1, 9, 3, 8, 2]), [Around; 6]);
    }
}
