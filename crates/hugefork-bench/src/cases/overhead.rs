//! What a fault of hugefork costs beyond its clear or copy: the signal, the handler, the mapping and the processor's
//! own page walk.
//!
//! It is measured in a pass of its own, so that the reference does not disturb what the case is about. After every
//! fault, the pool's own kernel does the same clear or copy directly, on blocks of the same backing that were written
//! before and are out of the caches. The figure is the median fault less the median direct operation.

use statrs::statistics::{Data, OrderStatistics};

use crate::error::BenchError;
use crate::measure::affinity::Pinned;
use crate::measure::clock;
use crate::measure::random::Random;
use crate::results::metric::{Measure, Metric};

/// Calls `fault` with a step and a target in a block of `block` bytes, then `direct` with the target, `steps` times.
pub(super) fn measure(
    cpu: usize,
    steps: usize,
    block: usize,
    targets: &mut Random,
    mut fault: impl FnMut(usize, usize),
    mut direct: impl FnMut(usize),
) -> Result<Option<Measure>, BenchError> {
    let (mut faults, mut directs) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
    let _pinned = Pinned::to(cpu)?;
    for step in 0..steps {
        let target = targets.word_offset(block);
        let start = clock::now_fenced();
        fault(step, target);
        faults.push(clock::us(start, clock::now_fenced()));
        let start = clock::now_fenced();
        direct(target);
        directs.push(clock::us(start, clock::now_fenced()));
    }
    let [fault, direct] = [faults, directs].map(|times| Data::new(times).median());
    Ok((steps > 0).then(|| Measure::new(Metric::OVERHEAD, fault - direct)))
}
