//! A way to take snapshots at work: epoch by epoch, of which the last counts.

use hugefork::Pool;
use hugefork_kernels::Kernel;

use super::words::{BIAS, Words};
use super::writer;
use crate::cases::rival::Rival;
use crate::error::BenchError;
use crate::measure::random::Random;
use crate::plan::writes::Writes;
use crate::results::curve::Curve;
use crate::results::metric::{Measure, Metric};
use crate::run::sample::Work;

/// Bytes copied for each byte that was changed.
pub(super) const AMPLIFICATION: Metric = Metric::new("amplification", "ratio");

/// Where samples are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    /// Bytes of the area.
    pub(super) size: usize,
    /// The CPU that writes.
    pub(super) cpu: usize,
}

/// A rival at work.
pub(super) struct Measured<R> {
    rival: R,
    ground: Ground,
    writes: Writes,
    words: Option<Words>,
    /// Bytes held before anything was shared.
    alone: Option<usize>,
    curves: Vec<Curve>,
    caveat: Option<String>,
}

impl<R: Rival> Measured<R> {
    pub(super) fn new(rival: R, ground: Ground, writes: Writes) -> Measured<R> {
        Measured { rival, ground, writes, words: None, alone: None, curves: Vec::new(), caveat: None }
    }

    /// Takes a snapshot and writes, once. Gives what was measured.
    fn epoch(&mut self, words: &mut Words) -> Result<Vec<Measure>, BenchError> {
        let rival = &mut self.rival;
        rival.ready()?;
        let start = rival.start();
        // SAFETY: the rival's own area of `size` bytes, for which `words` were made; it has memory for copies.
        let (held, written) = unsafe {
            writer::run(self.ground.cpu, start, words, |words| rival.take(|read| words.check_kept(read).is_ok()))
        }?;
        let pause = rival.pause(written.call);
        let extra =
            rival.memory(std::slice::from_ref(&held)).zip(self.alone).map(|(now, alone)| now as f64 - alone as f64);
        let copied = rival.copied(&|piece| words.distinct(piece), written.minor_faults);
        rival.let_go(held, |read| words.check_kept(read))?;
        let (mut measures, curves) = written.told(pause, words);
        let changed = (words.distinct(8) * 8) as f64;
        measures.extend(copied.map(|copied| Measure::new(AMPLIFICATION, copied as f64 / changed)));
        measures.extend(extra.map(|bytes| Measure::new(Metric::EXTRA, bytes.max(0.0) / f64::from(1 << 20))));
        self.curves = curves;
        Ok(measures)
    }
}

impl<R: Rival> Work for Measured<R> {
    fn prepare(&mut self) -> Result<(), BenchError> {
        self.words = Some(Words::new(self.ground.size, self.writes)?);
        self.rival.populate(self.ground.size, BIAS)?;
        self.caveat = self.rival.caveat();
        // Before memory is warmed: to read this goes over page tables and the kernel's notes on pages, and warming goes
        // over everything else again.
        self.alone = self.rival.memory(&[]);
        self.rival.warm(self.ground.size, &[self.ground.cpu])
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut words = self.words.take().expect("prepared before sampled");
        words.begin(targets);
        let mut measures = Vec::new();
        for epoch in 1..=self.writes.epoch.number() {
            words.draw(epoch, targets);
            measures = self.epoch(&mut words)?;
        }
        self.rival.end_sample();
        Ok(measures)
    }

    fn curves(&mut self) -> Vec<Curve> {
        std::mem::take(&mut self.curves)
    }

    fn release(&mut self) {
        self.words = None;
        self.rival.release();
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.rival.pool()
    }

    fn caveat(&self) -> Option<String> {
        self.pool().and_then(|(pool, _)| crate::memory::engine::caveat(pool)).or_else(|| self.caveat.clone())
    }
}
