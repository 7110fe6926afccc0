//! Holds whoever uses some addresses, system calls too, while what they show lies aside.
//!
//! ```text
//!   addresses   | private mapping | ──▶ | the same, without pages | ──▶ | block          |
//!   aside       | nothing         |     | the pages               |     | nothing        |
//!                    register, mremap(MREMAP_DONTUNMAP)        show; UFFDIO_WAKE
//! ```
//! The range is registered for user faults, and one `mremap` takes its pages to another place. From then on the kernel
//! finds no page there, and puts whoever needs one to sleep (`UFFDIO_REGISTER_MODE_MINOR`: the file has the page, but
//! no page table). Nobody reads the descriptor: the sleepers are woken when something else is shown, and look again.
//! Pages that were swapped out stay swapped out, aside, where nothing else looks like them.
//!
//! By write-protection (`UFFDIO_WRITEPROTECT`) readers would not wait. But the kernel splits huge pages for it and puts
//! a marker into each entry of their page tables, which `PAGEMAP_SCAN` cannot tell from a page that was swapped out
//! (docs/design.md has what both cost).
//!
//! This needs the right to handle the faults of system calls: `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1`, or
//! access to `/dev/userfaultfd`.

use core::ptr;
use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{
    MapFlags, MremapFlags, MsyncFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, mremap_fixed, msync, userfaultfd,
};
use syscalls::{Sysno, syscall3};

use super::mappings::Mappings;
use super::stderr::say_and_abort;
use super::{move_high, named, open_again, owner};
use crate::sys::{Part, SystemError};
use crate::units::BASE_PAGE;

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

/// The number of a call on the descriptor that reads or writes an argument (`_IOR`, `_IOWR` of
/// `<linux/userfaultfd.h>`).
const fn number<Argument>(direction: c_ulong, nth: c_ulong) -> c_ulong {
    direction << 30 | (size_of::<Argument>() as c_ulong) << 16 | 0xaa << 8 | nth
}

const UFFDIO_API: c_ulong = number::<Api>(3, 0x3f);
const UFFDIO_REGISTER: c_ulong = number::<Register>(3, 0x00);
const UFFDIO_UNREGISTER: c_ulong = number::<Addresses>(2, 0x01);
const UFFDIO_WAKE: c_ulong = number::<Addresses>(2, 0x02);
/// On `/dev/userfaultfd`: a new descriptor.
const USERFAULTFD_IOC_NEW: c_ulong = 0xaa << 8;

const UFFD_API: u64 = 0xaa;
const MISSING_SHMEM: u64 = 1 << 5;
const MINOR_SHMEM: u64 = 1 << 10;
const MODE_MISSING: u64 = 1 << 0;
const MODE_MINOR: u64 = 1 << 2;

/// What faults are held with. A `fork(2)` child must not use it, since its calls act on the parent's memory.
pub(crate) struct Holder(OwnedFd);

impl Holder {
    /// Opens it, if the process may handle the faults of system calls.
    pub(crate) fn open() -> Result<Holder, SystemError> {
        let holder = Holder(new_descriptor()?);
        let mut api = Api { api: UFFD_API, features: MISSING_SHMEM | MINOR_SHMEM, ioctls: 0 };
        holder.call("ioctl(UFFDIO_API)", UFFDIO_API, &mut api)?;
        Ok(holder)
    }

    /// The same with a number that programs seldom have.
    pub(super) fn with_high_number(mut self) -> Holder {
        move_high(&mut self.0);
        self
    }

    /// Opens it again, if the program has closed it, which did not know of it: see [`open_again`].
    pub(super) fn open_again(&self) -> bool {
        open_again(&self.0, || Holder::open().ok().map(|new| new.0))
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn call<Argument>(&self, name: &'static str, call: c_ulong, argument: &mut Argument) -> Result<(), SystemError> {
        // Not by libc's `ioctl`: what stands in for that in a program (`hugefork run`) takes it for the program's.
        // SAFETY: the argument has the size that the number of the call says, and the call writes to nothing else. It
        // changes who waits for pages, and no page.
        let called = unsafe {
            syscall3(Sysno::ioctl, self.0.as_raw_fd() as usize, call as usize, ptr::from_mut(argument).addr())
        };
        named(name, called.map(drop).map_err(|errno| Errno::from_raw_os_error(errno.into_raw())))
    }

    /// As [`Sys::hold`](crate::sys::Sys::hold).
    pub(super) fn hold(&self, mappings: &Mappings, part: Part<'_>, aside: Part<'_>) -> Result<(), SystemError> {
        if owner::is_forked_child() {
            return Err(SystemError::new("ioctl(UFFDIO_REGISTER)", Errno::PERM));
        }
        self.register(part.at(), part.len())?;
        move_pages(mappings, part, aside, 0, part.len()).map_err(|(moved, error)| {
            self.put_some_back(mappings, part, aside, moved);
            error
        })
    }

    /// From now on whoever finds no page there waits.
    pub(super) fn register(&self, at: usize, len: usize) -> Result<(), SystemError> {
        let range = Addresses { start: at as u64, len: len as u64 };
        let mut register = Register { range, mode: MODE_MISSING | MODE_MINOR, ioctls: 0 };
        self.call("ioctl(UFFDIO_REGISTER)", UFFDIO_REGISTER, &mut register)
    }

    /// After a failure: the first `moved` bytes come back, and the rest is there still.
    #[cold]
    fn put_some_back(&self, mappings: &Mappings, part: Part<'_>, aside: Part<'_>, moved: usize) {
        move_surely(mappings, aside, part, moved);
        if self.call("ioctl(UFFDIO_UNREGISTER)", UFFDIO_UNREGISTER, &mut addresses(part)).is_err() {
            abort(part);
        }
        self.wake(part);
    }

    /// Wakes those who wait for the part. They look again what is there.
    pub(super) fn wake(&self, part: Part<'_>) {
        if self.call("ioctl(UFFDIO_WAKE)", UFFDIO_WAKE, &mut addresses(part)).is_err() {
            // They would sleep for ever.
            abort(part);
        }
    }
}

/// As [`Sys::put_back`](crate::sys::Sys::put_back).
pub(super) fn put_back(mappings: &Mappings, part: Part<'_>, aside: Part<'_>) {
    move_surely(mappings, aside, part, part.len());
}

/// Moves all that `from` shows, which is one mapping. It stays there without pages. A failure changes nothing at
/// `from`, but Linux before 6.17 may have unmapped what was at `to`.
pub(super) fn move_at_once(from: Part<'_>, to: Part<'_>) -> Result<(), SystemError> {
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: both are parts of what the arena set aside for the caller, who has seen that what `to` shows is to go.
    let moved = unsafe { mremap_fixed(pointer(from.at()), from.len(), from.len(), flags, pointer(to.at())) };
    named("mremap of private pages", moved).map(drop)
}

/// Moves the first `len` bytes. Without them the program would not see its memory, so what fails is tried once more,
/// and then the process says so and aborts.
fn move_surely(mappings: &Mappings, from: Part<'_>, to: Part<'_>, len: usize) {
    if let Err((moved, _)) = move_pages(mappings, from, to, 0, len)
        && move_pages(mappings, from, to, moved, len).is_err()
    {
        abort(to);
    }
}

/// Moves bytes `at..end` of what `from` shows to `to`, with a call for each mapping. A call that moves several (Linux
/// 6.17) may fail on the way, and whoever repeats it puts what is left of the first, which is nothing, over what has
/// come. Older kernels refuse such a call. Those that do not tell where a mapping ends are asked for halves: neighbours
/// that could be one are not always. A failure says where.
fn move_pages(
    mappings: &Mappings,
    from: Part<'_>,
    to: Part<'_>,
    mut at: usize,
    end: usize,
) -> Result<(), (usize, SystemError)> {
    let mut most = end - at;
    while at < end {
        let (flags, piece) = (MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP, mappings.first(from.at() + at, most));
        // SAFETY: both are parts of what the arena set aside for the caller. At `to`, nothing is shown, or what is held
        // without its pages.
        match unsafe { mremap_fixed(pointer(from.at() + at), piece, piece, flags, pointer(to.at() + at)) } {
            Ok(_) => {
                at += piece;
                most = end - at;
            }
            Err(errno) => {
                if !fill(to.at() + at, piece) || errno != Errno::FAULT || piece <= BASE_PAGE {
                    return Err((at, SystemError::new("mremap to hold a range", errno)));
                }
                most = (piece / 2).next_multiple_of(BASE_PAGE);
            }
        }
    }
    Ok(())
}

/// Fills the hole that a refused call may have left: Linux before 6.17 unmaps the target first. False if it cannot.
#[cold]
fn fill(at: usize, len: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag the call only looks whether all of a range in the arena is mapped.
    let is_whole = unsafe { msync(pointer(at), len, MsyncFlags::ASYNC) }.is_ok();
    // SAFETY: with this flag it replaces nothing.
    is_whole || unsafe { mmap_anonymous(pointer(at), len, ProtFlags::empty(), flags) }.is_ok()
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn addresses(part: Part<'_>) -> Addresses {
    Addresses { start: part.at() as u64, len: part.len() as u64 }
}

#[cold]
fn abort(part: Part<'_>) -> ! {
    say_and_abort(format_args!("the kernel refused to let go of who waits for memory at {:#x}; aborting", part.at()));
}

/// A new descriptor, for the faults of threads and of system calls.
fn new_descriptor() -> Result<OwnedFd, SystemError> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: as long as nothing is registered, it does nothing.
    let refused = match unsafe { userfaultfd(flags) } {
        Ok(fd) => return Ok(fd),
        Err(errno) => SystemError::new("userfaultfd", errno),
    };
    // Who may open this file may handle the faults of system calls, too.
    let device = open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|_| refused)?;
    // SAFETY: the call takes flags by value.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags.bits() as c_int) };
    // SAFETY: it is new, and nobody else has it.
    if fd < 0 { Err(refused) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Dump, Kind, Linux};
    use super::*;
    use crate::sys::{Access, Shows, Sys};

    /// What lies aside is two mappings, and a call that moves both fails at the second, when the first has moved.
    #[test]
    fn private_pages_come_back_though_a_call_fails_half_way() {
        const PAGES: usize = 8;
        const LEN: usize = PAGES * BASE_PAGE;
        let memory = Linux::new(Kind::ShmemBase, LEN, Dump::LeftOut).unwrap();
        let aside = match memory.set_aside(LEN, BASE_PAGE) {
            Ok(aside) => aside,
            Err(error) => return println!("skipped: nobody can be made to wait: {error}"),
        };
        memory.obtain(0, LEN, 0).unwrap();
        let extent = memory.claim(LEN, BASE_PAGE).unwrap();
        let (part, away) = (extent.part(0, LEN), aside.part(0, LEN));
        memory.show(part, Shows::Overlay { start: 0, access: Access::ReadWrite }).unwrap();
        let page = |nth: usize| pointer(part.at() + nth * BASE_PAGE).cast::<u8>();
        // SAFETY: the range is ours, and shows a private mapping.
        (0..PAGES).for_each(|nth| unsafe { page(nth).write_volatile(1 + nth as u8) });
        memory.hold(part, away).unwrap();
        // The kernel moves what is registered only by itself, and finds that when it comes to it.
        let holder = memory.overlays.as_ref().unwrap().holder().unwrap();
        holder.register(away.at() + LEN / 2, LEN / 2).unwrap();
        memory.put_back(part, away);
        memory.let_go(part, away);
        // SAFETY: as above.
        let seen: Vec<u8> = (0..PAGES).map(|nth| unsafe { page(nth).read_volatile() }).collect();
        assert_eq!(seen, (1..=PAGES as u8).collect::<Vec<_>>(), "private pages are gone");
        memory.release(extent).unwrap();
        memory.release(aside).unwrap();
    }
}
