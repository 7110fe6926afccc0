//! Who gets at the engine, and who waits for whom.
//!
//! One lock guards it, which a thread that forks holds until the fork is through. Who holds locks of an allocator does
//! not wait for that: `with_unless_forking`, `look`, and what is left for later (the text above `pool`).

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use hugefork_program::{Inherited, ProgramMemory};

use super::dumps;
use super::stack::Stack;
use super::state::{END, ROLE, Role, START};
use crate::fit;
use crate::fork::copies;
use crate::proc::{mappings, usage};
use crate::threads::lock::{Guarded, Tried};
use crate::threads::signals;

pub(super) struct Memory {
    pub(super) engine: Option<ProgramMemory>,
    /// In a child: that of its parent, which says where mappings end that are inherited.
    pub(super) inherited: Option<ManuallyDrop<ProgramMemory>>,
    /// What the child will hold of the fork that is under way.
    pub(super) pending: Held,
    /// Where the engine works: the stack of who has the lock.
    pub(super) stack: Stack,
}

pub(super) static MEMORY: Guarded<Memory> =
    Guarded::new(Memory { engine: None, inherited: None, pending: Held::nothing(), stack: Stack::none() });

/// What the descendants of a fork hold of the engine's memory.
pub(crate) struct Held(pub(super) Option<Inherited>);

impl Held {
    pub(crate) const fn nothing() -> Held {
        Held(None)
    }

    /// Both are given up together from now on.
    pub(crate) fn join(&mut self, other: Held) {
        match (&mut self.0, other.0) {
            (Some(held), Some(more)) => held.join(more),
            (held @ None, more) => *held = more,
            (Some(_), None) => {}
        }
    }

    /// It is another process's to give it up, or nobody can say when that may be done.
    pub(crate) fn keep_for_ever(self) {
        std::mem::forget(self);
    }
}

/// A piece that was unmapped during a fork, for whoever has the lock next. This lies in the piece itself, which nobody
/// uses any more.
struct Later {
    piece: Range<usize>,
    /// The address of the next; 0 if there is none.
    next: usize,
}

/// The address of the first [`Later`]; 0 if there is none.
pub(super) static LATER: AtomicUsize = AtomicUsize::new(0);

/// Threads of the program that wait for the lock. The worker lets them go first.
pub(super) static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` with the engine. None if there is none, or this thread is at work with it already.
pub(super) fn with<R>(work: impl FnOnce(&mut ProgramMemory) -> R) -> Option<R> {
    let mask = signals::block();
    WAITING.fetch_add(1, Ordering::Relaxed);
    let done = MEMORY.with(|memory| {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        on_own_stack(memory, |memory| {
            memory.engine.as_mut().map(|engine| {
                unmap_what_was_left(engine);
                work(engine)
            })
        })
    });
    if done.is_none() {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
    mask.restore();
    done.flatten()
}

/// As [`with`], for what an allocator does in possession of its locks: it does not wait for a fork.
pub(super) fn with_unless_forking<R>(work: impl FnOnce(&mut Memory) -> R) -> Tried<R> {
    let mask = signals::block();
    WAITING.fetch_add(1, Ordering::Relaxed);
    let tried = MEMORY.with_unless_kept(|memory| {
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
    mask.restore();
    tried
}

/// Does some work on the stack that goes with the lock.
pub(super) fn on_own_stack<R>(memory: &mut Memory, work: impl FnOnce(&mut Memory) -> R) -> R {
    let mut stack = std::mem::replace(&mut memory.stack, Stack::none());
    let done = stack.run(|| work(memory));
    memory.stack = stack;
    done
}

/// Looks at the engine while another thread forks. None if none does, any more.
pub(super) fn look<R>(work: impl FnOnce(&ProgramMemory) -> R) -> Option<R> {
    let mask = signals::block();
    let seen = MEMORY.look(|memory| memory.engine.as_ref().map(work));
    mask.restore();
    seen.flatten()
}

/// Asks the engine something. None if there is none, or this thread is at work with it already.
pub(super) fn ask<R>(question: impl Fn(&ProgramMemory) -> R) -> Option<R> {
    loop {
        match with_unless_forking(|memory| memory.engine.as_ref().map(&question)) {
            Tried::Done(answer) => return answer,
            Tried::Within => return None,
            Tried::Kept => {}
        }
        if let Some(answer) = look(&question) {
            return Some(answer);
        }
    }
}

/// Does `work` with the engine to all of a range; or, while another thread forks, `ours` and `plain` to the pieces that
/// are the engine's and the kernel's. False if there is no engine, or this thread is at work with it already.
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
            Tried::Kept => {}
        }
        while let Some(first) = look(|engine| engine.first_piece(&rest)) {
            let Some((piece, is_ours)) = first else { return true };
            rest.start = piece.end;
            if is_ours { ours(piece) } else { plain(piece) }
        }
    }
}

/// Lets all go first who wait for the engine, or fork. For the worker, which nobody waits for.
pub(super) fn let_others_go_first() {
    while WAITING.load(Ordering::Relaxed) > 0 {
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
    }
}

pub(super) fn unmap_later(piece: Range<usize>) {
    let (place, mut next) = (piece.start, LATER.load(Ordering::Relaxed));
    loop {
        // SAFETY: whole pages of the engine's, which are writable, and which the program has unmapped.
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
        // SAFETY: `unmap_later` has put it there, and it is still mapped.
        let later = unsafe { (next as *const Later).read() };
        engine.unmap(later.piece, |others| unmap_plain(&others));
        next = later.next;
    }
}

pub(super) fn unmap_plain(range: &Range<usize>) {
    // SAFETY: the program has unmapped it.
    let _ = unsafe { rustix::mm::munmap(range.start as *mut c_void, range.len()) };
}

/// The engine's first memory in this process. None where it cannot work: then the library steps aside without a word.
pub(super) fn begin(memory: &mut Memory) {
    let total = usage::machine().map_or(0, |machine| machine.totalram as usize * machine.mem_unit as usize);
    let is_unfit = pins_memory() || fit::why_no_pool().is_some();
    let new = if is_unfit { None } else { ProgramMemory::new(total).ok() };
    let Some(engine) = new else {
        ROLE.store(Role::Without as u8, Ordering::Release);
        return;
    };
    copies::watch();
    dumps::have_private_files();
    let addresses = engine.addresses();
    END.store(addresses.end, Ordering::Release);
    START.store(addresses.start, Ordering::Release);
    memory.engine = Some(engine);
}

/// Parts of the names of libraries that pin memory: `io_uring`, InfiniBand, GPUs.
const PINNING: [&[u8]; 5] = [b"/liburing", b"/libibverbs", b"/libcuda.", b"/libcudart", b"/libhsa-runtime"];

/// Whether the program has a library that pins memory, as far as that can be seen.
fn pins_memory() -> bool {
    mappings::any_line(|line| PINNING.iter().any(|name| line.windows(name.len()).any(|part| part == *name)))
}

/// The numbers of the engine's descriptors in order, put into `found`.
pub(crate) fn descriptors(found: &mut [u32]) -> &[u32] {
    let count = with(|engine| {
        let numbers = engine.descriptors().map(|file| file.as_raw_fd() as u32);
        found.iter_mut().zip(numbers).map(|(place, number)| *place = number).count()
    });
    let found = &mut found[..count.unwrap_or(0)];
    found.sort_unstable();
    found
}

/// Closes the engine's descriptors that still lead to its files.
pub(super) fn close_descriptors(engine: &ProgramMemory) {
    for file in engine.descriptors().filter(|file| file.get().is_ok()) {
        // SAFETY: the engine's own, and it is of no use to this process any more.
        unsafe { rustix::io::close(file.as_raw_fd()) };
    }
}
