//! Faults that this process handles itself: whoever needs a page of a range that is registered, and finds none, sleeps
//! until he is woken, system calls too. The thread that handles them reads where they were.
//!
//! The engine has the same for the process that owns the memory (sys/linux/hold.rs), whose sleepers nobody reads of.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::time::Timespec;
use syscalls::{Sysno, syscall};

use crate::sandbox::seal;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Addresses {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Addresses,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct Zeros {
    range: Addresses,
    mode: u64,
    /// Bytes that were done, or an error.
    done: i64,
}

/// `struct uffd_msg`, of a page fault.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    range: Addresses,
    mode: u64,
}

const API: u64 = 0xaa;
const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const WP_UNPOPULATED: u64 = 1 << 13;
const MODE_WP: u64 = 1 << 1;
const WRITE_PROTECTED: u64 = 1 << 0;
const MISSING_SHMEM: u64 = 1 << 5;
const MINOR_SHMEM: u64 = 1 << 10;
const MODE_MISSING: u64 = 1 << 0;
const MODE_MINOR: u64 = 1 << 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1 << 0;

/// A call on the descriptor.
struct Call<'a, Argument> {
    opcode: Opcode,
    argument: &'a mut Argument,
}

// SAFETY: the opcodes are those of `<linux/userfaultfd.h>`, and the arguments have the types that it names.
unsafe impl<Argument> Ioctl for Call<'_, Argument> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.argument).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// A fault that somebody waits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The start of the page.
    pub(crate) address: usize,
    pub(crate) is_write: bool,
}

/// What faults are handled with.
pub(crate) struct UserFaults {
    number: RawFd,
}

impl UserFaults {
    /// Opens it, if the process may handle the faults of system calls.
    ///
    /// # Errors
    /// The process may not, or the kernel cannot.
    pub(crate) fn open() -> Result<UserFaults, Errno> {
        UserFaults::open_with(MISSING_SHMEM | MINOR_SHMEM)
    }

    fn open_with(features: u64) -> Result<UserFaults, Errno> {
        seal::allows_calls()?;
        let faults = UserFaults { number: new_descriptor()? };
        let mut api = Api { api: API, features, ioctls: 0 };
        faults.call(opcode::read_write::<Api>(0xaa, 0x3f), &mut api)?;
        Ok(faults)
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: open until this is dropped, in a table of descriptors that the program does not have.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }

    fn call<Argument>(&self, opcode: Opcode, argument: &mut Argument) -> Result<(), Errno> {
        // SAFETY: the argument is the one of this call, which writes to nothing else, and changes no bytes of mappings.
        unsafe { ioctl(self.file(), Call { opcode, argument }) }
    }

    /// From now on, who finds no page there sleeps.
    ///
    /// # Errors
    /// The kernel refuses: it needs a mapping more, or something else is there than private memory.
    pub(crate) fn register(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut register = Register { range: addresses(range), mode: MODE_MISSING | MODE_MINOR, ioctls: 0 };
        self.call(opcode::read_write::<Register>(0xaa, 0x00), &mut register)
    }

    /// From now on, who writes to a range of private memory sleeps, until this is dropped or something else is mapped
    /// there. Who reads does not.
    ///
    /// # Errors
    /// The process may not, or the kernel cannot.
    pub(crate) fn hold_writers(range: &Range<usize>) -> Result<UserFaults, Errno> {
        let faults = UserFaults::open_with(PAGEFAULT_FLAG_WP | WP_HUGETLBFS_SHMEM | WP_UNPOPULATED)?;
        let mut register = Register { range: addresses(range), mode: MODE_WP, ioctls: 0 };
        faults.call(opcode::read_write::<Register>(0xaa, 0x00), &mut register)?;
        let mut protect = WriteProtect { range: addresses(range), mode: WRITE_PROTECTED };
        loop {
            match faults.call(opcode::read_write::<WriteProtect>(0xaa, 0x06), &mut protect) {
                // Something else is done to the process's mappings just now.
                Err(Errno::AGAIN) => {}
                done => return done.map(|()| faults),
            }
        }
    }

    /// Drops the pages of a range that is registered, and puts pages of zeros there.
    fn drop_and_zero(&self, range: &Range<usize>) -> Result<(), Errno> {
        // SAFETY: by the caller, nobody needs what is there.
        unsafe { drop_pages(range) }?;
        let mut next = range.start;
        while next < range.end {
            let mut zeros = Zeros { range: addresses(&(next..range.end)), mode: 0, done: 0 };
            let called = self.call(opcode::read_write::<Zeros>(0xaa, 0x04), &mut zeros);
            next += zeros.done.max(0) as usize;
            match called {
                // Something else is done to the process's mappings just now.
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// No longer. Who sleeps looks again.
    ///
    /// # Errors
    /// The kernel refuses. Who comes there may sleep until this is dropped.
    pub(crate) fn unregister(&self, range: &Range<usize>) -> Result<(), Errno> {
        match self.call(opcode::read::<Addresses>(0xaa, 0x01), &mut addresses(range)) {
            // What is unmapped meanwhile, or another mapping, is not registered.
            Ok(()) | Err(Errno::INVAL) => self.wake(range),
            refused => refused,
        }
    }

    /// Who sleeps looks again.
    ///
    /// # Errors
    /// The kernel refuses. Who sleeps may do so until this is dropped.
    pub(crate) fn wake(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.call(opcode::read::<Addresses>(0xaa, 0x02), &mut addresses(range))
    }

    /// Waits until somebody sleeps; false if nobody does within the time.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub(crate) fn wait(&self, ns: i64) -> Result<bool, Errno> {
        let time = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        match poll(&mut [PollFd::from_borrowed_fd(self.file(), PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => Ok(false),
            polled => polled.map(|ready| ready > 0),
        }
    }

    /// The next fault that nobody was told of.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn next(&self) -> Result<Option<Fault>, Errno> {
        let mut bytes = [0; size_of::<Message>()];
        match rustix::io::read(self.file(), &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            got if got? < bytes.len() => return Ok(None),
            _ => {}
        }
        // SAFETY: a message is plain numbers, for which all bytes are values.
        let message = unsafe { bytes.as_ptr().cast::<Message>().read_unaligned() };
        let is_write = message.flags & FLAG_WRITE != 0;
        Ok((message.event == EVENT_PAGEFAULT).then_some(Fault { address: message.address as usize, is_write }))
    }
}

impl Drop for UserFaults {
    fn drop(&mut self) {
        // Nothing is registered any more then, and nobody sleeps.
        // SAFETY: opened by this, and not used again.
        unsafe { rustix::io::close(self.number) };
    }
}

/// `MADV_DONTNEED_LOCKED` (Linux 5.18): also what is locked, of which the program has said so.
///
/// # Safety
/// Nobody needs what is there.
unsafe fn drop_pages(range: &Range<usize>) -> Result<(), Errno> {
    // SAFETY: the caller's. rustix does not have this advice.
    let done = unsafe { syscall!(Sysno::madvise, range.start, range.len(), libc::MADV_DONTNEED_LOCKED) };
    done.map(drop).map_err(|errno| Errno::from_raw_os_error(errno.into_raw()))
}

/// Has a range of private memory read as zeros, which take no memory, and no mapping: the kernel puts its page of zeros
/// there, also into a private mapping of a file. Who comes there meanwhile sleeps.
///
/// # Errors
/// The process may not, or the kernel cannot. Something may have been dropped.
///
/// # Safety
/// Nobody needs what is there, and this thread does not come there: signals are blocked.
pub(crate) unsafe fn show_zeros(range: &Range<usize>) -> Result<(), Errno> {
    let faults = UserFaults::open()?;
    faults.register(range)?;
    let done = faults.drop_and_zero(range);
    // If the kernel refuses, it is so in a moment, when the descriptor is closed.
    let _ = faults.unregister(range);
    done
}

fn addresses(range: &Range<usize>) -> Addresses {
    Addresses { start: range.start as u64, len: range.len() as u64 }
}

fn new_descriptor() -> Result<RawFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: as long as nothing is registered, it does nothing.
    let refused = match unsafe { userfaultfd(flags) } {
        Ok(new) => return Ok(new.into_raw_fd()),
        Err(errno) => errno,
    };
    // Who may open this file may handle the faults of system calls, too.
    let device = open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|_| refused)?;
    let device = device.into_raw_fd();
    // SAFETY: the call takes flags by value, and gives a descriptor.
    let new = unsafe { syscall!(Sysno::ioctl, device, 0xaa << 8, flags.bits()) };
    // SAFETY: opened above, and not used again.
    unsafe { rustix::io::close(device) };
    new.map(|number| number as RawFd).map_err(|errno| Errno::from_raw_os_error(errno.into_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BASE_PAGE;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    #[test]
    fn who_finds_no_page_is_told_of_and_woken() {
        let faults = match UserFaults::open() {
            Ok(faults) => faults,
            Err(errno) => return println!("skipped: this process may not handle the faults of system calls: {errno}"),
        };
        let file = memfd_create(c"hugefork-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BASE_PAGE as u64).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap(std::ptr::null_mut(), BASE_PAGE, rights, MapFlags::PRIVATE, &file, 0) }.unwrap();
        let range = at as usize..at as usize + BASE_PAGE;
        faults.register(&range).unwrap();
        assert_eq!((faults.wait(1_000_000), faults.next()), (Ok(false), Ok(None)));
        std::thread::scope(|scope| {
            // SAFETY: within the mapping, whose address stays.
            let writer = scope.spawn(|| unsafe { (range.start as *mut u8).write_volatile(7) });
            assert_eq!(faults.wait(60_000_000_000), Ok(true));
            assert_eq!(faults.next(), Ok(Some(Fault { address: range.start, is_write: true })));
            faults.unregister(&range).unwrap();
            writer.join().unwrap();
        });
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { munmap(at, BASE_PAGE) }.unwrap();
    }

    #[test]
    fn zeros_hide_what_a_file_has_and_can_be_written() {
        let file = memfd_create(c"hugefork-test", MemfdFlags::CLOEXEC).unwrap();
        let len = 4 * BASE_PAGE;
        rustix::io::pwrite(&file, &vec![7; len], 0).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE, &file, 0) }.unwrap();
        // SAFETY: all of the mapping, which stays as long as this is used.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
        bytes[2 * BASE_PAGE] = 8;
        let middle = at as usize + BASE_PAGE..at as usize + 3 * BASE_PAGE;
        // SAFETY: nobody needs it.
        match unsafe { show_zeros(&middle) } {
            Ok(()) => {}
            Err(errno) => return println!("skipped: this process may not handle the faults of system calls: {errno}"),
        }
        let expected = |nth: usize| if (1..3).contains(&(nth / BASE_PAGE)) { 0 } else { 7 };
        assert!(bytes.iter().enumerate().all(|(nth, byte)| *byte == expected(nth)));
        bytes[BASE_PAGE] = 9;
        assert_eq!((bytes[BASE_PAGE - 1], bytes[BASE_PAGE], bytes[BASE_PAGE + 1]), (7, 9, 0));
        let mut in_file = vec![0; len];
        rustix::io::pread(&file, &mut in_file, 0).unwrap();
        assert!(in_file.iter().all(|byte| *byte == 7));
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { munmap(at, len) }.unwrap();
    }
}
