//! Tests of the whole calibration with a clock that the tests control.

extern crate std;
use std::{alloc, cell::Cell, thread_local, vec::Vec};

use super::{stage::BUDGET, *};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static STEP: Cell<u64> = const { Cell::new(0) };
}

/// A clock that advances by the thread's step at each reading.
fn ticking() -> u64 {
    NOW.set(NOW.get() + STEP.get());
    NOW.get()
}

fn calibrated(len: usize, step: u64) -> (Calibration, u64) {
    NOW.set(0);
    STEP.set(step);
    let layout = alloc::Layout::from_size_align(len, 4096).unwrap();
    // SAFETY: new memory that only this thread uses, freed once.
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
        // Without a clear gain `nt_from` is the block size, or the default if no candidates were compared.
        assert!([BLOCK, defaults.nt_from(what)].contains(&chosen.nt_from(what)));
    }
}

#[test]
fn no_sample_begins_after_the_budget() {
    // The sample that begins just before the end reads the clock twice, and each later step reads it once.
    let step = BUDGET / 10;
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
fn a_stopped_or_reversed_clock_does_no_harm() {
    check_table(&calibrated(2 * BLOCK, 0).0);
    check_table(&calibrated(2 * BLOCK, 0u64.wrapping_sub(1) / 200).0);
}
