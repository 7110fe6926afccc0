//! Waits for events instead of times, so that no test depends on the speed of the machine.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A wait of this length means that the awaited event never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `done` is true.
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The system call in which a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asleep {
    pub(crate) call: i64,
    pub(crate) arguments: [u64; 6],
}

impl Asleep {
    /// Whether the thread sleeps on a word without a time limit, so that it stays asleep until another thread wakes it.
    pub(crate) fn is_until_woken(self) -> bool {
        self.call == libc::SYS_futex && self.arguments[3] == 0
    }
}

/// The number of the calling thread, for [`asleep`].
pub(crate) fn this_thread() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// The number of the thread of this process with this name.
pub(crate) fn named(name: &str) -> Option<i32> {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_it = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let path = threads.map(|thread| thread.path()).find(is_it)?;
    path.file_name()?.to_str()?.parse().ok()
}

/// The call in which thread `id` of this process sleeps; `None` while it runs.
pub(crate) fn asleep(id: i32) -> Option<Asleep> {
    let text = fs::read_to_string(format!("/proc/self/task/{id}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let call = words.next()?.parse().ok()?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Asleep { call, arguments })
}

/// Waits until thread `id` of this process waits for a lock or a word. Returns the word's address.
#[track_caller]
pub(crate) fn until_it_waits(id: i32) -> u64 {
    let mut word = 0;
    until("a thread that waits", || {
        let waits = asleep(id).filter(|asleep| asleep.call == libc::SYS_futex);
        waits.inspect(|asleep| word = asleep.arguments[0]).is_some()
    });
    word
}
