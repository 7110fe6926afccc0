//! The engine's threads, and whether the process has threads beside this one and those. Only others can write to a
//! region while this thread is in a call.
//!
//! Threads are made by `pthread_create(3)`. Those of std take a lock of std's in their first lines. A child that is
//! forked just then has the lock taken for ever, so no thread of std's that it makes ever gets to its work, and whoever
//! joins one waits for ever.
//!
//! The kernel tells how many threads there are: it counts them as links of `/proc/self/task`. A thread of the engine is
//! counted as such by itself, from its first line to its last, so no moment makes a thread of the program pass for one
//! of them: what is counted was there all the time that the count did not change.

use std::ffi::{CString, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use hugefork_linux::Descriptor;
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::set_name;

use super::settings;

/// As many as std's threads have.
const STACK_BYTES: usize = 2 << 20;

/// The engine's threads that run.
static OWN: AtomicUsize = AtomicUsize::new(0);
/// Rises when one begins or ends.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// Counts the calling thread as one of the engine's until this is dropped.
struct OfEngine(());

impl OfEngine {
    fn begin() -> OfEngine {
        OWN.fetch_add(1, Ordering::SeqCst);
        CHANGES.fetch_add(1, Ordering::SeqCst);
        OfEngine(())
    }
}

impl Drop for OfEngine {
    fn drop(&mut self) {
        // In this order: while the change is not seen, the thread is still there.
        OWN.fetch_sub(1, Ordering::SeqCst);
        CHANGES.fetch_add(1, Ordering::SeqCst);
    }
}

/// A thread of the engine's, which has the signal mask of the thread that starts it.
pub(crate) struct Thread(libc::pthread_t);

// SAFETY: any other thread may join it. The C library may name it by a pointer, which only that library follows.
unsafe impl Send for Thread {}
// SAFETY: as above; a shared reference allows nothing.
unsafe impl Sync for Thread {}

/// What a thread is given.
struct Start {
    name: CString,
    work: Box<dyn FnOnce() + Send>,
}

impl Thread {
    /// Starts a thread. If `work` panics, it ends there.
    ///
    /// # Errors
    /// There can be no more threads (`EAGAIN`).
    pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        let start = Box::into_raw(Box::new(Start { name: CString::new(name)?, work: Box::new(work) }));
        let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: it makes the attributes, or nothing.
        let mut failed = unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) };
        if failed == 0 {
            // SAFETY: the attributes are made, and destroyed after. `run` takes what it is given. A stack of another
            // size, if this one is refused, is as good.
            unsafe {
                libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
                failed = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, start.cast());
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
            }
        }
        if failed != 0 {
            // SAFETY: no thread was given it.
            drop(unsafe { Box::from_raw(start) });
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: the call has succeeded.
        Ok(Thread(unsafe { thread.assume_init() }))
    }

    /// Waits until it has ended.
    pub(crate) fn join(self) {
        // SAFETY: the thread is joined once, by another one.
        unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `Thread::start` made it for this thread alone.
    let Start { name, work } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let _ = set_name(&name);
    // Nobody would catch it below. The hook of the program has told of it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _counted = OfEngine::begin();
        work();
    }));
    ptr::null_mut()
}

/// `/proc/self/task`.
struct Tasks(Descriptor);

impl Tasks {
    fn open() -> Option<Tasks> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Descriptor::keep(|| open(c"/proc/self/task", flags, Mode::empty())).ok().map(Tasks)
    }

    /// How many threads the process has.
    fn count(&self) -> Option<usize> {
        // A folder has two links of its own.
        (self.0.stat().ok()?.st_nlink as usize).checked_sub(2).filter(|&count| count > 0)
    }
}

/// How many threads the process has beside the calling one and those of the engine, if the kernel tells.
pub(crate) fn others() -> Option<usize> {
    static TASKS: OnceLock<Option<Tasks>> = OnceLock::new();
    let tasks = TASKS.get_or_init(Tasks::open).as_ref()?;
    let (changes, own) = (CHANGES.load(Ordering::SeqCst), OWN.load(Ordering::SeqCst));
    let others = tasks.count()?.saturating_sub(own + 1);
    (CHANGES.load(Ordering::SeqCst) == changes).then_some(others)
}

/// The calling thread's number, as `/proc` and debuggers name it.
pub(crate) fn own_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Whether the thread of this process that had this number has ended. If a filter refuses to tell, it has not.
///
/// The first thread keeps its number until all others have ended, so the kernel has to be asked for its state.
pub(crate) fn has_ended(number: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: asks whether the thread is there, and sends nothing.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, number, 0) };
    if sent != 0 {
        return io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    }
    process.unsigned_abs() == number && settings::has_first_thread_ended()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_ended_once_it_is_joined() {
        let (say, hear) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            say.send(own_number()).unwrap();
            std::thread::park();
        });
        let number = hear.recv().unwrap();
        assert!(!has_ended(number) && !has_ended(own_number()) && !has_ended(std::process::id()));
        thread.thread().unpark();
        thread.join().unwrap();
        // The kernel lets who joins go on a moment before the thread is gone.
        while !has_ended(number) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_of_the_program_is_seen() {
        // The test runs in a thread of its own, or beside others.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(std::thread::park);
            assert!(others() > Some(0));
            waiting.thread().unpark();
        });
    }

    #[test]
    fn the_kernel_tells_how_many_there_are() {
        let tasks = Tasks::open().expect("there is a /proc");
        let listed = std::fs::read_dir("/proc/self/task").unwrap().count();
        // Other tests start and end some.
        assert!(tasks.count().unwrap().abs_diff(listed) < 200);
    }
}
