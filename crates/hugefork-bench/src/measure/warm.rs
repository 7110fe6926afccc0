//! Makes sure that the host has given the guest the memory that the kernel hands out next.
//!
//! With free page reporting a guest gives its free huge pages back to the host after about two seconds. The next thread
//! that gets such a page waits for the host: 4.8 ms instead of 0.09 here. `kernel-thp` in `anon-w-seq` then writes 0.7
//! to 11 GiB/s; warmed, it writes 20. So right before every sample, the bench touches and frees as much memory as the
//! sample takes, again and again until a pass finds no cold page.

//!
//! All CPUs that will take the memory touch it at the same time: each CPU keeps some tens of MiB of freed pages in a
//! list of its own. If the memory was warmed on another CPU, one task of 512 MiB still met thirty cold pages.
//!
//! The kernel first hands out the memory that was freed last, and some of that memory may still be in the cache: at
//! most a quarter of an area that is four times as large as the cache.

use std::sync::Barrier;
use std::thread;

use crate::error::BenchError;
use crate::measure::affinity;
use crate::memory::kernel_memory::{KernelMemory, PageKind, Reserve};

/// Most passes: if this many passes find cold pages, the host has no more memory to give, or another program takes it.
const PASSES: usize = 4;

/// Warms `tasks` times `len` bytes, on `cpus` in turn.
///
/// # Errors
/// [`BenchError::CannotRun`] if there is not enough memory, or not enough of it in huge pages.
pub(crate) fn warm(kind: PageKind, len: usize, tasks: usize, cpus: &[usize]) -> Result<(), BenchError> {
    for _ in 0..PASSES {
        if pass(kind, len, tasks, cpus)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Touches the memory once and frees it. Returns the number of cold pages.
fn pass(kind: PageKind, len: usize, tasks: usize, cpus: &[usize]) -> Result<usize, BenchError> {
    let all_touched = Barrier::new(tasks);
    let touch = |cpu: usize| {
        let touched = affinity::pin(cpu)
            .map_err(|errno| BenchError::system("pinning to a CPU", errno))
            .and_then(|()| KernelMemory::map(kind, len, Reserve::Yes))
            .and_then(|memory| Ok((memory.populate_piecewise()?, memory.check_huge()?, memory)));
        // A thread comes here after an error too, since the other threads wait for it. No thread frees its memory
        // before all threads have touched theirs: otherwise several threads would touch the same pages.
        all_touched.wait();
        touched.map(|(cold, ..)| cold)
    };
    let touch = &touch;
    thread::scope(|scope| {
        let cpus = (0..tasks).map(|task| cpus[task % cpus.len()]);
        let workers: Vec<_> = cpus.map(|cpu| scope.spawn(move || touch(cpu))).collect();
        workers.into_iter().map(|worker| worker.join().expect("touching memory does not panic")).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::affinity::allowed_cpus;
    use crate::memory::kernel_memory::HUGE_PAGE;

    #[test]
    fn several_tasks_touch_together() {
        warm(PageKind::Base, HUGE_PAGE, 3, &allowed_cpus()).unwrap();
        assert!(pass(PageKind::Base, 2 * HUGE_PAGE, 2, &allowed_cpus()).unwrap() <= 4);
    }

    #[test]
    fn an_error_in_one_ends_all() {
        assert!(warm(PageKind::Hugetlb, 1 << 46, 2, &allowed_cpus()).unwrap_err().is_lack());
    }
}
