//! Resource usage of this process, and the size of the machine. The calls bypass libc, because the
//! worker shares another thread's `errno`.

use rustix::time::{ClockId, clock_gettime};
use syscalls::{Sysno, syscall};

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Page faults of this process that needed no disk.
pub(crate) fn page_faults() -> u64 {
    // SAFETY: `rusage` is plain numbers, for which all-zero bytes are a value; the call writes to it and cannot fail.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let _ = syscall!(Sysno::getrusage, libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_minflt as u64
    }
}

/// The machine's memory; `None` if the kernel does not report it.
pub(crate) fn machine() -> Option<libc::sysinfo> {
    // SAFETY: `sysinfo` is plain numbers, for which all-zero bytes are a value, and the call writes to it.
    unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        syscall!(Sysno::sysinfo, &raw mut info).is_ok().then_some(info)
    }
}
