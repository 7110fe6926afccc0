//! Page tables that lie elsewhere for a while: `mremap(MREMAP_DONTUNMAP)` (Linux 5.13 for mappings of files).
//!
//! ```text
//!   place   | mapping, pages |  ──▶  | the same, no pages    |  ──▶  | mapping, pages    |   or   | something else |
//!   parked  | nothing        |       | the same, with pages  |       | the same, no pages|        | nothing        |
//!                             take                       bring_back                       or clear
//! ```
//! One call moves all pages of one mapping at one moment, whatever they are, swapped out ones too, without a look at
//! them: 0.2 ms a GiB, and 0.01 ms where a GiB begins at a multiple of that on both sides. The mapping stays where it
//! was: it shows what its file has, or zeros.
//!
//! # What goes wrong
//! * A call may be refused: a mapping too many, above all. Linux before 6.17 has unmapped the target by then, if it has
//!   come so far. Such a hole is filled here, so that nothing else of the process comes to lie in it.
//! * Any Linux has unmapped the target when it finds that the process has more addresses than it may have, because
//!   somebody lowered `RLIMIT_AS`. Then nothing fills the hole. So that is asked for first ([`may_map`]).
//! * A call for several mappings is refused by Linux before 6.17. Later ones move one after the other: others see that,
//!   and where the call fails on the way, nothing tells what has moved. Whoever repeats it then puts what is left of
//!   the first, which is nothing, over what has come. So there is a call for each mapping, where the kernel tells them
//!   apart ([`Maps`], Linux 6.11).
//! * Pages that cannot come back are lost to whoever needs them at the place. It is tried once more, with the mapping
//!   moved as well, which no limit of addresses or data refuses (`RLIMIT_AS`, `RLIMIT_DATA`): a limit may have been
//!   lowered since they were taken. Such a move leaves a hole, which only `RLIMIT_AS` keeps from being filled. Then the
//!   caller has to end the process.
//!
//! [`mremap(2)`](https://man7.org/linux/man-pages/man2/mremap.2.html)

use core::ffi::c_void;
use core::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, MsyncFlags, ProtFlags, mmap_anonymous, mremap_fixed, msync, munmap};
use syscalls::{Sysno, syscall4};

use crate::PAGE;
use crate::procmap_query::Maps;

/// Moves the page tables of one mapping, or of a part of it, by one call. What is at `to` goes; what is there then has
/// all that the mapping has (its file, its rights, what was said of it to `madvise`). So of a mapping without pages
/// this makes another, in one step.
///
/// # Errors
/// The kernel refuses: `EFAULT` for several mappings. The earlier contents of `to` may be gone. `ENOMEM` if the process
/// has all the addresses that it may have; nothing has changed then.
///
/// # Safety
/// Both ranges are the caller's, `len` bytes long, and do not overlap. Nobody needs what is at `to`, or at `from` any
/// more.
pub unsafe fn move_page_tables(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    may_map()?;
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: by contract.
    match unsafe { mremap_fixed(pointer(from), len, len, flags, pointer(to)) } {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// As [`move_page_tables`], and the mapping goes with its pages; nothing can be read or written where it was. No limit
/// of addresses or data refuses that.
///
/// # Errors
/// As there; or there is a hole at `from` now, since `RLIMIT_AS` is lower than what the process has.
///
/// # Safety
/// As there.
#[cold]
unsafe fn move_mapping(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    match unsafe { mremap_fixed(pointer(from), len, len, MremapFlags::MAYMOVE, pointer(to)) } {
        Ok(_) => fill(from, len),
        Err(errno) => Err(errno),
    }
}

/// The two things that a call can move.
#[derive(Clone, Copy)]
enum Moves {
    Pages,
    PagesAndMapping,
}

/// Whether the process may have more addresses: `RLIMIT_AS`, which somebody may lower below what it has. A call that
/// replaces a mapping is refused then, too, and may have unmapped that before it is. It takes some 0.1 us, or 1 us
/// where there is a limit.
///
/// # Errors
/// `ENOMEM`.
pub fn may_map() -> Result<(), Errno> {
    const RLIMIT_AS: usize = 9;
    const UNLIMITED: u64 = u64::MAX;
    let (mut limit, this_process) = ([UNLIMITED; 2], 0);
    // SAFETY: the kernel writes two words, unless it refuses to tell.
    let _ = unsafe { syscall4(Sysno::prlimit64, this_process, RLIMIT_AS, 0, (&raw mut limit).addr()) };
    if limit[0] == UNLIMITED { Ok(()) } else { map_a_page() }
}

#[cold]
#[inline(never)] // Not on the stack where there is no limit.
fn map_a_page() -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, wherever the kernel has room; nobody else knows of it.
    match unsafe { mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::empty(), flags) } {
        // SAFETY: made just now.
        Ok(at) => unsafe { munmap(at, PAGE) },
        Err(Errno::NOMEM) => Err(Errno::NOMEM),
        // Such as for what is locked of it (`mlockall`).
        Err(_) => Ok(()),
    }
}

/// Drops what is at some addresses, which stay taken: nothing can be read or written there.
///
/// # Errors
/// The kernel refuses. All is there still.
///
/// # Safety
/// The addresses are the caller's, who needs nothing of it.
pub unsafe fn clear(at: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: by contract.
    match unsafe { mmap_anonymous(pointer(at), len, ProtFlags::empty(), flags) } {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Whether something is mapped at all of a range.
pub fn is_mapped(at: usize, len: usize) -> bool {
    // SAFETY: with this flag the call only looks.
    unsafe { msync(pointer(at), len, MsyncFlags::ASYNC) }.is_ok()
}

/// Takes some addresses, unless something is mapped at all of them, such as the hole that a refused call has left.
/// Nothing can be read or written there then.
///
/// # Errors
/// `EEXIST` where something is mapped at some of them; or the kernel refuses.
#[cold]
#[inline(never)] // Not on the stack where nothing fails.
pub fn fill(at: usize, len: usize) -> Result<(), Errno> {
    if is_mapped(at, len) {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag it replaces nothing.
    match unsafe { mmap_anonymous(pointer(at), len, ProtFlags::empty(), flags) } {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Why pages are not where they were to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The kernel has refused. They are where they were.
    Refused(Errno),
    /// The kernel has refused twice to move them back, or left a hole where they were parked.
    Lost(Errno),
}

/// A place, and where its pages are parked: as many bytes elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Parking<'a> {
    place: usize,
    parked: usize,
    len: usize,
    /// What tells where mappings end, if the kernel does.
    maps: Option<&'a Maps>,
}

impl<'a> Parking<'a> {
    /// What `maps` is there for is calls that take several mappings; who knows that there is one does without.
    ///
    /// # Safety
    /// As long as this is used, both ranges are the caller's, whole pages, and do not overlap. Whoever uses the place
    /// copes with what its mapping shows without pages. What is at the other range may go before pages are taken there.
    pub const unsafe fn new(place: usize, parked: usize, len: usize, maps: Option<&'a Maps>) -> Parking<'a> {
        Parking { place, parked, len, maps }
    }

    /// Parks the pages by one call: others see it happen at one moment.
    ///
    /// # Errors
    /// The kernel refuses. If the place is one mapping, nothing has changed there.
    pub fn take_at_once(&self) -> Result<(), Errno> {
        // SAFETY: as `new` demands.
        match unsafe { move_page_tables(self.place, self.parked, self.len) } {
            Ok(()) => Ok(()),
            Err(errno) => {
                // If it cannot be filled, there is a hole.
                let _ = fill(self.parked, self.len);
                Err(errno)
            }
        }
    }

    /// Parks the pages, with a call for each mapping.
    ///
    /// # Errors
    /// The kernel refuses. What was taken by then is back, or lost.
    pub fn take(&self) -> Result<(), Failure> {
        match self.shift(Moves::Pages, self.place, self.parked, 0, self.len) {
            Ok(()) => Ok(()),
            Err((taken, errno)) => match self.bring_some_back(taken) {
                Ok(()) => Err(Failure::Refused(errno)),
                Err(lost) => Err(Failure::Lost(lost)),
            },
        }
    }

    /// Shows the pages at the place again, with a call for each mapping, each of which is made once more if it fails.
    /// What the place shows by then goes.
    ///
    /// # Errors
    /// Pages are lost.
    pub fn bring_back(&self) -> Result<(), Errno> {
        self.bring_some_back(self.len)
    }

    /// As [`Parking::bring_back`], by one call: others see it happen at one moment.
    ///
    /// # Errors
    /// The kernel refuses, and the place shows what it showed; or pages are lost.
    pub fn bring_back_at_once(&self) -> Result<(), Failure> {
        // SAFETY: as `new` demands.
        match unsafe { move_page_tables(self.parked, self.place, self.len) } {
            Ok(()) => Ok(()),
            Err(errno) if is_mapped(self.place, self.len) => Err(Failure::Refused(errno)),
            // What the place showed is gone. So it takes as long as it takes.
            Err(_) => match self.bring_back() {
                Ok(()) => Ok(()),
                Err(errno) => Err(Failure::Lost(errno)),
            },
        }
    }

    /// The first `len` bytes.
    #[inline(never)] // Not on the stack of a take that succeeds.
    fn bring_some_back(&self, len: usize) -> Result<(), Errno> {
        let brought = match self.shift(Moves::Pages, self.parked, self.place, 0, len) {
            Ok(()) => return Ok(()),
            Err((brought, _)) => brought,
        };
        match self.shift(Moves::PagesAndMapping, self.parked, self.place, brought, len) {
            Ok(()) => Ok(()),
            Err((_, errno)) => Err(errno),
        }
    }

    /// Moves bytes `at..end` of what is at `from`. Kernels that do not tell where a mapping ends are asked for halves:
    /// neighbours that could be one are not always. A failure says where.
    fn shift(&self, what: Moves, from: usize, to: usize, mut at: usize, end: usize) -> Result<(), (usize, Errno)> {
        let mut most = end - at;
        while at < end {
            let piece = match self.maps {
                Some(maps) => maps.first(from + at, most),
                None => most,
            };
            // SAFETY: as `new` demands.
            let moved = unsafe {
                match what {
                    Moves::Pages => move_page_tables(from + at, to + at, piece),
                    Moves::PagesAndMapping => move_mapping(from + at, to + at, piece),
                }
            };
            match moved {
                Ok(()) => {
                    at += piece;
                    most = end - at;
                }
                Err(errno) => {
                    if fill(to + at, piece).is_err() || errno != Errno::FAULT || piece <= PAGE {
                        return Err((at, errno));
                    }
                    most = (piece / 2).next_multiple_of(PAGE);
                }
            }
        }
        Ok(())
    }
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests {
    use std::println;
    use std::vec::Vec;

    use rustix::mm::{mlock, munlock, munmap};

    use super::*;

    const PAGES: usize = 8;
    const LEN: usize = PAGES * PAGE;

    /// Two ranges of a mapping's own, the first with pages. None if the kernel moves no page tables.
    struct Ground {
        all: *mut c_void,
    }

    impl Ground {
        fn new() -> Option<Ground> {
            let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping where the kernel likes.
            let all = unsafe { mmap_anonymous(ptr::null_mut(), 3 * LEN, rights, flags) }.unwrap();
            let ground = Ground { all };
            // SAFETY: our own.
            unsafe { clear(ground.parked() - PAGE, LEN + 2 * PAGE) }.unwrap();
            for nth in 0..PAGES {
                // SAFETY: within the mapping.
                unsafe { pointer(ground.place() + nth * PAGE).cast::<u8>().write_volatile(1 + nth as u8) };
            }
            match ground.parking(None).take_at_once() {
                Ok(()) => ground.parking(None).bring_back_at_once().unwrap(),
                Err(errno) => {
                    println!("skipped: this kernel moves no page tables (Linux 5.7): {errno}");
                    return None;
                }
            }
            Some(ground)
        }

        fn place(&self) -> usize {
            self.all.expose_provenance()
        }

        fn parked(&self) -> usize {
            self.place() + LEN + LEN / 2
        }

        fn parking<'a>(&self, maps: Option<&'a Maps>) -> Parking<'a> {
            // SAFETY: both ranges lie in the mapping, which nobody else knows.
            unsafe { Parking::new(self.place(), self.parked(), LEN, maps) }
        }

        fn seen(&self, at: usize) -> Vec<u8> {
            // SAFETY: within the mapping; the tests look where it can be read.
            (0..PAGES).map(|nth| unsafe { pointer(at + nth * PAGE).cast::<u8>().read_volatile() }).collect()
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            // SAFETY: ours, and nobody uses it any more.
            unsafe { munmap(self.all, 3 * LEN) }.unwrap();
        }
    }

    fn written() -> Vec<u8> {
        (1..=PAGES as u8).collect()
    }

    #[test]
    fn pages_are_parked_and_come_back() {
        let Some(ground) = Ground::new() else { return };
        let parking = ground.parking(None);
        parking.take_at_once().unwrap();
        assert_eq!((ground.seen(ground.place()), ground.seen(ground.parked())), ([0; PAGES].to_vec(), written()));
        parking.bring_back().unwrap();
        assert_eq!((ground.seen(ground.place()), ground.seen(ground.parked())), (written(), [0; PAGES].to_vec()));
        // SAFETY: ours, and nobody needs what is there.
        unsafe { clear(ground.parked(), LEN) }.unwrap();
        assert!(is_mapped(ground.parked(), LEN));
    }

    /// A part is locked, so that there are several mappings.
    #[test]
    fn several_mappings_move_one_by_one() {
        let Some(ground) = Ground::new() else { return };
        // SAFETY: our own; contents stay.
        if unsafe { mlock(pointer(ground.place() + 2 * PAGE), 3 * PAGE) }.is_err() {
            return println!("skipped: this process may lock no memory");
        }
        let maps = Maps::open().ok().filter(|maps| maps.end_of(ground.place()).is_ok());
        if maps.is_none() {
            println!("skipped: this kernel does not tell of single mappings (Linux 6.11)");
        }
        let parking = ground.parking(maps.as_ref());
        parking.take().unwrap();
        assert_eq!((ground.seen(ground.place()), ground.seen(ground.parked())), ([0; PAGES].to_vec(), written()));
        parking.bring_back().unwrap();
        assert_eq!(ground.seen(ground.place()), written());
        // SAFETY: as above.
        unsafe { munlock(ground.all, LEN) }.unwrap();
    }

    /// Private mappings count as data, and a second one is refused. Other tests do not have the limit: it is this
    /// process's own.
    #[test]
    fn pages_come_back_where_the_process_may_have_no_more_data() {
        const CHILD: &str = "HUGEFORK_LINUX_TEST_LIMIT";
        if std::env::var_os(CHILD).is_none() {
            let test = "parking::tests::pages_come_back_where_the_process_may_have_no_more_data";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let ended = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").status().unwrap();
            return assert!(ended.success(), "{ended}");
        }
        let Some(ground) = Ground::new() else { return };
        let parking = ground.parking(None);
        parking.take_at_once().unwrap();
        limit_data([PAGE as u64, u64::MAX]);
        let back = parking.bring_back();
        limit_data([u64::MAX; 2]);
        assert_eq!((back, ground.seen(ground.place())), (Ok(()), written()));
        assert!(is_mapped(ground.parked(), LEN));
    }

    fn limit_data(limit: [u64; 2]) {
        const RLIMIT_DATA: usize = 2;
        // SAFETY: the kernel reads two words.
        unsafe { syscall4(Sysno::prlimit64, 0, RLIMIT_DATA, (&raw const limit).addr(), 0) }.unwrap();
    }

    /// The second half is not there, and the first has moved when the kernel finds that.
    #[test]
    fn what_was_taken_before_a_call_fails_is_back() {
        let Some(ground) = Ground::new() else { return };
        // SAFETY: our own, which nobody uses.
        unsafe { munmap(pointer(ground.place() + LEN / 2), LEN / 2) }.unwrap();
        let maps = Maps::open().ok().filter(|maps| maps.end_of(ground.place()).is_ok());
        assert!(matches!(ground.parking(maps.as_ref()).take(), Err(Failure::Refused(_))));
        for (nth, expected) in written()[..PAGES / 2].iter().enumerate() {
            // SAFETY: within what is there still.
            assert_eq!(unsafe { pointer(ground.place() + nth * PAGE).cast::<u8>().read_volatile() }, *expected);
        }
        assert!(is_mapped(ground.parked(), LEN) && !is_mapped(ground.place(), LEN));
        assert_eq!([fill(ground.place(), LEN), fill(ground.place() + LEN / 2, LEN / 2)], [Err(Errno::EXIST), Ok(())]);
        assert!(is_mapped(ground.place(), LEN));
    }
}
