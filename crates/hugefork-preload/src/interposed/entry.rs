//! The functions of libc that change memory, descriptors and forks. Those that the other files of this folder have are
//! not among them.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `mmap`, `mmap64` | the mode gives the memory, or is told of the new mapping |
//! | `munmap`, `mremap`, `madvise`, `mprotect`, `mlock` and so on | the mode works on what it gave, or hands it over |
//! | `munlock`, `msync`, `mincore` | what is kept for later is not mapped, in mode `pool` |
//! | `close`, `close_range`, `closefrom`, `dup2`, `dup3` | the library's descriptors stay, in mode `pool` |
//! | `fork` | afterwards, in the parent, the worker is started if it is needed |
//! | `_Fork` | the handlers are called, in mode `pool` |
//! | `__register_atfork` (`pthread_atfork`) | the library's own handlers come before all others |
//! | `prctl` | `PR_SET_THP_DISABLE` is not passed on, and `PR_GET_THP_DISABLE` answers as if so; see `sandbox` |
//!
//! Most do the kernel's work by the system call itself, with libc's `errno`, so that they work before the constructor
//! has run. `fork`, which is to run the program's handlers, `_Fork` and `__register_atfork` call libc's.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

pub(crate) use crate::interposed::kernel::quietly;
use crate::interposed::kernel::{failed, kernel};
use crate::modes::{self, Emptied, Mapping, Resized, Wish};
use crate::proc::mappings;
use crate::sandbox::seal;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{BASE_PAGE, Mode, config, descriptors, fork, sandbox};

/// Whole pages of a range; none if it is empty, or the kernel is to refuse it.
fn pages(start: usize, len: usize) -> Option<Range<usize>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(BASE_PAGE)?;
    (start.is_multiple_of(BASE_PAGE) && end > start).then_some(start..end)
}

/// The pages of a range that is not the kernel's alone.
pub(crate) fn special(start: *mut c_void, len: usize) -> Option<Range<usize>> {
    let range = pages(start as usize, len)?;
    (!modes::is_plain(range.start, range.len())).then_some(range)
}

/// Has memory that the program wants more of than the mode can do be plain memory first.
pub(crate) fn make_plain(start: *mut c_void, len: usize) {
    let within = start as usize % BASE_PAGE;
    if let Some(range) = special(start.wrapping_byte_sub(within), len.saturating_add(within)) {
        quietly(|| modes::hand_over(&range));
    }
}

/// The same for what would do harm where a child has inherited the memory: false if it is not plain even now.
pub(crate) fn make_own(start: *mut c_void, len: usize) -> bool {
    let within = start as usize % BASE_PAGE;
    let range = special(start.wrapping_byte_sub(within), len.saturating_add(within));
    range.is_none_or(|range| quietly(|| modes::make_own(&range)))
}

/// What the kernel does about what is left of a range when it comes to addresses at which nothing is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtHole {
    Stop,
    GoOn,
}

/// Where addresses begin at which no process has anything: the kernel's own.
const NOWHERE: usize = 0_usize.wrapping_sub(1 << 47);

/// Does `call` with each part of a range at which the program has mapped something, as the kernel would do it with the
/// range: that sees the addresses mapped, too, that are kept for later.
fn by_parts(start: usize, len: usize, at_hole: AtHole, call: impl Fn(usize, usize) -> c_int) -> c_int {
    let Some(mut rest) = special(start as *mut c_void, len) else { return call(start, len) };
    let mut has_hole = false;
    while !rest.is_empty() {
        let part = quietly(|| modes::first_mapped(&rest)).unwrap_or(rest.end..rest.end);
        has_hole |= part.start > rest.start;
        if part.is_empty() || has_hole && at_hole == AtHole::Stop {
            break;
        }
        if call(part.start, part.len()) != 0 {
            // SAFETY: this thread's own.
            if at_hole == AtHole::Stop || unsafe { *libc::__errno_location() } != libc::ENOMEM {
                return -1;
            }
            has_hole = true;
        }
        rest.start = part.end;
    }
    // The kernel says it there, or what else is wrong.
    if has_hole { call(NOWHERE, BASE_PAGE) } else { 0 }
}

/// As [`by_parts`], for calls that take the address of any byte of the first page, and stop where nothing is mapped.
fn by_parts_from_within(start: *mut c_void, len: usize, call: impl Fn(usize, usize) -> c_int) -> c_int {
    let within = start as usize % BASE_PAGE;
    match len.checked_add(within) {
        Some(len) if len > within => by_parts(start as usize - within, len, AtHole::Stop, call),
        _ => call(start as usize, len),
    }
}

/// As libc's `mmap`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let wish = Wish { hint: start as usize, len, rights, flags };
    if let Some(given) = quietly(|| modes::map(&wish)) {
        if modes::wants_worker() {
            quietly(fork::want_worker);
        }
        return given as *mut c_void;
    }
    let (mut flags, mut taken) = (flags, None);
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
        && let Some(range) = special(start, len)
        && !quietly(|| goes_beyond(&range))
    {
        // What the kernel refuses, whatever the place, leaves there what was.
        // SAFETY: the caller's.
        let refusal = unsafe { refusal(len, rights, flags, file, offset) };
        if flags & libc::MAP_FIXED_NOREPLACE == 0 {
            match refusal {
                None if quietly(|| modes::make_way(&range)) => {}
                // There may be no memory for one more: only the kernel can say. What was is there until it has said.
                Some(libc::ENOMEM) if quietly(|| modes::hand_over(&range) && modes::make_way(&range)) => {}
                refusal => return refused(refusal.unwrap_or(libc::ENOMEM)),
            }
            taken = Some(range);
        } else if refusal.is_none() && quietly(|| modes::take_if_free(&range)) {
            // The kernel sees addresses there that are kept for later.
            flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
            taken = Some(range);
        }
    }
    // SAFETY: the caller's.
    let mapped = unsafe { kernel!(libc::SYS_mmap, start, len, rights, flags, file, offset) };
    if let Some(range) = taken {
        quietly(|| modes::settle(&range, mapped != -1));
    }
    if mapped != -1 {
        modes::mapped(&Mapping { start: mapped as usize, len, rights, flags });
    }
    mapped as *mut c_void
}

/// What the kernel says if it refuses a mapping at any address, none in particular.
///
/// # Safety
/// As libc's `mmap`.
unsafe fn refusal(len: usize, rights: c_int, flags: c_int, file: c_int, offset: i64) -> Option<c_int> {
    quietly(|| {
        let flags = flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE);
        // SAFETY: a new mapping where the kernel likes, which nobody uses.
        unsafe {
            match kernel!(libc::SYS_mmap, 0, len, rights, flags, file, offset) {
                -1 => Some(*libc::__errno_location()),
                tried => {
                    kernel!(libc::SYS_munmap, tried, len);
                    None
                }
            }
        }
    })
}

/// Whether a range ends where no process has addresses, as far as nothing lies behind it that the mode knows of.
fn goes_beyond(range: &Range<usize>) -> bool {
    if modes::behind(range).is_none() {
        return false;
    }
    let (last, flags) = (range.end - BASE_PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: a new mapping that replaces nothing, and that nobody uses.
    unsafe {
        match kernel!(libc::SYS_mmap, last, BASE_PAGE, libc::PROT_NONE, flags, -1, 0) {
            -1 => *libc::__errno_location() == libc::ENOMEM,
            tried => {
                kernel!(libc::SYS_munmap, tried, BASE_PAGE);
                false
            }
        }
    }
}

/// As libc's `munmap`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(start: *mut c_void, len: usize) -> c_int {
    if let Some(range) = special(start, len) {
        if let Some(behind) = modes::behind(&range) {
            // First: where addresses end, only the kernel knows, and what it refuses changes nothing.
            // SAFETY: the caller's.
            let done = unsafe { kernel!(libc::SYS_munmap, behind.start, behind.len()) };
            if done != 0 {
                return -1;
            }
        }
        if quietly(|| modes::unmap(&range)) {
            return 0;
        }
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_munmap, start, len) as c_int }
}

/// As libc's `mremap`. The last argument is only there with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`, and otherwise
/// whatever the register holds.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    start: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let taken = if flags & libc::MREMAP_FIXED == 0 { None } else { special(to, new_len) };
    if let Some(range) = taken.filter(|range| !quietly(|| goes_beyond(range))) {
        // If the kernel refuses, what was is there still.
        if !quietly(|| modes::hand_over(&range) && modes::make_way(&range)) {
            return refused(libc::ENOMEM);
        }
        // SAFETY: the caller's.
        let done = unsafe { remapped(start, len, new_len, flags, to) };
        quietly(|| modes::settle(&range, done != libc::MAP_FAILED));
        return done;
    }
    // SAFETY: the caller's.
    unsafe { remapped(start, len, new_len, flags, to) }
}

/// The same where way was made for what is to be at a place of the program's choice.
///
/// # Safety
/// As libc's `mremap`.
unsafe fn remapped(start: *mut c_void, len: usize, new_len: usize, flags: c_int, to: *mut c_void) -> *mut c_void {
    if len == 0 {
        // The kernel maps shared memory twice then, as the pool's is, and refuses to do so with plain memory.
        make_plain(start, 1);
    }
    if let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
    {
        match quietly(|| modes::first_mapped(&old)) {
            Some(part) if part == old => {}
            // All that is longer goes, whatever it is.
            Some(part) if part.start == old.start && new.len() <= old.len() && flags & !libc::MREMAP_MAYMOVE == 0 => {
                // SAFETY: the caller's.
                let cut =
                    new.end == old.end || unsafe { munmap(new.end as *mut c_void, new.len().abs_diff(old.len())) } == 0;
                return if cut { start } else { libc::MAP_FAILED };
            }
            _ => {
                // As the kernel refuses where nothing is mapped.
                // SAFETY: the caller's.
                return unsafe { kernel!(libc::SYS_mremap, NOWHERE, len, new_len, flags, to) as *mut c_void };
            }
        }
        let may_move = flags == libc::MREMAP_MAYMOVE;
        let is_resized = may_move || flags == 0;
        let resized = if is_resized { quietly(|| modes::resize(&old, new.len())) } else { Resized::Plain };
        let stays = is_resized && new.len() <= old.len();
        match resized {
            Resized::InPlace => return start,
            // SAFETY: the caller's.
            Resized::ByCopy if may_move => return unsafe { moved(&old, new.len(), None) },
            Resized::ByCopy => return refused(libc::ENOMEM),
            // At other addresses, nobody would know that a child has inherited it.
            Resized::Plain if !quietly(|| if stays { modes::hand_over(&old) } else { modes::make_own(&old) }) => {
                return refused(libc::ENOMEM);
            }
            Resized::Plain => {}
        }
    }
    // SAFETY: the caller's.
    let done = unsafe { kernel!(libc::SYS_mremap, start, len, new_len, flags, to) as *mut c_void };
    // What was handed over at different times is several mappings for the kernel, and one for the program.
    if done == libc::MAP_FAILED
        && flags & !libc::MREMAP_FIXED == libc::MREMAP_MAYMOVE
        // SAFETY: this thread's own.
        && unsafe { *libc::__errno_location() } == libc::EFAULT
        && let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
        && quietly(|| mappings::is_writable(&old) || mappings::is_partly_inherited(&old) == Ok(true))
    {
        let to = if flags & libc::MREMAP_FIXED != 0 { Some(to) } else { None };
        // SAFETY: the caller's.
        return unsafe { moved(&old, new.len(), to) };
    }
    done
}

/// As the kernel refuses.
pub(crate) fn refused(errno: c_int) -> *mut c_void {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    libc::MAP_FAILED
}

/// Moves a mapping to another place, or to any, by copying it.
///
/// # Safety
/// It is the caller's, who does not use it meanwhile. At the other place nothing is that he needs.
unsafe fn moved(old: &Range<usize>, new_len: usize, to: Option<*mut c_void>) -> *mut c_void {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let fixed = if to.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping.
    let new = unsafe { mmap(to.unwrap_or(std::ptr::null_mut()), new_len, rights, flags | fixed, -1, 0) };
    if new != libc::MAP_FAILED {
        // SAFETY: by contract, and the new one is ours and at least as long.
        unsafe {
            std::ptr::copy_nonoverlapping(old.start as *const u8, new.cast::<u8>(), old.len().min(new_len));
            munmap(old.start as *mut c_void, old.len());
        }
    }
    new
}

/// As libc's `madvise`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    let at_hole = match advice {
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => AtHole::Stop,
        _ => AtHole::GoOn,
    };
    // SAFETY: the caller's.
    by_parts(start as usize, len, at_hole, |start, len| unsafe { advise(start as *mut c_void, len, advice) })
}

/// `MADV_GUARD_INSTALL` (Linux 6.13).
const GUARD_INSTALL: c_int = 102;

/// The same about a part of it at which something is mapped everywhere.
///
/// # Safety
/// As libc's `madvise`.
unsafe fn advise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if let Some(range) = special(start, len) {
        let said = Cell::new(0);
        let plain = |others: Range<usize>| {
            // SAFETY: the caller's.
            let done = unsafe { kernel!(libc::SYS_madvise, others.start, others.len(), advice) } == 0;
            if !done {
                // SAFETY: this thread's own.
                said.set(unsafe { *libc::__errno_location() });
            }
            // It goes on where nothing is mapped.
            done || said.get() == libc::ENOMEM
        };
        let is_done = match advice {
            // The kernel may drop what was freed at any time, so also now.
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                match quietly(|| modes::empty(&range, plain)) {
                    Emptied::All if said.get() == 0 => true,
                    Emptied::Plain => false,
                    Emptied::All | Emptied::Refused => {
                        // Of its own parts, what the kernel has said; else as it does where it lacks something for the
                        // moment.
                        let errno = if said.get() != 0 { said.get() } else { libc::EAGAIN };
                        // SAFETY: this thread's own.
                        unsafe { *libc::__errno_location() = errno };
                        return -1;
                    }
                }
            }
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_HUGEPAGE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_DODUMP
            | libc::MADV_DOFORK => quietly(|| modes::is_all_ours(&range)),
            libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => false,
            GUARD_INSTALL => {
                // The kernel drops what is there, and what a child has inherited would be there again without guards.
                if !quietly(|| modes::make_own(&range)) {
                    return failed(libc::EAGAIN) as c_int;
                }
                false
            }
            _ => {
                modes::keep_flags();
                quietly(|| modes::hand_over(&range));
                false
            }
        };
        if is_done {
            return 0;
        }
    }
    // SAFETY: the caller's.
    let done = unsafe { kernel!(libc::SYS_madvise, start, len, advice) as c_int };
    // What a child has inherited is private memory of a file, of which the kernel says so; of any other, `EINVAL`.
    if done != 0
        && advice == libc::MADV_REMOVE
        && let Some(range) = special(start, len)
        && quietly(|| mappings::is_partly_inherited(&range) == Ok(true))
    {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::EINVAL };
    }
    done
}

/// As libc's `mprotect`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(start: *mut c_void, len: usize, rights: c_int) -> c_int {
    by_parts(start as usize, len, AtHole::Stop, |start, len| {
        if let Some(range) = special(start as *mut c_void, len) {
            if quietly(|| modes::has_rights(&range, rights)) {
                return 0;
            }
            quietly(|| modes::hand_over(&range));
        }
        // SAFETY: the caller's.
        unsafe { kernel!(libc::SYS_mprotect, start, len, rights) as c_int }
    })
}

/// As libc's `pkey_mprotect`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(start: *mut c_void, len: usize, rights: c_int, key: c_int) -> c_int {
    if key == -1 {
        // SAFETY: the caller's.
        return unsafe { mprotect(start, len, rights) };
    }
    by_parts(start as usize, len, AtHole::Stop, |start, len| {
        modes::keep_flags();
        make_plain(start as *mut c_void, len);
        // SAFETY: the caller's.
        unsafe { kernel!(libc::SYS_pkey_mprotect, start, len, rights, key) as c_int }
    })
}

/// As libc's `mlock`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(start: *mut c_void, len: usize) -> c_int {
    by_parts_from_within(start, len, |start, len| {
        modes::keep_flags();
        make_plain(start as *mut c_void, len);
        // SAFETY: the caller's.
        unsafe { kernel!(libc::SYS_mlock, start, len) as c_int }
    })
}

/// As libc's `mlock2`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(start: *mut c_void, len: usize, flags: c_uint) -> c_int {
    by_parts_from_within(start, len, |start, len| {
        modes::keep_flags();
        make_plain(start as *mut c_void, len);
        // SAFETY: the caller's.
        unsafe { kernel!(libc::SYS_mlock2, start, len, flags) as c_int }
    })
}

/// As libc's `mlockall`. All is handed over, as by `mlock`, and what comes is the kernel's.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    modes::keep_flags();
    quietly(modes::leave_it_all_to_the_kernel);
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_mlockall, flags) as c_int }
}

/// As libc's `munlock`. What is locked was handed over.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn munlock(start: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's.
    by_parts_from_within(start, len, |start, len| unsafe { kernel!(libc::SYS_munlock, start, len) as c_int })
}

/// As libc's `msync`, by which programs ask whether something is mapped. It cannot be cancelled by `pthread_cancel`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn msync(start: *mut c_void, len: usize, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    let sync = |start: usize, len: usize| unsafe { kernel!(libc::SYS_msync, start, len, flags) as c_int };
    by_parts(start as usize, len, AtHole::GoOn, sync)
}

/// As libc's `mincore`, by which programs ask whether something is mapped.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mincore(start: *mut c_void, len: usize, seen: *mut u8) -> c_int {
    by_parts(start as usize, len, AtHole::Stop, |part, len| {
        let seen = seen.wrapping_add(part.wrapping_sub(start as usize) / BASE_PAGE);
        // SAFETY: the caller's; it has a byte for each page.
        unsafe { kernel!(libc::SYS_mincore, part, len, seen) as c_int }
    })
}

/// Whether a descriptor is the library's, and the program must not have it.
fn is_ours(number: c_int) -> bool {
    config::mode() == Some(Mode::Pool) && descriptors::is_ours(number)
}

/// As for a descriptor that is not open, which is what the program knows of.
fn not_open() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = libc::EBADF };
    -1
}

/// As libc's `close`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn close(number: c_int) -> c_int {
    if is_ours(number) {
        return not_open();
    }
    // SAFETY: the caller's. libc's own can be cancelled by `pthread_cancel`; this cannot.
    unsafe { kernel!(libc::SYS_close, number) as c_int }
}

/// As libc's `dup2`. A number that the library has is refused, as one beyond the program's limit is.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_ours(to) {
        return not_open();
    }
    #[cfg(not(target_arch = "x86_64"))]
    if from == to {
        // SAFETY: only asks whether it is open.
        return if unsafe { libc::fcntl(from, libc::F_GETFD) } == -1 { -1 } else { to };
    }
    // As libc: a filter may know the one and not the other.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's.
    return unsafe { kernel!(libc::SYS_dup2, from, to) as c_int };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    return unsafe { kernel!(libc::SYS_dup3, from, to, 0) as c_int };
}

/// As libc's `dup3`. As for [`dup2`].
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_ours(to) {
        return not_open();
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_dup3, from, to, flags) as c_int }
}

/// As libc's `close_range`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(from: c_uint, to: c_uint, flags: c_int) -> c_int {
    let mut next = from;
    while config::mode() == Some(Mode::Pool)
        && let Some(ours) = descriptors::first_in(next, to)
    {
        if ours > next {
            // SAFETY: the caller's.
            let closed = unsafe { kernel!(libc::SYS_close_range, next, ours - 1, flags) };
            if closed != 0 {
                return -1;
            }
        }
        if ours >= to {
            return 0;
        }
        next = ours + 1;
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_close_range, next, to, flags) as c_int }
}

/// As libc's `closefrom`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(from: c_int) {
    // SAFETY: the caller's.
    unsafe { close_range(from.max(0) as c_uint, c_uint::MAX, 0) };
}

/// What the program has asked for by `PR_SET_THP_DISABLE`, as `PR_GET_THP_DISABLE` answers.
static THINKS_DISABLED: AtomicI32 = AtomicI32::new(0);

/// The same but for memory that is advised to have huge pages (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
const EXCEPT_ADVISED: c_ulong = 1 << 1;

/// As libc's `prctl`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if config::mode().is_some() {
        match option {
            // What the kernel refuses, it is to refuse.
            libc::PR_SET_THP_DISABLE if (b, c, d) == (0, 0, 0) => {
                if THINKS_DISABLED.swap(i32::from(a != 0), Ordering::Relaxed) & EXCEPT_ADVISED as c_int != 0 {
                    // SAFETY: changes where huge pages come by themselves.
                    quietly(|| unsafe { kernel!(libc::SYS_prctl, libc::PR_SET_THP_DISABLE, 0) });
                }
                stats::add(Word::ThpDisablesKept, u64::from(a != 0));
                return 0;
            }
            // The library advises where it wants them: the kernel may have it so, if it knows of it.
            libc::PR_SET_THP_DISABLE if a != 0 && (b, c, d) == (EXCEPT_ADVISED, 0, 0) => {
                // SAFETY: as above.
                let done = unsafe { kernel!(libc::SYS_prctl, option, a, b) as c_int };
                if done == 0 {
                    THINKS_DISABLED.store(1 | EXCEPT_ADVISED as c_int, Ordering::Relaxed);
                }
                return done;
            }
            libc::PR_GET_THP_DISABLE if (a, b, c, d) == (0, 0, 0, 0) => return THINKS_DISABLED.load(Ordering::Relaxed),
            _ => {}
        }
    }
    let [a, b, c, d] = [a, b, c, d].map(|argument| argument as c_long);
    // SAFETY: the caller's.
    unsafe { sandbox::make(libc::SYS_prctl, [option.into(), a, b, c, d, 0]) as c_int }
}

/// What `pthread_atfork` and its like call.
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
type Handler = Option<unsafe extern "C" fn()>;

/// As libc's `__register_atfork`. The first call, whoever makes it, comes after the library's own handlers were
/// registered: an allocator may hold a lock while it waits for the library, which waits for a fork, and take that lock
/// in a handler.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    fork::follow();
    // SAFETY: a name that ends. libc's function has this type.
    let libcs = unsafe {
        mem::transmute::<*mut c_void, Option<RegisterAtfork>>(libc::dlsym(
            libc::RTLD_NEXT,
            c"__register_atfork".as_ptr(),
        ))
    };
    // SAFETY: the caller's.
    libcs.map_or(libc::ENOMEM, |libcs| unsafe { libcs(prepare, parent, child, library) })
}

/// As libc's `_Fork`, which calls no handlers. Without ours, the child would not have the memory of mode `pool`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let is_ours = config::mode() == Some(Mode::Pool) && !seal::is_sealed();
    // SAFETY: a name that ends. libc's function has this type.
    let libcs = unsafe {
        mem::transmute::<*mut c_void, Option<unsafe extern "C" fn() -> libc::pid_t>>(libc::dlsym(
            libc::RTLD_NEXT,
            c"_Fork".as_ptr(),
        ))
    };
    let Some(libcs) = libcs else {
        // SAFETY: this thread's own. Before glibc 2.34, there is none.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    if is_ours {
        fork::prepare();
    }
    // SAFETY: the caller's.
    let child = unsafe { libcs() };
    // Nobody seals in the middle of a fork.
    if is_ours && !seal::is_sealed() {
        quietly(|| if child == 0 { fork::child() } else { fork::parent() });
    }
    child
}

/// The address of libc's `fork`; 0 before it was looked for.
static LIBC_FORK: AtomicUsize = AtomicUsize::new(0);

/// Looks for libc's `fork`.
pub(crate) fn resolve() -> usize {
    // SAFETY: a name that ends.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) } as usize;
    LIBC_FORK.store(found, Ordering::Relaxed);
    found
}

/// As libc's `fork`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let libcs = match LIBC_FORK.load(Ordering::Relaxed) {
        0 => resolve(),
        known => known,
    };
    assert!(libcs != 0, "libc has a `fork`");
    // SAFETY: libc's `fork` has this type.
    let libcs = unsafe { mem::transmute::<usize, unsafe extern "C" fn() -> libc::pid_t>(libcs) };
    // SAFETY: the caller's.
    let child = unsafe { libcs() };
    // Also if it has failed: what was prepared for it is to be taken back.
    if child != 0 {
        quietly(fork::afterwards);
    }
    child
}
