//! Signal handlers of programs that use hugefork.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

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

/// The address at which [`read_and_come_back`] goes on after a fault, and its stack pointer there.
static RESUME: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static STACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// `sigsetjmp` and a read that faults, whose handler calls [`come_back`].
pub(crate) fn read_and_come_back(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the handler comes back to the label with the same stack; every register that may differ then is
    // declared as changed, or is on the stack.
    unsafe {
        core::arch::asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "mov [rcx], rax",
            "mov [rdx], rsp",
            "mov al, byte ptr [rsi]",
            "2:",
            "pop rbx",
            "pop rbp",
            in("rcx") RESUME.as_ptr(),
            in("rdx") STACK.as_ptr(),
            in("rsi") at,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("C"),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "stp x29, x19, [sp, #-16]!",
            "adr x9, 2f",
            "str x9, [x1]",
            "mov x9, sp",
            "str x9, [x2]",
            "ldrb w9, [x3]",
            "2:",
            "ldp x29, x19, [sp], #16",
            in("x1") RESUME.as_ptr(),
            in("x2") STACK.as_ptr(),
            in("x3") at,
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
            out("x25") _, out("x26") _, out("x27") _, out("x28") _,
            clobber_abi("C"),
        );
    }
}

/// `siglongjmp`, as a handler of C code would call it: unblocks the signal, and goes back to [`read_and_come_back`].
pub(crate) extern "C" fn come_back(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: unblocks what the kernel had blocked for this handler.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set_of(&[signal]), ptr::null_mut()) };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this jumps back to where `read_and_come_back` left its stack, which expects no register to be kept.
    unsafe {
        core::arch::asm!(
            "mov rsp, {stack}",
            "jmp {resume}",
            stack = in(reg) STACK.load(Ordering::Relaxed),
            resume = in(reg) RESUME.load(Ordering::Relaxed),
            options(noreturn)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov sp, {stack}",
            "br {resume}",
            stack = in(reg) STACK.load(Ordering::Relaxed),
            resume = in(reg) RESUME.load(Ordering::Relaxed),
            options(noreturn)
        );
    }
}
