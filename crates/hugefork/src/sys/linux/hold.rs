//! Holds whoever uses some addresses, system calls too, while what they show is parked.
//!
//! ```text
//!   addresses   | private mapping | ──▶ | the same, without pages | ──▶ | block          |
//!   parking     | nothing         |     | the pages               |     | nothing        |
//!                    register, mremap(MREMAP_DONTUNMAP)        show; UFFDIO_WAKE
//! ```
//! The range is registered for user faults, and one `mremap` takes its pages to another place. From then on the kernel
//! finds no page there, and puts whoever needs one to sleep (`UFFDIO_REGISTER_MODE_MINOR`: the file has the page, but
//! no page table). Nobody reads the descriptor: the sleepers are woken when something else is shown, and look again.
//! Pages that were swapped out stay swapped out, parked, where nothing else looks like them.
//!
//! By write-protection (`UFFDIO_WRITEPROTECT`) readers would not wait. But the kernel splits huge pages for it and puts
//! a marker into each entry of their page tables, which `PAGEMAP_SCAN` cannot tell from a page that was swapped out
//! (docs/design.md has what both cost).
//!
//! This needs the right to handle the faults of system calls: `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1`, or
//! access to `/dev/userfaultfd`.

use hugefork_linux::Descriptor;
use hugefork_linux::parking::{Failure, Parking};
use hugefork_linux::userfaultfd::{
    Faults, MODE_MINOR, MODE_MISSING, UFFD_FEATURE_MINOR_SHMEM, UFFD_FEATURE_MISSING_SHMEM, Userfaultfd,
};
use rustix::io::Errno;

use super::stderr::say_and_abort;
use super::{LOST, named, owner};
use crate::sys::{Part, SystemError};

/// What faults are held with. A `fork(2)` child must not use it, since its calls act on the parent's memory.
pub(crate) struct Holder(Userfaultfd);

impl Holder {
    /// Opens it, if the process may handle the faults of system calls.
    pub(crate) fn open() -> Result<Holder, SystemError> {
        let faults = named("userfaultfd", Userfaultfd::open(Faults::OfCallsToo))?;
        named("ioctl(UFFDIO_API)", faults.enable(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM))?;
        Ok(Holder(faults))
    }

    /// Opens it again, if the program has closed it, which did not know of it: see
    /// [`Descriptor::reopen`](hugefork_linux::Descriptor::reopen).
    pub(super) fn reopen(&self) -> bool {
        self.0.0.reopen(|| Holder::open().ok().map(|new| new.0.0))
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.0.0
    }

    /// As [`Sys::hold`](crate::sys::Sys::hold); `parking` is that of the part.
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

    /// From now on whoever finds no page there waits.
    pub(super) fn register(&self, at: usize, len: usize) -> Result<(), SystemError> {
        let registered = self.0.register(&(at..at + len), MODE_MISSING | MODE_MINOR);
        let call = |errno| if errno == Errno::BADF { LOST } else { "ioctl(UFFDIO_REGISTER)" };
        registered.map_err(|errno| SystemError::new(call(errno), errno))
    }

    /// After a failure: all is there still, or again.
    #[cold]
    fn resume(&self, part: Part<'_>) {
        match self.0.unregister(&(part.at()..part.at() + part.len())) {
            Ok(()) => self.wake(part),
            Err(errno) => abort(part, errno),
        }
    }

    /// Wakes those who wait for the part. They look again what is there.
    pub(super) fn wake(&self, part: Part<'_>) {
        match self.0.wake(&(part.at()..part.at() + part.len())) {
            Ok(()) => {}
            // They would sleep for ever. Or the program has closed the descriptor meanwhile, which did not know of it:
            // then nobody was kept off, and what they wrote is lost.
            Err(errno) => abort(part, errno),
        }
    }
}

/// Without their pages the program would not see its memory, and who waits for it would sleep for ever.
#[cold]
pub(super) fn abort(part: Part<'_>, errno: Errno) -> ! {
    say_and_abort(format_args!(
        "the kernel refused to let go of who waits for memory at {:#x}: error {}{}; aborting",
        part.at(),
        errno.raw_os_error(),
        if errno == Errno::BADF { ", since the program has closed what they wait for" } else { "" },
    ));
}

#[cfg(test)]
mod tests {
    use crate::sys::linux::memory::{Dump, Exports, Kind, Linux, pointer};
    use crate::sys::{Access, Shows, Sys};
    use crate::units::BASE_PAGE;

    /// What is parked is two mappings, and a call that moves both fails at the second, when the first has moved.
    #[test]
    fn private_pages_come_back_though_a_call_fails_half_way() {
        const PAGES: usize = 8;
        const LEN: usize = PAGES * BASE_PAGE;
        let memory = Linux::new(Kind::ShmemBase, LEN, Dump::LeftOut, Exports::No).unwrap();
        let parked = match memory.claim_parking(LEN, BASE_PAGE) {
            Ok(parked) => parked,
            Err(error) => return println!("skipped: nobody can be made to wait: {error}"),
        };
        memory.obtain(0, LEN, 0).unwrap();
        let extent = memory.claim(LEN, BASE_PAGE).unwrap();
        let (part, away) = (extent.part(0, LEN), parked.part(0, LEN));
        memory.show(part, Shows::CowMapping { start: 0, access: Access::ReadWrite }).unwrap();
        let page = |nth: usize| pointer(part.at() + nth * BASE_PAGE).cast::<u8>();
        // SAFETY: the range is ours, and shows a private mapping.
        (0..PAGES).for_each(|nth| unsafe { page(nth).write_volatile(1 + nth as u8) });
        memory.hold(part, away).unwrap();
        // The kernel moves what is registered only by itself, and finds that when it comes to it.
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
