//! Holds addresses: threads and system calls that use them wait, while the memory there is parked elsewhere.
//!
//! ```text
//!   addresses   | private mapping | ──▶ | the same, without pages | ──▶ | block          |
//!   parking     | nothing         |     | the pages               |     | nothing        |
//!                    register, mremap(MREMAP_DONTUNMAP)        show; UFFDIO_WAKE
//! ```
//! The range is registered with a userfaultfd for user faults, and one `mremap` moves its pages to another place. From
//! then on the kernel finds no page-table entries there, although the file has the pages
//! (`UFFDIO_REGISTER_MODE_MINOR`), and suspends any thread that needs one. No thread reads the descriptor: when other
//! memory is shown, the engine wakes the suspended threads, and they repeat the access. Pages that were swapped out
//! stay swapped out, parked, and cannot be confused with others there.
//!
//! With write-protection (`UFFDIO_WRITEPROTECT`) instead, readers would not wait. But for that, the kernel splits huge
//! pages and puts a marker into each entry of their page tables, which `PAGEMAP_SCAN` cannot tell from a page that was
//! swapped out (docs/design.md has the costs of both).
//!
//! Holding needs the right to handle the faults of system calls: `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1`, or
//! access to `/dev/userfaultfd`.

use hugefork_linux::parking::{Failure, Parking};
use hugefork_linux::userfaultfd::{
    Faults, MODE_MINOR, MODE_MISSING, UFFD_FEATURE_MINOR_SHMEM, UFFD_FEATURE_MISSING_SHMEM, Userfaultfd,
};
use rustix::io::Errno;

use super::stderr::say_and_abort;
use super::{LOST, named, owner};
use crate::sys::{Part, SystemError};

/// The userfaultfd that holds faults. A `fork(2)` child must not use it, because its calls act on the parent's memory.
pub(crate) struct Holder(pub(super) Userfaultfd);

impl Holder {
    /// Opens the userfaultfd, if the process may handle the faults of system calls.
    pub(crate) fn open() -> Result<Holder, SystemError> {
        let faults = named("userfaultfd", Userfaultfd::open(Faults::OfCallsToo))?;
        named("ioctl(UFFDIO_API)", faults.enable(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM))?;
        Ok(Holder(faults))
    }

    /// Opens the descriptor again if the program, which does not know of it, has closed it: see
    /// [`Descriptor::reopen`](hugefork_linux::Descriptor::reopen).
    pub(super) fn reopen(&self) -> bool {
        self.0.0.reopen(|| Holder::open().ok().map(|new| new.0.0))
    }

    /// As [`Sys::hold`](crate::sys::Sys::hold). `parking` pairs the part with the place for its memory.
    pub(super) fn hold(&self, part: Part<'_>, parking: &Parking<'_>) -> Result<(), SystemError> {
        if owner::is_forked_child() {
            return Err(SystemError::new("ioctl(UFFDIO_REGISTER)", Errno::PERM));
        }
        match self.register(part.at(), part.len()) {
            Err(_) if self.reopen() => self.register(part.at(), part.len())?,
            registered => registered?,
        }
        match parking.take() {
            Ok(()) => Ok(()),
            Err(Failure::Refused(errno)) => {
                self.resume(part);
                Err(SystemError::new("mremap to hold a range", errno))
            }
            Err(Failure::Lost(errno)) => abort(part, errno),
        }
    }

    /// Registers a range. From then on, a thread that finds no page there waits.
    pub(super) fn register(&self, at: usize, len: usize) -> Result<(), SystemError> {
        let registered = self.0.register(&(at..at + len), MODE_MISSING | MODE_MINOR);
        let call = |errno| if errno == Errno::BADF { LOST } else { "ioctl(UFFDIO_REGISTER)" };
        registered.map_err(|errno| SystemError::new(call(errno), errno))
    }

    /// Wakes the threads after a failed hold: the part still shows all of its memory, or shows it again.
    #[cold]
    fn resume(&self, part: Part<'_>) {
        match self.0.unregister(&(part.at()..part.at() + part.len())) {
            Ok(()) => self.wake(part),
            Err(errno) => abort(part, errno),
        }
    }

    /// Wakes the threads that wait for the part. They repeat their accesses.
    pub(super) fn wake(&self, part: Part<'_>) {
        if let Err(errno) = self.0.wake(&(part.at()..part.at() + part.len())) {
            // The process must not go on. Either the threads that wait would sleep for ever. Or the program, which does
            // not know of the descriptor, has closed it: then no thread was held, and writes made since are lost.
            abort(part, errno);
        }
    }
}

/// Aborts the process, because its memory is not where it belongs, or because threads would wait for ever.
#[cold]
pub(super) fn abort(part: Part<'_>, errno: Errno) -> ! {
    say_and_abort(format_args!(
        "the kernel refused to release memory that threads wait for at {:#x}: error {}{}; aborting",
        part.at(),
        errno.raw_os_error(),
        if errno == Errno::BADF { ", since the program has closed the descriptor that they wait on" } else { "" },
    ));
}

#[cfg(test)]
mod tests {
    use crate::sys::linux::memory::{CoreDump, Exports, Kind, Linux, pointer};
    use crate::sys::{Access, Shows, Sys};
    use crate::units::BASE_PAGE;

    /// The parked memory is two mappings, and a call that moves both fails at the second, after it has moved the first.
    #[test]
    fn private_pages_come_back_though_a_call_fails_half_way() {
        const PAGES: usize = 8;
        const LEN: usize = PAGES * BASE_PAGE;
        let memory = Linux::new(Kind::ShmemBase, LEN, CoreDump::LeftOut, Exports::No).unwrap();
        let parked = match memory.claim_parking(LEN, BASE_PAGE) {
            Ok(parked) => parked,
            Err(error) => return println!("skipped: threads cannot be held here: {error}"),
        };
        memory.obtain(0, LEN, 0).unwrap();
        let extent = memory.claim(LEN, BASE_PAGE).unwrap();
        let (part, away) = (extent.part(0, LEN), parked.part(0, LEN));
        memory.show(part, Shows::CowMapping { start: 0, access: Access::ReadWrite }).unwrap();
        let page = |nth: usize| pointer(part.at() + nth * BASE_PAGE).cast::<u8>();
        // SAFETY: the range is ours, and shows a private mapping.
        (0..PAGES).for_each(|nth| unsafe { page(nth).write_volatile(1 + nth as u8) });
        memory.hold(part, away).unwrap();
        // The kernel moves a registered mapping only on its own, and detects that in the middle of the call.
        let holder = memory.cow_mappings.as_ref().unwrap().holder().unwrap();
        holder.register(away.at() + LEN / 2, LEN / 2).unwrap();
        memory.unpark(part, away);
        memory.resume(part, away);
        // SAFETY: as above.
        let seen: Vec<u8> = (0..PAGES).map(|nth| unsafe { page(nth).read_volatile() }).collect();
        assert_eq!(seen, (1..=PAGES as u8).collect::<Vec<_>>(), "private pages are gone");
        memory.release(extent).unwrap();
        memory.release(parked).unwrap();
    }
}
