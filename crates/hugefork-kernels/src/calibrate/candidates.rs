//! The candidates of one work and use: the kernels to try, and the best one so far.

use super::decision::{Samples, choose, clearly_faster};
use crate::{
    kernel::{Kernel, WINDOW, WindowSize},
    kernels::{Use, Work},
    primitive::Primitive,
    primitive_name::PrimitiveName,
};

/// Primitives to try far from the target.
const FAR: [PrimitiveName; 6] = [
    PrimitiveName::Sse2Nt,
    PrimitiveName::Clzero,
    PrimitiveName::Avx512Nt,
    PrimitiveName::Avx2Nt,
    PrimitiveName::Stnp,
    PrimitiveName::DcZva,
];

/// Windows to try. Candidates for whole use try only the last size: the window hardly matters for whole use, and each
/// sample takes long.
const WINDOWS: [WindowSize; 3] = [WindowSize::new(64 << 10).unwrap(), WINDOW, WindowSize::new(256 << 10).unwrap()];

/// The candidates of one work and use; the first is the default.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    pub(super) what: Work,
    pub(super) used: Use,
    /// Slots from `len` on are unused.
    slots: [Candidate; Candidates::MAX],
    len: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) kernel: Kernel,
    /// Whether the candidate takes part in the steps after the first.
    pub(super) is_for_all_steps: bool,
    pub(super) samples: Samples,
}

impl Candidates {
    /// Maximum number of candidates: one for each far primitive and each other window, one straight, and one straight
    /// cached.
    const MAX: usize = FAR.len() + WINDOWS.len() + 3;

    pub(super) fn new(what: Work, used: Use, default: Kernel) -> Candidates {
        let default = Candidate { kernel: default, is_for_all_steps: true, samples: Samples::NONE };
        Candidates { what, used, slots: [default; Candidates::MAX], len: 1 }
    }

    pub(super) fn all(&self) -> &[Candidate] {
        &self.slots[..self.len]
    }

    pub(super) fn all_mut(&mut self) -> &mut [Candidate] {
        &mut self.slots[..self.len]
    }

    fn add(&mut self, kernel: Kernel, is_for_all_steps: bool) {
        if let Some(known) = self.all_mut().iter_mut().find(|candidate| candidate.kernel == kernel) {
            known.is_for_all_steps |= is_for_all_steps;
        } else if let Some(free) = self.slots.get_mut(self.len) {
            *free = Candidate { kernel, is_for_all_steps, samples: Samples::NONE };
            self.len += 1;
        }
    }

    /// Adds the candidates of the first step: each far primitive with the default's window.
    pub(super) fn add_primitives(&mut self) {
        let default = self.slots[0].kernel;
        let what = self.what;
        // AVX2 lies between SSE2 and AVX-512 in width and in speed, and its samples would use up the budget of the
        // other candidates.
        let is_spared = |name| name == PrimitiveName::Avx2Nt && Primitive::new(PrimitiveName::Avx512Nt).is_some();
        let here = FAR.into_iter().filter(|name| !is_spared(*name)).filter_map(Primitive::new);
        for far in here.filter(|far| what == Work::Clear || far.can_copy()) {
            self.add(default.hybrid(far, default.window_size()), false);
        }
        self.add(Kernel::cached(), true);
    }

    /// Adds the candidates of the later steps: the winning far primitive of the first step with every other window and
    /// order.
    pub(super) fn add_windows(&mut self, far: Option<Primitive>) {
        let default = self.slots[0].kernel;
        if let Some(far) = far {
            let begin = if self.used == Use::Near { 0 } else { WINDOWS.len() - 1 };
            for window in WINDOWS.into_iter().skip(begin) {
                self.add(default.hybrid(far, window), true);
            }
            self.add(default.straight(far), true);
        }
        self.add(Kernel::cached(), true);
    }

    /// The far primitive of the fastest hybrid kernel.
    pub(super) fn far(&self) -> Option<Primitive> {
        // The cached kernel is either the default, at index 0, or was added last.
        let is_hybrid = |candidate: &Candidate| candidate.kernel != Kernel::cached();
        let begin = self.all().iter().position(is_hybrid)?;
        let end = begin + self.all()[begin..].iter().take_while(|candidate| is_hybrid(candidate)).count();
        let fastest = begin + choose(&self.figures()[begin..end], clearly_faster(self.used));
        Some(self.slots[fastest].kernel.far())
    }

    pub(super) fn best(&self) -> Kernel {
        self.slots[self.chosen()].kernel
    }

    /// Index of the best candidate in [`all`](Candidates::all).
    pub(super) fn chosen(&self) -> usize {
        choose(&self.figures(), clearly_faster(self.used))
    }

    /// The least time of each candidate that has enough samples to decide.
    fn figures(&self) -> [Option<u64>; Candidates::MAX] {
        let mut figures = [None; Candidates::MAX];
        for (figure, candidate) in figures.iter_mut().zip(self.all()) {
            *figure = candidate.samples.decisive();
        }
        figures
    }
}
