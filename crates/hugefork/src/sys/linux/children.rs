//! The memory of a pool in children of `fork(2)`, and how long they have it.
//!
//! ```text
//! fork    an open file description of the pool's file, with a lock on one byte ─┐ Witness
//! parent  closes its descriptor                                                 │
//! child   maps the file through it, and closes its descriptor                   │
//! later   the mappings keep the description, and so the lock: of the child, of its children, of theirs
//! end     the last mapping goes (exit, exec, munmap) ─▶ inotify says that a description was closed; no lock
//! ```
//! So the kernel itself counts who has the memory, whatever these processes do with their descriptors. The byte need
//! not exist: a lock of an open file description (`F_OFD_SETLK`, fcntl(2)) may lie behind the end of the file.
//!
//! The thread that sleeps on inotify has a table of descriptors of its own (`CLOSE_RANGE_UNSHARE`), in which only the
//! pool's file and the inotify instance are open. So the program cannot close or replace them, and the thread keeps no
//! file of the program open.

use core::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use hugefork_linux::parking::clear;
use hugefork_linux::{Descriptor, keep_only};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::thread::nanosleep;
use syscalls::{Sysno, syscall};

use super::share::PrivateMemory;
use super::{kept, memory, named, owner, threads};
use crate::sys::SystemError;
use crate::units::BASE_PAGE;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const OVER: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE).union(MapFlags::FIXED);

/// The pause of a thread that cannot sleep on inotify. The drop of its pool waits for the end of one.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A piece of a region, and its place in the pool's file. All are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: usize,
    pub(crate) file_offset: usize,
    pub(crate) len: usize,
}

/// An open file description that only one fork and its descendants have.
pub(crate) struct Witness {
    file: Descriptor,
    /// The byte that the description has locked.
    pub(crate) byte: u64,
}

impl Witness {
    /// Locks a byte of `file`, whose description no other descriptor has.
    pub(crate) fn new(file: Descriptor) -> Result<Witness, SystemError> {
        static BYTE: AtomicU64 = AtomicU64::new(0);
        let byte = BYTE.fetch_add(1, Ordering::Relaxed);
        lock(kept(&file)?, libc::F_OFD_SETLK, libc::F_RDLCK, byte)?;
        Ok(Witness { file, byte })
    }

    /// Maps a page through the description, without access. A child inherits that mapping, and so the description.
    pub(super) fn page(&self) -> Result<PrivateMemory, SystemError> {
        let file = kept(&self.file)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(ptr::null_mut(), BASE_PAGE, ProtFlags::empty(), MapFlags::PRIVATE, file, 0) };
        Ok(PrivateMemory { at: named("mmap of a witness", at)?, len: BASE_PAGE })
    }

    /// In the child: shows memory at `addresses`, private and writable: pieces of the file, copies of others, and else
    /// zeros. Offsets of the pieces count from the start of the addresses. After a failure, the addresses are
    /// inaccessible.
    ///
    /// # Safety
    /// The addresses belong to a region of the parent, and are free in this process.
    pub(crate) unsafe fn show(
        &self,
        addresses: &Range<usize>,
        mapped: &[Piece],
        copied: &[Piece],
    ) -> Result<(), SystemError> {
        let shown = self.show_pieces(addresses, mapped, copied);
        if shown.is_err() {
            // Zeros in place of a piece would look like lost data. The pieces go first, because a process that has
            // reached its limit of mappings gets no new one.
            // SAFETY: by this function's contract.
            let gone = unsafe { munmap(memory::pointer(addresses.start), addresses.len()) };
            if gone.is_err() {
                owner::end(1);
            }
            // If the kernel refuses this, the addresses are free.
            // SAFETY: as above.
            let _ = unsafe { clear(addresses.start, addresses.len()) };
        }
        shown
    }

    fn show_pieces(&self, addresses: &Range<usize>, mapped: &[Piece], copied: &[Piece]) -> Result<(), SystemError> {
        let file = kept(&self.file)?;
        let at = |offset: usize| memory::pointer(addresses.start + offset);
        // SAFETY: by the contract of `show`.
        named("mmap of zeros", unsafe { mmap_anonymous(at(0), addresses.len(), READ_WRITE, OVER) })?;
        for piece in mapped {
            let from = piece.file_offset as u64;
            // SAFETY: a part of the mapping just made.
            let mapped = unsafe { mmap(at(piece.offset), piece.len, READ_WRITE, OVER, file, from) };
            named("mmap of the pool, private", mapped)?;
        }
        for piece in copied {
            // SAFETY: as above; this process has one thread.
            let bytes = unsafe { core::slice::from_raw_parts_mut(at(piece.offset).cast::<u8>(), piece.len) };
            match named("pread of the pool", pread(file, bytes, piece.file_offset as u64))? {
                count if count == piece.len => {}
                _ => return Err(SystemError::new("pread of the pool", Errno::IO)),
            }
        }
        Ok(())
    }
}

/// Whether some process still has the description whose witness has locked `byte`. `file` is another description.
pub(crate) fn is_witnessed(file: BorrowedFd<'_>, byte: u64) -> bool {
    // If the kernel does not say, the memory must stay.
    lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte) != Ok(libc::F_UNLCK)
}

/// Sets or queries the lock of one byte. Returns the kind of lock that is there. It does not change `errno`.
fn lock(file: BorrowedFd<'_>, what: i32, kind: i32, byte: u64) -> Result<i32, SystemError> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the call reads and writes the structure.
    let answered = unsafe { syscall!(Sysno::fcntl, file.as_raw_fd(), what, &raw mut lock) };
    let answered = answered.map_err(|errno| Errno::from_raw_os_error(errno.into_raw()));
    named("fcntl of an open file description's lock", answered).map(|_| lock.l_type.into())
}

/// A descriptor that tells when a description of a file was closed. `number` leads to the file in this thread.
///
/// The kernel (6.18, `__fput`) reports the close before it takes the lock away, and another process may run in between.
/// So the thread looks once more a little later.
pub(super) fn closes_of(number: RawFd) -> rustix::io::Result<Descriptor> {
    let events = Descriptor::from(inotify::init(CreateFlags::CLOEXEC)?);
    inotify::add_watch(&events, format!("/proc/thread-self/fd/{number}"), WatchFlags::CLOSE_NOWRITE)?;
    Ok(events)
}

/// Sleeps until a description is closed, or a signal comes: true. Without a time, for ever; else false when the time is
/// over.
pub(super) fn wait_for_close(closes: &Descriptor, time: Option<&Timespec>) -> rustix::io::Result<bool> {
    let mut buffer = [const { MaybeUninit::uninit() }; 4096];
    match (poll(&mut [PollFd::new(closes, PollFlags::IN)], time), time) {
        (Ok(0), _) => return Ok(false),
        // The process may have no descriptor (RLIMIT_NOFILE), so the kernel refuses to poll. A read sleeps, too.
        (Err(Errno::INVAL), Some(time)) => {
            let _ = nanosleep(time);
            return Ok(false);
        }
        (Ok(_) | Err(Errno::INVAL), _) => {}
        (Err(errno), _) => return if errno == Errno::INTR { Ok(true) } else { Err(errno) },
    }
    match inotify::Reader::new(closes, &mut buffer).next() {
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// On a thread of its own: calls `look` with the pool's file at once, and each time that a description of the file was
/// closed, and some times soon after ([`closes_of`]), until `look` returns false. Without inotify, of which a user has
/// 128 instances by default, it calls `look` at each [`PAUSE`]. Returns at once if the kernel refuses the table.
///
/// From then on the thread has no other descriptor than this file, so it must not write messages. It drops `starts`
/// when the table is its own, or does not come. `sleeper` gets its number, for [`wake`].
pub(crate) fn on_each_close(
    pool: &memory::Linux,
    starts: Sender<()>,
    sleeper: &AtomicU32,
    mut look: impl FnMut(BorrowedFd<'_>) -> bool,
) {
    let Some((number, identity)) = pool.number() else { return };
    if !keep_only(&mut [number]) {
        return;
    }
    drop(starts);
    // SAFETY: in this thread's own table, nobody but this function closes it.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let is_it = rustix::fs::fstat(file).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity);
    if !is_it {
        return;
    }
    let closes = closes_of(number);
    sleeper.store(threads::own_number(), Ordering::SeqCst);
    let again = [1, 30, 900].map(|milliseconds| Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 });
    let mut times = again.iter();
    while look(file) {
        let Ok(closes) = &closes else {
            let _ = nanosleep(&PAUSE);
            continue;
        };
        match wait_for_close(closes, times.next()) {
            Ok(true) => times = again.iter(),
            Ok(false) => {}
            Err(_) => return,
        }
    }
}

/// Has the thread `sleeper` that waits for closes of a file look once more. `number` leads to the file there. False
/// if the kernel refuses.
///
/// This closes a description of the file. The thread's own descriptor leads to it, because the program may have closed
/// the process's. A child that has the description meanwhile would delay its end, so the caller lets no thread fork.
pub(crate) fn wake(sleeper: u32, number: RawFd) -> bool {
    let path = format!("/proc/self/task/{sleeper}/fd/{number}");
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Descriptor::from).is_ok()
}
