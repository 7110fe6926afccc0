//! The chain of `SIGSEGV` handlers: hugefork's, and those that the program installed before and after it.
//!
//! hugefork passes a fault that is not its own to the handler that was installed before, as if hugefork were absent. It
//! only raises `SIGBUS` and never handles it, so it never stands in the way of a handler of that signal.
//!
//! # Handlers installed after hugefork's
//! A later handler keeps hugefork's in its chain if it passes on faults that it does not know. If it does not,
//! [`reinstall`] puts hugefork's on top of it. But the later handler may still hand a fault back to hugefork's, which
//! it replaced: by a call, or by restoring hugefork's disposition and returning. Then a fault that no handler claims
//! would go round in circles. So each installation has its own entry, which knows the handler that was there before
//! *it*:
//!
//! ```text
//!   kernel ─▶ entry 1 ─▶ theirs, which knew entry 0 ─▶ entry 0 ─▶ the handler before hugefork
//! ```

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;

use super::mask::{AllBlocked, SignalsBlocked, kernel_set, set_mask};
use super::{futex, memory, named, signal, stacks};
use crate::sys::SystemError;

/// The number of installations that have an entry of their own.
const LEVELS: usize = 64;

/// The error's text if `sigaction(2)` succeeds but has not installed the handler.
const KEPT: &str =
    "installing a handler of SIGSEGV, which something keeps for itself (AddressSanitizer: set handle_segv=1),";

/// The action that each installation replaced. Null means the default action: the replaced handler was installed for
/// one fault only, and has had it. The pages are never unmapped, because a handler may read them at any time.
static EARLIER: [AtomicPtr<signal::Action>; LEVELS] = [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS];

/// The entry of each installation.
#[rustfmt::skip]
static ENTRIES: [signal::Handler; LEVELS] = [
    entry::<0>, entry::<1>, entry::<2>, entry::<3>, entry::<4>, entry::<5>, entry::<6>, entry::<7>,
    entry::<8>, entry::<9>, entry::<10>, entry::<11>, entry::<12>, entry::<13>, entry::<14>, entry::<15>,
    entry::<16>, entry::<17>, entry::<18>, entry::<19>, entry::<20>, entry::<21>, entry::<22>, entry::<23>,
    entry::<24>, entry::<25>, entry::<26>, entry::<27>, entry::<28>, entry::<29>, entry::<30>, entry::<31>,
    entry::<32>, entry::<33>, entry::<34>, entry::<35>, entry::<36>, entry::<37>, entry::<38>, entry::<39>,
    entry::<40>, entry::<41>, entry::<42>, entry::<43>, entry::<44>, entry::<45>, entry::<46>, entry::<47>,
    entry::<48>, entry::<49>, entry::<50>, entry::<51>, entry::<52>, entry::<53>, entry::<54>, entry::<55>,
    entry::<56>, entry::<57>, entry::<58>, entry::<59>, entry::<60>, entry::<61>, entry::<62>, entry::<63>,
];

/// How many entries are in use. Each is on top of the one before it, and a handler in between knows that one as its
/// earlier handler.
static INSTALLED: Mutex<usize> = Mutex::new(0);

/// The engine's part of the fault handler.
pub(crate) struct Resolver {
    /// Whether the fault at an address may be hugefork's. It runs on the interrupted thread's stack.
    pub(crate) concerns: fn(usize) -> bool,
    /// Handles a fault and returns true if it is hugefork's. Otherwise returns false and changes nothing. It runs on a
    /// stack of the handler's own.
    pub(crate) resolve: fn(&mut Fault<'_>) -> bool,
    /// Reports that the interrupted thread's stack is too small.
    pub(crate) say_no_room: fn(),
}

static RESOLVER: OnceLock<&'static Resolver> = OnceLock::new();

/// How many bytes of the interrupted thread's stack the handler may need, besides the registers that the kernel puts
/// there (`tests/engine/handlers/stack.rs`).
pub(crate) const NEEDED_STACK_BYTES: usize = if cfg!(debug_assertions) { 2048 } else { 1024 };

/// How long a fault for which there is no stack waits before it is repeated.
const REPEATED_AFTER: Duration = Duration::from_millis(1);

/// At least this much of those bytes is used when the handler checks for room.
const USED_STACK_BYTES: usize = if cfg!(debug_assertions) { 256 } else { 128 };

/// A page fault.
pub(crate) struct Fault<'a> {
    pub(crate) address: usize,
    context: &'a mut libc::ucontext_t,
}

impl Fault<'_> {
    /// Whether the processor was writing.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_write(&self) -> bool {
        // Bit 1 of the page fault's error code: Intel SDM volume 3, 4.7.
        self.context.uc_mcontext.gregs[libc::REG_ERR as usize] & 0b10 != 0
    }

    /// Whether the processor was writing. The kernel puts the exception syndrome register into the signal frame, as one
    /// of several records (`struct esr_context` of Linux, `asm/sigcontext.h`). If that record is missing, the fault
    /// counts as a write, because a read of a region rarely faults.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn is_write(&self) -> bool {
        const ESR_MAGIC: u32 = 0x4553_5201;
        // WnR: Arm Architecture Reference Manual, ESR_EL1, ISS encoding for a data abort.
        const WRITES: u64 = 1 << 6;
        // The records follow the processor state, at the next multiple of 16 bytes.
        let start = (&raw const self.context.uc_mcontext.pstate).wrapping_add(1).cast::<u8>();
        let mut record = start.wrapping_add(start.align_offset(16));
        loop {
            // SAFETY: the kernel has written records here, each with its type and its length in bytes, and behind the
            // last one an empty one of type and length 0.
            match unsafe { ptr::read(record.cast::<[u32; 2]>()) } {
                // SAFETY: the register follows in this record.
                [ESR_MAGIC, _] => return unsafe { ptr::read(record.add(8).cast::<u64>()) } & WRITES != 0,
                [0, _] | [_, 0] => return true,
                // SAFETY: this record has another register set, and the next one begins behind it.
                [_, len] => record = unsafe { record.add(len as usize) },
            }
        }
    }

    /// Whether the processor was writing. This processor does not say, but a read of a region rarely faults.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn is_write(&self) -> bool {
        true
    }

    /// Whether the alternate stack has `bytes` left, if the thread is on one. The memory below that stack is not the
    /// handler's.
    fn has_room(&self, bytes: usize) -> bool {
        let (here, stack) = (0_u8, &self.context.uc_stack);
        let left = (&raw const here).addr().wrapping_sub(stack.ss_sp.addr());
        stack.ss_flags & libc::SS_DISABLE != 0 || left >= stack.ss_size || left >= bytes
    }

    /// Makes the access end in a `SIGBUS`, see [`signal::raise_bus_error`].
    ///
    /// # Errors
    /// If the kernel refuses, or a filter of system calls does. The instruction would then be repeated for ever.
    pub(crate) fn raise_bus_error(&mut self) -> Result<(), SystemError> {
        signal::raise_bus_error(self.address, &mut self.context.uc_sigmask)
    }
}

/// Installs the handler, unless it is installed already. Returns true if this call installed it. Each fault goes to
/// `resolver` first.
pub(crate) fn install_once(resolver: &'static Resolver) -> Result<bool, SystemError> {
    // This comes before the lock is taken, which a child of `fork(2)` might find held for ever.
    if !stacks::prepare() {
        return Err(SystemError::new("mmap", Errno::NOMEM));
    }
    let _signals = SignalsBlocked::new();
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed > 0 {
        return Ok(false);
    }
    RESOLVER.get_or_init(|| resolver);
    install(&mut installed)?;
    Ok(true)
}

/// Puts hugefork's handler on top again, unless it is there.
pub(crate) fn reinstall() -> Result<(), SystemError> {
    let _signals = SignalsBlocked::new();
    install(&mut INSTALLED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Puts a new entry on top.
fn install(installed: &mut usize) -> Result<(), SystemError> {
    let before = signal::current(libc::SIGSEGV)?;
    if ENTRIES.iter().any(|entry| before.sa_sigaction == *entry as *const () as usize) {
        return Ok(());
    }
    let level = *installed;
    if level == LEVELS {
        return Err(SystemError::new("installing one more fault handler", Errno::NOSPC));
    }
    // If a later handler is put on top once more, it now takes hugefork's top entry for its earlier handler. The lower
    // entry, which passed faults on to that handler, must no longer do so, or the two would call each other for ever.
    for (lower, earlier) in EARLIER[..level].iter().enumerate() {
        // SAFETY: the pointer is null, or leads to a page that is never unmapped.
        let action = unsafe { earlier.load(Ordering::Acquire).as_ref() };
        if lower > 0 && action.is_some_and(|action| action.sa_sigaction == before.sa_sigaction) {
            earlier.store(EARLIER[lower - 1].load(Ordering::Acquire), Ordering::Release);
        }
    }
    let page = named("mmap", memory::map_anonymous(size_of::<signal::Action>()))?;
    let kept: *mut signal::Action = page.as_ptr().cast();
    // SAFETY: the page is new, large enough and aligned.
    unsafe { kept.write(before) };
    // The entry must know where to pass foreign faults on before the first one arrives.
    EARLIER[level].store(kept, Ordering::Release);
    signal::install(libc::SIGSEGV, ENTRIES[level])?;
    // A sanitizer that keeps the signal for itself lets the call succeed, and does nothing.
    if signal::current(libc::SIGSEGV)?.sa_sigaction != ENTRIES[level] as *const () as usize {
        return Err(SystemError::new(KEPT, Errno::BUSY));
    }
    *installed += 1;
    Ok(())
}

/// The handler of one installation. docs/safety.md argues its rules. In short: no code here allocates, panics, takes a
/// lock of others, touches thread-local state, or leaves `errno` changed.
extern "C" fn entry<const LEVEL: usize>(number: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    on_fault(&EARLIER[LEVEL], number, info, context);
}

fn on_fault(
    earlier: &AtomicPtr<signal::Action>,
    number: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a siginfo_t and a ucontext_t, both on this stack.
    let (info_ref, context_ref) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    // A signal that a process sent carries no fault address.
    let is_fault = info_ref.si_code > 0;
    // SAFETY: the address is part of the siginfo_t; it has a meaning only for a fault.
    let address = unsafe { info_ref.si_addr() }.addr();
    // SAFETY: this reads this thread's errno, which belongs to the interrupted code.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let concerned = RESOLVER.get().filter(|resolver| is_fault && (resolver.concerns)(address));
    let is_ours =
        concerned.is_some_and(|resolver| resolve(resolver, &mut Fault { address, context: &mut *context_ref }));
    if !is_ours {
        if is_fault {
            hugefork_foreign_fault(address);
        }
        pass_on(earlier, number, info, context, &context_ref.uc_sigmask);
    }
    // SAFETY: as above.
    unsafe { *errno = saved + c_int::from(seeded!("errno-changes")) };
}

/// Handles a fault on a stack of the handler's own. Returns true if the fault is hugefork's.
#[inline(never)] // Frees its stack before a foreign fault is passed on to another handler.
fn resolve(resolver: &Resolver, fault: &mut Fault<'_>) -> bool {
    if !fault.has_room(NEEDED_STACK_BYTES - USED_STACK_BYTES) {
        (resolver.say_no_room)();
        std::process::abort();
    }
    // A handler that was installed later may have called this one with fewer signals blocked.
    let _blocked = AllBlocked::new();
    match stacks::take() {
        Some(stack) => stack.run(|| (resolver.resolve)(fault)),
        None => {
            // The access is repeated and faults again.
            let never_changes = AtomicU32::new(0);
            futex::wait_at_most(&never_changes, 0, REPEATED_AFTER);
            true
        }
    }
}

/// Does nothing. The handler calls it for each page fault that is not hugefork's, before it passes the fault on.
///
/// A debugger must let the `SIGSEGV` of first writes pass, so it would stop at no other fault either, and would find
/// the process gone. So it breaks here instead (`hugefork.gdb`): the thread's stack is whole, below the frames of the
/// handler.
#[inline(never)]
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn hugefork_foreign_fault(address: usize) {
    core::hint::black_box(address);
}

/// Passes a fault on to the earlier handler, as the kernel would have called it.
#[inline(never)] // Its signal masks take no stack while hugefork's own faults are handled.
fn pass_on(
    earlier: &AtomicPtr<signal::Action>,
    number: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    interrupted: &libc::sigset_t,
) {
    // SAFETY: the pointer is null, or leads to a page that is never unmapped.
    let Some(action) = (unsafe { earlier.load(Ordering::Acquire).as_ref() }) else { return die_of(number, info) };
    match action.sa_sigaction {
        libc::SIG_DFL => die_of(number, info),
        // The kernel lets no program ignore a fault, but lets programs ignore a signal that was sent.
        // SAFETY: `info` is the kernel's.
        libc::SIG_IGN if unsafe { (*info).si_code } > 0 => die_of(number, info),
        libc::SIG_IGN => {}
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                earlier.store(ptr::null_mut(), Ordering::Release);
            }
            set_mask_for(number, action, interrupted);
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: a handler with SA_SIGINFO has this type; the program installed it for this signal.
                let handler: signal::Handler = unsafe { core::mem::transmute(handler) };
                handler(number, info, context);
            } else {
                // SAFETY: a handler without SA_SIGINFO has this type.
                let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler) };
                handler(number);
            }
        }
    }
}

/// Takes the default action. When the handler returns from a fault, the instruction is repeated, faults again, and ends
/// the process with the right signal and a core that shows the culprit. A sent signal would not repeat, so this sends
/// it again.
fn die_of(number: c_int, info: *mut libc::siginfo_t) {
    signal::set_default(number);
    // SAFETY: `info` is the kernel's.
    if unsafe { (*info).si_code } <= 0 {
        // SAFETY: the call sends a signal to this process.
        unsafe { libc::raise(number) };
    }
}

/// Blocks the signals that the kernel would have blocked while `action` runs, and no others: the handler may never
/// return (`siglongjmp`).
fn set_mask_for(number: c_int, action: &signal::Action, interrupted: &libc::sigset_t) {
    let own = if action.sa_flags & libc::SA_NODEFER == 0 { 1 << (number - 1) } else { 0 };
    set_mask(&(kernel_set(interrupted) | kernel_set(&action.sa_mask) | own), ptr::null_mut());
}
