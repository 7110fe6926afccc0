//! Tests of teams: tasks write their areas, the death of a task is reported, and no task is left
//! waiting.

use super::*;
use crate::measure::affinity::allowed_cpus;
use crate::memory::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind, Reserve};

fn memory() -> KernelMemory {
    KernelMemory::map(PageKind::Base, HUGE_PAGE, Reserve::Yes).unwrap()
}

#[test]
fn threads_write_their_areas() {
    let memories = [memory(), memory(), memory()];
    let areas = memories.each_ref().map(|memory| Area::new(memory.as_ptr(), memory.len()));
    // SAFETY: three mappings of our own, which outlive the team.
    let outcome = unsafe { Team::of_threads(&areas, &allowed_cpus()) }.unwrap().run().unwrap();
    assert!(outcome.seconds > 0.0);
    for memory in &memories {
        // SAFETY: the last word of our own mapping; the threads have ended.
        let last = unsafe { memory.as_ptr().cast::<u64>().add(HUGE_PAGE / 8 - 1).read() };
        assert_eq!(last, HUGE_PAGE as u64 / 8 - 1);
    }
}

#[test]
fn processes_write_copies() {
    let memory = memory();
    memory.touch().unwrap();
    memory.inherit(Inherit::Yes).unwrap();
    let areas = [Area::new(memory.as_ptr(), memory.len()); 2];
    // SAFETY: children get the private mapping copy-on-write.
    let outcome = unsafe { Team::of_processes(&areas, &allowed_cpus()) }.unwrap().run().unwrap();
    assert!(outcome.seconds > 0.0);
    // SAFETY: our own mapping.
    assert_eq!(unsafe { memory.as_ptr().cast::<u64>().add(1).read() }, 0, "the parent's memory must be its own");
}

#[test]
fn a_child_that_dies_is_an_error_and_not_a_hang() {
    let memory = memory();
    // Children do not inherit the mapping, so their first store hits unmapped memory.
    memory.inherit(Inherit::No).unwrap();
    let areas = [Area::new(memory.as_ptr(), memory.len()); 2];
    // SAFETY: the children die of SIGSEGV, which is what is tested; nothing else is touched.
    let error = unsafe { Team::of_processes(&areas, &allowed_cpus()) }.unwrap().run().unwrap_err();
    assert!(error.to_string().contains("killed by signal 11"), "{error}");
}

#[test]
fn a_team_that_is_dropped_goes_home() {
    let memory = memory();
    memory.touch().unwrap();
    let areas = [Area::new(memory.as_ptr(), memory.len())];
    // SAFETY: one mapping of our own, which outlives the teams.
    drop(unsafe { Team::of_threads(&areas, &allowed_cpus()) }.unwrap());
    // SAFETY: as above.
    drop(unsafe { Team::of_processes(&areas, &allowed_cpus()) }.unwrap());
    // SAFETY: our own mapping.
    assert_eq!(unsafe { memory.as_ptr().cast::<u64>().add(1).read() }, 0);
}
