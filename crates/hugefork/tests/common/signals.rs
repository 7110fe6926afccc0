//! Signal handlers of programs that use hugefork.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use libc::siginfo_t;

/// A handler that was installed with `SA_SIGINFO`.
pub(crate) type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Handles `signal` with `handler`, while the signals in `blocked` are blocked. `flags` say whether it is a
/// [`Handler`], a plain one, `SIG_DFL` or `SIG_IGN`. Returns the earlier action.
pub(crate) fn handle(signal: c_int, handler: usize, flags: c_int, blocked: &[c_int]) -> libc::sigaction {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action.sa_mask = set_of(blocked);
    let mut before = action;
    // SAFETY: reads and writes whole sigactions.
    assert_eq!(unsafe { libc::sigaction(signal, &action, &mut before) }, 0);
    before
}

/// [`handle`] with a [`Handler`] on the alternate stack.
pub(crate) fn handle_info(signal: c_int, handler: Handler) -> libc::sigaction {
    handle(signal, handler as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK, &[])
}

pub(crate) fn set_of(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: adds to the set made above.
        assert_eq!(unsafe { libc::sigaddset(set.as_mut_ptr(), signal) }, 0);
    }
    // SAFETY: as above.
    unsafe { set.assume_init() }
}

/// Blocks these signals too on this thread.
pub(crate) fn block(signals: &[c_int]) {
    // SAFETY: reads the set.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set_of(signals), ptr::null_mut()) }, 0);
}

/// Bit `n` for each signal `n` that is blocked on this thread. May be called from a handler.
pub(crate) fn blocked_now() -> u64 {
    let mut set = MaybeUninit::uninit();
    // SAFETY: writes the set.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr()) };
    // SAFETY: the set was written above; the numbers are those of signals.
    let is_blocked = |signal: &c_int| unsafe { libc::sigismember(set.as_ptr(), *signal) } == 1;
    (1..64).filter(is_blocked).fold(0, |bits, signal| bits | 1 << signal)
}

/// The address of a fault. May be called from a handler.
pub(crate) fn address_of(info: *mut siginfo_t) -> usize {
    // SAFETY: the kernel made it, for a fault.
    unsafe { (*info).si_addr() }.addr()
}

/// Writes to standard error. May be called from a handler.
pub(crate) fn say(text: &str) {
    // SAFETY: writes bytes of `text`.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Ends the process because a handler saw something wrong. May be called from a handler.
pub(crate) fn give_up(why: &str) -> ! {
    say(why);
    // SAFETY: ends the process.
    unsafe { libc::_exit(97) }
}

/// Gives this thread an alternate stack of 64 KiB, for good. Handlers that call each other need more than the 8 KiB
/// that Rust gives, on processors whose registers take 3 KiB.
pub(crate) fn take_a_roomy_stack() {
    let memory: &'static mut [u8] = vec![0; 64 << 10].leak();
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    // SAFETY: the memory stays.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
}
