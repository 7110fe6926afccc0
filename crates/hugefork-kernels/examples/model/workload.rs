//! The accesses of a thread to a block: the fault's clear or copy in the library's order, then the
//! program's writes.
//!
//! This file does not repeat the orders: the spans come from [`visit`], as in the library's
//! kernels, and the kind of store follows from the span's [`Reach`], also as there.

use hugefork_kernels::{Kernel, Order, Reach, SUBPAGE, Side, Target, Window, Work, visit};

/// Bytes in a block.
pub(crate) const BLOCK: usize = 2 << 20;

/// A way to clear or copy a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) order: Order,
    /// Used by [`Order::Hybrid`] only.
    pub(crate) window: Window,
    /// Whether stores bypass the cache: in [`Order::Hybrid`] those outside the window, otherwise all.
    pub(crate) past_cache: bool,
    /// In which order the window is written. The library's kernels write it straight.
    pub(crate) within: Order,
}

impl Plan {
    /// Writes everything through the cache.
    pub(crate) fn cached(order: Order) -> Plan {
        Plan { order, window: Window::around(0), past_cache: false, within: Order::Straight }
    }

    /// Writes straight and past the cache.
    pub(crate) fn past_cache() -> Plan {
        Plan { past_cache: true, ..Plan::cached(Order::Straight) }
    }

    /// Writes past the cache, then a window of `bytes` from the target on through the cache.
    pub(crate) fn window(bytes: usize) -> Plan {
        let window = Window { bytes, side: Side::After };
        Plan { order: Order::Hybrid, window, ..Plan::past_cache() }
    }

    /// The same plan with the window written from its far end to the target.
    pub(crate) fn reversed(self) -> Plan {
        Plan { within: Order::TargetLast, ..self }
    }

    /// The plan that matches a kernel of the library; a test compares the two.
    #[cfg_attr(not(test), expect(dead_code))]
    pub(crate) fn of(kernel: Kernel) -> Plan {
        let window = Window { bytes: kernel.window(), side: kernel.side() };
        Plan { window, past_cache: kernel.far().is_non_temporal(), ..Plan::cached(kernel.order()) }
    }
}

/// An operation on a piece of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The piece is overwritten, through the cache or past it.
    Clear { past_cache: bool },
    /// The piece is copied from the same place in another block.
    Copy { past_cache: bool },
    /// The program writes it, word by word.
    Use,
}

/// An operation and its piece of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) piece: usize,
    pub(crate) act: Act,
}

/// All operations on a block after the fault at its first byte, in pieces of `piece` bytes.
pub(crate) fn life(work: Work, plan: Plan, piece: usize) -> Vec<Step> {
    let mut steps = resolve(work, plan, Target::At(0), piece);
    steps.extend((0..BLOCK / piece).map(|piece| Step { piece, act: Act::Use }));
    steps
}

/// The clear or copy of a block, in pieces of `piece` bytes: a subpage, or an equal part of one.
pub(crate) fn resolve(work: Work, plan: Plan, target: Target, piece: usize) -> Vec<Step> {
    assert!(piece != 0 && SUBPAGE.is_multiple_of(piece), "the order is one of subpages");
    let mut steps = Vec::new();
    let mut write = |start: usize, len: usize, past_cache: bool| {
        let act = match work {
            Work::Clear => Act::Clear { past_cache },
            Work::Copy => Act::Copy { past_cache },
        };
        steps.extend((start / piece..(start + len) / piece).map(|piece| Step { piece, act }));
    };
    visit(plan.order, BLOCK, target, plan.window, |span| match (plan.order, span.reach) {
        (Order::Hybrid, Reach::Near) => {
            let target = match target {
                Target::At(offset) => Target::At(offset.saturating_sub(span.start)),
                Target::Unknown => Target::Unknown,
            };
            visit(plan.within, span.len, target, plan.window, |part| write(span.start + part.start, part.len, false));
        }
        _ => write(span.start, span.len, plan.past_cache),
    });
    steps
}
