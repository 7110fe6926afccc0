//! The page of this process.
//!
//! Counting begins in the library's own data. Once there is something to see ([`publish`]) it goes on in a file of
//! memory, which others find among the process's descriptors. The child of a fork counts anew, and has a page of its
//! own once it has something big itself.

use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use hugefork::Histogram;
use rustix::fs::{FileType, SealFlags, fcntl_add_seals, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::getpid;
use syscalls::{Sysno, syscall};

use super::page::{BUCKETS, Page, bucket_of};
pub(crate) use super::page::{Times, Word};
use crate::descriptors::Kept;
use crate::line::Line;
use crate::proc::mappings;
use crate::sandbox::withdrawn;
use crate::threads::lock::Guarded;
use crate::{BASE_PAGE, config};

static LOCAL: Page = Page::new();

/// The page that counts; null stands for [`LOCAL`].
static CURRENT: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The file of the page, once there is one.
static FILE: Guarded<Option<Kept>> = Guarded::new(None);

fn current() -> &'static Page {
    // SAFETY: null or a page that stays mapped until the child of a fork, which has one thread, goes back to `LOCAL`.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.unwrap_or(&LOCAL)
}

/// Counts `more`.
pub(crate) fn add(word: Word, more: u64) {
    current().word(word).fetch_add(more, Ordering::Relaxed);
}

/// Notes what is.
pub(crate) fn set(word: Word, value: u64) {
    current().word(word).store(value, Ordering::Relaxed);
}

/// Counts a fork, and what it took.
pub(crate) fn forked(us: u64) {
    let page = current();
    page.word(Word::Forks).fetch_add(1, Ordering::Relaxed);
    page.word(Word::PauseLast).store(us, Ordering::Relaxed);
    page.word(Word::PauseMax).fetch_max(us, Ordering::Relaxed);
    page.word(Word::PauseSum).fetch_add(us, Ordering::Relaxed);
    page.bucket(Times::Forks, bucket_of(us)).fetch_add(1, Ordering::Relaxed);
}

/// Notes what all times so far were.
pub(crate) fn set_times(of: Times, times: &Histogram) {
    let mut counts = [0; BUCKETS];
    for (end, count) in times.buckets() {
        counts[bucket_of((end.as_nanos() as u64 - 1) / 1000)] += count;
    }
    for (bucket, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        current().bucket(of, bucket).store(count, Ordering::Relaxed);
    }
}

/// Lets others see the page. Counts go on in the process alone if it has no descriptor or no memory for that.
pub(crate) fn publish() {
    if withdrawn::is_withdrawn() || !CURRENT.load(Ordering::Relaxed).is_null() {
        return;
    }
    FILE.with(|file| {
        if file.is_some() {
            return;
        }
        let Ok(kept) = Kept::memory(c"hugefork-stats") else { return };
        match map(&kept) {
            Some(page) => {
                page.copy_from(&LOCAL);
                page.begin(this_process(), mode());
                *file = Some(kept);
                CURRENT.store(ptr::from_ref(page).cast_mut(), Ordering::Release);
            }
            None => kept.close(),
        }
    });
}

fn map(kept: &Kept) -> Option<&'static Page> {
    let file = kept.get()?;
    if longest_file() < BASE_PAGE as u64 {
        // The kernel would not only refuse: it sends SIGXFSZ, which kills.
        return None;
    }
    ftruncate(file, BASE_PAGE as u64).ok()?;
    // Whoever else has the descriptor could take the page away, and the process would die of counting.
    fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).ok()?;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the kernel likes.
    let mapped = unsafe { mmap(ptr::null_mut(), BASE_PAGE, rights, MapFlags::SHARED, file.as_fd(), 0) }.ok()?;
    // SAFETY: a page of zeros, which are a `Page`; unmapped only in the child of a fork.
    Some(unsafe { &*mapped.cast::<Page>() })
}

/// How long files may become by this process, as far as it may ask.
fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the structure. Unlike prlimit64(2), it can change no limits: all threads may make it.
    let asked = unsafe { syscall!(Sysno::getrlimit, libc::RLIMIT_FSIZE, &raw mut limit) };
    asked.map_or(u64::MAX, |_| limit.rlim_cur)
}

/// The place of the mode among all.
fn mode() -> usize {
    crate::Mode::ALL.iter().position(|mode| Some(*mode) == config::mode()).unwrap_or(0)
}

fn this_process() -> u32 {
    getpid().as_raw_nonzero().get().cast_unsigned()
}

/// In the child of a fork: what the parent counted is not this process's.
pub(crate) fn in_child() {
    FILE.reset();
    LOCAL.clear();
    let parents = CURRENT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !parents.is_null() {
        // SAFETY: this process's mapping of the parent's page; there is no other thread that could count on it.
        let _ = unsafe { munmap(parents.cast(), BASE_PAGE) };
    }
    FILE.with(|file| file.take().map(Kept::close));
}

/// The file that standard error was when the program began, as device and inode; 0 before the constructor.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn stderr() -> Option<[u64; 2]> {
    rustix::fs::fstat(rustix::stdio::stderr()).ok().map(|file| [file.st_dev, file.st_ino])
}

/// Whether a line may be one too many for standard error: a file, and the process may not write files of any length.
fn is_stderr_limited() -> bool {
    let is_file = |file: rustix::fs::Stat| FileType::from_raw_mode(file.st_mode) == FileType::RegularFile;
    longest_file() != u64::MAX && rustix::fs::fstat(rustix::stdio::stderr()).is_ok_and(is_file)
}

/// Remembers what standard error is, for [`print`].
pub(crate) fn remember_stderr() {
    for (place, value) in STDERR.iter().zip(stderr().unwrap_or_default()) {
        place.store(value, Ordering::Relaxed);
    }
}

/// Prints the line, if this process has a page, and standard error is still what it was: a daemon may have opened
/// something else in its place.
pub(crate) fn print() {
    if withdrawn::is_withdrawn() {
        return;
    }
    let page = current();
    let was = STDERR.each_ref().map(|place| place.load(Ordering::Relaxed));
    if ptr::eq(page, &LOCAL) || page.word(Word::Process).load(Ordering::Relaxed) != this_process().into() {
        return;
    }
    if stderr() != Some(was) || is_stderr_limited() {
        return;
    }
    let of = |word| page.word(word).load(Ordering::Relaxed);
    let counted = |field| mappings::counted(field).unwrap_or(0);
    let huge = counted("AnonHugePages:") >> 20;
    let memory = counted("Anonymous:") >> 20;
    let forks = of(Word::Forks);
    let mean = of(Word::PauseSum).checked_div(forks).unwrap_or(0);
    Line::new(format_args!(
        "hugefork: process {} (mode {}): {forks} forks, {:.3} ms each, {:.3} ms at most; {} blocks collapsed again; \
         {huge} of {memory} MiB huge",
        this_process(),
        config::mode().map_or("none", crate::Mode::name),
        mean as f64 / 1e3,
        of(Word::PauseMax) as f64 / 1e3,
        of(Word::Collapsed),
    ))
    .write_to(libc::STDERR_FILENO);
}
