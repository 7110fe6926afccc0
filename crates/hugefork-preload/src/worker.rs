//! The thread that does what takes time, while the program goes on: it waits until no descendant shares the program's
//! memory any more, lets the mode do its pass, and leaves. No fork, no thread, unless the mode looks after memory
//! that grows.
//!
//! It is not one of libc's threads but made by `clone(2)`. `pthread_create` allocates, which a fork in a signal handler
//! must not do; it makes libc take locks that a program with one thread does without; and a program whose main thread
//! ends by `pthread_exit` would wait for it for ever. The price: it shares the thread-local data of the thread that
//! made it, `errno` included. So it makes system calls by `rustix` alone, and never panics on purpose. The engine (mode
//! `pool`) calls libc, so there only the program's first thread makes it so: its data stays.
//!
//! All signals are blocked in it, so that the program's handlers run in the program's threads.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::getpid;
use rustix::thread::{gettid, nanosleep, set_name};
use rustix::time::Timespec;

use crate::fork::STATE;
use crate::modes::Growth;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::{modes, signals};

/// The stack holds two pieces of files, and little else.
const STACK: usize = 128 << 10;

/// How long it sleeps before it looks for descendants again: first after this, then twice as long, up to the longest.
const SHORTEST_NS: i64 = 5_000_000;
const LONGEST_NS: i64 = 160_000_000;

/// So often it finds nothing to do before it leaves: that is ten seconds. What it keeps for the next child is kept as
/// long.
const PATIENCE: u32 = 64;

/// A place for a thread. There are two, since one that is leaving still stands on its stack.
struct Place {
    /// The thread; the kernel writes 0 when it is gone.
    thread: AtomicU32,
    /// The address of its stack; 0 before the first.
    stack: AtomicUsize,
}

static PLACES: [Place; 2] = [const { Place { thread: AtomicU32::new(0), stack: AtomicUsize::new(0) } }; 2];

/// The place of a helper (modes/heir), of which there is one in the whole life of a process.
static HELPERS: Place = Place { thread: AtomicU32::new(0), stack: AtomicUsize::new(0) };

/// What a thread does.
type Body = extern "C" fn(*mut c_void) -> c_int;

/// Whether [`start`] allocates nothing, in this thread.
pub(crate) fn can_start_anywhere() -> bool {
    !modes::need_thread_local_data() || gettid() == getpid()
}

/// Starts the thread. False if there can be none now.
pub(crate) fn start() -> bool {
    if !can_start_anywhere() {
        return start_by_libc();
    }
    let Some(place) = PLACES.iter().find(|place| place.thread.load(Ordering::Acquire) == 0) else { return false };
    start_at(place, run)
}

/// Starts another, in the child of a fork. Allocates nothing. What it does must do without libc, unless the thread that
/// is there now stays.
pub(crate) fn start_helper(body: Body) -> bool {
    HELPERS.thread.load(Ordering::Acquire) == 0 && start_at(&HELPERS, body)
}

/// Waits until the helper has left, which was told to.
pub(crate) fn wait_for_helper() {
    while HELPERS.thread.load(Ordering::Acquire) != 0 {
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
    }
}

fn start_at(place: &Place, body: Body) -> bool {
    let Some(stack) = stack(place) else { return false };
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let thread = place.thread.as_ptr();
    let none = ptr::null_mut::<c_void>();
    let all_signals = u64::MAX;
    let mut before = 0_u64;
    // The thread begins with the mask of the one that makes it. libc's own call would leave libc's signals open.
    // SAFETY: masks of the size that is named; `run` stands on a stack of its own, that nobody else stands on while
    // `thread` is not 0.
    let made = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all_signals, &raw mut before, 8);
        let made = libc::clone(body, (stack + STACK) as *mut c_void, flags, none, thread, none, thread);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, none, 8);
        made
    };
    made > 0
}

/// Starts one of libc's. The thread that forks may end before this one does, and its thread-local data with it; those
/// of the first thread stay.
fn start_by_libc() -> bool {
    extern "C" fn body(none: *mut c_void) -> *mut c_void {
        run(none);
        none
    }
    let mask = signals::block();
    let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the calls write to live values, of which the attributes are used as long as they are there. The body
    // takes nothing.
    let made = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let made = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), body, ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        made
    };
    mask.restore();
    made == 0
}

fn stack(place: &Place) -> Option<usize> {
    let known = place.stack.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the kernel likes.
    let new = unsafe { mmap_anonymous(ptr::null_mut(), STACK, rights, MapFlags::PRIVATE) }.ok()? as usize;
    place.stack.store(new, Ordering::Relaxed);
    Some(new)
}

/// In the child of a fork, which has no such thread; the stacks were copied.
pub(crate) fn in_child() {
    PLACES.iter().chain([&HELPERS]).for_each(|place| place.thread.store(0, Ordering::Relaxed));
}

/// The thread.
extern "C" fn run(_: *mut c_void) -> c_int {
    let _ = set_name(c"hugefork-run");
    let (mut pause, mut is_to_pass, mut idle) = (SHORTEST_NS, false, 0);
    loop {
        // What was held for those who are gone is given up under the lock that forks take.
        let alive = STATE.with(|state| {
            state.outstanding.reap(|held| {
                is_to_pass = true;
                modes::gone(held);
            })
        });
        let alive = alive.unwrap_or(0);
        stats::set(Word::Outstanding, alive as u64);
        is_to_pass |= alive > 0;
        let is_shared = modes::tend();
        if alive > 0 {
            if is_shared {
                pause = SHORTEST_NS;
            }
            sleep(&mut pause);
            continue;
        }
        // What a child collapsed that it shares with its parent would be copied.
        let has_parent = STATE.with(|state| state.has_parent()).unwrap_or(true);
        let mut is_shared = || STATE.with(|state| !state.outstanding.is_empty()).unwrap_or(true);
        if modes::tend() {
            // What somebody just works on has its turn later.
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: SHORTEST_NS });
            continue;
        }
        if is_to_pass && !has_parent && !modes::pass(&mut is_shared) {
            continue;
        }
        if is_to_pass {
            (is_to_pass, idle, pause) = (false, 0, SHORTEST_NS);
        }
        match modes::grown() {
            Growth::Some => (idle, pause) = (0, SHORTEST_NS),
            Growth::None => idle += 1,
            Growth::OfNoConcern => idle = PATIENCE,
        }
        if idle < PATIENCE {
            sleep(&mut pause);
            continue;
        }
        modes::trim();
        let leaves = STATE.with(|state| {
            let leaves = state.outstanding.is_empty();
            state.has_worker &= !leaves;
            leaves
        });
        if leaves == Some(true) {
            return 0;
        }
    }
}

/// Sleeps, and next time twice as long.
fn sleep(pause: &mut i64) {
    let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: *pause });
    *pause = (2 * *pause).min(LONGEST_NS);
}
