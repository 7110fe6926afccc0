//! Interposed functions that do something first and then call libc's own. libc's code is needed:
//! some functions are cancellation points, and for `setuid` and its like libc involves all threads
//! of the program.
//!
//! | functions | action before |
//! |---|---|
//! | `setuid` and its like, `unshare`, `setns`, `chroot` | leaves the pool: libc does not know the worker |
//! | `open`, `fcntl` and their like with `O_DIRECT` | withdraws: see below |
//! | `setsockopt` with `SO_ZEROCOPY`, for `AF_XDP` memory, or for `AF_ALG` ciphers | withdraws, likewise |
//! | `setrlimit` and its like of `RLIMIT_AS`, `RLIMIT_DATA` | leaves the pool, which these limits count differently |
//! | `process_madvise`, `vmsplice`, `shmat` with `SHM_REMAP`, a filter by `prctl` | withdraws |
//! | `mseal`, `remap_file_pages`, `ioctl` with `UFFDIO_REGISTER` | turns the named range into plain anonymous memory |
//! | `__register_atfork` (`pthread_atfork`) | registers the library's own handlers before all others |
//! | `mlock`, `mlock2`, `mlockall` | hands the named range over to the kernel |
//! | `pthread_attr_setstack…` | hands the stack over: a joining thread waits on a word of it, by its page |
//!
//! The pool moves the contents of an address to other pages when it writes a page back or makes a
//! huge page. That is safe for normal system calls: Linux copies to and from user space by address,
//! and a copy that meets a moving page waits. But some calls pin the present pages, and data that
//! arrives in pinned pages later would be lost. The kernel does not report pinned pages. Programs
//! that pin memory in other ways are recognised by their libraries before a pool is made
//! (pool/engine.rs).
//!
//! Some programs make system calls directly, past all interposed functions. Before a fork the
//! engine detects their changes to memory, as far as these would do harm
//! (`ProgramMemory::before_fork`).
//!
//! A call under a name that is missing here would go unnoticed; tests/run_names.rs compares the
//! names with libc's.

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

/// `MADV_COLLAPSE`, which libc has for glibc only.
const COLLAPSE: c_int = 25;

/// A handler of `pthread_atfork` and its like.
type Handler = Option<unsafe extern "C" fn()>;

/// Defines functions of libc, each with an action before libc's own code.
macro_rules! wrapped {
    (@) => { c_int };
    (@ $answer:ty) => { $answer };
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? $before:block)*) => {
        $(
            /// Like libc's function.
            ///
            /// # Safety
            /// As for libc's function.
            #[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> wrapped!(@ $($answer)?) {
                $before
                type Real = unsafe extern "C" fn($($type),*) -> wrapped!(@ $($answer)?);
                let Some(real) = all::$name.resolve() else { return failed::<c_int>(libc::ENOSYS) as _ };
                // SAFETY: libc's function has this type, and the caller vouches for the call.
                unsafe { mem::transmute::<usize, Real>(real.get())($($argument),*) }
            }
        )*

        /// The pointers to libc's own functions.
        #[expect(non_upper_case_globals, reason = "they have the names of functions")]
        mod all {
            use super::{CStr, Libcs};

            $(pub(super) static $name: Libcs =
                Libcs::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero byte"),
                });)*
        }

        /// Resolves libc's functions early, so that no signal handler has to. Functions that this libc lacks are never
        /// called.
        pub(crate) fn resolve() {
            $(let _ = all::$name.resolve();)*
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

    // The last argument exists only with `O_CREAT` or `O_TMPFILE`; otherwise it is the register's arbitrary value.
    open(path: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    __open(path: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    open64(path: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    __open64(path: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    __open_2(path: *const c_char, flags: c_int) { check_open_flags(flags) }
    __open64_2(path: *const c_char, flags: c_int) { check_open_flags(flags) }
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) { check_open_flags(flags) }
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) { check_open_flags(flags) }
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) { check_open_flags(flags) }
    mkostemp(path: *mut c_char, flags: c_int) { check_open_flags(flags) }
    mkostemp64(path: *mut c_char, flags: c_int) { check_open_flags(flags) }
    mkostemps(path: *mut c_char, end_len: c_int, flags: c_int) { check_open_flags(flags) }
    mkostemps64(path: *mut c_char, end_len: c_int, flags: c_int) { check_open_flags(flags) }
    shm_open(name: *const c_char, flags: c_int, mode: c_uint) { check_open_flags(flags) }
    fcntl(file: c_int, command: c_int, argument: c_long) { check_fcntl(command, argument) }
    fcntl64(file: c_int, command: c_int, argument: c_long) { check_fcntl(command, argument) }
    __fcntl(file: c_int, command: c_int, argument: c_long) { check_fcntl(command, argument) }
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

    // Locked memory must remain the kernel's: the library does not move or drop it.
    mlockall(flags: c_int) {
        heed_locks();
        leave_unless_child();
    }

    // For other processes, the allowed advice drops nothing. Other advice needs the process itself (Linux 6.13).
    process_madvise(process: c_int, pieces: *const libc::iovec, count: usize, advice: c_int, flags: c_uint) -> isize {
        let is_harmless =
            matches!(advice, libc::MADV_COLD | libc::MADV_PAGEOUT | libc::MADV_WILLNEED | COLLAPSE);
        if !is_harmless && !withdraw(Zeros::Copied) {
            return failed::<c_int>(libc::ENOMEM) as isize;
        }
    }
    vmsplice(pipe: c_int, pieces: *const libc::iovec, count: usize, flags: c_uint) -> isize { leave_unless_child() }
    // The kernel does not allow replacing a sealed mapping (glibc 2.43).
    mseal(start: *mut c_void, len: usize, flags: c_ulong) {
        if !make_own(start, len) {
            return failed(libc::ENOMEM);
        }
    }
    // The kernel refuses this call except in a shared file mapping.
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
    // The last argument fits into a register, whatever its type.
    ioctl(file: c_int, request: c_ulong, argument: *mut c_void) {
        if request == c_ulong::from(UFFDIO_REGISTER) && !before_faults(argument.cast()) {
            return failed(libc::ENOMEM);
        }
    }
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) {
        static THINKS_DISABLED: AtomicBool = AtomicBool::new(false);
        match option {
            // This call does not reach the kernel, because the pool needs huge pages, and is answered with success. A
            // call with arguments that the kernel would refuse is passed on.
            libc::PR_SET_THP_DISABLE if switch::is_on() && (b, c, d) == (0, 0, 0) => {
                THINKS_DISABLED.store(a != 0, Ordering::Relaxed);
                if a != 0 {
                    return 0;
                }
            }
            // With an exception for memory that is advised to have huge pages (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux
            // 6.18). That exception covers the pool, so it is added for the program.
            libc::PR_SET_THP_DISABLE if switch::is_on() && (b, c, d) == (2, 0, 0) => {
                // SAFETY: the call takes no address.
                let done = unsafe { kernel!(libc::SYS_prctl, option, a, b, 0, 0) } as c_int;
                THINKS_DISABLED.fetch_and(done != 0, Ordering::Relaxed);
                return done;
            }
            libc::PR_GET_THP_DISABLE if THINKS_DISABLED.load(Ordering::Relaxed) && (a, b, c, d) == (0, 0, 0, 0) => {
                return 1;
            }
            // The kernel refuses a filter at a null address: programs use that to test for support.
            libc::PR_SET_SECCOMP
                if (a as u32 == libc::SECCOMP_MODE_STRICT || b != 0) && !withdraw(Zeros::Copied) =>
            {
                return failed(libc::ENOMEM);
            }
            _ => {}
        }
    }

    // The first registration by any library comes after ours. Otherwise this deadlock is possible: an allocator holds a
    // lock while it waits for the library; the library waits for a fork; and the fork's handler waits for the
    // allocator's lock.
    __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) { fork::follow() }

    pthread_attr_setstack(attributes: *mut libc::pthread_attr_t, stack: *mut c_void, len: usize) {
        make_plain(stack, len);
    }
    // The argument is the end of the stack, without its length. libc stores its data at that end.
    pthread_attr_setstackaddr(attributes: *mut libc::pthread_attr_t, end: *mut c_void) {
        make_plain(end.wrapping_byte_sub(HUGE_PAGE), HUGE_PAGE);
    }
}

/// Checks the flags of a file that is opened, by any of the calls.
pub(super) fn check_open_flags(flags: c_int) {
    if flags & libc::O_DIRECT != 0 {
        leave_unless_child();
    }
}

/// Checks the arguments of `fcntl`.
pub(super) fn check_fcntl(command: c_int, argument: c_long) {
    if command == libc::F_SETFL {
        check_open_flags(argument as c_int);
    }
}

/// `XDP_UMEM_REG` of `SOL_XDP`: from then on, devices write to the program's memory.
const MEMORY_OF_PACKETS: (c_int, c_int) = (283, 4);

/// Checks a socket option: whether the kernel will use the program's pages independently of their addresses.
pub(super) fn before_option(level: c_int, name: c_int) {
    // A program that deciphers something first sets a key, under one of several names.
    let pins = (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY)
        || (level, name) == MEMORY_OF_PACKETS
        || level == libc::SOL_ALG;
    if pins {
        leave_unless_child();
    }
}

/// Called before the program handles page faults of its memory: moving blocks would remove the registration. If the
/// range cannot be plain memory, there is no registration to lose.
fn before_faults(argument: *const Register) -> bool {
    if !switch::is_on() || argument.is_null() || !is_readable(argument as usize, size_of::<Register>()) {
        return true;
    }
    // SAFETY: it is readable.
    let Register { range: wanted, mode, .. } = unsafe { argument.read_unaligned() };
    // Missing-page faults are wanted for pages that the program has dropped or never used, even in the middle of a huge
    // page.
    let zeros = if mode & (MODE_MISSING | MODE_WP) == MODE_MISSING { Zeros::LeftOut } else { Zeros::Copied };
    special(wanted.start as *mut c_void, wanted.len as usize)
        .is_none_or(|range| quietly(|| pool::make_own(&range, zeros)))
}

/// Checks a limit that this process sets for itself.
pub(super) fn before_limit(which: c_uint, new: *const libc::rlimit64) {
    let is_of_memory = [libc::RLIMIT_AS as c_uint, libc::RLIMIT_DATA as c_uint].contains(&which);
    if switch::is_on() && is_of_memory && !new.is_null() && quietly(|| is_readable(new as usize, size_of_val(&new))) {
        // SAFETY: its first word is readable.
        let most = unsafe { (&raw const (*new).rlim_cur).read_unaligned() };
        if most != libc::RLIM64_INFINITY {
            leave_a_pool();
        }
    }
}

/// Checks a limit that is set for a given process.
pub(super) fn before_limit_of(process: libc::pid_t, which: c_uint, new: *const libc::rlimit64) {
    if process == 0 || process == std::process::id().cast_signed() {
        before_limit(which, new);
    }
}

/// Like libc's `posix_madvise`, which ignores requests to drop memory, and preserves `errno`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn posix_madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: the caller vouches for the call.
    quietly(|| if unsafe { madvise(start, len, advice) } == 0 { 0 } else { errno() })
}
