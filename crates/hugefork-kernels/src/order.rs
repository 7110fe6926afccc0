//! The orders in which a kernel writes the bytes of a block.
//!
//! [`target_last`] is an iterator over subpage indices. [`visit`] is the one function that expands
//! an [`Order`] into spans of bytes. Clear and copy both call `visit`, and contain no order of
//! their own.
//!
//! A 2 MiB block with the target in subpage `t` (the numbers give the order of the writes):
//!
//! ```text
//! straight             |1 ------------------------------------------------------------>|
//! target-last          |   pairs: 2 4 6 … t … 7 5 3    |<--------------------------- 1 |   t in the left half
//! neighbourhood-last   |2 ------------>| 3: t ± 2 pages |1 ----------------------------->|
//! hybrid               |1 ------->| 3: window around t |2 ----------------------------->|
//!   window after t     |1 ----------->|t 3: window ---|2 -------------------------------->|
//!   window before t    |1 ---------->| 3: window ---t|2 --------------------------------->|
//! ```

use core::{fmt, iter::FusedIterator, ops::Range};

/// Bytes in a subpage, the base page of the machine.
pub const SUBPAGE: usize = 4096;

/// Largest block that is written in the chosen order. Larger blocks are written straight through. This is Linux's
/// `MAX_ORDER_NR_PAGES` boundary on x86-64: a larger block does not fit in a private cache, and writing it takes so
/// long that it must be interruptible.
pub const GIGANTIC: usize = 4 << 20;

/// A kernel writes a block above [`GIGANTIC`] in steps of this many bytes, with a reschedule point between the steps.
/// 2 MiB take 20–90 µs, well below a scheduler tick.
pub const RESCHEDULE_EVERY: usize = 2 << 20;

/// Subpages on each side of the target that [`Order::NeighbourhoodLast`] writes last: the radius of Linux 7.0.
const NEIGHBOURHOOD: usize = 2;

/// The byte of a block that the program is about to touch.
///
/// Callers pass the fault address unrounded; only [`visit`] rounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Offset of the byte in its block. An offset past the end counts as the last subpage.
    At(usize),
    /// The target is unknown. Most programs start at the beginning, so subpage 0 is assumed.
    Unknown,
}

impl Target {
    /// Offset of the first byte of the target's subpage in a block of `len` bytes.
    fn subpage_start(self, len: usize) -> usize {
        match self {
            Target::At(offset) => round_down(offset.min(len.saturating_sub(1))),
            Target::Unknown => 0,
        }
    }
}

/// The order in which a kernel writes the parts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// One subpage at a time, in the order of [`target_last`], as Linux up to 6.19. The 4 KiB calls cost half the
    /// bandwidth (77–90 µs per 2 MiB against 37 µs in one call of `rep stosb`).
    TargetLast,
    /// The whole block from its beginning to its end, in one call.
    Straight,
    /// First everything right of the target's neighbourhood, then everything left of the neighbourhood, then the target
    /// ± 2 subpages, as Linux 7.0.
    NeighbourhoodLast,
    /// First everything outside a window around the target, then the window. With non-temporal stores outside and
    /// cached stores inside, this is the fastest order for a program that uses the target next (2 MiB clear and 64 KiB
    /// use: 23.6 µs, straight 40 µs).
    Hybrid,
}

impl Order {
    /// Every order.
    pub const ALL: &[Order] = &[Order::TargetLast, Order::Straight, Order::NeighbourhoodLast, Order::Hybrid];

    /// The stable name, as in `hybrid/avx512-nt`.
    pub fn name(self) -> &'static str {
        match self {
            Order::TargetLast => "target-last",
            Order::Straight => "straight",
            Order::NeighbourhoodLast => "neighbourhood-last",
            Order::Hybrid => "hybrid",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The relation of a span to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The span is away from the target: the program does not need its lines soon, so the stores may bypass the cache.
    Far,
    /// The span is at the target and written last: its lines should remain in the cache.
    Near,
}

/// Neighbouring bytes of a block that a kernel writes in one call of a primitive. Both ends are multiples of
/// [`SUBPAGE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte in the block.
    pub start: usize,
    /// Length in bytes, never 0.
    pub len: usize,
    /// The relation of the span to the target.
    pub reach: Reach,
}

/// Position of the window of [`Order::Hybrid`]: the part of the block that the program is expected to touch next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The direction is unknown: the target lies in the middle.
    #[default]
    Around,
    /// The program moves up: the window starts with the target's subpage.
    After,
    /// The program moves down: the window ends with the target's subpage.
    Before,
}

/// The part of a block that [`Order::Hybrid`] writes last, as [`Reach::Near`].
///
/// At an end of the block the window is shifted inwards instead of cut, because a full window costs no more than a cut
/// one at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The size of the window in bytes, which is rounded up to whole subpages.
    pub bytes: usize,
    /// The side of the target on which the window lies.
    pub side: Side,
}

impl Window {
    /// A window of `bytes` with the target in its middle.
    pub fn around(bytes: usize) -> Window {
        Window { bytes, side: Side::Around }
    }

    /// The window's bytes in a block of `len` bytes, for a target in the subpage that starts at `page`.
    fn place(self, len: usize, page: usize) -> Range<usize> {
        let bytes = self.bytes.min(len).next_multiple_of(SUBPAGE);
        let begin = match self.side {
            // Half of the size is rounded down to whole subpages, so a window of one subpage is the target's subpage.
            Side::Around => page.saturating_sub(round_down(bytes / 2)),
            Side::After => page,
            Side::Before => (page + SUBPAGE).saturating_sub(bytes),
        };
        let begin = begin.min(len - bytes);
        begin..begin + bytes
    }
}

/// Calls `each` for the spans of a block of `len` bytes, in processing order; every byte is in exactly one span.
///
/// `len` is a multiple of [`SUBPAGE`]. Only [`Order::Hybrid`] uses `window`; a block no larger than the window is one
/// near span. A block larger than [`GIGANTIC`] is written straight through, in far steps of [`RESCHEDULE_EVERY`] bytes.
///
/// ```
/// use hugefork_kernels::{Order, Target, Window, visit};
///
/// let mut spans = Vec::new();
/// visit(Order::Hybrid, 64 << 10, Target::At(0x5432), Window::around(8192), |span| spans.push((span.start, span.len)));
/// assert_eq!(spans, [(0, 0x4000), (0x6000, 0xa000), (0x4000, 0x2000)]);
/// ```
pub fn visit(order: Order, len: usize, target: Target, window: Window, mut each: impl FnMut(Span)) {
    debug_assert!(len.is_multiple_of(SUBPAGE), "a block is a whole number of subpages");
    // Empty parts are dropped here, so the orders below need no special case for the ends of the block.
    let mut emit = |start: usize, end: usize, reach| {
        if start < end {
            each(Span { start, len: end - start, reach });
        }
    };
    let page = target.subpage_start(len);
    // Each order is a function of its own: in an unoptimised build, all locals of a function occupy the stack, which
    // may be the small stack of a signal handler.
    match order {
        _ if len > GIGANTIC => in_steps(len, emit),
        Order::TargetLast => by_subpage(len, page, emit),
        Order::Straight => emit(0, len, Reach::Near),
        Order::NeighbourhoodLast => neighbourhood_last(len, page, emit),
        Order::Hybrid => window_last(len, window.place(len, page), emit),
    }
}

fn in_steps(len: usize, mut emit: impl FnMut(usize, usize, Reach)) {
    for start in (0..len).step_by(RESCHEDULE_EVERY) {
        emit(start, len.min(start + RESCHEDULE_EVERY), Reach::Far);
    }
}

fn by_subpage(len: usize, page: usize, mut emit: impl FnMut(usize, usize, Reach)) {
    for index in target_last(len / SUBPAGE, page / SUBPAGE) {
        emit(index * SUBPAGE, (index + 1) * SUBPAGE, Reach::Near);
    }
}

fn neighbourhood_last(len: usize, page: usize, mut emit: impl FnMut(usize, usize, Reach)) {
    let begin = page.saturating_sub(NEIGHBOURHOOD * SUBPAGE);
    let end = len.min(page + (NEIGHBOURHOOD + 1) * SUBPAGE);
    // The right part comes first: with the usual target, at the start of the block, the left part is empty.
    emit(end, len, Reach::Far);
    emit(0, begin, Reach::Far);
    emit(begin, end, Reach::Near);
}

fn window_last(len: usize, window: Range<usize>, mut emit: impl FnMut(usize, usize, Reach)) {
    emit(0, window.start.saturating_sub(SUBPAGE * usize::from(seeded!("kernel-leaves-a-subpage-out"))), Reach::Far);
    emit(window.end, len, Reach::Far);
    emit(window.start, window.end, Reach::Near);
}

fn round_down(offset: usize) -> usize {
    offset - offset % SUBPAGE
}

/// The subpage indices of a block of `nr` subpages, ending at `target`; see [`TargetLast`].
///
/// A `target` past the end counts as the last subpage.
///
/// ```
/// use hugefork_kernels::target_last;
///
/// assert!(target_last(8, 2).eq([7, 6, 5, 4, 0, 3, 1, 2]));
/// assert!(target_last(8, 6).eq([0, 1, 2, 3, 4, 7, 5, 6]));
/// ```
pub fn target_last(nr: usize, target: usize) -> TargetLast {
    let target = target.min(nr.saturating_sub(1));
    let right = nr - target;
    let (base, pairs) = if target <= right { (0, target) } else { (target - right, right) };
    TargetLast { next: 0, nr, base, pairs }
}

/// The target-last order. The order walks the longer side of the target first, from the far end until both sides are
/// equally long. Then it alternates between both sides, in pairs (left, right) that come ever nearer to the target.
///
/// Every index occurs once. The target comes last and its neighbours just before it, so the lines that the program
/// touches next were written most recently. Each index is computed from its position; the state is four words.
#[derive(Clone, Debug)]
pub struct TargetLast {
    /// Position of the next index; at most `nr`.
    next: usize,
    nr: usize,
    /// First index of the paired part, which is `base .. base + 2 * pairs`.
    base: usize,
    pairs: usize,
}

impl TargetLast {
    fn index_at(&self, position: usize) -> usize {
        let lone = self.nr - 2 * self.pairs;
        if position < lone {
            // A longer side right of the pairs is walked down, and a longer side left of the pairs is walked up. For
            // target 0 there are no pairs, and walking down ends at the target.
            return if self.base == 0 { self.nr - 1 - position } else { position };
        }
        let step = (position - lone) / 2;
        if (position - lone).is_multiple_of(2) { self.base + step } else { self.base + 2 * self.pairs - 1 - step }
    }
}

impl Iterator for TargetLast {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.next == self.nr {
            return None;
        }
        let index = self.index_at(self.next);
        self.next += 1;
        Some(index)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.nr - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for TargetLast {}
impl FusedIterator for TargetLast {}
