//! Which kernels are the fastest on this machine, found out in a few milliseconds.
//!
//! Relies on nothing but memory and a clock, both the caller's. One sample is one operation on a block and the use that
//! follows it, timed together, since a fast clear that leaves the use slow has won nothing. All lines of the block (for
//! a copy: of both blocks) are written past the cache before, untimed, so that every candidate starts with them cold.
//!
//! ```text
//! 1  near use, clear and copy   every far primitive with the default window, straight cached   → the far primitive P
//! 2  near use, clear and copy   P with other windows, straight P, straight cached              → near
//!    sizes below 2 MiB          near against straight cached                                   → nt_from
//! 3  whole use, clear and copy  P with windows, straight P, straight cached                    → whole
//! ```
//!
//! Candidates take turns, [`ROUNDS`] times; the least times are compared, and the default stays unless another is clearly
//! faster. When the [budget](BUDGET) is spent, whatever has no figures yet stays at its default.

use core::sync::atomic::{Ordering, fence};

use crate::{
    kernel::{Kernel, WINDOW, WindowSize},
    kernels::{Choice, Kernels, Use, Work},
    order::Target,
    primitive::Primitive,
    primitive_name::PrimitiveName,
};

/// The size of the blocks that candidates are compared with.
const BLOCK: usize = 2 << 20;

/// Blocks that the samples rotate over: four keep the previous sample's lines away, more cost faults and budget.
const BLOCKS: usize = 4;

/// What the program uses around the target.
const NEAR: usize = 64 << 10;

/// Nanoseconds after which no further sample is begun.
const BUDGET: u64 = 8_000_000;

/// Samples of each candidate in each step.
const ROUNDS: usize = 2;

/// Fewer samples decide nothing: a single one may have been interrupted.
const DECISIVE: usize = 2;

/// Hundredths that are no more than the noise of a shared machine: what the smallest size for non-temporal stores goes by.
const NOISE: u64 = 97;

/// Another candidate must take less than so many hundredths of what the one preferred so far takes.
const fn clearly_faster(used: Use) -> u64 {
    match used {
        // More than the noise of a shared machine, and than what 8 MiB do not show: full queues to memory, which cost the
        // window after wide stores 3 to 4 µs of 25 when the blocks lie all over 1 GiB.
        Use::Near => 88,
        // The calibration's blocks fit in the last-level cache, so whoever writes through it never pays for the lines that
        // have to leave it: here `rep stosb` and 2 MiB of stores take 73 µs and non-temporal 84; with blocks all over
        // 1 GiB it is 119 and 92.
        // Only a machine where one kind is really slow is to switch (Skylake-SP, non-temporal clears).
        Use::Whole => 75,
    }
}

/// Far primitives to try.
const FAR: [PrimitiveName; 6] = [
    PrimitiveName::Sse2Nt,
    PrimitiveName::Clzero,
    PrimitiveName::Avx512Nt,
    PrimitiveName::Avx2Nt,
    PrimitiveName::Stnp,
    PrimitiveName::DcZva,
];

/// Windows to try. For whole use only the last: no window is large enough to matter there, and each sample is long.
const WINDOWS: [WindowSize; 3] = [WindowSize::new(64 << 10).unwrap(), WINDOW, WindowSize::new(256 << 10).unwrap()];

/// Block sizes from which `nt_from` is chosen; the last is [`BLOCK`].
const SIZES: [usize; 4] = [128 << 10, 256 << 10, 512 << 10, BLOCK];

/// One candidate and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// What was timed.
    pub what: Work,
    /// What the program did next, also timed.
    pub used: Use,
    /// The candidate.
    pub kernel: Kernel,
    /// Least time for a block of 2 MiB, work and use together; `None` if the budget was spent before.
    pub nanoseconds: Option<u64>,
    /// Whether this is the one of its work and use.
    pub chosen: bool,
}

/// What [`calibrate`] found.
#[derive(Clone, Debug)]
pub struct Calibration {
    groups: [Group; 4],
    nt_from: [usize; 2],
    spent: u64,
}

impl Calibration {
    /// The chosen kernels.
    pub fn kernels(&self) -> Kernels {
        let [clear_near, copy_near, clear_whole, copy_whole] = self.groups.each_ref().map(|group| group.best().kernel);
        let [clear_from, copy_from] = self.nt_from;
        Kernels::new(Choice::new(clear_near, clear_whole, clear_from), Choice::new(copy_near, copy_whole, copy_from))
    }

    /// Every candidate; for each work and use exactly one is chosen.
    pub fn table(&self) -> impl Iterator<Item = Figure> {
        self.groups.iter().flat_map(|group| {
            let chosen = group.chosen();
            group.slots().iter().enumerate().map(move |(index, slot)| Figure {
                what: group.what,
                used: group.used,
                kernel: slot.kernel,
                nanoseconds: (slot.samples.taken > 0).then_some(slot.samples.least),
                chosen: index == chosen,
            })
        })
    }

    /// What the calibration took in all, by its clock.
    pub fn nanoseconds(&self) -> u64 {
        self.spent
    }
}

/// Times the candidates of this machine on `memory` and chooses. Takes 6–7 ms on a Zen 5 VM, and begins nothing after
/// 8 ms by `clock`. Allocates nothing, keeps some KiB on the stack: not for a signal handler.
///
/// `clock` gives nanoseconds since any moment. Best is the CPU time of the thread (`CLOCK_THREAD_CPUTIME_ID`): by the wall
/// clock a single interruption by another task, often 4 ms, costs half of the budget and leaves defaults.
///
/// Give it 8 MiB, touched before since faults are paid from the budget, on huge pages if the blocks will be. More is not
/// used; with less than 4 MiB nothing is measured.
///
/// # Safety
///
/// `memory` is aligned to 4 KiB and valid for reads and writes of `len` bytes, which nobody else accesses meanwhile. What
/// they held is lost.
pub unsafe fn calibrate(memory: *mut u8, len: usize, clock: fn() -> u64) -> Calibration {
    let defaults = Kernels::default_for_this_cpu();
    let begun = clock();
    let mut stage =
        Stage { memory, blocks: (len / BLOCK).min(BLOCKS), next: 0, random: 0x9e37_79b9_7f4a_7c15, clock, begun };
    let mut groups =
        [(Work::Clear, Use::Near), (Work::Copy, Use::Near), (Work::Clear, Use::Whole), (Work::Copy, Use::Whole)]
            .map(|(what, used)| Group::new(what, used, defaults.pick(what, BLOCK, used)));
    let mut nt_from = [Work::Clear, Work::Copy].map(|what| defaults.nt_from(what));

    let [clear_near, copy_near, clear_whole, copy_whole] = &mut groups;
    // SAFETY: the caller vouches for the memory, in this and the other calls of `rounds` and `small`.
    unsafe {
        for group in [&mut *clear_near, &mut *copy_near] {
            group.add_primitives();
        }
        stage.rounds([&mut *clear_near, &mut *copy_near], |_| true);

        let far = [clear_near.far(), copy_near.far()];
        for (group, far) in [&mut *clear_near, &mut *copy_near].into_iter().zip(far) {
            group.add_windows(far);
        }
        stage.rounds([&mut *clear_near, &mut *copy_near], |slot| slot.stays);

        for (nt_from, group) in nt_from.iter_mut().zip([&*clear_near, &*copy_near]) {
            if let Some(sizes) = stage.small(group) {
                *nt_from = smallest(sizes);
            }
        }

        for (group, far) in [&mut *clear_whole, &mut *copy_whole].into_iter().zip(far) {
            group.add_windows(far);
        }
        stage.rounds([clear_whole, copy_whole], |slot| slot.stays);
    }
    Calibration { groups, nt_from, spent: stage.spent() }
}

/// The candidates of one work and use; the first is the default.
#[derive(Clone, Debug)]
struct Group {
    what: Work,
    used: Use,
    /// Those beyond `len` are of no meaning.
    slots: [Slot; Group::MAX],
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    kernel: Kernel,
    /// Still a candidate after the first step.
    stays: bool,
    samples: Samples,
}

impl Group {
    /// The far primitives, the other windows, straight, straight cached.
    const MAX: usize = FAR.len() + WINDOWS.len() + 3;

    fn new(what: Work, used: Use, default: Kernel) -> Group {
        let slot = Slot { kernel: default, stays: true, samples: Samples::NONE };
        Group { what, used, slots: [slot; Group::MAX], len: 1 }
    }

    fn slots(&self) -> &[Slot] {
        &self.slots[..self.len]
    }

    fn add(&mut self, kernel: Kernel, stays: bool) {
        if let Some(slot) = self.slots[..self.len].iter_mut().find(|slot| slot.kernel == kernel) {
            slot.stays |= stays;
        } else if let Some(slot) = self.slots.get_mut(self.len) {
            *slot = Slot { kernel, stays, samples: Samples::NONE };
            self.len += 1;
        }
    }

    /// The first step: each far primitive with the default's window.
    fn add_primitives(&mut self) {
        let default = self.slots[0].kernel;
        let what = self.what;
        // Between its relatives in width and in figures, and its samples would take their part of the budget.
        let is_spared = |name| name == PrimitiveName::Avx2Nt && Primitive::new(PrimitiveName::Avx512Nt).is_some();
        let here = FAR.into_iter().filter(|name| !is_spared(*name)).filter_map(Primitive::new);
        for far in here.filter(|far| what == Work::Clear || far.can_copy()) {
            self.add(default.hybrid(far, default.window_size()), false);
        }
        self.add(Kernel::cached(), true);
    }

    /// The later steps: the far primitive of the first in every other way.
    fn add_windows(&mut self, far: Option<Primitive>) {
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
    fn far(&self) -> Option<Primitive> {
        // The cached kernel is either the default, which comes first, or the last to be added.
        let hybrid = |slot: &Slot| slot.kernel != Kernel::cached();
        let begin = self.slots().iter().position(hybrid)?;
        let end = begin + self.slots()[begin..].iter().take_while(|slot| hybrid(slot)).count();
        Some(self.slots[begin + choose(&self.figures()[begin..end], clearly_faster(self.used))].kernel.far())
    }

    fn best(&self) -> &Slot {
        &self.slots[self.chosen()]
    }

    fn chosen(&self) -> usize {
        choose(&self.figures(), clearly_faster(self.used))
    }

    /// The times that may decide.
    fn figures(&self) -> [Option<u64>; Group::MAX] {
        let mut figures = [None; Group::MAX];
        for (figure, slot) in figures.iter_mut().zip(self.slots()) {
            *figure = slot.samples.decisive();
        }
        figures
    }
}

/// The first of the figures, unless another is below `hundredths` of it. Without a figure for the first, the first.
fn choose(figures: &[Option<u64>], hundredths: u64) -> usize {
    let Some(Some(mut least)) = figures.first().copied() else { return 0 };
    let mut chosen = 0;
    for (index, figure) in figures.iter().enumerate() {
        if let Some(figure) = *figure
            && is_below(figure, least, hundredths)
        {
            (chosen, least) = (index, figure);
        }
    }
    chosen
}

fn is_below(figure: u64, other: u64, hundredths: u64) -> bool {
    u128::from(figure) * 100 < u128::from(other) * u128::from(hundredths)
}

/// The smallest of [`SIZES`] from which on the first of each pair is clearly faster; above all of them if it never is.
fn smallest(pairs: [(u64, u64); SIZES.len()]) -> usize {
    let mut from = BLOCK + 1;
    for (size, (kernel, cached)) in SIZES.into_iter().zip(pairs).rev() {
        if !is_below(kernel, cached, NOISE) {
            break;
        }
        from = size;
    }
    from
}

/// The least of a few times of the same thing. What disturbs a sample makes it longer, so more of them only help.
#[derive(Clone, Copy, Debug)]
struct Samples {
    least: u64,
    taken: usize,
}

impl Samples {
    const NONE: Samples = Samples { least: u64::MAX, taken: 0 };

    fn push(&mut self, time: u64) {
        self.least = self.least.min(time);
        self.taken += 1;
    }

    fn decisive(&self) -> Option<u64> {
        (self.taken >= DECISIVE).then_some(self.least)
    }
}

/// The memory, the clock, and what is left of the budget.
struct Stage {
    memory: *mut u8,
    /// Whole blocks in the memory.
    blocks: usize,
    /// The block of the next sample, below `blocks`.
    next: usize,
    random: u64,
    clock: fn() -> u64,
    begun: u64,
}

impl Stage {
    fn spent(&self) -> u64 {
        (self.clock)().saturating_sub(self.begun)
    }

    fn is_over(&self) -> bool {
        // A copy needs two blocks.
        self.blocks < 2 || self.spent() >= BUDGET
    }

    /// Samples the candidates that `wanted` lets through, in turns.
    ///
    /// # Safety
    ///
    /// The memory is as [`calibrate`] wants it.
    unsafe fn rounds(&mut self, mut groups: [&mut Group; 2], wanted: impl Fn(&Slot) -> bool) {
        for _ in 0..ROUNDS {
            for group in &mut groups {
                let (what, used) = (group.what, group.used);
                for slot in group.slots[..group.len].iter_mut().filter(|slot| wanted(slot)) {
                    if self.is_over() {
                        return;
                    }
                    // SAFETY: the caller's contract.
                    slot.samples.push(unsafe { self.sample(what, used, slot.kernel, BLOCK) });
                }
            }
        }
    }

    /// What the kernel chosen for near use and the cached one take for each of [`SIZES`], if they differ and the budget
    /// lasts.
    ///
    /// # Safety
    ///
    /// The memory is as [`calibrate`] wants it.
    unsafe fn small(&mut self, group: &Group) -> Option<[(u64, u64); SIZES.len()]> {
        let kernels = [group.best().kernel, Kernel::cached()];
        if kernels[0] == kernels[1] {
            return None;
        }
        let mut samples = [[Samples::NONE; 2]; SIZES.len()];
        // Once more: what is smaller is noisier, and costs less.
        for _ in 0..ROUNDS + 1 {
            // The last size is known from the steps before.
            for (size, samples) in SIZES.into_iter().zip(&mut samples).take(SIZES.len() - 1) {
                for (kernel, samples) in kernels.into_iter().zip(samples) {
                    if self.is_over() {
                        return None;
                    }
                    // SAFETY: the caller's contract.
                    samples.push(unsafe { self.sample(group.what, group.used, kernel, size) });
                }
            }
        }
        let mut pairs = [(0, 1); SIZES.len()];
        for (pair, [kernel, cached]) in pairs.iter_mut().zip(&samples).take(SIZES.len() - 1) {
            *pair = (kernel.decisive()?, cached.decisive()?);
        }
        Some(pairs)
    }

    /// Nanoseconds of one operation on `len` cold bytes and of the use that follows.
    ///
    /// # Safety
    ///
    /// The memory is as [`calibrate`] wants it and has two blocks; `len` is at most [`BLOCK`].
    unsafe fn sample(&mut self, what: Work, used: Use, kernel: Kernel, len: usize) -> u64 {
        let (to, from) = (self.take(), self.take());
        // Past the cache where there is a way.
        let cooler = Kernel::for_clear();
        let cooler = cooler.straight(cooler.far());
        let offset = self.random(len);
        let target = Target::At(offset);
        // SAFETY: two different blocks of memory that is the caller's alone, of which `len` bytes are used.
        unsafe {
            cooler.clear(to, len, target);
            if what == Work::Copy {
                cooler.clear(from, len, target);
            }
            let begun = self.fenced_now();
            match what {
                Work::Clear => kernel.clear(to, len, target),
                Work::Copy => kernel.copy(to, from, len, target),
            }
            match used {
                Use::Near => use_near(to, len, offset),
                Use::Whole => use_whole(to, len),
            }
            self.fenced_now().saturating_sub(begun)
        }
    }

    /// The next block.
    fn take(&mut self) -> *mut u8 {
        let block = self.memory.wrapping_add(self.next * BLOCK);
        self.next = (self.next + 1) % self.blocks;
        block
    }

    /// An offset below `len`, the same ones in every calibration.
    fn random(&mut self, len: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % len
    }

    /// The time when all stores so far are done, not merely begun.
    fn fenced_now(&self) -> u64 {
        fence(Ordering::SeqCst);
        (self.clock)()
    }
}

/// Reads and writes a word in each line of the 64 KiB that the offset lies in.
///
/// # Safety
///
/// `block` is aligned and valid for reads and writes of `len` bytes, a multiple of 64; `offset` is below it.
unsafe fn use_near(block: *mut u8, len: usize, offset: usize) {
    const LINE: usize = 64;
    let begin = offset - offset % NEAR;
    for line in (begin..len.min(begin + NEAR)).step_by(LINE) {
        // SAFETY: the first word of a line in the block.
        unsafe {
            let word = block.add(line).cast::<u64>();
            word.write_volatile(word.read_volatile().wrapping_add(1));
        }
    }
}

/// Writes every word.
///
/// # Safety
///
/// `block` is aligned and valid for writes of `len` bytes, a multiple of 8.
unsafe fn use_whole(block: *mut u8, len: usize) {
    for index in 0..len / 8 {
        // SAFETY: a word of the block.
        unsafe { block.cast::<u64>().add(index).write_volatile(1) };
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{alloc, cell::Cell, thread_local, vec::Vec};

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
        static STEP: Cell<u64> = const { Cell::new(0) };
    }

    /// Goes on by the thread's step with each look.
    fn ticking() -> u64 {
        NOW.set(NOW.get() + STEP.get());
        NOW.get()
    }

    fn calibrated(len: usize, step: u64) -> (Calibration, u64) {
        NOW.set(0);
        STEP.set(step);
        let layout = alloc::Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: new memory that only this thread knows, given back once.
        let calibration = unsafe {
            let memory = alloc::alloc(layout);
            assert!(!memory.is_null());
            let calibration = calibrate(memory, len, ticking);
            alloc::dealloc(memory, layout);
            calibration
        };
        (calibration, NOW.get())
    }

    fn check_table(calibration: &Calibration) {
        for what in [Work::Clear, Work::Copy] {
            for used in [Use::Near, Use::Whole] {
                let of = |figure: &Figure| (figure.what, figure.used) == (what, used);
                let figures: Vec<Figure> = calibration.table().filter(of).collect();
                let chosen: Vec<&Figure> = figures.iter().filter(|figure| figure.chosen).collect();
                assert_eq!(chosen.len(), 1, "{what:?} {used:?}");
                assert_eq!(calibration.kernels().pick(what, BLOCK, used), chosen[0].kernel);
                for (index, figure) in figures.iter().enumerate() {
                    assert!(figures[..index].iter().all(|other| other.kernel != figure.kernel), "twice: {figure:?}");
                    assert!(what == Work::Clear || figure.kernel.check_copy().is_ok(), "{figure:?}");
                }
            }
        }
    }

    #[test]
    fn equal_candidates_leave_the_defaults() {
        let (calibration, _) = calibrated(4 * BLOCK, 10);
        check_table(&calibration);
        assert!(calibration.table().all(|figure| figure.nanoseconds == Some(10)));
        let (defaults, chosen) = (Kernels::default_for_this_cpu(), calibration.kernels());
        for what in [Work::Clear, Work::Copy] {
            for used in [Use::Near, Use::Whole] {
                assert_eq!(chosen.pick(what, BLOCK, used), defaults.pick(what, BLOCK, used));
            }
            // What is never clearly faster is never worth it, unless there is nothing to compare.
            assert!([BLOCK, defaults.nt_from(what)].contains(&chosen.nt_from(what)));
        }
    }

    #[test]
    fn begins_nothing_after_the_budget() {
        // The sample that begins just before the end looks twice, and then each step once.
        let step = BUDGET / 50;
        let (calibration, end) = calibrated(4 * BLOCK, step);
        check_table(&calibration);
        assert!(end <= BUDGET + 10 * step, "{end}");
        assert!(calibration.table().any(|figure| figure.nanoseconds.is_some()));
        assert!(calibration.table().any(|figure| figure.nanoseconds.is_none()));

        let (calibration, _) = calibrated(4 * BLOCK, 2 * BUDGET);
        check_table(&calibration);
        assert!(calibration.table().all(|figure| figure.nanoseconds.is_none()));
        assert_eq!(calibration.kernels(), Kernels::default_for_this_cpu());
    }

    #[test]
    fn without_two_blocks_the_defaults_stay() {
        for len in [4096, BLOCK, 2 * BLOCK - 4096] {
            let (calibration, _) = calibrated(len, 10);
            check_table(&calibration);
            assert!(calibration.table().all(|figure| figure.nanoseconds.is_none()));
            assert_eq!(calibration.kernels(), Kernels::default_for_this_cpu());
        }
    }

    #[test]
    fn a_clock_that_stands_or_turns_back_does_no_harm() {
        check_table(&calibrated(2 * BLOCK, 0).0);
        check_table(&calibrated(2 * BLOCK, 0u64.wrapping_sub(1) / 200).0);
    }

    #[test]
    fn the_first_stays_unless_another_is_clearly_faster() {
        let choose = |figures: &[Option<u64>]| choose(figures, 97);
        assert_eq!(choose(&[Some(100), Some(97), Some(99)]), 0);
        assert_eq!(choose(&[Some(100), Some(96), Some(94)]), 1);
        assert_eq!(choose(&[Some(100), Some(98), Some(96)]), 2);
        assert_eq!(choose(&[Some(100), None, Some(50), None]), 2);
        // Nothing can be said against what was not measured.
        assert_eq!(choose(&[None, Some(1)]), 0);
        assert_eq!(choose(&[]), 0);
        assert_eq!(choose(&[Some(u64::MAX), Some(u64::MAX / 2)]), 1);
    }

    #[test]
    fn small_blocks_are_those_below_the_last_size_that_gains_nothing() {
        let fast = (90, 100);
        let same = (98, 100);
        assert_eq!(smallest([fast; 4]), SIZES[0]);
        assert_eq!(smallest([same, fast, fast, fast]), SIZES[1]);
        assert_eq!(smallest([fast, same, fast, fast]), SIZES[2]);
        assert_eq!(smallest([fast, fast, fast, same]), BLOCK + 1);
    }

    #[test]
    fn one_sample_decides_nothing_and_the_least_counts() {
        let mut samples = Samples::NONE;
        samples.push(7);
        assert_eq!(samples.decisive(), None);
        samples.push(9);
        assert_eq!(samples.decisive(), Some(7));
    }
}
