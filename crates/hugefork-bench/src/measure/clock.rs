//! How times are taken: from `CLOCK_MONOTONIC`, which parent, children and threads share, which is read after a
//! full fence.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock, the same in every process of the machine.
pub fn now() -> u64 {
    ns(ClockId::Monotonic)
}

/// Nanoseconds of CPU time of the calling thread. Time in which other threads have the CPU does not count.
pub(crate) fn of_this_thread() -> u64 {
    ns(ClockId::ThreadCPUTime)
}

fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// [`now`], after every earlier load and store has taken effect.
///
/// Without a fence, non-temporal stores would still be in write-combining buffers when the clock is read, and would
/// seem faster than they are. So the time of the work includes the fence.
pub fn now_fenced() -> u64 {
    full_fence();
    now()
}

/// Microseconds between two readings.
pub fn us(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e3
}

/// Milliseconds between two readings.
pub fn ms(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

fn full_fence() {
    // `atomic::fence(SeqCst)` may compile to a locked instruction, which does not drain non-temporal stores; `mfence`
    // drains them.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64, and a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Milliseconds of `call`, between fences. The value of `call` is returned and not dropped, so the time includes no
/// drop.
pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let start = now_fenced();
    let made = black_box(call());
    (made, ms(start, now_fenced()))
}

/// Counts the CPU time of all threads of this process, and of its children that were waited for.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    before: CpuTime,
}

impl CpuMeter {
    pub(crate) fn start() -> CpuMeter {
        CpuMeter { before: CpuTime::of_this_process_and_children() }
    }

    /// Milliseconds since the start.
    pub(crate) fn ms(&self) -> f64 {
        CpuTime::of_this_process_and_children().since(self.before).ms()
    }
}

/// User and system time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// Time in the program's own code, which for hugefork includes the fault handler.
    pub user: f64,
    /// Time in the kernel on the program's behalf.
    pub sys: f64,
}

impl CpuTime {
    /// The time that the calling thread has used so far.
    pub fn of_this_thread() -> CpuTime {
        CpuTime::of(&usage(libc::RUSAGE_THREAD))
    }

    /// The time that all threads of this process, and its children that were waited for, have used so far.
    pub(crate) fn of_this_process_and_children() -> CpuTime {
        CpuTime::of(&usage(libc::RUSAGE_SELF)).and(CpuTime::of(&usage(libc::RUSAGE_CHILDREN)))
    }

    fn of(usage: &libc::rusage) -> CpuTime {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        CpuTime { user: seconds(usage.ru_utime), sys: seconds(usage.ru_stime) }
    }

    /// The sum of two times, separately for user and system.
    pub(crate) fn and(self, other: CpuTime) -> CpuTime {
        CpuTime { user: self.user + other.user, sys: self.sys + other.sys }
    }

    /// The time since `earlier`.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime { user: self.user - earlier.user, sys: self.sys - earlier.sys }
    }

    /// The sum of user and system time, in milliseconds.
    pub(crate) fn ms(self) -> f64 {
        (self.user + self.sys) * 1e3
    }
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: `rusage` consists of plain numbers, for which all-zero bytes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`. The call cannot fail with these arguments.
    unsafe { libc::getrusage(who, &mut usage) };
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward_and_units_are_right() {
        let (first, second) = (now_fenced(), now_fenced());
        assert!(second >= first);
        assert_eq!(us(1_000, 3_500), 2.5);
        assert_eq!(ms(0, 2_000_000), 2.0);
        assert_eq!(us(5, 3), 0.0);
    }

    /// Works until the clock of CPU time has advanced.
    fn work_until_it_shows(before: CpuTime) {
        while CpuTime::of_this_thread().since(before).user <= 0.0 {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn work_shows_up_as_cpu_time() {
        let before = CpuTime::of_this_thread();
        work_until_it_shows(before);
    }

    #[test]
    fn calls_are_timed_and_the_work_of_all_threads_counts() {
        let ((), slept) = timed(|| std::thread::sleep(std::time::Duration::from_millis(2)));
        assert!(slept >= 2.0, "{slept} ms");
        let meter = CpuMeter::start();
        let worker = std::thread::spawn(|| work_until_it_shows(CpuTime::of_this_thread()));
        worker.join().unwrap();
        assert!(meter.ms() > 0.0);
    }
}
