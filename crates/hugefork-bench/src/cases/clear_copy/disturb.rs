//! A subject that clears block after block, without using the blocks, while a victim thread runs on
//! another CPU.

use super::area::{RcCell, SharedArea};
use super::tool::Tool;
use super::victim::{Victim, VictimPlan};
use crate::error::BenchError;
use crate::measure::affinity::Pinned;
use crate::measure::random::Random;
use crate::results::metric::{Measure, Metric};
use crate::run::sample::Sample;

/// How many times longer the victim takes for a walk through its memory while blocks are cleared.
pub const VICTIM_SLOWDOWN: Metric = Metric::new("victim_slowdown", "ratio");

/// Clears block after block while a victim thread runs.
pub(super) struct Disturb {
    pub(super) area: RcCell<SharedArea>,
    pub(super) planned: VictimPlan,
    /// The victim, which all subjects share, as they share the area.
    pub(super) victim: RcCell<Option<Victim>>,
    pub(super) tool: Tool,
    pub(super) cpu: usize,
}

impl Disturb {
    pub(super) fn sample(&self, targets: &mut Random) -> Result<Sample, BenchError> {
        let mut victim = self.victim.borrow_mut();
        if victim.is_none() {
            *victim = Some(Victim::new(self.planned)?);
        }
        let victim = victim.as_ref().expect("made above");
        let mut area = self.area.borrow_mut();
        area.prepare()?;
        let block = area.block;
        let held = area.held.as_mut().expect("prepared above");
        let _pinned = Pinned::to(self.cpu)?;
        let slowdown = victim.slowdown(|| {
            let offset = held.advance(block);
            // SAFETY: a whole block of the area, which is ours alone; the target lies in it.
            unsafe { self.tool.run(held.to.as_ptr().add(offset), None, block, targets.word_offset(block)) };
        })?;
        let measures = Measure::all([(VICTIM_SLOWDOWN, slowdown)]);
        Ok(Sample { measures, caveat: area.caveat(), ..Sample::default() })
    }
}
