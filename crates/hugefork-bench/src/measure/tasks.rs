//! Several tasks that write at the same time, each pinned to a CPU, as processes or as threads.
//!
//! ```text
//! parent   create tasks ── all created ── start ── wait ───────────────────────────── reap ── read the slots
//! task 0      └─ pin ─ wait at the line ─┘ write_words ──── end₀ ─ check ─ exit
//! task 1         └─ pin ─ wait ──────────┘ write_words ── end₁ ─ check ─ exit
//!                                        ├─ write phase: start … greatest end ─┤
//! ```
//!
//! The kernel's tasks are processes, as in vm-scalability. Processes are the kernel's best case: threads of one process
//! would share the memory map of the process and its locks. hugefork's tasks are threads, since regions belong to a
//! process. Between the start and their end, both kinds of tasks run only
//! [`write_words`](crate::measure::work::write_words).
//!
//! A forked child allocates nothing, locks nothing and never returns: it pins itself, waits on a futex in a shared
//! page, writes, notes its end in that page and leaves by `_exit`. The kernel kills the child when its parent
//! dies.

use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::Signal;
use rustix::thread::futex;

use crate::error::BenchError;
use crate::measure::affinity;
use crate::measure::clock::{self, CpuTime};
use crate::measure::work;

/// The area of one task. The start is stored as an address and not as a pointer, so that an `Area` can be sent to
/// another thread.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    start: usize,
    len: usize,
}

impl Area {
    /// The area of `len` bytes from `start` on; `start` is aligned to 8.
    pub fn new(start: *mut u8, len: usize) -> Area {
        Area { start: start as usize, len }
    }
}

/// The result of a team's write phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Seconds from the common start to the end of the slowest task.
    pub seconds: f64,
    /// CPU time of all tasks' write phases together.
    pub cpu: CpuTime,
}

/// Tasks that were created and wait at the start line.
#[derive(Debug)]
pub struct Team {
    board: Arc<Board>,
    tasks: Vec<Task>,
}

#[derive(Debug)]
enum Task {
    Process(libc::pid_t),
    Thread(JoinHandle<()>),
    Reaped,
}

// States of the start line.
const WAIT: u32 = 0;
const GO: u32 = 1;
const LEAVE: u32 = 2;

// States of a slot, and exit codes of a child.
const UNDONE: u32 = 0;
const DONE: u32 = 1;
const WRONG: u32 = 2;
const UNPINNED: u32 = 3;

/// The results of one task, on cache lines of their own, so that tasks that end at the same time do not write to the
/// same cache line.
#[repr(C, align(128))]
struct Slot {
    state: AtomicU32,
    end: AtomicU64,
    /// User time in nanoseconds.
    user: AtomicU64,
    sys: AtomicU64,
    /// The error of [`work::check_words`], if the contents are wrong.
    wrong: [AtomicU64; 3],
}

#[repr(C, align(128))]
struct Line {
    state: AtomicU32,
}

/// The shared page: the start line, then a slot for each task.
#[derive(Debug)]
struct Board {
    start: *mut u8,
    bytes: usize,
    tasks: usize,
}

// SAFETY: the board is atomics behind a pointer that stays valid until the last owner drops it.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    fn new(tasks: usize) -> Result<Board, BenchError> {
        let bytes = mem::size_of::<Line>() + tasks * mem::size_of::<Slot>();
        // SAFETY: a new mapping where the kernel likes. Shared, so that forked children write to the same page.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED) }
                .map_err(|errno| BenchError::system("mapping the tasks' board", errno))?;
        Ok(Board { start: start.cast(), bytes, tasks })
    }

    fn line(&self) -> &AtomicU32 {
        // SAFETY: the mapping starts with a `Line`; zero bytes are a value of it, and access is atomic only.
        unsafe { &(*self.start.cast::<Line>()).state }
    }

    fn slot(&self, task: usize) -> &Slot {
        assert!(task < self.tasks);
        // SAFETY: `tasks` slots follow the line (both aligned to 128); zero bytes are a value, access is atomic only.
        unsafe { &*self.start.add(mem::size_of::<Line>()).cast::<Slot>().add(task) }
    }

    /// Opens the start line, or ends all tasks that wait at it.
    fn release(&self, state: u32) {
        self.line().store(state, Ordering::Release);
        let _ = futex::wake(self.line(), futex::Flags::empty(), i32::MAX as u32);
    }

    fn wait_at_line(&self) -> u32 {
        loop {
            let state = self.line().load(Ordering::Acquire);
            if state != WAIT {
                return state;
            }
            // Tasks sleep and do not spin: if tasks spun on every CPU, the parent could not create the other tasks.
            // After a wake-up, an interruption or a refusal of the wait, the task reads the state again.
            let _ = futex::wait(self.line(), futex::Flags::empty(), WAIT, None);
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the last owner drops it, so no slot is borrowed.
        let unmapped = unsafe { munmap(self.start.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Runs a task from its start to its end, in a process or a thread. The function neither allocates nor locks.
///
/// # Safety
/// `area` is writable memory of this task alone until it ends.
unsafe fn task(board: &Board, index: usize, area: Area, cpu: usize) -> u32 {
    let slot = board.slot(index);
    if affinity::pin(cpu).is_err() {
        slot.state.store(UNPINNED, Ordering::Release);
        return UNPINNED;
    }
    let words = area.len / 8;
    if board.wait_at_line() != GO {
        return UNDONE;
    }
    let before = CpuTime::of_this_thread();
    // SAFETY: this task's own area, by contract.
    unsafe { work::write_words(area.start as *mut u64, words, 0) };
    slot.end.store(clock::now_fenced(), Ordering::Relaxed);
    let used = CpuTime::of_this_thread().since(before);
    slot.user.store((used.user * 1e9) as u64, Ordering::Relaxed);
    slot.sys.store((used.sys * 1e9) as u64, Ordering::Relaxed);
    // SAFETY: as above.
    let state = match unsafe { work::check_words(area.start as *const u64, words, 0) } {
        Ok(()) => DONE,
        Err((offset, found, expected)) => {
            for (note, value) in slot.wrong.iter().zip([offset as u64, found, expected]) {
                note.store(value, Ordering::Relaxed);
            }
            WRONG
        }
    };
    slot.state.store(state, Ordering::Release);
    state
}

impl Team {
    /// Forks one child for each area, pinned to `cpus` in turn.
    ///
    /// # Safety
    /// The areas are writable memory, aligned to 8, that children get copy-on-write.
    ///
    /// # Errors
    /// [`BenchError::System`] if a fork fails; then the children created before end without writing.
    pub unsafe fn of_processes(areas: &[Area], cpus: &[usize]) -> Result<Team, BenchError> {
        let mut team = Team { board: Arc::new(Board::new(areas.len())?), tasks: Vec::with_capacity(areas.len()) };
        // The first reading sets up the clock, which a child must not do.
        let _ = clock::now();
        for (index, area) in areas.iter().enumerate() {
            let cpu = cpus[index % cpus.len()];
            // SAFETY: the child calls only `task`, which neither allocates nor locks, and leaves by `_exit`; the area
            // is its own copy by contract.
            let pid = unsafe { fork_child(|| task(&team.board, index, *area, cpu)) }?;
            team.tasks.push(Task::Process(pid));
        }
        Ok(team)
    }

    /// Starts one thread for each area, pinned to `cpus` in turn.
    ///
    /// # Safety
    /// The areas are disjoint writable memory, aligned to 8, that nobody else accesses, and that stays valid until the
    /// team has finished or is dropped. The team is not leaked.
    ///
    /// # Errors
    /// [`BenchError::System`] if a thread cannot be started; then the threads started before end without writing.
    pub unsafe fn of_threads(areas: &[Area], cpus: &[usize]) -> Result<Team, BenchError> {
        let mut team = Team { board: Arc::new(Board::new(areas.len())?), tasks: Vec::with_capacity(areas.len()) };
        for (index, area) in areas.iter().copied().enumerate() {
            let (board, cpu) = (Arc::clone(&team.board), cpus[index % cpus.len()]);
            let handle = thread::Builder::new()
                .name(format!("task {index}"))
                .spawn(move || {
                    // SAFETY: the area is this thread's alone, and outlives the team, by contract.
                    unsafe { task(&board, index, area, cpu) };
                })
                .map_err(|error| BenchError::system("starting a thread", error))?;
            team.tasks.push(Task::Thread(handle));
        }
        Ok(team)
    }

    /// Opens the start line and waits until all tasks have finished.
    ///
    /// # Errors
    /// [`BenchError::Task`] if a task dies or cannot be pinned, [`BenchError::WrongContents`] if the area of a task
    /// does not hold the words that the task wrote.
    pub fn run(mut self) -> Result<Outcome, BenchError> {
        let tasks = self.tasks.len();
        let start = clock::now();
        self.board.release(GO);
        let mut first_error = None;
        for task in 0..tasks {
            let ended = self.reap(task);
            if let Err(how) = ended.and_then(|()| self.verdict(task)) {
                first_error.get_or_insert(how);
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        let slots: Vec<&Slot> = (0..tasks).map(|task| self.board.slot(task)).collect();
        let end = slots.iter().map(|slot| slot.end.load(Ordering::Relaxed)).max().unwrap_or(start);
        let sum = |field: fn(&Slot) -> &AtomicU64| {
            slots.iter().map(|slot| field(slot).load(Ordering::Relaxed)).sum::<u64>() as f64 / 1e9
        };
        Ok(Outcome {
            seconds: end.saturating_sub(start) as f64 / 1e9,
            cpu: CpuTime { user: sum(|slot| &slot.user), sys: sum(|slot| &slot.sys) },
        })
    }

    fn reap(&mut self, task: usize) -> Result<(), BenchError> {
        let tasks = self.tasks.len();
        let died = |how: String| BenchError::Task { task, tasks, how };
        match mem::replace(&mut self.tasks[task], Task::Reaped) {
            Task::Process(pid) => wait_for(pid).map(drop).map_err(died),
            Task::Thread(handle) => handle.join().map_err(|_| died("panicked".to_owned())),
            Task::Reaped => Ok(()),
        }
    }

    fn verdict(&self, task: usize) -> Result<(), BenchError> {
        let slot = self.board.slot(task);
        let tasks = self.tasks.len();
        match slot.state.load(Ordering::Acquire) {
            DONE => Ok(()),
            WRONG => {
                let [offset, found, expected] = [0, 1, 2].map(|i| slot.wrong[i].load(Ordering::Relaxed));
                Err(BenchError::WrongContents { offset: offset as usize, found, expected })
            }
            UNPINNED => Err(BenchError::Task { task, tasks, how: "could not be pinned to its CPU".to_owned() }),
            _ => Err(BenchError::Task { task, tasks, how: "left before its work was done".to_owned() }),
        }
    }
}

impl Drop for Team {
    /// Ends the tasks that still wait at the start line, so that no task writes to an area that is unmapped afterwards.
    fn drop(&mut self) {
        if self.tasks.iter().any(|task| !matches!(task, Task::Reaped)) {
            self.board.release(LEAVE);
            for task in 0..self.tasks.len() {
                let _ = self.reap(task);
            }
        }
    }
}

/// Plain `fork(2)`. The child runs `body` and exits with the value of `body` as its status.
///
/// # Safety
/// `body` keeps to the rules for a child of a process with threads: no allocation, no locks, no unwinding.
pub(crate) unsafe fn fork_child(body: impl FnOnce() -> u32) -> Result<libc::pid_t, BenchError> {
    let parent = rustix::process::getpid();
    // SAFETY: the child keeps to the contract above.
    match unsafe { libc::fork() } {
        -1 => Err(BenchError::system("fork", std::io::Error::last_os_error())),
        0 => {
            // The child dies with the bench, even if the bench is killed: a child that survived would hold the memory
            // and the pipes of the bench.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let orphaned = rustix::process::getppid() != Some(parent);
            let status = if orphaned { UNDONE } else { body() };
            // SAFETY: leaves at once, without destructors or handlers of the parent.
            unsafe { libc::_exit(status as libc::c_int) }
        }
        pid => Ok(pid),
    }
}

/// Waits for a child and gives its exit status. The error describes the child's death, if a signal killed the child.
pub(crate) fn wait_for(pid: libc::pid_t) -> Result<libc::c_int, String> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live integer; `pid` is a child of ours that nobody else waits for.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(format!("could not be waited for: {error}"));
        }
    }
    if !libc::WIFSIGNALED(status) {
        return Ok(libc::WEXITSTATUS(status));
    }
    Err(match libc::WTERMSIG(status) {
        libc::SIGBUS => "was killed by SIGBUS: the hugetlb pool ran out of pages".to_owned(),
        libc::SIGKILL => "was killed: memory ran out, or somebody else did".to_owned(),
        signal => format!("was killed by signal {signal}"),
    })
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
