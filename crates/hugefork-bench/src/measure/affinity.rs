//! The CPUs that the bench may use, and pinning to one of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::BenchError;

/// The CPUs on which this process may run, in order. The list is never empty.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread to `cpu`. Allocates nothing, because forked children call this function.
pub(crate) fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// Guard: while it lives, the calling thread stays on one CPU; afterwards the thread may use its earlier CPUs again.
///
/// A guard must not live longer than a sample: threads that the engine starts meanwhile (to obtain memory) inherit the
/// mask, and would all queue on one CPU.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    pub(crate) fn to(cpu: usize) -> Result<Pinned, BenchError> {
        let before = sched_getaffinity(None).map_err(|errno| BenchError::system("reading the CPU mask", errno))?;
        pin(cpu).map_err(|errno| BenchError::system("pinning to a CPU", errno))?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // This mask was valid when the guard was made. If a cpuset has changed since, the kernel has already moved the
        // thread.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_lasts_as_long_as_the_guard() {
        let before = allowed_cpus();
        {
            let _pinned = Pinned::to(before[0]).unwrap();
            assert_eq!(allowed_cpus(), before[..1]);
        }
        assert_eq!(allowed_cpus(), before);
    }
}
