//! Page faults that the process handles itself: a thread that accesses a page of a registered range
//! sleeps until another thread wakes it, and then repeats its access. So these calls change no
//! bytes of mappings, except [`Userfaultfd::put_zeros`], which adds pages only where none is.
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

/// The ioctl type of its calls (`UFFDIO`).
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

/// The version of the interface.
const UFFD_API: u64 = 0xaa;
/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
/// `UFFD_EVENT_PAGEFAULT`.
const EVENT_PAGEFAULT: u8 = 0x12;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1 << 0;

/// Writes to write-protected pages raise faults.
pub const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
/// Missing pages of shared memory raise faults.
pub const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
/// Pages that are in shared memory but not in the page table raise faults (Linux 5.14).
pub const UFFD_FEATURE_MINOR_SHMEM: u64 = 1 << 10;
/// Shared memory and hugetlb can be write-protected (Linux 5.19).
pub const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// Addresses without a page can be write-protected (Linux 6.4).
pub const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// The kernel resolves write faults itself and records that the page was written (Linux 6.7).
pub const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;

/// Threads that access a missing page sleep.
pub const MODE_MISSING: u64 = 1 << 0;
/// Threads that write to a write-protected page sleep.
pub const MODE_WP: u64 = 1 << 1;
/// Threads that access a page that is in the file but not in the page table sleep.
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
    /// The length in bytes.
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
    /// The range to register.
    pub range: Addresses,
    /// `MODE_…`.
    pub mode: u64,
    /// The calls that the kernel supports there.
    pub ioctls: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct Zeropage {
    range: Addresses,
    mode: u64,
    /// Number of bytes done, or an error.
    zeropage: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    range: Addresses,
    mode: u64,
}

/// A waiting thread's fault: `struct uffd_msg` of a page fault.
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
    /// The start of the page, if the message reports a page fault.
    pub fn page(&self) -> Option<usize> {
        if self.event == EVENT_PAGEFAULT { Some(self.address as usize) } else { None }
    }
}

/// The kinds of faults to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Faults of user code, which any process may handle (Linux 5.11).
    OfThreads,
    /// Faults of system calls, too. This needs `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1`, or access to
    /// `/dev/userfaultfd` (Linux 6.1).
    OfCallsToo,
}

/// A userfaultfd descriptor. Dropping it wakes all threads that sleep for it. A `fork(2)` child must not use it: its
/// calls act on the parent's memory.
#[derive(Debug)]
pub struct Userfaultfd(pub Descriptor);

impl Userfaultfd {
    /// Opens a descriptor that is closed on `exec` and does not block. Nothing can be registered before
    /// [`Userfaultfd::enable`].
    ///
    /// # Errors
    /// The process lacks the right, or the kernel lacks the call.
    pub fn open(faults: Faults) -> Result<Userfaultfd, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let asked = if faults == Faults::OfThreads { flags | USER_MODE_ONLY } else { flags };
        // SAFETY: a descriptor without registered ranges has no effect.
        let refused = match Descriptor::keep(|| unsafe { userfaultfd(asked) }) {
            Ok(file) => return Ok(Userfaultfd(file)),
            Err(errno) => errno,
        };
        if faults == Faults::OfThreads {
            return Err(refused);
        }
        // A process that may open this file may also handle the faults of system calls.
        let device =
            Descriptor::keep(|| openat(CWD, c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()));
        let (device, call) = (device.map_err(|_| refused)?, USERFAULTFD_IOC_NEW as usize);
        let new = Descriptor::keep(|| {
            let number = device.get()?.as_raw_fd() as usize;
            // SAFETY: the call takes flags by value, and returns a descriptor.
            let new = answer(unsafe { syscall3(Sysno::ioctl, number, call, flags.bits() as usize) });
            // SAFETY: the descriptor is new, and no other code has it.
            new.map(|number| unsafe { OwnedFd::from_raw_fd(number as RawFd) })
        });
        new.map(Userfaultfd).map_err(|_| refused)
    }

    /// Enables the wanted `UFFD_FEATURE_…`. Call it once.
    ///
    /// # Errors
    /// `EINVAL` if the kernel lacks a feature.
    pub fn enable(&self, features: u64) -> Result<(), Errno> {
        self.call(UFFDIO_API, &mut Api { api: UFFD_API, features, ioctls: 0 })
    }

    /// Registers a range: from now on, threads that access its pages sleep, according to the `MODE_…`.
    ///
    /// # Errors
    /// The range cannot be registered, or the process would exceed its number of mappings.
    pub fn register(&self, range: &Range<usize>, mode: u64) -> Result<(), Errno> {
        self.call(UFFDIO_REGISTER, &mut Register { range: Addresses::of(range), mode, ioctls: 0 })
    }

    /// Unregisters a range. Sleeping threads are not woken.
    ///
    /// # Errors
    /// `EINVAL` if another mapping, which is not registered, is at the range by now.
    pub fn unregister(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.call(UFFDIO_UNREGISTER, &mut Addresses::of(range))
    }

    /// Wakes the threads that sleep for pages of a range; they repeat their accesses.
    ///
    /// # Errors
    /// The kernel's refusal. Sleeping threads may then sleep until this descriptor is dropped.
    pub fn wake(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.call(UFFDIO_WAKE, &mut Addresses::of(range))
    }

    /// Write-protects a range: from now on, threads that write to it sleep.
    ///
    /// # Errors
    /// The range is not registered for this.
    pub fn protect(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.write_protect(range, PROTECT)
    }

    /// Removes the write protection of a range, and wakes the threads that wait to write.
    ///
    /// # Errors
    /// The range is not registered for this.
    pub fn unprotect(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.write_protect(range, 0)
    }

    fn write_protect(&self, range: &Range<usize>, mode: u64) -> Result<(), Errno> {
        loop {
            match self.call(UFFDIO_WRITEPROTECT, &mut WriteProtect { range: Addresses::of(range), mode }) {
                // Another thread is changing the mappings of the process; try again.
                Err(Errno::AGAIN) => {}
                done => return done,
            }
        }
    }

    /// Maps the kernel's zero page wherever a registered range has no page, also in a private mapping of a file.
    ///
    /// # Errors
    /// `EEXIST` if a page exists. Earlier addresses of the range may have received zero pages.
    ///
    /// # Safety
    /// No code needs the contents of the file there.
    pub unsafe fn put_zeros(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut next = range.start;
        while next < range.end {
            let mut zeros = Zeropage { range: Addresses::of(&(next..range.end)), mode: 0, zeropage: 0 };
            let called = self.call(UFFDIO_ZEROPAGE, &mut zeros);
            next += zeros.zeropage.max(0) as usize;
            match called {
                // Another thread is changing the mappings; try again.
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Reads the faults of threads that began to sleep since the last call. Returns the number of messages; 0 if there
    /// is none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn read(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        // SAFETY: the messages are plain numbers, for which all bytes are valid.
        let bytes = unsafe { slice::from_raw_parts_mut(ptr::from_mut(messages).cast::<u8>(), size_of_val(messages)) };
        match rustix::io::read(self.0.get()?, bytes) {
            Ok(count) => Ok(count / size_of::<Message>()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    fn call<Argument>(&self, call: Opcode, argument: &mut Argument) -> Result<(), Errno> {
        // SAFETY: the argument has the type of this call, and the call writes only to it. The call suspends or wakes
        // threads; it changes bytes only in `put_zeros`, whose caller allows that.
        unsafe { ioctl(self.0.get()?, call, argument) }?;
        Ok(())
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
    fn the_ioctl_numbers_equal_the_kernels() {
        let numbers = [UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_ZEROPAGE];
        assert_eq!(numbers, [0xc018_aa3f, 0xc020_aa00, 0x8010_aa01, 0x8010_aa02, 0xc020_aa04]);
        assert_eq!([UFFDIO_WRITEPROTECT, USERFAULTFD_IOC_NEW], [0xc018_aa06, 0xaa00]);
        assert_eq!(size_of::<Message>(), 32);
    }

    fn memory() -> (*mut c_void, Range<usize>) {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), 2 * PAGE, rights, MapFlags::PRIVATE) }.unwrap();
        (at, at.expose_provenance()..at.addr() + 2 * PAGE)
    }

    /// Waits until a thread sleeps for a page.
    fn next(faults: &Userfaultfd) -> Message {
        let mut messages = [Message::default(); 2];
        while faults.read(&mut messages).unwrap() == 0 {
            std::thread::yield_now();
        }
        messages[0]
    }

    #[test]
    fn a_reader_of_a_missing_page_sleeps_until_it_gets_zeros() {
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
            assert_eq!(message.page(), Some(start));
            // SAFETY: the mapping is anonymous, so no file contents are hidden.
            unsafe { faults.put_zeros(&page) }.unwrap();
            assert_eq!(reader.join().unwrap(), 0);
            // SAFETY: as above.
            assert_eq!(unsafe { faults.put_zeros(&page) }, Err(Errno::EXIST));
        });
        faults.unregister(&range).unwrap();
        faults.wake(&range).unwrap();
        // SAFETY: the test's own mapping, no longer used.
        unsafe { munmap(at, 2 * PAGE) }.unwrap();
    }

    #[test]
    fn a_writer_to_a_protected_page_sleeps_until_it_is_unprotected() {
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
            assert_eq!(message.page(), Some(start));
            // SAFETY: within the mapping.
            assert_eq!(unsafe { at.cast::<u8>().read_volatile() }, 1);
            faults.unprotect(&range).unwrap();
            writer.join().unwrap();
        });
        // SAFETY: as above, and no code uses the mapping any more.
        unsafe {
            assert_eq!(at.cast::<u8>().read_volatile(), 2);
            munmap(at, 2 * PAGE).unwrap();
        }
    }

    #[test]
    fn system_calls_sleep_too_if_the_process_has_the_right() {
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
