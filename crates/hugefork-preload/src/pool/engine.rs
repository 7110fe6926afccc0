//! Access to the engine: one lock, and the rules for waiting.
//!
//! A thread that forks holds the lock until the fork is complete. A thread that holds an
//! allocator's locks must not wait for that: it uses `with_unless_forking`, `peek`, and deferred
//! work (see the comment above `pool`).

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use hugefork_linux::{Descriptor, keep_only};
use hugefork_program::{Forks, Inherited, ProgramMemory};

use super::dumps;
use super::stack::Stack;
use super::state::{END, ROLE, Role, START};
use crate::fit;
use crate::fork::copies;
use crate::proc::{mappings, usage};
use crate::threads::lock::{Guarded, Patience, Tried};
use crate::threads::signals;

pub(super) struct Memory {
    pub(super) engine: Option<ProgramMemory>,
    /// In a child: the parent's engine, which knows where inherited mappings end.
    pub(super) inherited: Option<ManuallyDrop<ProgramMemory>>,
    /// Tells which forks have living descendants. It is there as long as `engine`.
    pub(super) forks: Option<Forks>,
    /// The memory that descendants hold, by the number of their fork.
    pub(super) held: Vec<(u64, Inherited)>,
    /// The number of the present fork, if this process is marked, and the memory that the child will hold.
    pub(super) pending: Option<(Option<u64>, Inherited)>,
    /// The stack for engine work, used by the thread that has the lock.
    pub(super) stack: Stack,
}

pub(super) static MEMORY: Guarded<Memory> = Guarded::new(Memory {
    engine: None,
    inherited: None,
    forks: None,
    held: Vec::new(),
    pending: None,
    stack: Stack::none(),
});

impl Memory {
    /// The descriptors of the engine and of the forks.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        self.engine.iter().flat_map(ProgramMemory::descriptors).chain(self.forks.iter().map(Forks::descriptor))
    }

    /// Releases nothing: the memory belongs to another process, or has been handed over.
    pub(super) fn forget(&mut self) {
        std::mem::forget((self.engine.take(), self.forks.take(), self.pending.take(), std::mem::take(&mut self.held)));
    }

    /// Closes the descriptors, if they still lead to their files.
    pub(super) fn close_descriptors(&self) {
        for file in self.descriptors().filter(|file| file.get().is_ok()) {
            // SAFETY: the library's own descriptor, which this process no longer uses.
            unsafe { rustix::io::close(file.as_raw_fd()) };
        }
    }
}

/// A piece that was unmapped during a fork; the next thread with the lock unmaps it from the engine. The record is
/// stored in the piece itself, which the program no longer uses.
struct Later {
    piece: Range<usize>,
    /// The address of the next record; 0 for the last one.
    next: usize,
}

/// The address of the first [`Later`]; 0 if the list is empty.
pub(super) static LATER: AtomicUsize = AtomicUsize::new(0);

/// Number of the program's threads that wait for the lock. The worker lets them go first.
pub(super) static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` with the engine. `None` without an engine, or if this thread is already using it.
pub(super) fn with<R>(work: impl FnOnce(&mut ProgramMemory) -> R) -> Option<R> {
    match enter(Patience::Endless, |memory| memory.engine.as_mut().map(work)) {
        Tried::Done(done) => done,
        Tried::Within | Tried::Pinned => None,
    }
}

/// Like [`with`], but does not wait for a fork, because the calling allocator may hold its locks.
pub(super) fn with_unless_forking<R>(work: impl FnOnce(&mut Memory) -> R) -> Tried<R> {
    enter(Patience::UnlessPinned, work)
}

fn enter<R>(patience: Patience, work: impl FnOnce(&mut Memory) -> R) -> Tried<R> {
    signals::blocked(|| {
        WAITING.fetch_add(1, Ordering::Relaxed);
        let tried = MEMORY.try_with(patience, |memory| {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            on_own_stack(memory, |memory| {
                if let Some(engine) = &mut memory.engine {
                    unmap_what_was_left(engine);
                }
                work(memory)
            })
        });
        if !matches!(tried, Tried::Done(_)) {
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
        tried
    })
}

/// Runs `work` on the stack that the lock protects.
pub(super) fn on_own_stack<R>(memory: &mut Memory, work: impl FnOnce(&mut Memory) -> R) -> R {
    let mut stack = std::mem::replace(&mut memory.stack, Stack::none());
    let done = stack.run(|| work(memory));
    memory.stack = stack;
    done
}

/// Reads the engine while another thread forks. `None` if no thread forks (any more).
pub(super) fn peek<R>(work: impl FnOnce(&ProgramMemory) -> R) -> Option<R> {
    signals::blocked(|| MEMORY.peek(|memory| memory.engine.as_ref().map(work))).flatten()
}

/// Reads the engine, during a fork or not. `None` without an engine, or if this thread is already using it.
pub(super) fn ask<R>(question: impl Fn(&ProgramMemory) -> R) -> Option<R> {
    loop {
        match with_unless_forking(|memory| memory.engine.as_ref().map(&question)) {
            Tried::Done(answer) => return answer,
            Tried::Within => return None,
            Tried::Pinned => {}
        }
        if let Some(answer) = peek(&question) {
            return Some(answer);
        }
    }
}

/// Calls `work` with the engine for all of a range; or, while another thread forks, calls `ours` with the engine's
/// pieces and `plain` with the kernel's. Returns false without an engine, or if this thread is already using it.
pub(super) fn work_through(
    range: &Range<usize>,
    work: impl Fn(&mut ProgramMemory, Range<usize>),
    ours: impl Fn(Range<usize>),
    plain: impl Fn(Range<usize>),
) -> bool {
    let mut rest = range.clone();
    loop {
        match with_unless_forking(|memory| memory.engine.as_mut().map(|engine| work(engine, rest.clone()))) {
            Tried::Done(done) => return done.is_some(),
            Tried::Within => return false,
            Tried::Pinned => {}
        }
        while let Some(first) = peek(|engine| engine.first_piece(&rest)) {
            let Some((piece, is_ours)) = first else { return true };
            rest.start = piece.end;
            if is_ours { ours(piece) } else { plain(piece) }
        }
    }
}

/// Waits while threads wait for the engine or fork. Only the worker calls it, since no thread waits for the worker.
pub(super) fn let_others_go_first() {
    while WAITING.load(Ordering::Relaxed) > 0 {
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
    }
}

pub(super) fn unmap_later(piece: Range<usize>) {
    let (place, mut next) = (piece.start, LATER.load(Ordering::Relaxed));
    loop {
        // SAFETY: whole writable pages of the engine, which the program has unmapped.
        unsafe { (place as *mut Later).write(Later { piece: piece.clone(), next }) };
        match LATER.compare_exchange(next, place, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(first) => next = first,
        }
    }
}

pub(super) fn unmap_what_was_left(engine: &mut ProgramMemory) {
    let mut next = LATER.swap(0, Ordering::Acquire);
    while next != 0 {
        // SAFETY: `unmap_later` has written it, and the page is still mapped.
        let later = unsafe { (next as *const Later).read() };
        engine.unmap(later.piece, |others| unmap_plain(&others));
        next = later.next;
    }
}

pub(super) fn unmap_plain(range: &Range<usize>) {
    // SAFETY: the program has unmapped it.
    let _ = unsafe { rustix::mm::munmap(range.start as *mut c_void, range.len()) };
}

/// Creates the engine in this process. If that fails, the library withdraws silently.
pub(super) fn begin(memory: &mut Memory) {
    let total = usage::machine().map_or(0, |machine| machine.totalram as usize * machine.mem_unit as usize);
    let is_unfit = pins_memory() || fit::why_no_pool().is_some();
    let new = if is_unfit { None } else { ProgramMemory::new(total).ok().zip(Forks::new()) };
    let Some((engine, forks)) = new else {
        ROLE.store(Role::Without as u8, Ordering::Release);
        return;
    };
    copies::watch();
    dumps::have_private_files();
    let addresses = engine.addresses();
    END.store(addresses.end, Ordering::Release);
    START.store(addresses.start, Ordering::Release);
    (memory.engine, memory.forks) = (Some(engine), Some(forks));
}

/// Parts of the names of libraries that pin memory: `io_uring`, InfiniBand, GPUs.
const PINNING: [&[u8]; 5] = [b"/liburing", b"/libibverbs", b"/libcuda.", b"/libcudart", b"/libhsa-runtime"];

/// Whether the program has loaded a library that pins memory.
fn pins_memory() -> bool {
    mappings::any_line(|line| PINNING.iter().any(|name| line.windows(name.len()).any(|part| part == *name)))
}

/// Gives this thread a table of descriptors of its own that has the library's only. If the kernel refuses, returns
/// false, and the thread shares the program's table.
pub(crate) fn keep_own_descriptors() -> bool {
    let mut kept = [0; 8];
    let fill = |memory: &mut Memory| {
        let numbers = memory.descriptors().map(Descriptor::as_raw_fd);
        kept.iter_mut().zip(numbers).map(|(place, number)| *place = number).count()
    };
    match enter(Patience::Endless, fill) {
        Tried::Done(count) => keep_only(&mut kept[..count]),
        Tried::Within | Tried::Pinned => false,
    }
}
