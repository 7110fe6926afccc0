//! Work on a range of memory by several threads, such as getting the memory of a large pool.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The start of the next step. When a thread stops early, by an error or a panic, no thread begins another step.
struct Next<'a> {
    start: &'a AtomicUsize,
    len: usize,
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.start.store(self.len, Ordering::Relaxed);
    }
}

/// Does the work for `0..len` in steps, on up to `threads` threads, at least on this one. Uses no more threads than
/// there are steps. If the system cannot start all threads, the started ones do the work.
///
/// # Errors
/// The first one ends the work of all threads. So does a panic, which goes on in this thread.
pub(super) fn in_steps<E: Send>(
    len: usize,
    step: usize,
    threads: usize,
    work: impl Fn(Range<usize>) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let start = AtomicUsize::new(0);
    let take_steps = || {
        let next = Next { start: &start, len };
        loop {
            let start = next.start.fetch_add(step, Ordering::Relaxed);
            if start >= len {
                return Ok(());
            }
            work(start..len.min(start + step))?;
        }
    };
    let threads = threads.min(len.div_ceil(step));
    thread::scope(|scope| {
        let helper = |_| thread::Builder::new().spawn_scoped(scope, take_steps).ok();
        let helpers: Vec<_> = (1..threads).map_while(helper).collect();
        let mine = take_steps();
        let others = helpers.into_iter().map(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        mine.and(others.reduce(Result::and).unwrap_or(Ok(())))
    })
}
