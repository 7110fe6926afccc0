//! Page faults that the process handles itself: whoever needs a page of a range that is registered sleeps until he is
//! woken. What he finds then is the kernel's affair again, so no call here changes a byte of what is mapped, but for
//! [`Userfaultfd::put_zeros`], which puts pages only where none is.
//!
//! [`userfaultfd(2)`](https://man7.org/linux/man-pages/man2/userfaultfd.2.html),
//! [`ioctl_userfaultfd(2)`](https://man7.org/linux/man-pages/man2/ioctl_userfaultfd.2.html);
//! [`<linux/userfaultfd.h>`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/userfaultfd.h)

use core::ops::Range;
use core::{ptr, slice};

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use syscalls::{Sysno, syscall3};

use crate::{Descriptor, answer, ioctl};

/// The kind of its calls (`UFFDIO`).
const UFFDIO: u8 = 0xaa;
/// `UFFDIO_API`.
const UFFDIO_API: Opcode = opcode::read_write::<Api>(UFFDIO, 0x3f);
/// The call that registers a range.
pub const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(UFFDIO, 0x00);
/// `UFFDIO_UNREGISTER`.
const UFFDIO_UNREGISTER: Opcode = opcode::read::<Addresses>(UFFDIO, 0x01);
/// `UFFDIO_WAKE`.
const UFFDIO_WAKE: Opcode = opcode::read::<Addresses>(UFFDIO, 0x02);
/// `UFFDIO_ZEROPAGE`.
const UFFDIO_ZEROPAGE: Opcode = opcode::read_write::<Zeropage>(UFFDIO, 0x04);
/// `UFFDIO_WRITEPROTECT`.
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(UFFDIO, 0x06);
/// The call of `/dev/userfaultfd` that makes a descriptor.
pub const USERFAULTFD_IOC_NEW: Opcode = opcode::none(UFFDIO, 0x00);

/// The version of all this.
const UFFD_API: u64 = 0xaa;
/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
/// `UFFD_EVENT_PAGEFAULT`.
const EVENT_PAGEFAULT: u8 = 0x12;
/// `UFFD_PAGEFAULT_FLAG_WRITE`.
const PAGEFAULT_WRITE: u64 = 1 << 0;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1 << 0;

/// Writes to what is write-protected fault.
pub const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
/// Pages that are missing in shared memory fault.
pub const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
/// Pages that shared memory has, and the page table has not, fault (Linux 5.14).
pub const UFFD_FEATURE_MINOR_SHMEM: u64 = 1 << 10;
/// Shared memory and hugetlb can be write-protected (Linux 5.19).
pub const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// So can what has no page (Linux 6.4).
pub const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// The kernel lets who writes go on by itself, and keeps a mark (Linux 6.7).
pub const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;

/// Who finds no page sleeps.
pub const MODE_MISSING: u64 = 1 << 0;
/// Who writes to what is write-protected sleeps.
pub const MODE_WP: u64 = 1 << 1;
/// Who finds a page in the file and none in the page table sleeps.
pub const MODE_MINOR: u64 = 1 << 2;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The first address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

impl Addresses {
    fn of(range: &Range<usize>) -> Addresses {
        Addresses { start: range.start as u64, len: (range.end - range.start) as u64 }
    }
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// What is to be registered.
    pub range: Addresses,
    /// `MODE_…`.
    pub mode: u64,
    /// What the kernel can do there.
    pub ioctls: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct Zeropage {
    range: Addresses,
    mode: u64,
    /// Bytes that were done, or an error.
    zeropage: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    range: Addresses,
    mode: u64,
}

/// Who waits: `struct uffd_msg`, of a page fault.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

impl Message {
    /// The start of the page, if it is of a page fault.
    pub fn page(&self) -> Option<usize> {
        if self.event == EVENT_PAGEFAULT { Some(self.address as usize) } else { None }
    }

    /// Whether somebody wants to write there.
    pub fn is_write(&self) -> bool {
        self.flags & PAGEFAULT_WRITE != 0
    }
}

/// Whose faults are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Those of threads in user mode, which any process may handle (Linux 5.11).
    OfThreads,
    /// Those of system calls, too. It takes `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1`, or access to
    /// `/dev/userfaultfd` (Linux 6.1).
    OfCallsToo,
}

/// What page faults are handled with. Nobody sleeps for it any more once it is dropped. A `fork(2)` child must not use
/// it: its calls act on the parent's memory.
#[derive(Debug)]
pub struct Userfaultfd(pub Descriptor);

impl Userfaultfd {
    /// A new one, which `exec` closes and which never waits. Nothing can be registered until [`Userfaultfd::enable`].
    ///
    /// # Errors
    /// The process may not, or the kernel cannot.
    pub fn open(faults: Faults) -> Result<Userfaultfd, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let asked = if faults == Faults::OfThreads { flags | USER_MODE_ONLY } else { flags };
        // SAFETY: as long as nothing is registered, it does nothing.
        let refused = match Descriptor::keep(|| unsafe { userfaultfd(asked) }) {
            Ok(file) => return Ok(Userfaultfd(file)),
            Err(errno) => errno,
        };
        if faults == Faults::OfThreads {
            return Err(refused);
        }
        // Who may open this file may handle the faults of system calls, too.
        let device =
            Descriptor::keep(|| openat(CWD, c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()));
        let (device, call) = (device.map_err(|_| refused)?, USERFAULTFD_IOC_NEW as usize);
        let new = Descriptor::keep(|| {
            let number = device.get()?.as_raw_fd() as usize;
            // SAFETY: the call takes flags by value, and gives a descriptor.
            let new = answer(unsafe { syscall3(Sysno::ioctl, number, call, flags.bits() as usize) });
            // SAFETY: it is new, and nobody else has it.
            new.map(|number| unsafe { OwnedFd::from_raw_fd(number as RawFd) })
        });
        new.map(Userfaultfd).map_err(|_| refused)
    }

    /// Says which `UFFD_FEATURE_…` are wanted. Once.
    ///
    /// # Errors
    /// `EINVAL` where the kernel lacks one.
    pub fn enable(&self, features: u64) -> Result<(), Errno> {
        self.call(UFFDIO_API, &mut Api { api: UFFD_API, features, ioctls: 0 })
    }

    /// From now on, whoever comes to a page of the range sleeps, as the `MODE_…` say.
    ///
    /// # Errors
    /// Nothing can be registered there, or it takes a mapping more than the process may have.
    pub fn register(&self, range: &Range<usize>, mode: u64) -> Result<(), Errno> {
        self.call(UFFDIO_REGISTER, &mut Register { range: Addresses::of(range), mode, ioctls: 0 })
    }

    /// No longer. Nobody is woken who sleeps.
    ///
    /// # Errors
    /// `EINVAL` where something else is mapped meanwhile, which is not registered.
    pub fn unregister(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.call(UFFDIO_UNREGISTER, &mut Addresses::of(range))
    }

    /// Who sleeps looks again.
    ///
    /// # Errors
    /// The kernel refuses. Who sleeps may do so until this is dropped.
    pub fn wake(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.call(UFFDIO_WAKE, &mut Addresses::of(range))
    }

    /// Who writes to the range sleeps from now on.
    ///
    /// # Errors
    /// The range is not registered so.
    pub fn protect(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.write_protect(WriteProtect { range: Addresses::of(range), mode: PROTECT })
    }

    /// Who writes to the range, or waits to, goes on.
    ///
    /// # Errors
    /// The range is not registered so.
    pub fn unprotect(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.write_protect(WriteProtect { range: Addresses::of(range), mode: 0 })
    }

    fn write_protect(&self, mut argument: WriteProtect) -> Result<(), Errno> {
        loop {
            match self.call(UFFDIO_WRITEPROTECT, &mut argument) {
                // Something else is done to the process's mappings just now.
                Err(Errno::AGAIN) => {}
                done => return done,
            }
        }
    }

    /// Puts the kernel's page of zeros wherever a range that is registered has no page, also into a private mapping of
    /// a file.
    ///
    /// # Errors
    /// `EEXIST` where there is a page. Something may have been put before that.
    ///
    /// # Safety
    /// Nobody needs what the file has there.
    pub unsafe fn put_zeros(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut next = range.start;
        while next < range.end {
            let mut zeros = Zeropage { range: Addresses::of(&(next..range.end)), mode: 0, zeropage: 0 };
            let called = self.call(UFFDIO_ZEROPAGE, &mut zeros);
            next += zeros.zeropage.max(0) as usize;
            match called {
                // As above.
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Who sleeps, and nobody was told of yet: so many messages, none if there is nobody.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn read(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        // SAFETY: these are plain numbers, for which all bytes are values.
        let bytes = unsafe { slice::from_raw_parts_mut(ptr::from_mut(messages).cast::<u8>(), size_of_val(messages)) };
        match rustix::io::read(self.0.get()?, bytes) {
            Ok(count) => Ok(count / size_of::<Message>()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    fn call<Argument>(&self, call: Opcode, argument: &mut Argument) -> Result<(), Errno> {
        // SAFETY: the argument is the one of this call, which writes to nothing else. It changes who waits for pages,
        // and bytes only in `put_zeros`, whose caller wants that.
        match unsafe { ioctl(self.0.get()?, call, argument) } {
            Ok(_) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;
    use std::println;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;
    use crate::PAGE;

    #[test]
    fn numbers_are_the_kernels() {
        let numbers = [UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_ZEROPAGE];
        assert_eq!(numbers, [0xc018_aa3f, 0xc020_aa00, 0x8010_aa01, 0x8010_aa02, 0xc020_aa04]);
        assert_eq!([UFFDIO_WRITEPROTECT, USERFAULTFD_IOC_NEW], [0xc018_aa06, 0xaa00]);
        assert_eq!(size_of::<Message>(), 32);
    }

    fn memory() -> (*mut c_void, Range<usize>) {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), 2 * PAGE, rights, MapFlags::PRIVATE) }.unwrap();
        (at, at.expose_provenance()..at.addr() + 2 * PAGE)
    }

    /// Waits until somebody sleeps.
    fn next(faults: &Userfaultfd) -> Message {
        let mut messages = [Message::default(); 2];
        while faults.read(&mut messages).unwrap() == 0 {
            std::thread::yield_now();
        }
        messages[0]
    }

    #[test]
    fn who_finds_no_page_sleeps_and_gets_zeros() {
        let faults = match Userfaultfd::open(Faults::OfThreads) {
            Ok(faults) => faults,
            Err(errno) => return println!("skipped: this process may not handle page faults: {errno}"),
        };
        faults.enable(0).unwrap();
        let (at, range) = memory();
        faults.register(&range, MODE_MISSING).unwrap();
        assert_eq!(faults.read(&mut [Message::default()]), Ok(0));
        std::thread::scope(|scope| {
            let (start, page) = (range.start, range.start..range.start + PAGE);
            // SAFETY: within the mapping.
            let reader = scope.spawn(move || unsafe { ptr::with_exposed_provenance::<u8>(start).read_volatile() });
            let message = next(&faults);
            assert_eq!((message.page(), message.is_write()), (Some(start), false));
            // SAFETY: there is no file.
            unsafe { faults.put_zeros(&page) }.unwrap();
            assert_eq!(reader.join().unwrap(), 0);
            // SAFETY: as above.
            assert_eq!(unsafe { faults.put_zeros(&page) }, Err(Errno::EXIST));
        });
        faults.unregister(&range).unwrap();
        faults.wake(&range).unwrap();
        // SAFETY: ours, and nobody uses it any more.
        unsafe { munmap(at, 2 * PAGE) }.unwrap();
    }

    #[test]
    fn who_writes_to_what_is_protected_sleeps() {
        let opened = Userfaultfd::open(Faults::OfThreads);
        let faults = match opened.and_then(|faults| faults.enable(UFFD_FEATURE_PAGEFAULT_FLAG_WP).map(|()| faults)) {
            Ok(faults) => faults,
            Err(errno) => return println!("skipped: this process may not handle page faults of writes: {errno}"),
        };
        let (at, range) = memory();
        // SAFETY: within the mapping.
        unsafe { at.cast::<u8>().write_volatile(1) };
        faults.register(&range, MODE_WP).unwrap();
        faults.protect(&range).unwrap();
        std::thread::scope(|scope| {
            let start = range.start;
            // SAFETY: within the mapping.
            let writer =
                scope.spawn(move || unsafe { ptr::with_exposed_provenance_mut::<u8>(start).write_volatile(2) });
            let message = next(&faults);
            assert_eq!((message.page(), message.is_write()), (Some(start), true));
            // SAFETY: within the mapping.
            assert_eq!(unsafe { at.cast::<u8>().read_volatile() }, 1);
            faults.unprotect(&range).unwrap();
            writer.join().unwrap();
        });
        // SAFETY: as above, and nobody uses the mapping any more.
        unsafe {
            assert_eq!(at.cast::<u8>().read_volatile(), 2);
            munmap(at, 2 * PAGE).unwrap();
        }
    }

    #[test]
    fn system_calls_sleep_too_if_they_may() {
        let faults = match Userfaultfd::open(Faults::OfCallsToo) {
            Ok(faults) => faults,
            Err(errno) => return println!("skipped: this process may not handle the faults of system calls: {errno}"),
        };
        faults.enable(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM).unwrap();
        assert_eq!(faults.enable(0), Err(Errno::INVAL), "once");
        let number = faults.0.as_raw_fd();
        drop(faults);
        assert!(number > 2);
    }
}
