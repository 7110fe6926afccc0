//! The processors that the program was started on. A program may keep its own threads to some of them (`server_cpulist`
//! of Redis), and what those make is kept to the same: the library's threads would wait for the very processor that
//! they are to relieve.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use syscalls::{Sysno, syscall};

/// Room for 1 024 processors, as much as libc's own sets have. On a machine with more the kernel refuses to tell, and
/// threads stay where they are.
const WORDS: usize = 16;

type Set = [u64; WORDS];

static ORIGINAL: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// In bytes; 0 if it is not known.
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Notes where this thread may run: in the constructor.
pub(crate) fn note() {
    let Some((set, length)) = of_this_thread() else { return };
    ORIGINAL.iter().zip(set).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    LENGTH.store(length, Ordering::Relaxed);
}

/// Has this thread run wherever the program was started, unless it may as it is: then the call may be one that the
/// program never makes, and that a filter does not expect. What the kernel refuses stays.
pub(crate) fn go_back() {
    let original = ORIGINAL.each_ref().map(|word| word.load(Ordering::Relaxed));
    let length = LENGTH.load(Ordering::Relaxed);
    if length > 0 && of_this_thread().is_some_and(|(set, _)| set != original) {
        // SAFETY: the call reads so many bytes.
        let _ = unsafe { syscall!(Sysno::sched_setaffinity, 0, length, &raw const original) };
    }
}

/// Where this thread may run, and how many bytes of that the kernel knows of.
fn of_this_thread() -> Option<(Set, usize)> {
    let mut set: Set = [0; WORDS];
    // SAFETY: the call writes no more bytes than are named.
    let length = unsafe { syscall!(Sysno::sched_getaffinity, 0, size_of::<Set>(), &raw mut set) };
    length.ok().map(|length| (set, length))
}
