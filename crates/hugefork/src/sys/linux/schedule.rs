//! Yields the processor, lowers a thread's priority, and reads the kernel's counters of faults and sleeps.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{barrier, threads};

/// Lets another thread run.
pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

/// How many page faults of this process the kernel has resolved, including those of system calls. A fault that was
/// tried twice may count as one that waited for a disk, so this adds both kinds. Takes less than a microsecond. Where a
/// filter refuses the call, no two answers are the same.
pub(crate) fn page_faults() -> u64 {
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    faults(libc::RUSAGE_SELF).unwrap_or_else(|| REFUSED.fetch_add(1, Ordering::Relaxed))
}

/// As [`page_faults`], of all threads but the calling one, including ended ones. If the program has no other thread,
/// this is always the same number.
///
/// The kernel counts a fault before the faulting thread writes. But with two other threads, one could write to a page
/// that the fault of the other has just made writable, a moment before the kernel counts that fault. So this is `None`
/// if the program has two or more other threads. It is also `None` on processors that may show a write before the
/// count, if no barrier prevents that.
pub(crate) fn faults_of_others() -> Option<u64> {
    match threads::others()? {
        0 => Some(u64::MAX),
        1 => {
            if !cfg!(target_arch = "x86_64") {
                barrier::on_all_threads().ok()?;
            }
            let (before, all, own) =
                (faults(libc::RUSAGE_THREAD)?, faults(libc::RUSAGE_SELF)?, faults(libc::RUSAGE_THREAD)?);
            // A fault of this thread between the calls would be counted in only one of them.
            (before == own).then(|| all.saturating_sub(own))
        }
        2.. => None,
    }
}

/// How often the other threads of this process have gone to sleep, including ended ones.
pub(crate) fn sleeps_of_others() -> u64 {
    let sleeps = |who| usage(who).map_or(0, |usage| usage.ru_nvcsw as u64);
    sleeps(libc::RUSAGE_SELF).saturating_sub(sleeps(libc::RUSAGE_THREAD))
}

fn faults(who: libc::c_int) -> Option<u64> {
    usage(who).map(|usage| usage.ru_minflt as u64 + usage.ru_majflt as u64)
}

/// The kernel's counters; `None` where a filter refuses the call.
fn usage(who: libc::c_int) -> Option<libc::rusage> {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for the answer.
    let answer = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid value, and the call writes whole ones.
    (answer == 0).then(|| unsafe { usage.assume_init() })
}

/// Lets all other threads of the machine run before this one from now on.
pub(crate) fn lower_priority() {
    // Other C libraries have more fields than these.
    // SAFETY: all zeroes is a valid value.
    let parameters = unsafe { core::mem::zeroed::<libc::sched_param>() };
    // If the kernel refuses, the thread keeps the program's priority, within its share of a processor.
    // SAFETY: the call changes only the scheduling class of the calling thread.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
}
