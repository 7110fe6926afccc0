//! A real calibration: it is short and complete, and the chosen kernels run.

use std::{
    alloc::{Layout, alloc, dealloc},
    io::Write,
};

use hugefork_kernels::{Use, Work, calibrate};
use rustix::{
    mm::{Advice, madvise},
    time::{ClockId, clock_gettime},
};

const MIB: usize = 1 << 20;

/// CPU time, which stands still while another task runs.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn calibration_chooses_one_kernel_for_each_work_and_use() {
    let layout = Layout::from_size_align(8 * MIB, 2 * MIB).unwrap();
    // SAFETY: new memory that only this thread uses, freed once.
    let calibration = unsafe {
        let memory = alloc(layout);
        assert!(!memory.is_null());
        // The calibration works without huge pages, too.
        let _ = madvise(memory.cast(), 8 * MIB, Advice::LinuxHugepage);
        memory.write_bytes(1, 8 * MIB);
        let calibration = calibrate(memory, 8 * MIB, clock);
        dealloc(memory, layout);
        calibration
    };
    // libtest hides the output of `println`.
    let mut out = std::io::stderr();
    writeln!(out, "calibrated in {} µs", calibration.nanoseconds() / 1000).unwrap();
    for what in [Work::Clear, Work::Copy] {
        writeln!(out, "{what:?} nt_from {}", calibration.kernels().nt_from(what)).unwrap();
        for used in [Use::Near, Use::Whole] {
            let figures: Vec<_> = calibration.table().filter(|f| (f.what, f.used) == (what, used)).collect();
            for figure in &figures {
                let sign = if figure.chosen { "*" } else { " " };
                let time = figure.nanoseconds.map_or("-".to_owned(), |time| (time / 1000).to_string());
                writeln!(out, "{sign} {what:?} {used:?} {time:>5} µs {}", figure.kernel).unwrap();
            }
            let chosen: Vec<_> = figures.iter().filter(|figure| figure.chosen).collect();
            assert_eq!(chosen.len(), 1, "{what:?} {used:?}");
            assert_eq!(calibration.kernels().pick(what, 2 * MIB, used), chosen[0].kernel);
        }
    }
}
