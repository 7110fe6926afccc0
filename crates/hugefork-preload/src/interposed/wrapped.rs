//! Functions of libc's with something before them. They call libc's own: some are points of cancellation, and libc has
//! the program's threads take part in `setuid` and its like.
//!
//! | functions | before |
//! |---|---|
//! | `setuid` and its like, `unshare`, `setns`, `chroot` | a pool is left: libc and the kernel know of no worker |
//! | `open`, `fcntl` and their like with `O_DIRECT` | the library steps aside: see below |
//! | `setsockopt` with `SO_ZEROCOPY`, for memory of `AF_XDP`, or of the kernel's ciphers (`AF_ALG`) | the same |
//! | `setrlimit` and its like of `RLIMIT_AS`, `RLIMIT_DATA` | a pool is left, which does not count so |
//! | `process_madvise`, `vmsplice`, `shmat` with `SHM_REMAP`, a filter by `prctl` | the library withdraws |
//! | `mseal`, `remap_file_pages`, `ioctl` with `UFFDIO_REGISTER` | what they name is plain anonymous memory first |
//! | `__register_atfork` (`pthread_atfork`) | the library's own handlers come before all others |
//! | `mlock`, `mlock2`, `mlockall` | what they name becomes the kernel's |
//! | `pthread_attr_setstack…` | the kernel's: who joins a thread is found by a page of it |
//!
//! The pool moves what lies at an address to other pages: a page is written back, a huge page is made. Linux copies to
//! and from user space by address, so that whoever comes meanwhile waits. But some calls pin the pages that are there,
//! and what arrives in those later would arrive in nobody's. The kernel does not say which pages are pinned. Programs
//! that pin memory in other ways are told by their libraries, before there is any (pool/engine.rs).
//!
//! What is done to memory past all of these, by a program that makes its system calls itself, the engine finds out
//! before a fork, as far as it would do harm there (`ProgramMemory::before_fork`).
//!
//! A call by a name that is not here would not be noticed; tests/run_names.rs compares with the names that libc has.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use hugefork_linux::userfaultfd::{MODE_MISSING, MODE_WP, Register, UFFDIO_REGISTER};

use crate::child::heed_locks;
use crate::interposed::kernel::{errno, failed, is_readable, kernel, quietly};
use crate::interposed::libcs::Libcs;
use crate::interposed::memory::advise::madvise;
use crate::interposed::memory::parts::{make_own, make_plain, refused, special};
use crate::pool::{self, Zeros};
use crate::withdrawal::{leave_a_pool, leave_for_a_place, leave_unless_child, withdraw};
use crate::{HUGE_PAGE, fork, switch};

/// What `pthread_atfork` and its like call.
type Handler = Option<unsafe extern "C" fn()>;

/// Functions of libc's, and what is done before each.
macro_rules! wrapped {
    (@) => { c_int };
    (@ $answer:ty) => { $answer };
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? $before:block)*) => {
        $(
            /// As libc's.
            ///
            /// # Safety
            /// As libc's.
            #[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> wrapped!(@ $($answer)?) {
                $before
                type Real = unsafe extern "C" fn($($type),*) -> wrapped!(@ $($answer)?);
                let Some(real) = all::$name.look() else { return failed::<c_int>(libc::ENOSYS) as _ };
                // SAFETY: libc's function has this type, and the rest is the caller's.
                unsafe { mem::transmute::<usize, Real>(real.get())($($argument),*) }
            }
        )*

        /// libc's own.
        #[expect(non_upper_case_globals, reason = "they have the names of functions")]
        mod all {
            use super::{CStr, Libcs};

            $(pub(super) static $name: Libcs =
                Libcs::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero byte"),
                });)*
        }

        /// Looks for libc's functions, so that none is looked for in a signal handler. Those that this libc lacks
        /// nobody calls.
        pub(crate) fn resolve() {
            $(let _ = all::$name.look();)*
        }
    };
}

wrapped! {
    setuid(user: libc::uid_t) { leave_a_pool() }
    setgid(group: libc::gid_t) { leave_a_pool() }
    seteuid(user: libc::uid_t) { leave_a_pool() }
    setegid(group: libc::gid_t) { leave_a_pool() }
    setreuid(real: libc::uid_t, effective: libc::uid_t) { leave_a_pool() }
    setregid(real: libc::gid_t, effective: libc::gid_t) { leave_a_pool() }
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) { leave_a_pool() }
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) { leave_a_pool() }
    setfsuid(user: libc::uid_t) { leave_a_pool() }
    setfsgid(group: libc::gid_t) { leave_a_pool() }
    setgroups(count: usize, groups: *const libc::gid_t) { leave_a_pool() }
    initgroups(user: *const c_char, group: libc::gid_t) { leave_a_pool() }
    capset(header: *mut c_void, data: *const c_void) { leave_a_pool() }
    setns(space: c_int, kind: c_int) { leave_for_a_place() }
    unshare(what: c_int) { leave_for_a_place() }
    chroot(path: *const c_char) { leave_for_a_place() }

    // The last argument is only there with `O_CREAT` or `O_TMPFILE`, and otherwise whatever the register holds.
    open(path: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    __open(path: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    open64(path: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    __open64(path: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    __open_2(path: *const c_char, flags: c_int) { look(flags) }
    __open64_2(path: *const c_char, flags: c_int) { look(flags) }
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) { look(flags) }
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) { look(flags) }
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) { look(flags) }
    mkostemp(path: *mut c_char, flags: c_int) { look(flags) }
    mkostemp64(path: *mut c_char, flags: c_int) { look(flags) }
    mkostemps(path: *mut c_char, end_len: c_int, flags: c_int) { look(flags) }
    mkostemps64(path: *mut c_char, end_len: c_int, flags: c_int) { look(flags) }
    shm_open(name: *const c_char, flags: c_int, mode: c_uint) { look(flags) }
    fcntl(file: c_int, command: c_int, argument: c_long) { look_at(command, argument) }
    fcntl64(file: c_int, command: c_int, argument: c_long) { look_at(command, argument) }
    __fcntl(file: c_int, command: c_int, argument: c_long) { look_at(command, argument) }
    setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, len: libc::socklen_t) {
        before_option(level, name);
    }

    setrlimit(which: c_uint, new: *const libc::rlimit64) { before_limit(which, new) }
    setrlimit64(which: c_uint, new: *const libc::rlimit64) { before_limit(which, new) }
    prlimit(process: libc::pid_t, which: c_uint, new: *const libc::rlimit64, old: *mut libc::rlimit64) {
        before_limit_of(process, which, new);
    }
    prlimit64(process: libc::pid_t, which: c_uint, new: *const libc::rlimit64, old: *mut libc::rlimit64) {
        before_limit_of(process, which, new);
    }

    // Locked memory stays the kernel's: it is not moved, and nothing of it is dropped.
    mlockall(flags: c_int) {
        heed_locks();
        leave_unless_child();
    }

    // What may be said of others drops nothing. All else only the process itself may say (Linux 6.13).
    process_madvise(process: c_int, pieces: *const libc::iovec, count: usize, advice: c_int, flags: c_uint) -> isize {
        let is_harmless =
            matches!(advice, libc::MADV_COLD | libc::MADV_PAGEOUT | libc::MADV_WILLNEED | libc::MADV_COLLAPSE);
        if !is_harmless && !withdraw(Zeros::Copied) {
            return failed::<c_int>(libc::ENOMEM) as isize;
        }
    }
    vmsplice(pipe: c_int, pieces: *const libc::iovec, count: usize, flags: c_uint) -> isize { leave_unless_child() }
    // The kernel refuses to put anything in place of what is sealed (glibc 2.43).
    mseal(start: *mut c_void, len: usize, flags: c_ulong) {
        if !make_own(start, len) {
            return failed(libc::ENOMEM);
        }
    }
    // The kernel refuses it where no file is shared.
    remap_file_pages(start: *mut c_void, len: usize, rights: c_int, page: usize, flags: c_int) {
        if !make_own(start, len) {
            return failed(libc::ENOMEM);
        }
    }
    shmat(segment: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
        if flags & libc::SHM_REMAP != 0 && !pool::is_plain(at as usize, usize::MAX) && !withdraw(Zeros::Copied) {
            return refused(libc::ENOMEM);
        }
    }
    // Whatever the last argument is, it fits a register.
    ioctl(file: c_int, request: c_ulong, argument: *mut c_void) {
        if request == c_ulong::from(UFFDIO_REGISTER) && !before_faults(argument.cast()) {
            return failed(libc::ENOMEM);
        }
    }
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) {
        static THINKS_DISABLED: AtomicBool = AtomicBool::new(false);
        match option {
            // Not passed on, and answered as if it was: the pool has huge pages. What the kernel refuses, it is to
            // refuse.
            libc::PR_SET_THP_DISABLE if switch::is_on() && (b, c, d) == (0, 0, 0) => {
                THINKS_DISABLED.store(a != 0, Ordering::Relaxed);
                if a != 0 {
                    return 0;
                }
            }
            // But for memory that is advised to have some (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18): it may have it
            // so.
            libc::PR_SET_THP_DISABLE if switch::is_on() && (b, c, d) == (2, 0, 0) => {
                // SAFETY: names no memory.
                let done = unsafe { kernel!(libc::SYS_prctl, option, a, b, 0, 0) } as c_int;
                THINKS_DISABLED.fetch_and(done != 0, Ordering::Relaxed);
                return done;
            }
            libc::PR_GET_THP_DISABLE if THINKS_DISABLED.load(Ordering::Relaxed) && (a, b, c, d) == (0, 0, 0, 0) => {
                return 1;
            }
            // A filter at no address is refused: programs ask so whether there are any.
            libc::PR_SET_SECCOMP
                if (a as u32 == libc::SECCOMP_MODE_STRICT || b != 0) && !withdraw(Zeros::Copied) =>
            {
                return failed(libc::ENOMEM);
            }
            _ => {}
        }
    }

    // The first call, whoever makes it, comes after the library's own handlers were registered: an allocator may hold a
    // lock while it waits for the library, which waits for a fork, and take that lock in a handler.
    __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) { fork::follow() }

    pthread_attr_setstack(attributes: *mut libc::pthread_attr_t, stack: *mut c_void, len: usize) {
        make_plain(stack, len);
    }
    // It names the end of the stack and not how long it is. libc puts its data at the end.
    pthread_attr_setstackaddr(attributes: *mut libc::pthread_attr_t, end: *mut c_void) {
        make_plain(end.wrapping_byte_sub(HUGE_PAGE), HUGE_PAGE);
    }
}

/// Looks at the flags of a file that is opened, by whichever call.
pub(super) fn look(flags: c_int) {
    if flags & libc::O_DIRECT != 0 {
        leave_unless_child();
    }
}

/// Looks at what is done to a descriptor.
pub(super) fn look_at(command: c_int, argument: c_long) {
    if command == libc::F_SETFL {
        look(argument as c_int);
    }
}

/// `XDP_UMEM_REG` of `SOL_XDP`: devices write to memory of the program's from then on.
const MEMORY_OF_PACKETS: (c_int, c_int) = (283, 4);

/// Looks at an option of a socket: whether pages of the program's are used past their addresses after it was set.
pub(super) fn before_option(level: c_int, name: c_int) {
    // Whoever wants something deciphered gives a key first, by one of several names.
    let pins = (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY)
        || (level, name) == MEMORY_OF_PACKETS
        || level == libc::SOL_ALG;
    if pins {
        leave_unless_child();
    }
}

/// Before page faults of memory are handled by the program: what moves blocks would take the registration away. Where
/// it cannot be plain memory, there is none to lose.
fn before_faults(argument: *const Register) -> bool {
    if !switch::is_on() || argument.is_null() || !is_readable(argument as usize, size_of::<Register>()) {
        return true;
    }
    // SAFETY: it can be read.
    let Register { range: wanted, mode, .. } = unsafe { argument.read_unaligned() };
    // The program is to be asked about pages that it has dropped, or never used, in the middle of a huge page.
    let zeros = if mode & (MODE_MISSING | MODE_WP) == MODE_MISSING { Zeros::LeftOut } else { Zeros::Copied };
    special(wanted.start as *mut c_void, wanted.len as usize)
        .is_none_or(|range| quietly(|| pool::make_own(&range, zeros)))
}

/// Looks at a limit that this process sets for itself.
pub(super) fn before_limit(which: c_uint, new: *const libc::rlimit64) {
    let is_of_memory = [libc::RLIMIT_AS, libc::RLIMIT_DATA].contains(&(which as libc::__rlimit_resource_t));
    if switch::is_on() && is_of_memory && !new.is_null() && quietly(|| is_readable(new as usize, size_of_val(&new))) {
        // SAFETY: its first word can be read.
        let most = unsafe { (&raw const (*new).rlim_cur).read_unaligned() };
        if most != libc::RLIM64_INFINITY {
            leave_a_pool();
        }
    }
}

/// The same of a process that is named.
pub(super) fn before_limit_of(process: libc::pid_t, which: c_uint, new: *const libc::rlimit64) {
    if process == 0 || process == std::process::id().cast_signed() {
        before_limit(which, new);
    }
}

/// As libc's `posix_madvise`, which does not drop memory whatever it is told, and leaves `errno` alone.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn posix_madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: the caller's.
    quietly(|| if unsafe { madvise(start, len, advice) } == 0 { 0 } else { errno() })
}
