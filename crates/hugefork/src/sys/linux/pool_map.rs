//! A mapping of a whole pool that is accessible only where the pool is used.
//!
//! ```text
//! memfd     | used |             | used | used |      |
//! mapping   | open | closed      | open        | closed        in pieces of 2 MiB or more
//! ```
//! `mlockall(2)` makes the kernel touch every accessible page, and each touched page of a file gets memory, even if it
//! is only read. The kernel does not touch pages without access (`PROT_NONE`). So a piece is closed until the pool
//! allocates memory for it or shows it, and is closed again when its memory goes back to the system.
//!
//! Most pools allocate memory for one piece after the other. So the call that opens a piece behind open ones also opens
//! the next pieces: as many as are open before it, up to 16 MiB. That is one call instead of several.
//!
//! Open neighbours are one mapping. When there would be too many mappings, the pieces between two open runs are opened
//! as well.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

use super::arena::Taken;
use super::settings;
use crate::sys::SystemError;
use crate::units::HUGE_PAGE;

/// The most pieces of a pool: one for each bit.
const MOST_PIECES: usize = 64 * PIECE_WORDS;
const PIECE_WORDS: usize = 256;

/// The most runs of open pieces: one in `MAPPINGS_A_RUN` of the mappings that the process may have, and at most
/// `MOST_RUNS`. A pool has three such mappings, and all their runs take fewer mappings than the budget's margin.
const MAPPINGS_A_RUN: usize = 512;
const MOST_RUNS: usize = 128;

const OPENED_AHEAD_BYTES: usize = 16 << 20;

/// A mapping of a whole pool, which this value owns.
pub(super) struct PoolMap {
    /// The address of the first byte.
    pub(super) at: *mut c_void,
    pub(super) len: usize,
    _range: Taken<'static>,
    rights: MprotectFlags,
    /// The size of a piece.
    piece: usize,
    most_runs: usize,
    /// A bit for each piece that is open for good. A piece without it may be open as well.
    open: [AtomicU64; PIECE_WORDS],
    /// Whether a thread is closing pieces, or opening pieces ahead that no caller has asked for. No thread waits for
    /// that.
    changing: AtomicBool,
}

impl PoolMap {
    /// Takes over the mapping of a range, all of which is closed. Open pieces will have these rights.
    pub(super) fn new(range: Taken<'static>, rights: MprotectFlags) -> PoolMap {
        let (at, len) = (ptr::with_exposed_provenance_mut(range.at), range.len);
        let piece = HUGE_PAGE.max(len.div_ceil(MOST_PIECES).next_power_of_two());
        let most_runs = (settings::map_count_limit() / MAPPINGS_A_RUN).clamp(1, MOST_RUNS);
        PoolMap {
            at,
            len,
            _range: range,
            rights,
            piece,
            most_runs,
            open: [const { AtomicU64::new(0) }; PIECE_WORDS],
            changing: AtomicBool::new(false),
        }
    }

    /// Makes some bytes accessible, if they are not.
    pub(super) fn open(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        let (first, end) = (offset / self.piece, (offset + len).div_ceil(self.piece));
        if (first..end).all(|piece| self.is_open(piece)) { Ok(()) } else { self.open_pieces(first, end) }
    }

    fn open_pieces(&self, first: usize, end: usize) -> Result<(), SystemError> {
        let start = if self.runs() < self.most_runs { first } else { self.end_of_run_before(first) };
        // Another thread may at any time close pieces that are not in use. So pieces ahead are opened only while
        // `changing` keeps that off.
        let may_be_ahead = !self.changing.swap(true, Ordering::Acquire);
        let end = if may_be_ahead { end + self.ahead_of(first, end) } else { end };
        let opened = self.open_until(start, first, end);
        if may_be_ahead {
            self.changing.store(false, Ordering::Release);
        }
        opened
    }

    /// How many pieces behind `end` to open together with those from `first` on.
    fn ahead_of(&self, first: usize, end: usize) -> usize {
        let most = (OPENED_AHEAD_BYTES / self.piece).min(first).min(self.len.div_ceil(self.piece) - end);
        (0..most).take_while(|ahead| self.is_open(first - 1 - ahead)).count()
    }

    /// Opens the pieces from `start` to `end`, and notes those from `first` on as open for good.
    fn open_until(&self, start: usize, first: usize, end: usize) -> Result<(), SystemError> {
        let mut opened = self.protect(start, end, self.rights);
        if opened == Err(Errno::NOMEM) {
            // If all of the map is open, it is a single mapping and needs no more of them.
            opened = self.protect(0, self.len.div_ceil(self.piece), self.rights);
        }
        if let Err(errno) = opened {
            return Err(SystemError::new("mprotect of the pool", errno));
        }
        // Other threads may close the other opened pieces meanwhile, so those are not noted.
        for piece in first..end {
            self.open[piece / 64].fetch_or(1 << (piece % 64), Ordering::Release);
        }
        Ok(())
    }

    /// Makes whole pieces inaccessible, unless the kernel refuses.
    ///
    /// # Safety
    /// No code uses these bytes until they are opened again.
    pub(super) unsafe fn close(&self, offset: usize, len: usize) {
        let (first, end) = (offset.div_ceil(self.piece), (offset + len) / self.piece);
        let is_open = (first..end).any(|piece| self.is_open(piece));
        if !is_open || self.runs() >= self.most_runs || self.changing.swap(true, Ordering::Acquire) {
            return;
        }
        // A refused call may have done a part. All of these pieces count as closed, and are opened again before their
        // use.
        let _ = self.protect(first, end, MprotectFlags::empty());
        for piece in first..end {
            self.open[piece / 64].fetch_and(!(1 << (piece % 64)), Ordering::Release);
        }
        self.changing.store(false, Ordering::Release);
    }

    fn protect(&self, first: usize, end: usize, rights: MprotectFlags) -> Result<(), Errno> {
        let (start, end) = (first * self.piece, (end * self.piece).min(self.len));
        // SAFETY: inside of the mapping, which this value owns. A caller that takes rights away says that no code needs
        // them.
        unsafe { mprotect(self.at.byte_add(start), end - start, rights) }
    }

    /// The parts that are open for good. No other part has memory.
    pub(super) fn open_parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let pieces = (0..self.len.div_ceil(self.piece)).filter(|&piece| self.is_open(piece));
        pieces.map(|piece| piece * self.piece..((piece + 1) * self.piece).min(self.len))
    }

    fn is_open(&self, piece: usize) -> bool {
        self.open[piece / 64].load(Ordering::Acquire) >> (piece % 64) & 1 == 1
    }

    /// The end of the last run of open pieces before this one.
    fn end_of_run_before(&self, piece: usize) -> usize {
        (0..piece).rev().find(|&piece| self.is_open(piece)).map_or(0, |last| last + 1)
    }

    /// The number of runs of open pieces.
    fn runs(&self) -> usize {
        let (mut runs, mut before) = (0, 0);
        for word in &self.open {
            let open = word.load(Ordering::Relaxed);
            // A run begins where a piece is open and the one before it is not.
            runs += (open & !(open << 1 | before)).count_ones() as usize;
            before = open >> 63;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::arena::Arena;

    fn with_map(pieces: usize, test: impl FnOnce(&PoolMap)) {
        let range = Arena::open().unwrap().take(pieces * HUGE_PAGE, HUGE_PAGE).unwrap();
        test(&PoolMap::new(range, MprotectFlags::READ));
    }

    /// Whether the kernel lets a byte of a piece be read.
    fn is_readable(map: &PoolMap, piece: usize) -> bool {
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the kernel checks the address itself.
        let written =
            unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), map.at.byte_add(piece * HUGE_PAGE), 1) };
        drop(reader);
        written == 1
    }

    #[test]
    fn only_opened_pieces_can_be_read() {
        with_map(300, |map| {
            map.open(3 * HUGE_PAGE + 4096, 4096).unwrap();
            map.open(63 * HUGE_PAGE, 2 * HUGE_PAGE).unwrap();
            let open =
                |pieces: &[usize]| assert!((0..300).all(|piece| is_readable(map, piece) == pieces.contains(&piece)));
            open(&[3, 63, 64]);
            assert_eq!(map.runs(), 2);
            // SAFETY: no code uses it.
            unsafe { map.close(63 * HUGE_PAGE - 4096, HUGE_PAGE + 4096) };
            open(&[3, 64]);
            // SAFETY: as above. It is no whole piece.
            unsafe { map.close(64 * HUGE_PAGE, HUGE_PAGE - 4096) };
            open(&[3, 64]);
            map.open(0, 300 * HUGE_PAGE).unwrap();
            assert_eq!(map.runs(), 1);
        });
    }

    #[test]
    fn as_many_pieces_are_opened_ahead_as_are_open_before() {
        with_map(100, |map| {
            let open =
                |until: usize| assert!((0..100).all(|piece| is_readable(map, piece) == (piece < until)), "{until}");
            for (piece, until) in [(0, 1), (1, 3), (3, 7), (7, 15), (15, 24), (24, 33), (95, 0)] {
                map.open(piece * HUGE_PAGE, HUGE_PAGE).unwrap();
                if until > 0 {
                    open(until);
                }
            }
            map.open(96 * HUGE_PAGE, 3 * HUGE_PAGE).unwrap();
            assert!(is_readable(map, 99), "and never beyond the end");
            // SAFETY: no code uses it.
            unsafe { map.close(30 * HUGE_PAGE, 3 * HUGE_PAGE) };
            let is_open = |piece: usize| (is_readable(map, piece), map.is_open(piece));
            assert!((30..33).all(|piece| is_open(piece) == (false, false)));
            assert!((0..30).all(|piece| is_open(piece) == (true, true)));
        });
    }

    #[test]
    fn the_number_of_runs_is_limited() {
        with_map(600, |map| {
            (0..300).for_each(|nth| map.open(2 * nth * HUGE_PAGE, 1).unwrap());
            assert!((0..300).all(|nth| is_readable(map, 2 * nth)));
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
            let own = map.at.addr()..map.at.addr() + map.len;
            let mappings = maps.lines().filter(|line| own.contains(&start(line))).count();
            assert!(mappings <= 2 * map.most_runs + 2, "{mappings} mappings");
        });
    }
}
