//! Moves page tables to another address for a while: `mremap(MREMAP_DONTUNMAP)` (Linux 5.13 for
//! file mappings).
//!
//! ```text
//!   place   | mapping, pages |  ──▶  | the same, no pages    |  ──▶  | mapping, pages    |   or   | something else |
//!   parked  | nothing        |       | the same, with pages  |       | the same, no pages|        | nothing        |
//!                             take                       bring_back                       or clear
//! ```
//! One call moves all pages of one mapping at one moment, swapped-out pages too, without visiting
//! them. It takes 0.2 ms per GiB, or 0.01 ms where both ranges are aligned to 1 GiB. The mapping
//! itself remains at the old address, where reads return the file's contents, or zeros.
//!
//! # Failures
//! * The kernel may refuse a call, mostly because the process has too many mappings. Linux before
//!   6.17 may have unmapped the target by then. This module fills such a hole, so that no other
//!   mapping of the process is placed in it.
//! * Every Linux unmaps the target before it finds that the process exceeds `RLIMIT_AS`, which the
//!   program may have lowered. Then the hole cannot be filled, so callers check the limit first
//!   ([`may_map`]).
//! * Linux before 6.17 refuses a call that covers several mappings. Later versions move them one
//!   after the other. Other threads see the intermediate states, and after a failure nothing
//!   reports the mappings that have moved. A repeated call would then move the first mapping, now
//!   empty, over its own pages. So this module makes one call for each mapping if the kernel
//!   reports where mappings end ([`Maps`], Linux 6.11).
//! * If pages cannot be moved back, the program loses them. So the module tries a second time and
//!   moves the mapping along with its pages: no limit of addresses or data refuses that
//!   (`RLIMIT_AS`, `RLIMIT_DATA`), even if it was lowered meanwhile. Such a move leaves a hole
//!   where the pages were parked, and only `RLIMIT_AS` can keep the module from filling it. Then
//!   the caller has to end the process.
//!
//! [`mremap(2)`](https://man7.org/linux/man-pages/man2/mremap.2.html)

use core::ffi::c_void;
use core::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, MsyncFlags, ProtFlags, mmap_anonymous, mremap_fixed, msync, munmap};
use syscalls::{Sysno, syscall4};

use crate::PAGE;
use crate::procmap_query::Maps;

/// Moves the page tables of one mapping, or of a part of it, by one call. The mapping at `to` is replaced by one with
/// all attributes of the mapping at `from`: its file, its protection, its `madvise` flags. For a mapping without pages,
/// the call duplicates the mapping in one step.
///
/// # Errors
/// The kernel's refusal; `EFAULT` for several mappings. The earlier contents of `to` may be lost. `ENOMEM` if the
/// process has reached its limit of addresses; then nothing has changed.
///
/// # Safety
/// The caller owns both ranges. They are `len` bytes long and do not overlap. No code needs the contents of `to`, or
/// the pages at `from`, any more.
pub unsafe fn move_page_tables(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    may_map()?;
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: the caller vouches for both ranges.
    unsafe { mremap_fixed(pointer(from), len, len, flags, pointer(to)) }?;
    Ok(())
}

/// Like [`move_page_tables`], but the mapping moves with its pages: accesses to the old address fault. No limit of
/// addresses or data refuses this call.
///
/// # Errors
/// As in [`move_page_tables`]. There may also be a hole at `from` now, if `RLIMIT_AS` is below the process's size.
///
/// # Safety
/// As in [`move_page_tables`].
#[cold]
unsafe fn move_mapping(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { mremap_fixed(pointer(from), len, len, MremapFlags::MAYMOVE, pointer(to)) }?;
    fill(from, len)
}

/// The two things that a call can move.
#[derive(Clone, Copy)]
enum Moves {
    Pages,
    PagesAndMapping,
}

/// Checks that the process may map more addresses. `RLIMIT_AS` may have been lowered below the process's size; the
/// kernel then also refuses calls that replace a mapping, and may have unmapped it before. Takes some 0.1 us, or 1 us
/// with a limit.
///
/// # Errors
/// `ENOMEM` if the limit is reached.
pub fn may_map() -> Result<(), Errno> {
    const RLIMIT_AS: usize = 9;
    const UNLIMITED: u64 = u64::MAX;
    let (mut limit, this_process) = ([UNLIMITED; 2], 0);
    // SAFETY: the kernel writes two words into `limit`, or refuses.
    let _ = unsafe { syscall4(Sysno::prlimit64, this_process, RLIMIT_AS, 0, (&raw mut limit).addr()) };
    if limit[0] == UNLIMITED { Ok(()) } else { map_a_page() }
}

#[cold]
#[inline(never)] // Uses no stack where there is no limit.
fn map_a_page() -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice; no other code knows it.
    match unsafe { mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::empty(), flags) } {
        // SAFETY: made just now.
        Ok(at) => unsafe { munmap(at, PAGE) },
        Err(Errno::NOMEM) => Err(Errno::NOMEM),
        // Another refusal, such as the limit on locked memory (`mlockall`), says nothing about addresses.
        Err(_) => Ok(()),
    }
}

/// Replaces the mappings of a range by one without access, so the addresses remain reserved.
///
/// # Errors
/// The kernel's refusal. The old contents are intact.
///
/// # Safety
/// The caller owns the addresses and no longer needs their contents.
pub unsafe fn clear(at: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller vouches for the range.
    unsafe { mmap_anonymous(pointer(at), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Whether every page of a range is mapped.
pub fn is_mapped(at: usize, len: usize) -> bool {
    // SAFETY: with this flag the call changes nothing.
    unsafe { msync(pointer(at), len, MsyncFlags::ASYNC) }.is_ok()
}

/// Reserves the addresses of a range without access, for example the hole that a refused call has left. Does nothing if
/// all of the range is mapped already.
///
/// # Errors
/// `EEXIST` if a part of the range is mapped; otherwise the kernel's refusal.
#[cold]
#[inline(never)] // Uses no stack where nothing fails.
pub fn fill(at: usize, len: usize) -> Result<(), Errno> {
    if is_mapped(at, len) {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag it replaces nothing.
    unsafe { mmap_anonymous(pointer(at), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// The reason why pages are not at their intended address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The kernel has refused. The pages are at their old address.
    Refused(Errno),
    /// The kernel has refused twice to move the pages back, or the parked range now has a hole.
    Lost(Errno),
}

/// A place, and the range of the same size where its pages are parked.
#[derive(Clone, Copy, Debug)]
pub struct Parking<'a> {
    place: usize,
    parked: usize,
    len: usize,
    /// Reports where mappings end, if the kernel supports it.
    maps: Option<&'a Maps>,
}

impl<'a> Parking<'a> {
    /// `maps` is needed only for calls over several mappings; a caller that has a single mapping passes `None`.
    ///
    /// # Safety
    /// As long as the value is used, the caller owns both ranges; they are whole pages and do not overlap. Threads that
    /// use the place must cope with the contents of its mapping without pages. The contents of the other range are lost
    /// when pages are parked there.
    pub const unsafe fn new(place: usize, parked: usize, len: usize, maps: Option<&'a Maps>) -> Parking<'a> {
        Parking { place, parked, len, maps }
    }

    /// Parks the pages by one call, so other threads see all of them move at one moment.
    ///
    /// # Errors
    /// The kernel's refusal. If the place is a single mapping, nothing has changed there.
    pub fn take_at_once(&self) -> Result<(), Errno> {
        // SAFETY: the caller of `new` vouches for both ranges.
        let moved = unsafe { move_page_tables(self.place, self.parked, self.len) };
        if moved.is_err() {
            // If this fails too, a hole remains.
            let _ = fill(self.parked, self.len);
        }
        moved
    }

    /// Parks the pages, with one call for each mapping.
    ///
    /// # Errors
    /// The kernel's refusal. The pages moved so far are back at the place, or lost.
    pub fn take(&self) -> Result<(), Failure> {
        let Err((taken, errno)) = self.shift(Moves::Pages, self.place, self.parked, 0, self.len) else { return Ok(()) };
        self.bring_some_back(taken).map_err(Failure::Lost)?;
        Err(Failure::Refused(errno))
    }

    /// Moves the pages back to the place, with one call for each mapping and a second try after a failure. The current
    /// contents of the place are lost.
    ///
    /// # Errors
    /// The pages are lost.
    pub fn bring_back(&self) -> Result<(), Errno> {
        self.bring_some_back(self.len)
    }

    /// Like [`Parking::bring_back`] but by one call, so other threads see all pages return at one moment.
    ///
    /// # Errors
    /// The kernel's refusal: the place is unchanged, or the pages are lost.
    pub fn bring_back_at_once(&self) -> Result<(), Failure> {
        // SAFETY: the caller of `new` vouches for both ranges.
        match unsafe { move_page_tables(self.parked, self.place, self.len) } {
            Ok(()) => Ok(()),
            Err(errno) if is_mapped(self.place, self.len) => Err(Failure::Refused(errno)),
            // The kernel has unmapped the place already, so only the slow way is left.
            Err(_) => self.bring_back().map_err(Failure::Lost),
        }
    }

    /// Moves the first `len` bytes back.
    #[inline(never)] // Uses no stack if the pages could be parked.
    fn bring_some_back(&self, len: usize) -> Result<(), Errno> {
        let Err((brought, _)) = self.shift(Moves::Pages, self.parked, self.place, 0, len) else { return Ok(()) };
        self.shift(Moves::PagesAndMapping, self.parked, self.place, brought, len).map_err(|(_, errno)| errno)
    }

    /// Moves the bytes `at..end` of the range at `from`. If the kernel does not report where mappings end, the function
    /// halves the range until a call succeeds: neighbours that could be one mapping may still be two. A failure returns
    /// the offset it reached.
    fn shift(&self, what: Moves, from: usize, to: usize, mut at: usize, end: usize) -> Result<(), (usize, Errno)> {
        let mut most = end - at;
        while at < end {
            let piece = match self.maps {
                Some(maps) => maps.first(from + at, most),
                None => most,
            };
            // SAFETY: the caller of `new` vouches for both ranges.
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

    /// Two ranges within the test's own mapping; the first has pages. `new` returns `None` if the kernel moves no page
    /// tables.
    struct Ground {
        all: *mut c_void,
    }

    impl Ground {
        fn new() -> Option<Ground> {
            let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address of the kernel's choice.
            let all = unsafe { mmap_anonymous(ptr::null_mut(), 3 * LEN, rights, flags) }.unwrap();
            let ground = Ground { all };
            // SAFETY: within the mapping above.
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
            // SAFETY: both ranges lie in the mapping, which only this test uses.
            unsafe { Parking::new(self.place(), self.parked(), LEN, maps) }
        }

        fn seen(&self, at: usize) -> Vec<u8> {
            // SAFETY: within the mapping; the tests read only readable pages.
            (0..PAGES).map(|nth| unsafe { pointer(at + nth * PAGE).cast::<u8>().read_volatile() }).collect()
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            // SAFETY: the test's own mapping, no longer used.
            unsafe { munmap(self.all, 3 * LEN) }.unwrap();
        }
    }

    fn written() -> Vec<u8> {
        (1..=PAGES as u8).collect()
    }

    #[test]
    fn parked_pages_return_to_their_place() {
        let Some(ground) = Ground::new() else { return };
        let parking = ground.parking(None);
        parking.take_at_once().unwrap();
        assert_eq!((ground.seen(ground.place()), ground.seen(ground.parked())), ([0; PAGES].to_vec(), written()));
        parking.bring_back().unwrap();
        assert_eq!((ground.seen(ground.place()), ground.seen(ground.parked())), (written(), [0; PAGES].to_vec()));
        // SAFETY: the test's own range, whose contents are no longer needed.
        unsafe { clear(ground.parked(), LEN) }.unwrap();
        assert!(is_mapped(ground.parked(), LEN));
    }

    /// Locks a part of the range, so that it consists of several mappings.
    #[test]
    fn several_mappings_move_one_by_one() {
        let Some(ground) = Ground::new() else { return };
        // SAFETY: the test's own range; its contents do not change.
        if unsafe { mlock(pointer(ground.place() + 2 * PAGE), 3 * PAGE) }.is_err() {
            return println!("skipped: this process may lock no memory");
        }
        let maps = Maps::open().ok().filter(|maps| maps.end_of(ground.place()).is_ok());
        if maps.is_none() {
            println!("skipped: this kernel does not report single mappings (Linux 6.11)");
        }
        let parking = ground.parking(maps.as_ref());
        parking.take().unwrap();
        assert_eq!((ground.seen(ground.place()), ground.seen(ground.parked())), ([0; PAGES].to_vec(), written()));
        parking.bring_back().unwrap();
        assert_eq!(ground.seen(ground.place()), written());
        // SAFETY: as above.
        unsafe { munlock(ground.all, LEN) }.unwrap();
    }

    /// Private mappings count as data, so the limit refuses a second one. The limit applies to a child process, so
    /// other tests do not have it.
    #[test]
    fn parked_pages_return_despite_a_data_limit() {
        const CHILD: &str = "HUGEFORK_LINUX_TEST_LIMIT";
        if std::env::var_os(CHILD).is_none() {
            let test = "parking::tests::parked_pages_return_despite_a_data_limit";
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

    /// The second half is missing. The kernel detects that only after it has moved the first half.
    #[test]
    fn a_failed_parking_returns_the_pages_it_moved() {
        let Some(ground) = Ground::new() else { return };
        // SAFETY: the test's own range, which is not used.
        unsafe { munmap(pointer(ground.place() + LEN / 2), LEN / 2) }.unwrap();
        let maps = Maps::open().ok().filter(|maps| maps.end_of(ground.place()).is_ok());
        assert!(matches!(ground.parking(maps.as_ref()).take(), Err(Failure::Refused(_))));
        for (nth, expected) in written()[..PAGES / 2].iter().enumerate() {
            // SAFETY: within the half that is still mapped.
            assert_eq!(unsafe { pointer(ground.place() + nth * PAGE).cast::<u8>().read_volatile() }, *expected);
        }
        assert!(is_mapped(ground.parked(), LEN) && !is_mapped(ground.place(), LEN));
        assert_eq!([fill(ground.place(), LEN), fill(ground.place() + LEN / 2, LEN / 2)], [Err(Errno::EXIST), Ok(())]);
        assert!(is_mapped(ground.place(), LEN));
    }
}
