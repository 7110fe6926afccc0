//! Noise, the other activities of a program while it uses regions: signals whose handler touches regions, `fork(2)`,
//! `exec`, and mappings that come and go.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::fs;
use std::os::fd::AsRawFd;
use std::time::Duration;

use hugefork::{Backing, Region};

use crate::common::signals::handle;
use crate::common::wait::until;
use crate::round::{PAGE, Plan, had, word};

/// Most mappings that the mapper has at a time: fewer than the engine leaves to the program.
const MOST: usize = 40;
/// Number of words of a page to which the writers of a round write.
const WRITERS: usize = 3;

/// The memory that the handler of `SIGALRM` touches: a pinned word, and a region to which others write.
static BELL: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
static REGION: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Number of handlers that are running.
static INSIDE: AtomicU64 = AtomicU64::new(0);
static RUNG: AtomicU64 = AtomicU64::new(0);
/// A value that the handler has seen in a wrong place.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// Counts of signals, children and mappings.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) signals: AtomicU64,
    pub(crate) children: AtomicU64,
    pub(crate) mappings: AtomicU64,
}

extern "C" fn on_alarm(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let bell = BELL.load(Ordering::SeqCst);
    if !bell.is_null() {
        // SAFETY: the noise waits for all handlers before the region is dropped.
        let nth = unsafe { AtomicU64::from_ptr(bell) }.fetch_add(1, Ordering::Relaxed) as usize;
        RUNG.fetch_add(1, Ordering::SeqCst);
        let (region, len) = (REGION.load(Ordering::SeqCst), LEN.load(Ordering::SeqCst));
        for writer in 0..WRITERS {
            let at = nth.wrapping_mul(0x9e37_79b9) % (len / PAGE) * PAGE + 64 * writer;
            // SAFETY: as above, and inside of it. Other threads use it as an atomic, too.
            let value = unsafe { AtomicU64::from_ptr(region.add(at).cast()) }.load(Ordering::Relaxed);
            let who = value >> 60;
            // The first word of a page may be the tenant's.
            if value != 0 && who != writer as u64 + 1 && !(writer == 0 && who == crate::round::TENANT) {
                WRONG.store(value, Ordering::SeqCst);
            }
        }
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

/// Signals all threads of the process until the round is over.
fn ring(region: &Region, of_handler: &Region, plan: &Plan, over: &AtomicBool, counts: &Counts) {
    let Some(pin) = had(of_handler.pin(0..PAGE), plan) else { return };
    let before = word(of_handler, 0).load(Ordering::Relaxed);
    let rung = RUNG.load(Ordering::SeqCst);
    handle(libc::SIGALRM, on_alarm as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART, &[]);
    REGION.store(region.as_mut_ptr(), Ordering::SeqCst);
    LEN.store(region.len(), Ordering::SeqCst);
    BELL.store(pin.as_mut_ptr().cast(), Ordering::SeqCst);
    let mut random = plan.random(70);
    while !over.load(Ordering::Relaxed) {
        for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let Ok(id) = task.file_name().into_string().unwrap().parse::<i32>() else { continue };
            // SAFETY: a signal with a handler. The thread may have ended already.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGALRM) };
        }
        if random.one_in(16)
            && let Some(snapshot) = had(of_handler.snapshot(), plan)
        {
            let mut bytes = [0; 8];
            if had(snapshot.read_at(0, &mut bytes), plan).is_some() {
                let there = u64::from_ne_bytes(bytes);
                let now = word(of_handler, 0).load(Ordering::Relaxed);
                assert!((before..=now).contains(&there), "{there} in a snapshot of a counter from {before} to {now}");
            }
        }
        std::thread::sleep(Duration::from_micros(300 + random.below(700) as u64));
    }
    BELL.store(ptr::null_mut(), Ordering::SeqCst);
    until("handlers that are done", || INSIDE.load(Ordering::SeqCst) == 0);
    let rung = RUNG.load(Ordering::SeqCst) - rung;
    assert_eq!(word(of_handler, 0).load(Ordering::Relaxed), before + rung, "signals that were counted in a region");
    assert_eq!(WRONG.load(Ordering::SeqCst), 0, "the handler has read a value of another place");
    counts.signals.fetch_add(rung, Ordering::Relaxed);
}

/// Makes children until the round is over: those of `fork(2)` must not have the region, those of `exec` must run.
fn multiply(region: &Region, plan: &Plan, over: &AtomicBool, counts: &Counts) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut random = plan.random(71);
    loop {
        let (at, executes) = (random.below(region.len() / PAGE) * PAGE, random.one_in(3));
        let (program, arguments) = (c"/bin/true".as_ptr(), [c"true".as_ptr(), ptr::null()]);
        // SAFETY: the child makes system calls only, with addresses that were made before.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; only the kernel uses the address.
            unsafe {
                libc::alarm(300);
                let written = libc::write(writer.as_raw_fd(), region.as_ptr().add(at).cast(), 8);
                let has_it = written == 8 && libc::read(reader.as_raw_fd(), [0_u8; 8].as_mut_ptr().cast(), 8) == 8;
                if has_it && plan.backing == Backing::Hugetlb {
                    // docs/safety.md: a child may have a read-only mapping of a block that is just being mapped.
                    libc::_exit(0);
                }
                if has_it || *libc::__errno_location() != libc::EFAULT {
                    libc::_exit(1);
                }
                if executes {
                    libc::execv(program, arguments.as_ptr());
                    libc::_exit(2);
                }
                libc::_exit(0);
            }
        }
        if child == -1 {
            assert!(plan.may_fail, "fork: {}", std::io::Error::last_os_error());
        } else {
            let mut status = 0;
            // SAFETY: writes the status. A signal may come first.
            while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
                assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::Interrupted);
            }
            assert_eq!(status, 0, "a child, of exec: {executes}, has the region or failed");
            counts.children.fetch_add(1, Ordering::Relaxed);
        }
        // The round may be over before this thread has started.
        if over.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
    }
}

/// Memory of the mapper, with its number in the first word and the last.
struct Own {
    at: *mut u64,
    len: usize,
    number: u64,
}

impl Own {
    fn new(pages: usize, number: u64) -> Option<Own> {
        let (len, protection) = (pages * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let own = Own { at: at.cast(), len, number };
        own.ends().for_each(|word| word.store(number, Ordering::Relaxed));
        Some(own)
    }

    fn ends(&self) -> impl Iterator<Item = &AtomicU64> {
        // SAFETY: inside the mapping, which lives as long.
        [0, self.len / 8 - 1].into_iter().map(|at| unsafe { AtomicU64::from_ptr(self.at.add(at)) })
    }

    fn check(&self) {
        assert!(
            self.ends().all(|word| word.load(Ordering::Relaxed) == self.number),
            "somebody was in memory of others"
        );
    }

    /// Moves the memory to other addresses.
    fn remap(&mut self) {
        let elsewhere = Own::new(self.len / PAGE, 0);
        let Some(elsewhere) = elsewhere else { return };
        // SAFETY: moves this mapping over the other, which nobody else knows.
        let at = unsafe {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(self.at.cast(), self.len, self.len, flags, elsewhere.at)
        };
        if at != libc::MAP_FAILED {
            self.at = at.cast();
            core::mem::forget(elsewhere);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { libc::munmap(self.at.cast(), self.len) }, 0);
    }
}

/// Maps, moves and unmaps memory until the round is over, and checks that it stays unchanged.
fn map(plan: &Plan, over: &AtomicBool, counts: &Counts) {
    let (mut random, mut owned) = (plan.random(72), Vec::<Own>::new());
    while !over.load(Ordering::Relaxed) {
        match random.below(4) {
            0 | 1 if owned.len() < MOST => {
                let pages = if random.one_in(8) { 512 + random.below(1024) } else { 1 + random.below(64) };
                match Own::new(pages, random.next()) {
                    Some(own) => owned.push(own),
                    None => assert!(plan.may_fail, "mmap: {}", std::io::Error::last_os_error()),
                }
                counts.mappings.fetch_add(1, Ordering::Relaxed);
            }
            2 if !owned.is_empty() => {
                let nth = random.below(owned.len());
                owned[nth].remap();
            }
            _ if !owned.is_empty() => {
                let nth = random.below(owned.len());
                owned.swap_remove(nth).check();
            }
            _ => {}
        }
        owned.iter().for_each(Own::check);
        std::thread::sleep(Duration::from_micros(random.below(300) as u64));
    }
}

/// Makes all kinds of noise at once, until the round is over.
pub(crate) fn make(region: &Region, of_handler: &Region, plan: &Plan, over: &AtomicBool, counts: &Counts) {
    std::thread::scope(|scope| {
        scope.spawn(|| ring(region, of_handler, plan, over, counts));
        scope.spawn(|| multiply(region, plan, over, counts));
        scope.spawn(|| map(plan, over, counts));
    });
}
