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
//! it is replaced by anonymous memory; and a mapping that grows would show what follows in the file, so it is copied.
//!
//! # While another thread forks
//! An allocator may hold a lock in whose possession another thread maps or drops memory, and wait for it in a handler
//! of the fork that comes after ours. So nobody waits for a fork in `mmap`, `munmap` and `madvise`: new memory is the
//! kernel's then, what is dropped is filled with zeros, and what is unmapped is unmapped later.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use hugefork::{Inherited, ProgramMemory};

use super::asked::{Mapping, Wish};
use super::{Growth, collapse};
use crate::liveness::MOST;
use crate::lock::{Guarded, Taken};
use crate::signals::{self, Mask};
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{BASE_PAGE, HUGE_PAGE, config, copies, mappings, own};

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

/// Whether huge pages come only by asking for each.
static NEEDS_COLLAPSE: AtomicBool = AtomicBool::new(false);

/// Whether a thread forks just now.
static IS_FORKING: AtomicBool = AtomicBool::new(false);

/// So many ranges that are unmapped during a fork are kept for later. More are never unmapped.
const MOST_LATER: usize = 64;

/// Pieces that are smaller share no block: taking one of them away has the kernel take the block over.
const LEAST: usize = HUGE_PAGE / 2;

struct Memory {
    engine: Option<ProgramMemory>,
    /// Where the last mapping ends that is smaller than a block. The next may follow it.
    small_end: usize,
    /// What the children of each fork hold, at the place of its token.
    inherited: [Option<Inherited>; MOST],
    /// Of the fork that is under way.
    pending: Option<(Option<Inherited>, Mask)>,
}

static MEMORY: Guarded<Memory> =
    Guarded::new(Memory { engine: None, small_end: 0, inherited: [const { None }; MOST], pending: None });

/// Parts that were unmapped during a fork, for whoever has the lock next.
static LATER: Guarded<([Range<usize>; MOST_LATER], usize)> = Guarded::new(([const { 0..0 }; MOST_LATER], 0));

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

/// Lets all go first who wait for the engine, or fork. For the worker, which nobody waits for.
fn let_others_go_first() {
    while WAITING.load(Ordering::Relaxed) > 0 {
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000 });
    }
}

fn unmap_what_was_left(engine: &mut ProgramMemory) {
    LATER.with(|(ranges, count)| {
        for range in ranges.iter().take(*count) {
            engine.unmap(range.clone(), |others| unmap_plain(&others));
        }
        *count = 0;
    });
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

/// Gives the program memory of the pool.
pub(super) fn map(wish: &Wish) -> Option<usize> {
    let is_wanted = wish.len >= config::min_size().max(LEAST)
        && wish.hint == 0
        && wish.rights == libc::PROT_READ | libc::PROT_WRITE
        && wish.flags & !(libc::MAP_NORESERVE | libc::MAP_POPULATE) == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let is_closed = || IS_FORKING.load(Ordering::Acquire) || IS_OVER.load(Ordering::Relaxed);
    if !is_wanted || role() != Role::Owner || is_closed() {
        return None;
    }
    let wanted = WANTED.fetch_add(wish.len, Ordering::Relaxed).saturating_add(wish.len);
    if wanted < WORTH_A_POOL {
        return None;
    }
    let mask = signals::block();
    let mapped = MEMORY.with(|memory| {
        if memory.engine.is_none() {
            memory.engine = begin();
        }
        let engine = memory.engine.as_mut()?;
        unmap_what_was_left(engine);
        if wish.len < HUGE_PAGE { map_small(engine, &mut memory.small_end, wish.len) } else { engine.map(wish.len) }
    });
    mask.restore();
    let start = mapped.flatten()?;
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
    if pins_memory() {
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
            let addresses = engine.addresses();
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
    collapse::mapped(mapping);
}

/// The program unmaps something near the engine's memory. True if all is done; else the kernel is to do it.
pub(super) fn unmap(range: &Range<usize>) -> bool {
    if role() != Role::Owner {
        return false;
    }
    if IS_FORKING.load(Ordering::Acquire) {
        return LATER
            .with(|(ranges, count)| {
                if let Some(place) = ranges.get_mut(*count) {
                    *place = range.clone();
                    *count += 1;
                }
            })
            .is_some();
    }
    with(|engine| engine.unmap(range.clone(), |others| unmap_plain(&others))).is_some()
}

/// The program maps something at an address of its own choice. What was there is gone. False if nothing may be mapped
/// there.
pub(super) fn make_way(range: &Range<usize>) -> bool {
    if role() != Role::Owner {
        return true;
    }
    with(|engine| engine.make_way(range.clone())).unwrap_or(true)
}

/// Whether nothing is mapped at a range, for all that the program knows.
pub(super) fn is_free(range: &Range<usize>) -> bool {
    role() == Role::Owner && with(|engine| engine.is_free(range.clone())).unwrap_or(false)
}

/// The program drops contents. True if all is done.
pub(super) fn empty(range: &Range<usize>, plain: impl Fn(Range<usize>)) -> bool {
    match role() {
        Role::Owner if IS_FORKING.load(Ordering::Acquire) => {
            // SAFETY: the program's own memory, which is to read as zeros.
            unsafe { (range.start as *mut u8).write_bytes(0, range.len()) };
            true
        }
        Role::Owner => with(|engine| engine.empty(range.clone(), plain)).is_some(),
        Role::Heir => replace(range),
        Role::Without => false,
    }
}

/// In an heir: shows anonymous memory in place of what was inherited.
fn replace(range: &Range<usize>) -> bool {
    let rights = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED | rustix::mm::MapFlags::NORESERVE;
    // SAFETY: the program's own memory, which is to read as zeros.
    unsafe { rustix::mm::mmap_anonymous(range.start as *mut c_void, range.len(), rights, flags) }.is_ok()
}

/// The program wants something of a range that only the kernel has. False if it is not the kernel's even now.
pub(super) fn hand_over(range: &Range<usize>) -> bool {
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
        Role::Heir if len > old.len() => Resized::ByCopy,
        Role::Heir | Role::Without => Resized::Plain,
    }
}

/// Whether the rights that the program asks for are there already: memory of the engine can be read and written.
pub(super) fn has_rights(range: &Range<usize>, rights: c_int) -> bool {
    rights == libc::PROT_READ | libc::PROT_WRITE && role() == Role::Owner && is_all_ours(range)
}

/// Whether advice that changes no contents may be left out, since all of it is the engine's.
pub(super) fn is_all_ours(range: &Range<usize>) -> bool {
    role() == Role::Owner && with(|engine| engine.has_all(range.clone())).unwrap_or(false)
}

pub(super) fn is_worth_following() -> bool {
    (role() == Role::Owner && END.load(Ordering::Acquire) != 0) || collapse::is_worth_following()
}

/// Before a fork, in the thread that forks, until [`parent`] or [`child`].
pub(super) fn prepare() {
    let mask = signals::block();
    WAITING.fetch_add(1, Ordering::Relaxed);
    let taken = MEMORY.take();
    WAITING.fetch_sub(1, Ordering::Relaxed);
    if taken == Taken::Before {
        // It cannot be: signals are blocked as long as this thread has it.
        return mask.restore();
    }
    IS_FORKING.store(true, Ordering::Release);
    // SAFETY: taken just now.
    let memory = unsafe { MEMORY.held() };
    let inherited = memory.engine.as_mut().map(|engine| {
        let inherited = engine.before_fork();
        stats::set(Word::PoolUnseen, engine.counts().unseen);
        inherited
    });
    memory.pending = Some((inherited, mask));
}

/// After it, in the process that forked. `place` is that of the fork's token; none if nobody can say when it is over.
pub(super) fn parent(place: Option<usize>) {
    // SAFETY: `prepare` has taken it, in this thread.
    let memory = unsafe { MEMORY.held() };
    let Some((inherited, mask)) = memory.pending.take() else { return };
    match (inherited, place.and_then(|place| memory.inherited.get_mut(place))) {
        (Some(inherited), Some(place)) => *place = Some(inherited),
        // Held for ever.
        (Some(inherited), None) => std::mem::forget(inherited),
        (None, _) => {}
    }
    IS_FORKING.store(false, Ordering::Release);
    MEMORY.give_back();
    mask.restore();
}

/// After it, in the child.
pub(super) fn child() {
    // SAFETY: `prepare` has taken it, in the thread whose copy this is.
    let memory = unsafe { MEMORY.held() };
    let pending = memory.pending.take();
    if memory.engine.is_some() {
        ROLE.store(Role::Heir as u8, Ordering::Release);
        own::forget_all();
    }
    std::mem::forget(memory.engine.take());
    memory.inherited.iter_mut().for_each(|held| std::mem::forget(held.take()));
    LATER.reset();
    LATER.with(|(_, count)| *count = 0);
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
    MEMORY.reset();
    if let Some((inherited, mask)) = pending {
        std::mem::forget(inherited);
        mask.restore();
    }
}

/// In a copy of the process that no handler was told of: it does not have the engine's memory, which is shared.
pub(super) fn in_unnoticed_copy() {
    MEMORY.reset();
    LATER.reset();
    MEMORY.with(|memory| {
        if memory.engine.is_some() {
            ROLE.store(Role::Without as u8, Ordering::Release);
        }
        std::mem::forget(memory.engine.take());
        memory.inherited.iter_mut().for_each(|held| std::mem::forget(held.take()));
        std::mem::forget(memory.pending.take());
    });
    own::forget_all();
    IS_FORKING.store(false, Ordering::Release);
    WAITING.store(0, Ordering::Relaxed);
}

/// Nobody lives any more of the forks at these places, a bit for each.
pub(super) fn gone(places: u64) {
    if places == 0 {
        return;
    }
    for place in 0..MOST {
        if places >> place & 1 == 1 {
            let_others_go_first();
            let mask = signals::block();
            MEMORY.with(|memory| drop(memory.inherited[place].take()));
            mask.restore();
        }
    }
}

/// Looks after what children share or have shared. True if that is to go on soon.
pub(super) fn tend() -> bool {
    if role() != Role::Owner || END.load(Ordering::Acquire) == 0 {
        return false;
    }
    // A round at most; in between, others have their turn.
    let_others_go_first();
    while with(ProgramMemory::tend) == Some(true) {
        let_others_go_first();
    }
    with(|engine| {
        let counts = engine.counts();
        stats::set(Word::PagesFolded, counts.pages_folded);
        stats::set(Word::Promoted, counts.promoted);
        engine.is_shared()
    })
    .unwrap_or(false)
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
        let Some((more, rest)) = with(|engine| engine.collapse(from)) else { break };
        (made, next) = (made + more, rest);
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
}

/// Hands everything over, and gives no more.
pub(super) fn leave_it_all_to_the_kernel() {
    if role() != Role::Owner || IS_OVER.swap(true, Ordering::Relaxed) {
        return;
    }
    stats::add(Word::PoolLeft, 1);
    let (start, end) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    if start < end {
        hand_over(&(start..end));
    }
}
