//! Mode `pool`: big anonymous memory lies on the blocks of an engine's pool, and a fork copies no page tables of it.
//!
//! ```text
//! mmap ─▶ map ── big, plain, anywhere ─▶ the engine's ProgramMemory          else ─▶ the kernel, as in `collapse`
//! munmap, madvise, mremap, mprotect … ── whole blocks ─▶ the engine ── parts ─▶ handed over, then the kernel
//! prepare ─▶ everything is shown privately ── fork ─▶ parent: what the child holds, until it is gone
//!                                                 └─▶ child: plain private memory; see `heir` below
//! worker ─▶ tend: promotes what is written densely, folds what nobody shares any more; pass: makes huge pages of it
//! ```
//! What the engine cannot do, the kernel does: memory of another kind, or where the engine has no more, or where it
//! cannot work at all, is the kernel's from the start; blocks of which the program wants something that only the kernel
//! has (other rights, parts unmapped, locks) are handed over to it, with their contents, and counted.
//!
//! # Heirs
//! The child of a fork has private mappings of the pool's file where the program's memory was. The kernel does the same
//! for them as for anonymous ones, with two exceptions: what is dropped (`MADV_DONTNEED`) would show the file again, so
//! zeros are shown instead; and a mapping that grows would show what follows in the file, so it is copied.
//! What an heir has mapped since, the kernel alone knows: it is asked each time.
//!
//! # While another thread forks
//! An allocator may hold a lock in whose possession another thread maps or drops memory, and wait for it in a handler
//! of the fork. The library's handler is called after those of all others (`fork::follow`), so who forks has
//! such locks already. But libc takes some of its own after all handlers, and not all handlers are registered where the
//! library sees it. So nobody waits for a fork in `mmap`, `munmap` and `madvise`: new memory is the kernel's then, what
//! is dropped is filled with zeros, and what is unmapped is unmapped later. Who has begun to wait before the fork is
//! sent away by the lock. What only the kernel can do waits: other rights, locks, `MAP_FIXED`.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use hugefork::{Full, Inherited, ProgramMemory};

use super::asked::{Mapping, Wish};
use super::{Emptied, Growth, Tended, collapse, heir};
use crate::lock::{Guarded, Taken, Tried};
use crate::shortage::{self, Shortage};
use crate::signals;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{BASE_PAGE, HUGE_PAGE, config, copies, descriptor, mappings, own, spare};

/// What this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Role {
    /// It may have a pool, and nothing came before.
    Owner = 0,
    /// It was forked from one that has.
    Heir = 1,
    /// The engine cannot work here.
    Without = 2,
}

static ROLE: AtomicU8 = AtomicU8::new(Role::Owner as u8);

fn role() -> Role {
    if copies::is_unnoticed() {
        // What the engine did here would befall the process that this one is a copy of. If it was copied in the middle
        // of a fork, `child` is about to make an heir of it: another library's handler came first.
        return if IS_FORKING.load(Ordering::Acquire) { Role::Heir } else { Role::Without };
    }
    match ROLE.load(Ordering::Acquire) {
        0 => Role::Owner,
        1 => Role::Heir,
        _ => Role::Without,
    }
}

/// The addresses that are the engine's: none before it has any.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// A program that has never mapped so much in all gets no pool: it copies few page tables, and a pool takes a
/// millisecond to set up.
const WORTH_A_POOL: usize = 32 << 20;

/// What the program has mapped that the pool could have given.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Whether no more is given to the program.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether memory is short while children share some. New memory is the kernel's then, in base pages: what a block is
/// held for takes all of it, though a child needs few of its pages.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Whether huge pages come only by asking for each.
static NEEDS_COLLAPSE: AtomicBool = AtomicBool::new(false);

/// Whether a thread forks just now.
static IS_FORKING: AtomicBool = AtomicBool::new(false);

/// Pieces that are smaller share no block: taking one of them away has the kernel take the block over.
const LEAST: usize = HUGE_PAGE / 2;

struct Memory {
    engine: Option<ProgramMemory>,
    /// Where the last mapping ends that is smaller than a block. The next may follow it.
    small_end: usize,
    /// What the child will hold of the fork that is under way.
    pending: Held,
}

static MEMORY: Guarded<Memory> = Guarded::new(Memory { engine: None, small_end: 0, pending: Held::nothing() });

/// What the descendants of a fork hold of the engine's memory.
pub(crate) struct Held(Option<Inherited>);

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
static LATER: AtomicUsize = AtomicUsize::new(0);

/// Threads of the program that wait for the lock. The worker lets them go first.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` with the engine. None if there is none, or this thread is at work with it already.
fn with<R>(work: impl FnOnce(&mut ProgramMemory) -> R) -> Option<R> {
    let mask = signals::block();
    WAITING.fetch_add(1, Ordering::Relaxed);
    let done = MEMORY.with(|memory| {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        memory.engine.as_mut().map(|engine| {
            unmap_what_was_left(engine);
            work(engine)
        })
    });
    if done.is_none() {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
    mask.restore();
    done.flatten()
}

/// As [`with`], for what an allocator does in possession of its locks: it does not wait for a fork.
fn with_unless_forking<R>(work: impl FnOnce(&mut Memory) -> R) -> Tried<R> {
    let mask = signals::block();
    WAITING.fetch_add(1, Ordering::Relaxed);
    let tried = MEMORY.with_unless_kept(|memory| {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        if let Some(engine) = &mut memory.engine {
            unmap_what_was_left(engine);
        }
        work(memory)
    });
    if !matches!(tried, Tried::Done(_)) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
    mask.restore();
    tried
}

/// Looks at the engine while another thread forks. None if none does, any more.
fn look<R>(work: impl FnOnce(&ProgramMemory) -> R) -> Option<R> {
    let mask = signals::block();
    let seen = MEMORY.look(|memory| memory.engine.as_ref().map(work));
    mask.restore();
    seen.flatten()
}

/// Asks the engine something. None if there is none, or this thread is at work with it already.
fn ask<R>(question: impl Fn(&ProgramMemory) -> R) -> Option<R> {
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
fn work_through(
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
fn let_others_go_first() {
    while WAITING.load(Ordering::Relaxed) > 0 {
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
    }
}

fn unmap_later(piece: Range<usize>) {
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

fn unmap_what_was_left(engine: &mut ProgramMemory) {
    let mut next = LATER.swap(0, Ordering::Acquire);
    while next != 0 {
        // SAFETY: `unmap_later` has put it there, and it is still mapped.
        let later = unsafe { (next as *const Later).read() };
        engine.unmap(later.piece, |others| unmap_plain(&others));
        next = later.next;
    }
}

fn unmap_plain(range: &Range<usize>) {
    // SAFETY: the program has unmapped it.
    let _ = unsafe { rustix::mm::munmap(range.start as *mut c_void, range.len()) };
}

/// Whether a range of addresses is, at least in part, where the engine's memory lies.
pub(super) fn is_near(start: usize, len: usize) -> bool {
    let (from, to) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    start < to && start.saturating_add(len) > from
}

/// The part of a range that lies behind the engine's addresses.
pub(super) fn behind(range: &Range<usize>) -> Option<Range<usize>> {
    let end = END.load(Ordering::Acquire).max(range.start);
    (end < range.end).then_some(end..range.end)
}

/// The first part of a range at which something is mapped everywhere. In an heir, all of it: the kernel knows.
pub(super) fn first_mapped(range: &Range<usize>) -> Option<Range<usize>> {
    let found = if role() == Role::Owner { ask(|engine| engine.first_mapped(range)) } else { None };
    found.unwrap_or_else(|| Some(range.clone()))
}

/// Gives the program memory of the pool.
pub(super) fn map(wish: &Wish) -> Option<usize> {
    let is_wanted = wish.len >= config::min_size().max(LEAST)
        && wish.hint == 0
        && wish.rights == libc::PROT_READ | libc::PROT_WRITE
        && wish.flags & !(libc::MAP_NORESERVE | libc::MAP_POPULATE) == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if !is_wanted || role() != Role::Owner || IS_OVER.load(Ordering::Relaxed) || IS_SHORT.load(Ordering::Relaxed) {
        return None;
    }
    let wanted = WANTED.fetch_add(wish.len, Ordering::Relaxed).saturating_add(wish.len);
    if wanted < WORTH_A_POOL {
        return None;
    }
    let mapped = with_unless_forking(|memory| {
        if memory.engine.is_none() {
            memory.engine = begin();
        }
        let engine = memory.engine.as_mut()?;
        if wish.len < HUGE_PAGE { map_small(engine, &mut memory.small_end, wish.len) } else { engine.map(wish.len) }
    });
    let Tried::Done(Some(start)) = mapped else { return None };
    if wish.flags & libc::MAP_POPULATE != 0 {
        // As the kernel: what fails is left to the first touch.
        // SAFETY: new memory, which keeps its contents.
        let _ = unsafe { rustix::mm::madvise(start as *mut c_void, wish.len, rustix::mm::Advice::LinuxPopulateWrite) };
    }
    collapse::note_big(wish.len);
    stats::add(Word::PoolMappings, 1);
    stats::publish();
    Some(start)
}

/// Gives memory behind the last that was small, if its block has room for that: two of 1 MiB, such as CPython maps for
/// its objects, are a huge page.
fn map_small(engine: &mut ProgramMemory, end: &mut usize, len: usize) -> Option<usize> {
    let last = end.saturating_sub(BASE_PAGE)..*end;
    let new_end = end.saturating_add(len.next_multiple_of(BASE_PAGE));
    let start =
        if engine.has_all(last.clone()) && engine.grow_in_place(last, new_end) { *end } else { engine.map(len)? };
    *end = start + len.next_multiple_of(BASE_PAGE);
    Some(start)
}

/// The engine's first memory in this process.
fn begin() -> Option<ProgramMemory> {
    if pins_memory() || !descriptor::are_enough() {
        return refuse();
    }
    // SAFETY: `sysinfo` is plain numbers, for which all-zero bytes are a value, and the call writes to it.
    let total = unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        libc::sysinfo(&mut info);
        info.totalram as usize * info.mem_unit as usize
    };
    match ProgramMemory::new(total) {
        Ok(engine) => {
            copies::watch();
            engine.descriptors().for_each(own::note);
            spare::keep();
            let addresses = engine.addresses();
            heir::set_up(&addresses);
            NEEDS_COLLAPSE.store(engine.needs_collapse(), Ordering::Relaxed);
            END.store(addresses.end, Ordering::Release);
            START.store(addresses.start, Ordering::Release);
            Some(engine)
        }
        Err(_) => refuse(),
    }
}

/// Parts of the names of libraries that pin memory: `io_uring`, InfiniBand, GPUs.
const PINNING: [&[u8]; 5] = [b"/liburing", b"/libibverbs", b"/libcuda.", b"/libcudart", b"/libhsa-runtime"];

/// Whether the program has a library that pins memory, as far as that can be seen.
fn pins_memory() -> bool {
    mappings::any_line(|line| PINNING.iter().any(|name| line.windows(name.len()).any(|part| part == *name)))
}

/// Whether the worker has something to do about memory that grows.
pub(super) fn wants_worker() -> bool {
    NEEDS_COLLAPSE.load(Ordering::Relaxed) && role() == Role::Owner
}

/// In this process there will be none.
fn refuse() -> Option<ProgramMemory> {
    ROLE.store(Role::Without as u8, Ordering::Release);
    stats::add(Word::PoolRefused, 1);
    None
}

/// What the kernel has mapped.
pub(super) fn mapped(mapping: &Mapping) {
    if !IS_SHORT.load(Ordering::Relaxed) {
        collapse::mapped(mapping);
    }
}

/// The program unmaps something near the engine's memory. True if all is done; else the kernel is to do it.
pub(super) fn unmap(range: &Range<usize>) -> bool {
    let plain = |others: Range<usize>| unmap_plain(&others);
    let work = |engine: &mut ProgramMemory, range| engine.unmap(range, plain);
    leave_if_inherited(range);
    role() == Role::Owner && work_through(range, work, unmap_later, plain)
}

/// The program maps something at an address of its own choice. What was there is gone. False if nothing may be mapped
/// there.
pub(super) fn make_way(range: &Range<usize>) -> bool {
    leave_if_inherited(range);
    if role() != Role::Owner {
        return true;
    }
    with(|engine| engine.make_way(range.clone())).unwrap_or(true)
}

/// The kernel has mapped something where way was made, or has refused.
pub(super) fn settle(range: &Range<usize>, is_mapped: bool) {
    if role() == Role::Owner {
        with(|engine| engine.settle(range.clone(), is_mapped));
    }
}

/// Leaves a range to the kernel, as [`make_way`], if nothing is mapped there, for all that the program knows. Whether
/// that is so.
pub(super) fn take_if_free(range: &Range<usize>) -> bool {
    let take = |engine: &mut ProgramMemory| engine.is_free(range.clone()) && engine.make_way(range.clone());
    role() == Role::Owner && with(take).unwrap_or(false)
}

/// The program drops contents.
pub(super) fn empty(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    leave_if_inherited(range);
    match role() {
        Role::Owner => empty_own(range, plain),
        Role::Heir if heir::empty(range, plain) => Emptied::All,
        Role::Heir => Emptied::Refused,
        Role::Without => Emptied::Plain,
    }
}

/// Piece by piece, since the kernel may refuse its own.
fn empty_own(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    let fill = |piece: Range<usize>| {
        // SAFETY: the program's own memory, which is writable and to read as zeros.
        unsafe { (piece.start as *mut u8).write_bytes(0, piece.len()) };
    };
    let handed_over = |piece: Range<usize>| _ = plain(piece);
    let mut rest = range.clone();
    loop {
        let Some(first) = ask(|engine| engine.first_piece(&rest)) else { return Emptied::Plain };
        let Some((piece, is_ours)) = first else { return Emptied::All };
        rest.start = piece.end;
        let is_done = if is_ours {
            work_through(&piece, |engine, piece| engine.empty(piece, handed_over), fill, handed_over)
        } else {
            plain(piece)
        };
        if !is_done {
            return Emptied::Refused;
        }
    }
}

/// In an heir: what the program does something about is the kernel's alone. The helper lets go of it for good.
fn leave_if_inherited(range: &Range<usize>) {
    if role() == Role::Heir {
        heir::leave(range);
    }
}

/// The program wants something of a range that only the kernel has. False if it is not the kernel's even now.
pub(super) fn hand_over(range: &Range<usize>) -> bool {
    leave_if_inherited(range);
    if role() != Role::Owner {
        return true;
    }
    let handed = with(|engine| {
        engine.hand_over(range.clone());
        stats::set(Word::PoolHandedOver, engine.counts().handed_over);
        !engine.has(range.clone())
    });
    handed.unwrap_or(true)
}

/// What is to be done about a mapping that changes its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resized {
    /// It has.
    InPlace,
    /// It is to be copied.
    ByCopy,
    /// The kernel does it.
    Plain,
}

/// The program changes the length of a mapping near the engine's memory.
pub(super) fn resize(old: &Range<usize>, len: usize) -> Resized {
    leave_if_inherited(old);
    match role() {
        Role::Owner => with(|engine| {
            if !engine.has_all(old.clone()) {
                Resized::Plain
            } else if len < old.len() {
                engine.unmap(old.start + len..old.end, |others| unmap_plain(&others));
                Resized::InPlace
            } else if len == old.len() || engine.grow_in_place(old.clone(), old.start + len) {
                Resized::InPlace
            } else {
                Resized::ByCopy
            }
        })
        .unwrap_or(Resized::Plain),
        Role::Heir if len > old.len() && mappings::is_partly_inherited(old) => Resized::ByCopy,
        Role::Heir | Role::Without => Resized::Plain,
    }
}

/// Whether the rights that the program asks for are there already: memory of the engine can be read and written.
pub(super) fn has_rights(range: &Range<usize>, rights: c_int) -> bool {
    rights == libc::PROT_READ | libc::PROT_WRITE && role() == Role::Owner && is_all_ours(range)
}

/// Whether advice that changes no contents may be left out, since all of it is the engine's.
pub(super) fn is_all_ours(range: &Range<usize>) -> bool {
    role() == Role::Owner && ask(|engine| engine.has_all(range.clone())).unwrap_or(false)
}

/// Before a fork, in the thread that forks, until [`parent`] or [`child`]. False if it is not worth to be followed:
/// even so the lock is taken, since a thread that has it while the process is copied has it for ever in the copy.
pub(super) fn prepare() -> bool {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let taken = MEMORY.take();
    WAITING.fetch_sub(1, Ordering::Relaxed);
    if taken != Taken::Now {
        // It cannot be: signals are blocked as long as this thread has it.
        return false;
    }
    IS_FORKING.store(true, Ordering::Release);
    if role() == Role::Heir {
        heir::before_fork();
    }
    // SAFETY: taken just now.
    let memory = unsafe { MEMORY.held() };
    let inherited = memory.engine.as_mut().map(|engine| {
        let inherited = engine.before_fork();
        stats::set(Word::PoolUnseen, engine.counts().unseen);
        inherited
    });
    memory.pending = Held(inherited);
    let is_followed = memory.engine.is_some() || collapse::is_worth_following();
    MEMORY.keep();
    is_followed
}

/// After it, in the process that forked. Gives what the child holds.
pub(super) fn parent() -> Held {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return Held::nothing();
    }
    MEMORY.keep_no_longer();
    // SAFETY: `prepare` has taken it, in this thread.
    let memory = unsafe { MEMORY.held() };
    let held = std::mem::replace(&mut memory.pending, Held::nothing());
    IS_FORKING.store(false, Ordering::Release);
    heir::after_fork();
    MEMORY.give_back();
    held
}

/// After it, in the child.
pub(super) fn child() {
    if !IS_FORKING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: `prepare` has taken it, in the thread whose copy this is.
    let memory = unsafe { MEMORY.held() };
    if memory.engine.is_some() {
        ROLE.store(Role::Heir as u8, Ordering::Release);
        own::forget_all();
    }
    let_go_of_all(memory);
    LATER.store(0, Ordering::Relaxed);
    heir::in_child();
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
    MEMORY.reset();
}

/// In the child, afterwards.
pub(super) fn help(is_orphan: fn() -> bool) {
    if role() == Role::Heir {
        heir::help(is_orphan);
    }
}

/// In an heir: what helps it leaves.
pub(super) fn help_no_more() {
    if role() == Role::Heir {
        heir::help_no_more();
    }
}

/// In a copy of the process: all of it is the other's.
fn let_go_of_all(memory: &mut Memory) {
    std::mem::forget(memory.engine.take());
    std::mem::replace(&mut memory.pending, Held::nothing()).keep_for_ever();
}

/// In a copy of the process that no handler was told of: it does not have the engine's memory, which is shared.
pub(super) fn in_unnoticed_copy() {
    MEMORY.reset();
    LATER.store(0, Ordering::Relaxed);
    MEMORY.with(|memory| {
        if memory.engine.is_some() {
            ROLE.store(Role::Without as u8, Ordering::Release);
        }
        let_go_of_all(memory);
    });
    own::forget_all();
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
}

/// Nobody lives any more for whom this was held. The thread that forks has the lock already, and keeps all others out.
pub(super) fn gone(held: Held) {
    MEMORY.with(|_| drop(held));
}

/// For so long at most it is not looked who lives no more, and how short memory is.
const UNLOOKED_NS: u64 = 5_000_000;

/// Looks after what children share or have shared.
pub(super) fn tend() -> Tended {
    if role() != Role::Owner || END.load(Ordering::Acquire) == 0 {
        return Tended::All;
    }
    let began = now();
    let mut is_over = false;
    while !is_over && now().wrapping_sub(began) < UNLOOKED_NS {
        save_memory();
        // A round at most; in between, others have their turn.
        let_others_go_first();
        is_over = with(ProgramMemory::tend) != Some(true);
        if !is_over {
            // Who waits for memory that is held aside waits for this thread to run. With a short rest before each
            // round, it has its share of the processor to itself again when it holds some.
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
        }
    }
    let is_shared = with(|engine| {
        tell(engine);
        engine.is_shared()
    });
    match is_shared.unwrap_or(false) {
        true if is_over => Tended::Some,
        true => Tended::InPart,
        false => Tended::All,
    }
}

/// For `hugefork stats`.
fn tell(engine: &ProgramMemory) {
    let counts = engine.counts();
    stats::set(Word::PagesFolded, counts.pages_folded);
    stats::set(Word::Promoted, counts.promoted);
    stats::set(Word::PoolBytes, counts.memory);
    stats::set(Word::PoolKept, counts.kept);
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Where memory is short, gives back what is kept for the next child; and where there is hardly any left, no block is
/// copied whose pages can be. Looks no more often than the worker looks for children.
fn save_memory() {
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let now = now();
    if now.wrapping_sub(LOOKED.load(Ordering::Relaxed)) < UNLOOKED_NS {
        return;
    }
    LOOKED.store(now, Ordering::Relaxed);
    let has = with(|engine| (engine.is_shared(), engine.counts()));
    let has = has.filter(|(is_shared, counts)| *is_shared || counts.kept > 0);
    let shortage = has.map_or(Shortage::None, |(_, counts)| shortage::now(counts.memory - counts.kept));
    IS_SHORT.store(shortage == Shortage::Here, Ordering::Relaxed);
    if has.is_some() {
        with(|engine| engine.save_memory(shortage > Shortage::None));
    }
    if shortage == Shortage::Here {
        trim();
    }
}

/// Makes huge pages of blocks that the program has filled, where the kernel does not by itself (`shmem_enabled`). False
/// if it was broken off.
pub(super) fn pass(is_shared: &mut dyn FnMut() -> bool) -> bool {
    NEEDS_COLLAPSE.load(Ordering::Relaxed).then(|| collapse_what_is_full(is_shared)).is_none_or(|made| made.is_some())
}

/// Gives how many blocks have become huge; none if it was broken off.
fn collapse_what_is_full(is_shared: &mut dyn FnMut() -> bool) -> Option<usize> {
    let (mut next, mut made) = (Some(0), 0);
    while let Some(from) = next {
        let_others_go_first();
        let Some((full, rest)) = with(|engine| engine.next_full(from)) else { break };
        next = rest;
        // Without the lock: the kernel may take long.
        if let Some(full) = full.filter(Full::collapse) {
            with(|engine| engine.note_huge(&full));
            made += 1;
        }
        if is_shared() {
            return None;
        }
    }
    if made > 0 {
        stats::set(Word::PoolHuge, with(|engine| engine.huge() as u64).unwrap_or(0));
    }
    Some(made)
}

/// The page faults of this process at the last look. There are at least as many as pages in a block that is filled.
static FAULTS: AtomicU64 = AtomicU64::new(0);
const FAULTS_OF_A_BLOCK: u64 = (HUGE_PAGE / BASE_PAGE) as u64;

/// As [`pass`], for a program that grows.
pub(super) fn grown() -> Growth {
    if role() != Role::Owner || END.load(Ordering::Acquire) == 0 {
        return Growth::OfNoConcern;
    }
    if !NEEDS_COLLAPSE.load(Ordering::Relaxed) {
        return Growth::None;
    }
    let faults = page_faults();
    if faults.wrapping_sub(FAULTS.load(Ordering::Relaxed)) < FAULTS_OF_A_BLOCK {
        return Growth::None;
    }
    FAULTS.store(faults, Ordering::Relaxed);
    let mut is_forking = || IS_FORKING.load(Ordering::Relaxed);
    if collapse_what_is_full(&mut is_forking).is_some_and(|made| made > 0) { Growth::Some } else { Growth::None }
}

/// Page faults of this process that needed no disk.
fn page_faults() -> u64 {
    // SAFETY: `rusage` is plain numbers, for which all-zero bytes are a value; the call writes to it and cannot fail.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_minflt as u64
    }
}

/// Nothing has happened for long: gives back what was kept for the next child.
pub(super) fn trim() {
    while role() == Role::Owner && !IS_FORKING.load(Ordering::Relaxed) && with(ProgramMemory::trim) == Some(true) {
        let_others_go_first();
    }
    with(|engine| tell(engine));
}

/// Hands everything over, and gives no more.
pub(super) fn leave_it_all_to_the_kernel() {
    if role() == Role::Heir {
        heir::leave_all();
    }
    if role() != Role::Owner || IS_OVER.swap(true, Ordering::Relaxed) {
        return;
    }
    stats::add(Word::PoolLeft, 1);
    let (start, end) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    if start < end {
        hand_over(&(start..end));
    }
}
