//! The pressure watcher: a thread that gives memory back to the system while tasks wait for memory.
//!
//! ```text
//!                trigger of the pressure file           free blocks, then lazily freed ones,
//!        ┌──────┐ ─────────────────────────▶ ┌───────┐  oldest first: one step
//!        │asleep│                            │relieve│ ──────────────┐
//!        └──────┘ ◀───────────────────────── └───────┘ ◀──────────┐  ▼
//!                nothing left to give            ▲  tasks wait  ┌─┴──────────┐
//!             ◀───────────────────────────────── └───────────── │look, 50 ms │
//!                no task waits any more                         └────────────┘
//! ```
//! It watches the kernel's pressure stall information (PSI), of the control group if it can, or else of the machine.
//! The kernel measures how long tasks wait for memory, and wakes the thread only when that is long. The thread checks
//! the pressure only while tasks wait.
//!
//! Other sources serve less well. The `memory.events` of a control group would need no trigger, but its counters also
//! rise when clean page cache is replaced at the limit, though no task waits. A group full of cache does that all day.
//! A group that is slowed down at `memory.high` shows in PSI too. `memory.pressure_level` exists only in version 1.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::core::PoolCore;
use super::holders::Droppable;
use super::worker::Worker;
use crate::mem::EngineArc;
use crate::stats::counters::count;
use crate::sys::SystemError;
use crate::sys::linux::owner;
use crate::sys::linux::pressure::{Ask, PressureError, PressureFile, Signal};
use crate::sys::linux::stderr::say;
use crate::sys::{Merging, Sys};

/// When memory counts as short, and how much a pool gives back at a time:
/// [`PoolBuilder::reclaim_under_pressure`](crate::PoolBuilder::reclaim_under_pressure).
///
/// A thread of the pool (`hugefork-press`, all signals blocked) sleeps until the kernel reports that tasks waited for
/// memory, by default for 150 ms within 2 s. It then gives back a step of memory, and checks for 50 ms whether tasks
/// still wait for as large a part of the time. It goes on until they do not, or until nothing is left. A step takes
/// free blocks. If they do not suffice, it drops contents that were [lazily freed](crate::Region::lazy_free), oldest
/// first, except pinned blocks and blocks that a fork or snapshot shares. Pages that were copied by page go back into
/// blocks that no fork or snapshot holds any more. Until memory suffices again, no block is copied because many of its
/// pages are.
///
/// # What it costs
/// * It costs nothing while no task waits for memory: there is no timer and no wake-up. If the process has
///   `CAP_SYS_RESOURCE`, the kernel runs a thread of its own for the watch (`psimon`), which sleeps too. Otherwise the
///   kernel reports up to 2 s later.
/// * A block whose memory was given back gets new memory at its next first write, and the kernel clears it then. That
///   holds for [`Commit::Upfront`](crate::Commit) and [`Reserve::Full`](crate::Reserve) too, so a write to such a block
///   may find the machine out of memory.
/// * The drop of the pool waits until the kernel has removed the trigger, some 10 ms.
///
/// # Where it looks
/// It watches `memory.pressure` of the process's control group (version 2), as it is when the pool is built. So a group
/// at its limit gets memory back while the machine has plenty. If that file cannot be opened for writing, as in
/// containers that see it read-only, it watches `/proc/pressure/memory`, the whole machine. [`PressureWatch::file`]
/// chooses another file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use hugefork::{Pool, PressureWatch};
/// // Earlier than by default, in larger steps, and for others on this machine too.
/// let watch = PressureWatch::file("/proc/pressure/memory")
///     .stall(Duration::from_millis(50), Duration::from_secs(2))
///     .step(256 << 20);
/// let pool = Pool::builder().capacity(16 << 20).reclaim_under_pressure(watch).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressureWatch {
    file: Option<PathBuf>,
    stall: Duration,
    window: Duration,
    step: usize,
}

impl Default for PressureWatch {
    fn default() -> Self {
        PressureWatch { file: None, stall: Duration::from_millis(150), window: Duration::from_secs(2), step: 64 << 20 }
    }
}

impl PressureWatch {
    /// Watches the process's control group or, if that is not possible, the machine.
    pub fn new() -> PressureWatch {
        PressureWatch::default()
    }

    /// Watches the PSI file `path`: `memory.pressure` of any control group, such as the one that systemd names in
    /// `MEMORY_PRESSURE_WATCH`, or `/proc/pressure/memory`. If the file cannot be watched, the pool has no watcher.
    pub fn file(path: impl Into<PathBuf>) -> PressureWatch {
        PressureWatch { file: Some(path.into()), ..PressureWatch::default() }
    }

    /// Memory is short when any task waited for it for `stall` within `window`; by default 150 ms within 2 s. The
    /// kernel accepts windows of 0.5 to 10 s, but only 2, 4, 6, 8 and 10 s from processes without `CAP_SYS_RESOURCE`.
    /// It reports at most once a window. If it refuses the values, the pool has no watcher.
    pub fn stall(mut self, stall: Duration, window: Duration) -> PressureWatch {
        (self.stall, self.window) = (stall, window);
        self
    }

    /// How many bytes the watcher gives back before it checks again, rounded up to at least one block; by default 64
    /// MiB.
    pub fn step(mut self, bytes: usize) -> PressureWatch {
        self.step = bytes.max(1);
        self
    }

    /// Sets a trigger for a moment. Returns the file that a pool would watch, or why it could watch none.
    ///
    /// # Errors
    /// [`PressureError`]: no file can be watched.
    pub fn try_out(&self) -> Result<PathBuf, PressureError> {
        PressureFile::open(self.file.as_deref(), self.stall, self.window).map(|file| file.path)
    }
}

/// The work of the pressure watcher so far.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let pressure = pool.stats().pressure;
/// assert!(!pressure.running); // the builder was not asked for it
/// assert_eq!(pressure.bytes_reclaimed, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureStats {
    /// Whether a thread watches.
    pub running: bool,
    /// How often the kernel reported that memory is short.
    pub events: u64,
    /// Bytes of lazily freed contents that were dropped.
    pub bytes_reclaimed: u64,
    /// Bytes of free blocks whose memory went back to the system, including blocks that the watcher dropped. The
    /// dropped pages of split blocks go back too, but are not counted here.
    pub bytes_trimmed: u64,
}

/// [`PressureStats`] while they are being counted.
#[derive(Debug, Default)]
struct Counters {
    running: AtomicBool,
    events: AtomicU64,
    bytes_reclaimed: AtomicU64,
    bytes_trimmed: AtomicU64,
}

/// The thread of one pool.
pub(crate) struct Watcher {
    counters: Arc<Counters>,
    _worker: Worker,
}

impl Watcher {
    /// Starts the thread. The error says why there is none.
    pub(crate) fn start<S: Sys>(
        core: &EngineArc<PoolCore<S>>,
        watch: &PressureWatch,
    ) -> Result<Watcher, Box<dyn Error>> {
        if core.sys.merging() == Merging::Separate {
            return Err("its hugetlb pages are set aside for the pool, so other programs could not use them".into());
        }
        let file = Arc::new(PressureFile::open(watch.file.as_deref(), watch.stall, watch.window)?);
        let counters = Arc::new(Counters { running: AtomicBool::new(true), ..Counters::default() });
        let work = {
            // The thread holds only the core of the pool, so the drop of the pool itself can end the thread.
            let (core, file, counters, step) = (core.clone(), Arc::clone(&file), Arc::clone(&counters), watch.step);
            move || watch_for_pressure(&core, step, &counters, |ask| file.answer(ask))
        };
        let worker = Worker::start("hugefork-press", work, move || file.stop());
        let worker = worker.map_err(|error| format!("the watching thread did not start: {error}"))?;
        Ok(Watcher { counters, _worker: worker })
    }

    pub(crate) fn stats(&self) -> PressureStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PressureStats {
            running: self.counters.running.load(Ordering::Relaxed) && !owner::is_forked_child(),
            events: get(&self.counters.events),
            bytes_reclaimed: get(&self.counters.bytes_reclaimed),
            bytes_trimmed: get(&self.counters.bytes_trimmed),
        }
    }
}

/// Gives memory back, `step` bytes at a time, as long as `answer` demands it. This is the body of the thread.
fn watch_for_pressure<S: Sys>(
    core: &PoolCore<S>,
    step: usize,
    counters: &Counters,
    mut answer: impl FnMut(Ask) -> Signal,
) {
    let (mut ask, mut said) = (Ask::WhenShort, false);
    loop {
        let signal = answer(ask);
        match signal {
            Signal::Short => core.maintenance.tell_short(true),
            Signal::Enough => {
                core.maintenance.tell_short(false);
                ask = Ask::WhenShort;
                continue;
            }
            Signal::Stop => break,
            Signal::Gone => {
                say(format_args!(
                    "pool `{}` no longer watches memory pressure: the file is gone, with its control group, \
                     or the program has closed it: close only descriptors that it has opened itself",
                    core.name
                ));
                break;
            }
        }
        if ask == Ask::WhenShort {
            count(&counters.events, 1);
        }
        ask = match core.relieve(step, counters) {
            // While there are CoW mappings, memory stays marked as short, so that no block is promoted at the cost of
            // more memory.
            Ok(0) if core.maintenance.cow_mappings() > 0 => Ask::StillShort,
            Ok(0) => Ask::WhenShort,
            Ok(_) => Ask::StillShort,
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    say(format_args!("pool `{}` could not give memory back: {error}", core.name));
                }
                Ask::WhenShort
            }
        };
        if ask == Ask::WhenShort {
            core.maintenance.tell_short(false);
        }
    }
    core.maintenance.tell_short(false);
    counters.running.store(false, Ordering::Relaxed);
}

impl<S: Sys> PoolCore<S> {
    /// Gives about `step` bytes back to the system, beginning with free blocks, because they hold no data. Returns how
    /// many bytes were given back or dropped, 0 if nothing is left. If the system refuses to take memory back, nothing
    /// is dropped.
    fn relieve(&self, step: usize, counters: &Counters) -> Result<usize, SystemError> {
        let trim = |bytes: usize| {
            let trimmed = self.trim(bytes)?;
            count(&counters.bytes_trimmed, trimmed as u64);
            Ok(trimmed)
        };
        let free = trim(step)?;
        let missing = step.saturating_sub(free);
        let dropped = self.drop_lazy(missing, Droppable::Everything).bytes;
        count(&counters.bytes_reclaimed, dropped as u64);
        if dropped > 0 {
            trim(missing)?;
        }
        Ok(free + dropped)
    }
}

#[cfg(test)]
mod tests {
    use hugefork_kernels::Kernels;

    use super::*;
    use crate::mem::pinned::PinnedBox;
    use crate::pool::stock::Stock;
    use crate::region::state::RegionCore;
    use crate::sys::soft::{Call, SoftMmu};
    use crate::types::options::RegionOptions;
    use crate::units::BlockSize;

    const BLOCK: usize = 2 << 20;

    type Soft = PinnedBox<RegionCore<SoftMmu>>;

    fn pool(blocks: usize) -> EngineArc<PoolCore<SoftMmu>> {
        let mmu = SoftMmu::new(blocks * BLOCK, Merging::Merge, 1000);
        let kernels = Kernels::default_for_this_cpu();
        EngineArc::new(PoolCore::new(mmu, "test".to_owned(), BlockSize::MIB_2, blocks, kernels, Stock::default()))
    }

    /// A region of `blocks` blocks, each of which begins with `value`.
    fn region(pool: &EngineArc<PoolCore<SoftMmu>>, blocks: usize, value: u8) -> Soft {
        let space = RegionCore::zeros(pool, blocks * BLOCK, RegionOptions::new()).unwrap();
        (0..blocks).for_each(|block| write(&space, block * BLOCK, value));
        space
    }

    fn write(space: &Soft, offset: usize, value: u8) {
        while space.pool().sys.store(space.addresses.base() + offset, value).is_err() {
            space.resolve(offset).unwrap();
        }
    }

    /// The first byte of each block.
    fn contents(space: &Soft) -> Vec<u8> {
        let load = |offset: usize| space.pool().sys.load(space.addresses.base() + offset).unwrap();
        (0..space.len()).step_by(BLOCK).map(load).collect()
    }

    fn lazy_free_all(space: &Soft) {
        assert_eq!(space.lazy_free(0..space.len()).unwrap().freed, space.len());
    }

    /// Runs the watcher with these answers, and returns its questions in order. `between` runs before each answer.
    fn watch(
        pool: &PoolCore<SoftMmu>,
        step: usize,
        answers: &[Signal],
        mut between: impl FnMut(usize),
    ) -> (Vec<Ask>, Counters) {
        let (mut asked, counters) = (Vec::new(), Counters::default());
        counters.running.store(true, Ordering::Relaxed);
        watch_for_pressure(pool, step, &counters, |ask| {
            between(asked.len());
            asked.push(ask);
            answers[asked.len() - 1]
        });
        assert_eq!(asked.len(), answers.len(), "it ends only when it is told to");
        assert!(!counters.running.load(Ordering::Relaxed));
        (asked, counters)
    }

    fn counts(counters: &Counters) -> [usize; 3] {
        [&counters.events, &counters.bytes_reclaimed, &counters.bytes_trimmed]
            .map(|counter| counter.load(Ordering::Relaxed) as usize)
    }

    use Ask::{StillShort, WhenShort};
    use Signal::{Enough, Gone, Short, Stop};

    #[test]
    fn the_oldest_lazily_freed_blocks_go_first_in_steps_until_memory_is_no_longer_short() {
        let pool = pool(6);
        let (young, old, kept) = (region(&pool, 2, 1), region(&pool, 2, 2), region(&pool, 2, 3));
        lazy_free_all(&old);
        lazy_free_all(&young);
        let seen = [
            [vec![2, 2], vec![1, 1]],
            [vec![0, 2], vec![1, 1]],
            [vec![0, 0], vec![1, 1]],
            [vec![0, 0], vec![0, 1]],
            [vec![0, 0], vec![0, 1]],
        ];
        let (asked, counters) = watch(&pool, BLOCK, &[Short, Short, Short, Enough, Stop], |step| {
            assert_eq!([contents(&old), contents(&young)], seen[step], "after {step} steps");
        });
        assert_eq!(asked, [WhenShort, StillShort, StillShort, StillShort, WhenShort]);
        assert_eq!(contents(&kept), [3, 3]);
        assert_eq!(counts(&counters), [1, 3 * BLOCK, 3 * BLOCK]);
        assert_eq!(pool.sys.calls(Call::Punch), 3);
    }

    #[test]
    fn it_sleeps_when_nothing_is_left_and_comes_back_at_the_next_event() {
        let pool = pool(4);
        let space = region(&pool, 2, 1);
        lazy_free_all(&space);
        let answers = [Short, Short, Short, Short, Stop];
        let (asked, counters) = watch(&pool, 64 << 20, &answers, |step| {
            if step == 2 {
                write(&space, 0, 5);
                space.lazy_free(0..BLOCK).unwrap();
            }
        });
        // One step takes everything, and the check after it finds nothing more to give. Then the same happens again.
        assert_eq!(asked, [WhenShort, StillShort, WhenShort, StillShort, WhenShort]);
        assert_eq!(counts(&counters), [2, 3 * BLOCK, 3 * BLOCK]);
        assert_eq!(contents(&space), [0, 0]);
    }

    #[test]
    fn free_blocks_go_before_anything_is_dropped() {
        let pool = pool(8);
        // The first region uses three blocks, and the second reuses two of them.
        drop(region(&pool, 3, 9));
        let space = region(&pool, 2, 1);
        lazy_free_all(&space);
        let (_, counters) = watch(&pool, BLOCK, &[Short, Enough, Stop], |_| {});
        assert_eq!(counts(&counters), [1, 0, BLOCK], "a free block is enough for this step");
        assert_eq!(contents(&space), [1, 1]);
        let (_, counters) = watch(&pool, BLOCK, &[Short, Enough, Stop], |_| {});
        assert_eq!(counts(&counters), [1, BLOCK, BLOCK]);
        assert_eq!(contents(&space), [0, 1]);
    }

    #[test]
    fn shared_and_pinned_blocks_are_kept() {
        let pool = pool(8);
        let (shared, pinned, pages) = (region(&pool, 1, 1), region(&pool, 1, 2), region(&pool, 1, 3));
        lazy_free_all(&shared);
        lazy_free_all(&pinned);
        let snapshot = shared.freeze().unwrap();
        pinned.pin(0..1).unwrap();
        // Half of a block is lazily freed: its pages are dropped, and the block stays.
        pages.lazy_free(BLOCK / 2..BLOCK).unwrap();
        let (asked, counters) = watch(&pool, 64 << 20, &[Short, Short, Stop], |_| {});
        assert_eq!(asked, [WhenShort, StillShort, WhenShort]);
        assert_eq!(counts(&counters), [1, BLOCK / 2, 0]);
        assert_eq!([&shared, &pinned, &pages].map(contents), [[1], [2], [3]]);
        drop(snapshot);
    }

    #[test]
    fn it_stops_between_steps_and_when_its_file_is_gone() {
        for last in [Stop, Gone] {
            let pool = pool(4);
            let space = region(&pool, 4, 1);
            lazy_free_all(&space);
            let (_, counters) = watch(&pool, BLOCK, &[last], |_| {});
            assert_eq!((counts(&counters), contents(&space)), ([0; 3], vec![1; 4]));
            let (_, counters) = watch(&pool, BLOCK, &[Short, last], |_| {});
            assert_eq!((counts(&counters), contents(&space)), ([1, BLOCK, BLOCK], vec![0, 1, 1, 1]));
        }
    }

    #[test]
    fn while_memory_is_short_pages_go_back_into_their_blocks_and_no_block_is_copied_for_them() {
        let mmu = SoftMmu::new(8 * BLOCK, Merging::Merge, 1000).with_cow_mappings();
        let kernels = Kernels::default_for_this_cpu();
        let core = PoolCore::new(mmu, "test".to_owned(), BlockSize::MIB_2, 8, kernels, Stock::default());
        let pool = EngineArc::new(core);
        let (alone, shared) = (region(&pool, 1, 1), region(&pool, 1, 1));
        let (dropped, kept) = (alone.freeze().unwrap(), shared.freeze().unwrap());
        [&alone, &shared].iter().for_each(|space| (1..40).for_each(|page| write(space, page * 8192 + 5, 2)));
        drop(dropped);
        let done = || {
            let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
            (get(&alone.counters.pages_written_back), get(&shared.counters.blocks_promoted))
        };
        let (asked, _) = watch(&pool, BLOCK, &[Short, Short, Short, Enough, Stop], |step| {
            // The pool's maintenance thread would do this.
            if step > 0 && step < 4 {
                pool.maintain_all(0);
                assert_eq!(done(), (39, 0));
            }
        });
        assert_eq!(asked, [WhenShort, StillShort, StillShort, StillShort, WhenShort]);
        pool.maintain_all(0);
        assert_eq!(done(), (39, 1));
        drop(kept);
    }

    #[test]
    fn nothing_is_dropped_if_the_system_takes_no_memory_back() {
        let pool = pool(4);
        drop(region(&pool, 1, 9));
        let space = region(&pool, 2, 1);
        drop(region(&pool, 2, 9));
        lazy_free_all(&space);
        let (asked, counters) = watch(&pool, BLOCK, &[Short, Short, Stop], |step| {
            pool.sys.fail((step < 2).then_some((Call::Punch, 0)));
        });
        assert_eq!(asked, [WhenShort; 3]);
        assert_eq!((counts(&counters), contents(&space)), ([2, 0, 0], vec![1, 1]));
    }
}
