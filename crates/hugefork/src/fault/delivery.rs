//! In-thread delivery: `SIGSEGV` on the thread that writes, so that what is cleared or copied is in *that* core's cache.
//!
//! Faults that are not ours go to whoever handled `SIGSEGV` before, as if we were not there. `SIGBUS` is not handled at
//! all, only raised: an earlier handler of it is never in our way.
//!
//! # Handlers installed after ours
//! A handler that is installed later and passes on what it does not know keeps us in its chain. One that does not is put
//! below us by [`reinstall_fault_handler`]. It may then itself pass faults on to us, who were there before it, and a
//! fault that is nobody's would go round in circles:
//!
//! ```text
//!   kernel ─▶ ours (on top) ─▶ theirs ─▶ ours (again, for the same fault) ─▶ the one before the first installation
//! ```
//! So a thread that is in the middle of passing a fault on is noted, and the second time goes to the oldest handler.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use super::report;
use crate::error::SystemError;
use crate::sync::SignalsBlocked;
use crate::sys::linux::arena::Arena;
use crate::sys::linux::memory::now;
use crate::sys::linux::{owner, signal};

/// The disposition before ours was first installed. Leaked boxes: a handler may read them at any time.
static OLDEST: AtomicPtr<signal::Action> = AtomicPtr::new(ptr::null_mut());
/// The disposition that ours last replaced.
static EARLIER: AtomicPtr<signal::Action> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler if it is not yet.
pub(crate) fn install_once() -> Result<(), SystemError> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let _signals = SignalsBlocked::new();
    let mut installed = INSTALLED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !*installed {
        owner::claim()?;
        install()?;
        *installed = true;
    }
    Ok(())
}

/// Puts hugefork's fault handler on top again, after something else has installed a `SIGSEGV` handler that does not pass
/// on faults it does not know. That handler keeps getting the faults that are not hugefork's. Does nothing if the
/// handler is on top already.
///
/// Call it from normal code, not from a signal handler.
///
/// # Errors
/// What `sigaction(2)` says; nothing has changed then.
pub fn reinstall_fault_handler() -> Result<(), SystemError> {
    install_once()?;
    let _signals = SignalsBlocked::new();
    install()
}

fn install() -> Result<(), SystemError> {
    let before = signal::current(libc::SIGSEGV)?;
    if before.sa_sigaction == on_fault as *const () as usize {
        return Ok(());
    }
    let before = Box::into_raw(Box::new(before));
    // Where a fault goes that is not ours must be known before the first one arrives.
    let _ = OLDEST.compare_exchange(ptr::null_mut(), before, Ordering::AcqRel, Ordering::Relaxed);
    EARLIER.store(before, Ordering::Release);
    signal::install(libc::SIGSEGV, on_fault)
}

/// The handler. docs/safety.md argues its rules; in short: nothing here allocates, panics, takes a lock that is not ours,
/// touches thread-local state, or leaves `errno` changed.
extern "C" fn on_fault(number: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a siginfo_t and a ucontext_t, both on this stack.
    let (info_ref, context_ref) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    // A signal that somebody sent carries no fault address.
    let is_fault = info_ref.si_code > 0;
    // SAFETY: the address is part of the siginfo_t; it only means something for a fault.
    let address = unsafe { info_ref.si_addr() }.addr();
    if is_fault && resolve(address, context_ref) {
        return;
    }
    // SAFETY: reads this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    pass_on(number, info, context, context_ref);
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// True if the fault was ours, whether it could be resolved or not.
fn resolve(address: usize, context: &mut libc::ucontext_t) -> bool {
    let Some(arena) = Arena::get() else { return false };
    if !arena.contains(address) {
        return false;
    }
    if owner::is_forked_child() {
        report::say(format_args!(
            "{address:#x} lies in a region, and regions do not cross fork(2): this process is a child of their owner"
        ));
        return false;
    }
    let Some((space, offset)) = arena.find(address) else { return false };
    if !is_write(context) {
        // All of a region can be read at any time. A fault on a read is not one that we could resolve.
        return false;
    }
    let started = now();
    if let Err(reason) = space.resolve(offset) {
        report::unresolved(space.pool(), address, reason);
        // SAFETY: reads this thread's errno, which raising may change.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let saved = unsafe { *errno };
        signal::raise_bus_error(address, &mut context.uc_sigmask);
        // SAFETY: as above.
        unsafe { *errno = saved };
    }
    space.counters.record_handler(now().saturating_sub(started));
    true
}

/// Whether the processor was writing.
#[cfg(target_arch = "x86_64")]
fn is_write(context: &libc::ucontext_t) -> bool {
    // Bit 1 of the page fault's error code: Intel SDM volume 3, 4.7.
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 0b10 != 0
}

/// Whether the processor was writing: not told here, and a read of a region never faults.
#[cfg(not(target_arch = "x86_64"))]
fn is_write(_context: &libc::ucontext_t) -> bool {
    true
}

/// Hands a fault to the earlier handler, as the kernel would have.
fn pass_on(number: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, interrupted: &mut libc::ucontext_t) {
    let passing = Passing::begin(info);
    let earlier = if passing.is_again { &OLDEST } else { &EARLIER }.load(Ordering::Acquire);
    // SAFETY: set before this handler was installed, and leaked.
    let action = unsafe { &*earlier };
    match action.sa_sigaction {
        libc::SIG_DFL => die_of(number, info),
        // The kernel does not let a fault be ignored; a signal that was sent it does.
        // SAFETY: `info` is the kernel's.
        libc::SIG_IGN if unsafe { (*info).si_code } > 0 => die_of(number, info),
        libc::SIG_IGN => {}
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                signal::set_default(number);
            }
            set_mask_for(number, action, &interrupted.uc_sigmask);
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

/// The default action: as soon as we return the instruction is repeated, faults again, and ends the process with the
/// right signal and a core that shows the culprit. A signal that was sent is not repeated by itself: it is sent again.
fn die_of(number: c_int, info: *mut libc::siginfo_t) {
    signal::set_default(number);
    // SAFETY: `info` is the kernel's.
    if unsafe { (*info).si_code } <= 0 {
        // SAFETY: sends a signal to this process.
        unsafe { libc::raise(number) };
    }
}

/// Blocks what the kernel would have blocked while `action` runs, and no more: it may never return (`siglongjmp`).
fn set_mask_for(number: c_int, action: &signal::Action, interrupted: &libc::sigset_t) {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigemptyset(mask.as_mut_ptr()) };
    for candidate in 1..=64 {
        // SAFETY: reads two sets; numbers the kernel does not know are answered with an error, which is not 1.
        let blocked = unsafe {
            libc::sigismember(interrupted, candidate) == 1 || libc::sigismember(&action.sa_mask, candidate) == 1
        };
        if blocked || (candidate == number && action.sa_flags & libc::SA_NODEFER == 0) {
            // SAFETY: adds to the set made above.
            unsafe { libc::sigaddset(mask.as_mut_ptr(), candidate) };
        }
    }
    // SAFETY: the set was made above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), ptr::null_mut()) };
}

/// Threads that are passing a fault on at the same moment; more than this many are not told apart.
const SEATS: usize = 64;

/// One thread that is passing a fault on: which, and where on its stack.
struct Seat {
    /// Thread id in the upper half, 1 in the lower; zero if free.
    taken_by: AtomicU64,
    /// Where the kernel put the fault's siginfo_t.
    info: AtomicUsize,
    /// Where the frame of the handler that passes it on lies.
    frame: AtomicUsize,
}

static PASSING: [Seat; SEATS] =
    [const { Seat { taken_by: AtomicU64::new(0), info: AtomicUsize::new(0), frame: AtomicUsize::new(0) } }; SEATS];

/// This thread is passing a fault on until this is dropped.
struct Passing {
    seat: Option<&'static Seat>,
    is_again: bool,
}

impl Passing {
    /// Notes that this thread passes the fault of `info` on, and whether it was doing so already.
    ///
    /// "Already" means the same siginfo_t and a frame further down the stack. The earlier handler may have left by
    /// `siglongjmp`, so that our note was never taken back: a later fault then has its frame at the same place or
    /// higher up, and takes the seat over.
    fn begin(info: *mut libc::siginfo_t) -> Passing {
        let marker = 0u8;
        let frame = ptr::from_ref(&marker).addr();
        // SAFETY: a number of this thread, always available.
        let me = (unsafe { libc::gettid() } as u64) << 32 | 1;
        let free = |seat: &&Seat| seat.taken_by.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let mine = PASSING.iter().find(|seat| seat.taken_by.load(Ordering::Relaxed) == me);
        if let Some(seat) = mine
            && seat.info.load(Ordering::Relaxed) == info.addr()
            && frame < seat.frame.load(Ordering::Relaxed)
        {
            return Passing { seat: None, is_again: true };
        }
        let seat = mine.or_else(|| PASSING.iter().find(free));
        if let Some(seat) = seat {
            seat.info.store(info.addr(), Ordering::Relaxed);
            seat.frame.store(frame, Ordering::Relaxed);
        }
        Passing { seat, is_again: false }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(seat) = self.seat {
            seat.taken_by.store(0, Ordering::Relaxed);
        }
    }
}
