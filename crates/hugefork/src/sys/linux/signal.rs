//! Signal dispositions, as the kernel keeps them, and the way to raise `SIGBUS` on the thread that faulted.

use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr;

use crate::sys::SystemError;

use super::last_error;

/// The structure that `sigaction(2)` reads and writes.
pub(crate) type Action = libc::sigaction;

/// A handler that gets the fault's address and the interrupted context.
pub(crate) type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Makes `handler` the handler of `signal`. It runs on the alternate stack if the thread has one, because the fault may
/// be a stack overflow that the earlier handler has to report. All signals are blocked meanwhile, because the handler
/// takes locks and leaves that stack. This includes the signals that the C library keeps for itself, which `sigfillset`
/// leaves out.
pub(crate) fn install(signal: c_int, handler: Handler) -> Result<(), SystemError> {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: Action = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: any bits are a valid set of signals.
    unsafe { (&raw mut action.sa_mask).write_bytes(0xff, 1) };
    set(signal, &action)
}

/// The size of the calling thread's alternate stack in bytes; `None` if it has none.
pub(crate) fn alternate_stack() -> Option<usize> {
    let mut stack = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: the call changes nothing and writes `stack`.
    if unsafe { libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call wrote it.
    let stack = unsafe { stack.assume_init() };
    (stack.ss_flags & libc::SS_DISABLE == 0).then_some(stack.ss_size)
}

/// How much of a signal's stack a thread's registers can take, if this process has asked for more registers than a
/// process has by default: AMX tiles take 8 KiB.
#[cfg(target_arch = "x86_64")]
pub(crate) fn large_registers() -> Option<usize> {
    const ARCH_GET_XCOMP_PERM: c_int = 0x1022;
    const TILES: u64 = 1 << 18;
    let mut permitted = 0_u64;
    // SAFETY: the call writes `permitted`. A kernel without AMX refuses it.
    let asked = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut permitted) };
    // SAFETY: the call only looks up a value.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    (asked == 0 && permitted & TILES != 0).then_some(frame as usize)
}

/// As on x86-64. On other processors each thread chooses its scalable vectors, which this does not examine.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn large_registers() -> Option<usize> {
    None
}

/// The present disposition of `signal`.
pub(crate) fn current(signal: c_int) -> Result<Action, SystemError> {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: the call reads nothing, and writes `action`.
    checked("sigaction", unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) }.into())?;
    // SAFETY: all zeroes is a valid sigaction, and the call wrote it.
    Ok(unsafe { action.assume_init() })
}

/// Sets the disposition of `signal`.
pub(crate) fn set(signal: c_int, action: &Action) -> Result<(), SystemError> {
    // SAFETY: `action` is a whole sigaction. The caller argues that its handler is sound to run.
    checked("sigaction", unsafe { libc::sigaction(signal, action, ptr::null_mut()) }.into())
}

/// Whether `SIGBUS` has its default action.
pub(crate) fn is_bus_error_default() -> bool {
    current(libc::SIGBUS).is_ok_and(|action| action.sa_sigaction == libc::SIG_DFL)
}

/// Sets the disposition of `signal` to the default. The fault handler calls this, and can do nothing about an error.
pub(crate) fn set_default(signal: c_int) {
    // SAFETY: all zeroes is a valid sigaction: SIG_DFL.
    let action: Action = unsafe { MaybeUninit::zeroed().assume_init() };
    let _ = set(signal, &action);
}

fn checked(call: &'static str, result: c_long) -> Result<(), SystemError> {
    if result == 0 { Ok(()) } else { Err(SystemError::new(call, last_error())) }
}

/// Makes a `SIGBUS` at `address` pending on this thread, as if the memory there had failed. It is delivered when the
/// running handler returns, before the faulting instruction is repeated.
///
/// `interrupted` is the signal mask that applies then. If `SIGBUS` is blocked or ignored, this unblocks it and sets the
/// default action, which ends the process, as the kernel does with faults: the instruction cannot be completed.
///
/// # Errors
/// If the kernel refuses, or a filter of system calls does. The instruction would then be repeated for ever.
pub(crate) fn raise_bus_error(address: usize, interrupted: &mut libc::sigset_t) -> Result<(), SystemError> {
    // SAFETY: the call reads the mask.
    let blocked = unsafe { libc::sigismember(interrupted, libc::SIGBUS) } == 1;
    let ignored = current(libc::SIGBUS).is_ok_and(|action| action.sa_sigaction == libc::SIG_IGN);
    if blocked || ignored {
        set_default(libc::SIGBUS);
        // SAFETY: the call writes the mask.
        unsafe { libc::sigdelset(interrupted, libc::SIGBUS) };
    }
    // The kernel's siginfo_t for a fault: three ints, padding, the address.
    #[repr(C)]
    struct FaultInfo {
        signal: c_int,
        errno: c_int,
        code: c_int,
        address: usize,
        rest: [u64; 13],
    }
    const { assert!(size_of::<FaultInfo>() == size_of::<libc::siginfo_t>()) };
    let info = FaultInfo { signal: libc::SIGBUS, errno: 0, code: libc::BUS_ADRERR, address, rest: [0; 13] };
    // SAFETY: the call sends a signal to the calling thread; `info` is as large as a siginfo_t.
    let sent = unsafe {
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), libc::SIGBUS, &raw const info)
    };
    checked("rt_tgsigqueueinfo", sent)
}
