//! The functions of libc that the library stands in for: all of them, and nothing else.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `mmap`, `mmap64` | the mode gives the memory, or is told of the new mapping |
//! | `munmap`, `mremap`, `madvise`, `mprotect`, `mlock` and so on | the mode works on what it gave, or hands it over |
//! | `close`, `close_range`, `closefrom`, `dup2`, `dup3` | the library's descriptors stay, in mode `pool` |
//! | `fork` | afterwards, in the parent, the worker is started if it is needed |
//! | `_Fork` | the handlers are called, in mode `pool` |
//! | `__register_atfork` (`pthread_atfork`) | the library's own handlers come before all others |
//! | `unshare` | the thread of a child leaves first, which is in the way of a user namespace |
//! | `prctl` | `PR_SET_THP_DISABLE` is not passed on, and `PR_GET_THP_DISABLE` answers as if it had been |
//!
//! Each does the kernel's work by the system call itself, with libc's `errno`, so that it works before the constructor
//! has run. Only `fork` calls libc's, which runs the program's handlers.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::modes::{self, Emptied, Mapping, Resized, Wish};
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{BASE_PAGE, Mode, config, fork, mappings, own};

/// Does `work`, and leaves `errno` as it was.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let done = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    done
}

/// Whole pages of a range; none if it is empty, or the kernel is to refuse it.
fn pages(start: usize, len: usize) -> Option<Range<usize>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(BASE_PAGE)?;
    (start.is_multiple_of(BASE_PAGE) && end > start).then_some(start..end)
}

/// The pages of a range that is not the kernel's alone.
fn special(start: *mut c_void, len: usize) -> Option<Range<usize>> {
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
    let mut flags = flags;
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
        && let Some(range) = special(start, len)
    {
        // What the kernel refuses, whatever the place, leaves there what was.
        // SAFETY: the caller's.
        match (unsafe { refusal(len, rights, flags, file, offset) }, flags & libc::MAP_FIXED_NOREPLACE == 0) {
            (None, false) if quietly(|| modes::take_if_free(&range)) => {
                // The kernel sees addresses there that are kept for later.
                flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
            }
            (_, false) => {}
            (Some(errno), true) if errno != libc::ENOMEM => return refused(errno),
            (refusal, true) => {
                // There may be no memory for one more, and too few addresses behind: only the kernel can say. So what
                // was is there until it has said.
                let is_open = refusal.is_some() || modes::behind(&range).is_some();
                if !quietly(|| (!is_open || modes::hand_over(&range)) && modes::make_way(&range)) {
                    return refused(libc::ENOMEM);
                }
            }
        }
    }
    // SAFETY: the caller's.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, start, len, rights, flags, file, offset) };
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
            match libc::syscall(libc::SYS_mmap, 0, len, rights, flags, file, offset) {
                -1 => Some(*libc::__errno_location()),
                tried => {
                    libc::syscall(libc::SYS_munmap, tried, len);
                    None
                }
            }
        }
    })
}

/// As libc's `mmap64`, which is `mmap`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(start, len, rights, flags, file, offset) }
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
            let done = unsafe { libc::syscall(libc::SYS_munmap, behind.start, behind.len()) };
            if done != 0 {
                return -1;
            }
        }
        if quietly(|| modes::unmap(&range)) {
            return 0;
        }
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_munmap, start, len) as c_int }
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
    if flags & libc::MREMAP_FIXED != 0
        && let Some(range) = special(to, new_len)
        // If the kernel refuses, what was is there still.
        && !quietly(|| modes::hand_over(&range) && modes::make_way(&range))
    {
        return refused(libc::ENOMEM);
    }
    if len == 0 {
        // The kernel maps shared memory twice then, as the pool's is, and refuses to do so with plain memory.
        make_plain(start, 1);
    }
    if let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
    {
        let may_move = flags == libc::MREMAP_MAYMOVE;
        let resized = if may_move || flags == 0 { quietly(|| modes::resize(&old, new.len())) } else { Resized::Plain };
        match resized {
            Resized::InPlace => return start,
            // SAFETY: the caller's.
            Resized::ByCopy if may_move => return unsafe { moved(&old, new.len(), None) },
            Resized::ByCopy => return refused(libc::ENOMEM),
            Resized::Plain if !quietly(|| modes::hand_over(&old)) => return refused(libc::ENOMEM),
            Resized::Plain => {}
        }
    }
    // SAFETY: the caller's.
    let done = unsafe { libc::syscall(libc::SYS_mremap, start, len, new_len, flags, to) as *mut c_void };
    // What was handed over at different times is several mappings for the kernel, and one for the program.
    if done == libc::MAP_FAILED
        && flags & !libc::MREMAP_FIXED == libc::MREMAP_MAYMOVE
        // SAFETY: this thread's own.
        && unsafe { *libc::__errno_location() } == libc::EFAULT
        && let Some(old) = special(start, len)
        && let Some(new) = pages(start as usize, new_len)
        && quietly(|| mappings::is_writable(&old) || mappings::is_partly_inherited(&old))
    {
        let to = if flags & libc::MREMAP_FIXED != 0 { Some(to) } else { None };
        // SAFETY: the caller's.
        return unsafe { moved(&old, new.len(), to) };
    }
    done
}

/// As the kernel refuses.
fn refused(errno: c_int) -> *mut c_void {
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
    if let Some(range) = special(start, len) {
        let plain = |others: Range<usize>| {
            // SAFETY: the caller's.
            unsafe { libc::syscall(libc::SYS_madvise, others.start, others.len(), advice) };
        };
        let is_done = match advice {
            // The kernel may drop what was freed at any time, so also now.
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                match quietly(|| modes::empty(&range, plain)) {
                    Emptied::All => true,
                    Emptied::Plain => false,
                    Emptied::Refused => {
                        // As the kernel says where it lacks something for the moment.
                        // SAFETY: this thread's own.
                        unsafe { *libc::__errno_location() = libc::EAGAIN };
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
            _ => {
                quietly(|| modes::hand_over(&range));
                false
            }
        };
        if is_done {
            return 0;
        }
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) as c_int }
}

/// As libc's `mprotect`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(start: *mut c_void, len: usize, rights: c_int) -> c_int {
    if let Some(range) = special(start, len) {
        if quietly(|| modes::has_rights(&range, rights)) {
            return 0;
        }
        quietly(|| modes::hand_over(&range));
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_mprotect, start, len, rights) as c_int }
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
    make_plain(start, len);
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, len, rights, key) as c_int }
}

/// As libc's `mlock`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(start: *mut c_void, len: usize) -> c_int {
    make_plain(start, len);
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_mlock, start, len) as c_int }
}

/// As libc's `mlock2`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(start: *mut c_void, len: usize, flags: c_uint) -> c_int {
    make_plain(start, len);
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_mlock2, start, len, flags) as c_int }
}

/// Whether a descriptor is the library's, and the program must not have it.
fn is_ours(number: c_int) -> bool {
    config::mode() == Some(Mode::Pool) && own::is_noted(number)
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
    unsafe { libc::syscall(libc::SYS_close, number) as c_int }
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
    if from == to {
        // SAFETY: only asks whether it is open.
        return if unsafe { libc::fcntl(from, libc::F_GETFD) } == -1 { -1 } else { to };
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_dup3, from, to, 0) as c_int }
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
    unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) as c_int }
}

/// As libc's `close_range`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(from: c_uint, to: c_uint, flags: c_int) -> c_int {
    let mut next = from;
    while config::mode() == Some(Mode::Pool)
        && let Some(ours) = own::first_in(next, to)
    {
        if ours > next {
            // SAFETY: the caller's.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, next, ours - 1, flags) };
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
    unsafe { libc::syscall(libc::SYS_close_range, next, to, flags) as c_int }
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

/// Whether the program believes that it has no huge pages.
static THINKS_DISABLED: AtomicBool = AtomicBool::new(false);

/// As libc's `prctl`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if config::mode().is_some() {
        match option {
            libc::PR_SET_THP_DISABLE => {
                THINKS_DISABLED.store(a != 0, Ordering::Relaxed);
                stats::add(Word::ThpDisablesKept, u64::from(a != 0));
                return 0;
            }
            libc::PR_GET_THP_DISABLE => return THINKS_DISABLED.load(Ordering::Relaxed).into(),
            _ => {}
        }
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_prctl, c_long::from(option), a, b, c, d) as c_int }
}

/// What `pthread_atfork` and its like call.
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
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
        mem::transmute::<*mut c_void, Option<Register>>(libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()))
    };
    // SAFETY: the caller's.
    libcs.map_or(libc::ENOMEM, |libcs| unsafe { libcs(prepare, parent, child, library) })
}

/// As libc's `unshare`. Only a process with one thread may have a new user namespace: a child's helper leaves first.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_NEWUSER != 0 && config::mode().is_some() {
        quietly(modes::help_no_more);
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_unshare, flags) as c_int }
}

/// As libc's `_Fork`, which calls no handlers. Without ours, the child would not have the memory of mode `pool`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let is_ours = config::mode() == Some(Mode::Pool);
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
    if is_ours {
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
