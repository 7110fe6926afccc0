//! Gives the processor to others, and what the kernel counts of this process.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{barrier, threads};

/// Lets another thread run.
pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

/// How many page faults of this process the kernel has resolved, those of system calls among them. One that was tried
/// twice may count as one that waited for a disk, so both kinds are counted. Takes less than a microsecond. Where a
/// filter refuses the call, no two answers are the same.
pub(crate) fn page_faults() -> u64 {
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    faults(libc::RUSAGE_SELF).unwrap_or_else(|| REFUSED.fetch_add(1, Ordering::Relaxed))
}

/// The same of all threads but the calling one, those that have ended, too. If the program has no other, it is always
/// the same number.
///
/// A thread that has had to wait for its fault writes after that was counted. But another one may write to the same
/// page a moment before: so `None` if the program has two others. It is that, too, where processors may show a write
/// before the count, and no barrier keeps them from it.
pub(crate) fn faults_of_others() -> Option<u64> {
    match threads::others()? {
        0 => Some(u64::MAX),
        1 => {
            if !cfg!(target_arch = "x86_64") {
                barrier::on_all_threads().ok()?;
            }
            let (before, all, own) =
                (faults(libc::RUSAGE_THREAD)?, faults(libc::RUSAGE_SELF)?, faults(libc::RUSAGE_THREAD)?);
            // One of its own meanwhile would be counted with only one of them.
            (before == own).then(|| all.saturating_sub(own))
        }
        2.. => None,
    }
}

/// How often threads of this process have gone to sleep, but for the calling one: those that have ended, too.
pub(crate) fn sleeps_of_others() -> u64 {
    let sleeps = |who| usage(who).map_or(0, |usage| usage.ru_nvcsw as u64);
    sleeps(libc::RUSAGE_SELF).saturating_sub(sleeps(libc::RUSAGE_THREAD))
}

fn faults(who: libc::c_int) -> Option<u64> {
    usage(who).map(|usage| usage.ru_minflt as u64 + usage.ru_majflt as u64)
}

/// What the kernel counts; nothing where a filter refuses the call.
fn usage(who: libc::c_int) -> Option<libc::rusage> {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for the answer.
    let answer = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    // SAFETY: all zeroes is one, and the call writes whole ones.
    (answer == 0).then(|| unsafe { usage.assume_init() })
}

/// Lets everything else on the machine run before this thread from now on.
pub(crate) fn lower_priority() {
    // Other C libraries have more fields.
    // SAFETY: all zeroes is one.
    let parameters = unsafe { core::mem::zeroed::<libc::sched_param>() };
    // If the kernel refuses, the thread keeps the program's priority, within its share of a processor.
    // SAFETY: changes only the scheduling class of the calling thread.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
}
