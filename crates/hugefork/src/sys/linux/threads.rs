//! The engine's threads, and the number of the program's other threads. Only those can write to a region while the
//! calling thread is in a call.
//!
//! The engine's threads are made by `pthread_create(3)`. Those of std take a lock of std in their first lines. If
//! another thread forks at that moment, the child has the lock taken for ever: no thread that it makes by std ever
//! begins its work, and joining one waits for ever.
//!
//! The kernel counts the threads of the process as links of `/proc/self/task`. A thread of the engine adds itself to
//! the engine's own count from its first line to its last. So the difference never leaves out a thread of the program:
//! if the engine's count did not change around the query, all counted threads existed all the time.

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

/// The stack size of std's threads.
const STACK_BYTES: usize = 2 << 20;

/// The number of the engine's running threads.
static OWN: AtomicUsize = AtomicUsize::new(0);
/// Rises when a thread of the engine begins or ends.
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
        // The order matters: as long as another thread sees no change, this thread still exists.
        OWN.fetch_sub(1, Ordering::SeqCst);
        CHANGES.fetch_add(1, Ordering::SeqCst);
    }
}

/// A thread of the engine. It inherits the signal mask of the thread that starts it.
pub(crate) struct Thread(libc::pthread_t);

// SAFETY: any other thread may join it. The C library may use a pointer as its name, which only that library follows.
unsafe impl Send for Thread {}
// SAFETY: as above; a shared reference allows nothing.
unsafe impl Sync for Thread {}

/// The argument of a new thread.
struct Start {
    name: CString,
    work: Box<dyn FnOnce() + Send>,
}

impl Thread {
    /// Starts a thread that does `work`. If `work` panics, the thread ends there.
    ///
    /// # Errors
    /// `EAGAIN` if the process can have no more threads.
    pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        let start = Box::into_raw(Box::new(Start { name: CString::new(name)?, work: Box::new(work) }));
        let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: it makes the attributes, or nothing.
        let mut failed = unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) };
        if failed == 0 {
            // SAFETY: the attributes are made, and destroyed after. `run` takes over its argument. If this stack size
            // is refused, the default size will do.
            unsafe {
                libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
                failed = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, start.cast());
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
            }
        }
        if failed != 0 {
            // SAFETY: no thread got the argument.
            drop(unsafe { Box::from_raw(start) });
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: the call has succeeded.
        Ok(Thread(unsafe { thread.assume_init() }))
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(self) {
        // SAFETY: the thread is joined once, by another one.
        unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `Thread::start` made it for this thread alone.
    let Start { name, work } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let _ = set_name(&name);
    // Below this frame no code could catch a panic. The program's panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _counted = OfEngine::begin();
        work();
    }));
    ptr::null_mut()
}

/// The number of threads of the process; `None` if the kernel does not say.
fn count() -> Option<usize> {
    static TASKS: OnceLock<Option<Descriptor>> = OnceLock::new();
    let open = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Descriptor::keep(|| open(c"/proc/self/task", flags, Mode::empty())).ok()
    };
    let tasks = TASKS.get_or_init(open).as_ref()?;
    // A folder has two links of its own.
    (tasks.stat().ok()?.st_nlink as usize).checked_sub(2).filter(|&count| count > 0)
}

/// The number of threads beside the calling one and those of the engine; `None` if the kernel does not say, or a thread
/// of the engine began or ended meanwhile.
pub(crate) fn others() -> Option<usize> {
    let (changes, own) = (CHANGES.load(Ordering::SeqCst), OWN.load(Ordering::SeqCst));
    let others = count()?.saturating_sub(own + 1);
    (CHANGES.load(Ordering::SeqCst) == changes).then_some(others)
}

/// The calling thread's id, as `/proc` and debuggers show it.
pub(crate) fn own_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The C library's handle of the calling thread, which its copy in a child of `fork(2)` has, too.
pub(crate) fn own_handle() -> usize {
    // SAFETY: the call only reads.
    unsafe { libc::pthread_self() as usize }
}

/// Whether the thread of this process with this id has ended. If a filter refuses the query, the answer is false.
///
/// The first thread keeps its id until all others have ended, so for that thread this reads its state.
pub(crate) fn has_ended(number: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 asks whether the thread exists, and sends nothing.
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
        // The kernel lets a joining thread go on a moment before the joined one is gone.
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
    fn the_kernel_reports_the_number_of_threads() {
        let listed = std::fs::read_dir("/proc/self/task").unwrap().count();
        // Other tests start and end threads meanwhile.
        assert!(count().unwrap().abs_diff(listed) < 200);
    }
}
