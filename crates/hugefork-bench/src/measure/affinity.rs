//! The CPUs that the bench may use, and pinning to one of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::BenchError;

/// The CPUs that this process may run on, in order. Never empty.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread to `cpu`. Allocates nothing: forked children call it.
pub(crate) fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// The calling thread stays on one CPU while this lives, then may run where it could before.
///
/// Only for the length of a sample: threads that the engine starts in between (to obtain memory) inherit the mask and
/// would all queue on one CPU.
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
        // This mask was valid a moment ago. If a cpuset has changed since, the kernel has already moved us.
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
