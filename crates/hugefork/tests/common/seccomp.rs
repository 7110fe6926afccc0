//! Makes the kernel refuse system calls of this process from now on; this cannot be undone.

use core::ffi::{c_int, c_long};

/// A kind of call to refuse.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) call: c_long,
    /// The number and value of an argument: only calls with this value are refused. Only the lower half is compared.
    pub(crate) argument: Option<(u32, u32)>,
    pub(crate) errno: c_int,
}

/// `call` with any arguments.
pub(crate) fn every(call: c_long, errno: c_int) -> Refused {
    Refused { call, argument: None, errno }
}

/// `call` with `value` as its argument number `nth`, counted from 0.
pub(crate) fn with(call: c_long, nth: u32, value: c_int, errno: c_int) -> Refused {
    Refused { call, argument: Some((nth, value as u32)), errno }
}

/// Makes the kernel refuse one more kind of call to all threads of the process. Takes no privilege.
pub(crate) fn refuse(what: Refused) {
    const NUMBER: u32 = 0;
    const ARGUMENTS: u32 = 16;
    let load = |at: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let unless_equal_skip =
        |value: u32, skipped: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skipped, value);
    let end = |result: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, result);
    let mut program = vec![load(NUMBER)];
    match what.argument {
        None => program.push(unless_equal_skip(what.call as u32, 1)),
        Some((nth, value)) => program.extend([
            unless_equal_skip(what.call as u32, 3),
            load(ARGUMENTS + 8 * nth),
            unless_equal_skip(value, 1),
        ]),
    }
    program.extend([end(libc::SECCOMP_RET_ERRNO | what.errno as u32), end(libc::SECCOMP_RET_ALLOW)]);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (set, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the call reads the program.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, set, all_threads, &raw const filter) };
    assert_eq!(set, 0, "seccomp: {}", std::io::Error::last_os_error());
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
