//! A real calibration: short, whole, and with a choice that runs.

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

/// CPU time, which does not go on while another task runs.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn chooses_one_each() {
    let layout = Layout::from_size_align(8 * MIB, 2 * MIB).unwrap();
    // SAFETY: new memory that only this thread knows, given back once.
    let calibration = unsafe {
        let memory = alloc(layout);
        assert!(!memory.is_null());
        // It works without huge pages, too.
        let _ = madvise(memory.cast(), 8 * MIB, Advice::LinuxHugepage);
        memory.write_bytes(1, 8 * MIB);
        let calibration = calibrate(memory, 8 * MIB, clock);
        dealloc(memory, layout);
        calibration
    };
    // Not `println`, which libtest hides.
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
