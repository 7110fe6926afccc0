//! Gives the processor to others.

/// Lets another thread run.
pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

/// Lets everything else on the machine run before this thread from now on.
pub(crate) fn lower_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // If the kernel refuses, the thread keeps the program's priority, within its share of a processor.
    // SAFETY: changes only the scheduling class of the calling thread.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
}
