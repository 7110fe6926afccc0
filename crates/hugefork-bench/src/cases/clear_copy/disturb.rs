//! A subject that clears block after block, with no use between, beside a victim.

use super::area::{RcCell, SharedArea};
use super::tool::Tool;
use super::victim::{Victim, VictimPlan};
use crate::error::BenchError;
use crate::measure::affinity::Pinned;
use crate::measure::random::Random;
use crate::results::metric::{Measure, Metric};
use crate::run::sample::Work;

/// How many times longer the victim takes for a walk through its memory while blocks are cleared.
pub const VICTIM_SLOWDOWN: Metric = Metric::new("victim_slowdown", "ratio");

/// Clears block after block beside a victim.
pub(super) struct Disturb {
    pub(super) area: RcCell<SharedArea>,
    pub(super) planned: VictimPlan,
    /// Shared like the area.
    pub(super) victim: RcCell<Option<Victim>>,
    pub(super) tool: Tool,
    pub(super) cpu: usize,
}

impl Work for Disturb {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let mut victim = self.victim.borrow_mut();
        if victim.is_none() {
            *victim = Some(Victim::new(self.planned)?);
        }
        self.area.borrow_mut().prepare()
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut area = self.area.borrow_mut();
        let block = area.block;
        let held = area.held.as_mut().expect("prepared before sampled");
        let victim = self.victim.borrow();
        let victim = victim.as_ref().expect("prepared before sampled");
        let _pinned = Pinned::to(self.cpu)?;
        let slowdown = victim.slowdown(|| {
            let offset = held.advance(block);
            // SAFETY: a whole block of the area, which is ours alone; the target lies in it.
            unsafe { self.tool.run(held.to.as_ptr().add(offset), None, block, targets.word_offset(block)) };
        })?;
        Ok(vec![Measure::new(VICTIM_SLOWDOWN, slowdown)])
    }

    fn release(&mut self) {
        *self.victim.borrow_mut() = None;
        self.area.borrow_mut().held = None;
    }

    fn caveat(&self) -> Option<String> {
        self.area.borrow().caveat()
    }
}
