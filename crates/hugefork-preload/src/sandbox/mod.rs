//! What the library does before the program gives up rights, moves to other namespaces, or goes into a sandbox.
//!
//! * *It gives up rights, or moves.* The library's threads leave before, and come back afterwards with what the
//!   program has then. The kernel refuses some of it to a process with more than one thread; and a thread that libc
//!   does not know of would keep what it had.
//! * *It filters its system calls.* The threads leave for good, all memory is the kernel's, and the library makes no
//!   call of its own any more but one (below).
//!
//! A filter may kill the process for any call that is not in its list. What is in all lists is what `malloc` and
//! `fork` need. So from then on the library's files, descriptors, locks and handlers of forks are not used at all
//! (`withdrawn`), and what is left to be done is done by `mmap` and by writing (modes/child/noted.rs). That holds for
//! the children of the process, too, and it cannot be taken back.
//!
//! The functions of libc that lead here are those of [`crate::interposed::privileges`], `prctl`, and `syscall`.

pub(crate) mod withdrawn;

use std::ffi::{c_int, c_long};

use syscalls::{Sysno, syscall};

use crate::fork::STATE;
use crate::fork::origin::{self, Who};
use crate::interposed::kernel::{failed, quietly};
use crate::threads::{thread, worker};
use crate::{config, fork, modes};

/// What a system call does to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing that matters here.
    Other,
    /// It changes rights or namespaces.
    Change,
    /// It filters calls.
    Filter,
}

/// The calls that change rights or namespaces, whatever their arguments.
pub(crate) const CHANGES: [c_long; 14] = [
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_landlock_restrict_self,
];

fn kind(call: c_long, args: &[c_long; 6]) -> Kind {
    match call {
        libc::SYS_seccomp => {
            // The other operations only ask. A filter at no address is refused: programs ask so whether there are any.
            let is_filter = args[0] == c_long::from(libc::SECCOMP_SET_MODE_FILTER) && args[2] != 0;
            let is_strict = args[0] == c_long::from(libc::SECCOMP_SET_MODE_STRICT);
            if is_filter || is_strict { Kind::Filter } else { Kind::Other }
        }
        libc::SYS_prctl => match args[0] as c_int {
            libc::PR_SET_SECCOMP if args[1] as c_int == libc::SECCOMP_MODE_STRICT as c_int || args[2] != 0 => {
                Kind::Filter
            }
            libc::PR_SET_NO_NEW_PRIVS | libc::PR_CAPBSET_DROP | libc::PR_CAP_AMBIENT | libc::PR_SET_SECUREBITS => {
                Kind::Change
            }
            _ => Kind::Other,
        },
        _ if CHANGES.contains(&call) => Kind::Change,
        _ => Kind::Other,
    }
}

/// Makes a system call of the program's, as libc's `syscall`, and does what is to be done before and after it.
///
/// # Safety
/// The caller's.
pub(crate) unsafe fn make(call: c_long, args: [c_long; 6]) -> c_long {
    let after = before(call, &args);
    let [a, b, c, d, e, f] = args;
    let made = match Sysno::new(call as usize) {
        _ if matches!(after, After::Refuse) => Err(syscalls::Errno::ENOMEM),
        // SAFETY: the caller's.
        Some(call) => unsafe { syscall!(call, a, b, c, d, e, f) },
        None => Err(syscalls::Errno::ENOSYS),
    };
    after.done(made.is_err());
    match made {
        Ok(made) => made as c_long,
        Err(errno) => failed(errno.into_raw()),
    }
}

/// As [`make`], for functions of libc's that make a call whose arguments do not matter.
pub(crate) fn around<R>(call: c_long, work: impl FnOnce() -> R) -> R {
    let after = before(call, &[0; 6]);
    let done = work();
    after.done(false);
    done
}

/// What is to be done when a call is through.
enum After {
    Nothing,
    /// Threads may come back.
    LetBack(Pause),
    /// If the kernel has refused, the process is as it was.
    Filtered,
    /// The call is not to be made: memory is short, and what is the library's would be lost behind the filter.
    Refuse,
}

fn before(call: c_long, args: &[c_long; 6]) -> After {
    let kind = kind(call, args);
    if kind == Kind::Other || withdrawn::is_withdrawn() || config::mode().is_none() {
        return After::Nothing;
    }
    quietly(|| match kind {
        Kind::Filter => withdraw(),
        Kind::Change | Kind::Other => After::LetBack(pause()),
    })
}

impl After {
    /// After the call. `errno` stays.
    fn done(self, is_refused: bool) {
        match self {
            After::LetBack(pause) => quietly(|| pause.end()),
            After::Filtered if is_refused => quietly(come_back),
            After::Nothing | After::Filtered | After::Refuse => {}
        }
    }
}

/// The library's threads are gone, until it ends.
struct Pause {
    is_known: bool,
    had_worker: bool,
}

/// Has the threads leave, and waits until they have.
fn pause() -> Pause {
    if origin::who() != Who::Known {
        return Pause { is_known: false, had_worker: false };
    }
    // Before: it may be quick.
    let had_worker = worker::is_there();
    thread::send_away();
    worker::wait_until_gone();
    modes::wait_for_help_to_leave();
    Pause { is_known: true, had_worker }
}

impl Pause {
    fn end(self) {
        if !self.is_known {
            return;
        }
        thread::let_back();
        fork::help();
        // Another thread may have sent it away before this one, or have wanted it meanwhile.
        if self.had_worker || fork::has_descendants() {
            fork::want_worker();
        }
    }
}

/// The `malloc` that the program gets with the library opens files of the kernel's when it begins: libc's, since the
/// command asks huge pages of it, and mimalloc. In a program that begins with it behind a filter of system calls, that
/// would be the program's end.
fn begin_malloc() {
    // SAFETY: nothing refers to the byte.
    unsafe { libc::free(std::hint::black_box(libc::malloc(1))) };
}

/// Leaves all to the kernel and to the program.
fn withdraw() -> After {
    match origin::who() {
        Who::Known => {
            begin_malloc();
            let _ = pause();
        }
        Who::Copy => {
            fork::notice_copy();
            thread::send_away();
        }
        Who::Borrower => return After::Nothing,
    }
    if !modes::withdraw() {
        thread::let_back();
        return After::Refuse;
    }
    // Nobody is in the middle of a fork then: its handlers would make calls after it.
    STATE.with(|_| withdrawn::set(true));
    After::Filtered
}

fn come_back() {
    withdrawn::set(false);
    thread::let_back();
}
