//! Resets of a region into which the kernel writes on behalf of the program's only thread, while that thread is in the
//! reset: a read by `io_uring` completes in the thread that asked for it, between any two of its instructions.
//!
//! Two processes wait for each other without sleep, so each needs a processor: the test has a binary of its own.

mod common;

use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use common::alone::{alone, with_one_thread};
use common::pool;
use hugefork::{Backing, BlockSize};

const PAGE: usize = 4096;
const LEN: usize = 64 << 20;
const ROUNDS: usize = 1500;

/// The value that the other end of the pipe writes. The snapshot does not contain it.
const READ: u8 = 7;

/// A ring with room for few requests.
struct Ring {
    fd: OwnedFd,
    rings: *mut u8,
    entries: *mut u8,
    parameters: Parameters,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread: [u32; 2],
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    /// `struct io_sqring_offsets`: head, tail, mask, entries, flags, dropped, array, and reserved fields.
    sq: [u32; 10],
    /// `struct io_cqring_offsets`: head, tail, mask, entries, overflow, entries of the queue, and reserved fields.
    cq: [u32; 10],
}

impl Ring {
    fn new() -> io::Result<Ring> {
        let mut parameters = Parameters::default();
        // SAFETY: the kernel fills in the parameters.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, &raw mut parameters) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let map = |offset: i64| {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping. The rings of four requests fit into a page, and so do their entries.
            let at = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, fd.as_raw_fd(), offset) };
            assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            at.cast::<u8>()
        };
        let (rings, entries) = (map(0), map(0x1000_0000));
        Ok(Ring { fd, rings, entries, parameters })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: a word of the rings, which live as long as this.
        unsafe { AtomicU32::from_ptr(self.rings.add(offset as usize).cast()) }
    }

    fn enter(&self, submitted: u32, wanted: u32) {
        const GETEVENTS: u32 = 1;
        let (fd, no_mask) = (self.fd.as_raw_fd(), ptr::null::<u8>());
        // SAFETY: the request is in the ring.
        let done = unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, submitted, wanted, GETEVENTS, no_mask, 0) };
        assert_eq!(done, i64::from(submitted), "{}", io::Error::last_os_error());
    }

    /// Submits a read of a page from a pipe.
    fn read(&self, pipe: &OwnedFd, to: *mut u8) {
        const READ: u8 = 22;
        let [_, tail, mask, _, _, _, array, ..] = self.parameters.sq;
        let nth = self.word(tail).load(Ordering::Relaxed);
        let slot = nth & self.word(mask).load(Ordering::Relaxed);
        // SAFETY: the entry of this slot, of 64 bytes, which the kernel does not use now.
        unsafe {
            let entry = self.entries.add(64 * slot as usize);
            entry.write_bytes(0, 64);
            entry.write(READ);
            entry.add(4).cast::<i32>().write(pipe.as_raw_fd());
            entry.add(8).cast::<u64>().write(u64::MAX);
            entry.add(16).cast::<u64>().write(to.expose_provenance() as u64);
            entry.add(24).cast::<u32>().write(PAGE as u32);
        }
        self.word(array + 4 * slot).store(slot, Ordering::Relaxed);
        self.word(tail).store(nth + 1, Ordering::Release);
        self.enter(1, 0);
    }

    /// Waits until a read has completed, and returns its result.
    fn ended(&self) -> i32 {
        let [head, tail, mask, _, _, results, ..] = self.parameters.cq;
        let nth = self.word(head).load(Ordering::Relaxed);
        if self.word(tail).load(Ordering::Acquire) == nth {
            self.enter(0, 1);
        }
        let slot = nth & self.word(mask).load(Ordering::Relaxed);
        let result = self.word(results + 16 * slot + 8).load(Ordering::Acquire) as i32;
        self.word(head).store(nth + 1, Ordering::Release);
        result
    }
}

/// Starts a child of `fork(2)` that, each time it is asked, writes a page into the pipe a little later.
fn start_writer(pipe: &OwnedFd) -> &'static AtomicU32 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which stays.
    let turn = unsafe {
        let page = libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0);
        AtomicU32::from_ptr(page.cast())
    };
    turn.store(0, Ordering::SeqCst);
    let (parent, page) = (std::process::id(), [READ; PAGE]);
    // SAFETY: this process has one thread, but for those of the engine, which the child does not call.
    if unsafe { libc::fork() } == 0 {
        let (mut done, mut random) = (0, 88_172_645_463_325_252_u64);
        // SAFETY: only asks for the parent, which changes when the parent ends.
        while unsafe { libc::getppid() } as u32 == parent {
            if turn.load(Ordering::SeqCst) == done {
                continue;
            }
            done += 1;
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (0..random % 2000).for_each(|_| core::hint::spin_loop());
            // SAFETY: writes from an array.
            unsafe { libc::write(pipe.as_raw_fd(), page.as_ptr().cast(), PAGE) };
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    turn
}

/// If a read completes before the reset begins, the reset undoes its writes. If it completes during the reset, its
/// writes may stay until the next reset.
#[test]
fn what_a_completed_read_has_brought_is_gone_after_the_next_reset() {
    alone(|| {
        with_one_thread(|| {
            let ring = match Ring::new() {
                Ok(ring) => ring,
                Err(error) => return println!("skipped: no io_uring here: {error}"),
            };
            let mut ends = [0; 2];
            // SAFETY: the kernel writes two descriptors, which are new.
            let [from, to] = unsafe {
                assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                ends.map(|end| OwnedFd::from_raw_fd(end))
            };
            let turn = start_writer(&to);
            for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
                let Some(pool) = pool(backing, 3 * LEN, BlockSize::MIB_2) else { continue };
                if let Some(why) = pool.no_page_grain() {
                    println!("skipped: {why}");
                    continue;
                }
                let mut region = pool.region(LEN).unwrap();
                region.as_mut_slice().fill(1);
                let snapshot = region.snapshot().unwrap();
                let expected = [1; PAGE];
                let (start, mut refused, mut stayed, mut left) = (region.as_mut_ptr(), 0, 0, 0);
                for round in 0..ROUNDS {
                    // Some pages that each reset puts back, and one to which the kernel writes.
                    for page in 0..40 {
                        // SAFETY: inside the region, which nobody else uses.
                        unsafe { start.add((page * 397) * PAGE).write_volatile(round as u8) };
                    }
                    let at = (round * 5003 + 1) % (LEN / PAGE) * PAGE;
                    ring.read(&from, start.wrapping_add(at));
                    turn.fetch_add(1, Ordering::SeqCst);
                    region.reset_to(&snapshot).unwrap();
                    // If the block is not CoW-mapped at the moment, the kernel may not write to it.
                    let ended = ring.ended();
                    assert!([PAGE as i32, -libc::EFAULT].contains(&ended), "{ended}");
                    refused += usize::from(ended < 0);
                    // SAFETY: inside the region; the read has ended.
                    let page = || unsafe { core::slice::from_raw_parts(start.add(at).cast_const(), PAGE) };
                    stayed += usize::from(page() != expected);
                    region.reset_to(&snapshot).unwrap();
                    left += usize::from(page() != expected);
                }
                println!("{backing}: of {ROUNDS} reads, {refused} were refused, and what {stayed} brought stayed");
                assert!(refused < ROUNDS / 2 && stayed > 0, "reads end during the call and after it");
                assert_eq!(left, 0, "pages that a reset has left as a read wrote them that had ended");
                assert!(*region.as_mut_slice() == snapshot[..]);
                // Resets alternate between two snapshots with pages over the first block, which get marks. The kernel
                // writes elsewhere.
                let goals = [2, 3].map(|value| {
                    (0..40).for_each(|page| region.as_mut_slice()[(page * 3 + 5) * PAGE] = value);
                    region.snapshot().unwrap()
                });
                let mut left = 0;
                for round in 0..ROUNDS {
                    // SAFETY: as above.
                    (0..40).for_each(|page| unsafe { start.add((page * 3 + 5) * PAGE).write_volatile(round as u8) });
                    let at = (2 << 20) + (round * 5003 + 1) % (LEN / PAGE - 512) * PAGE;
                    ring.read(&from, start.wrapping_add(at));
                    turn.fetch_add(1, Ordering::SeqCst);
                    region.reset_to(&goals[round % 2]).unwrap();
                    ring.ended();
                    region.reset_to(&goals[round % 2]).unwrap();
                    // SAFETY: as above.
                    left += usize::from(
                        unsafe { core::slice::from_raw_parts(start.add(at).cast_const(), PAGE) } != expected,
                    );
                }
                assert_eq!(left, 0, "pages that a reset between two snapshots has left so");
            }
        })
    })
    .well();
}
