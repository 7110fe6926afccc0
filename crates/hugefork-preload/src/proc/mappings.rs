//! Reads the process's mappings: by `PROCMAP_QUERY` (Linux 6.11), or else from the text of
//! `/proc/thread-self/maps`, which lists all mappings from the first on each time. `/proc/self`
//! would be the first thread, which may have exited before the others and has no memory then.
//!
//! Files are read in pieces onto the stack. The program maps and unmaps memory meanwhile, so a
//! reported range may have changed before it is used. Callers may only do things that are harmless
//! in that case.

use std::ffi::CStr;
use std::ops::Range;

use hugefork_linux::Descriptor;
use hugefork_linux::procmap_query::{EXECUTABLE, Maps, READABLE, SHARED, WRITABLE};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

/// Bytes per read. Longer lines, for files with long names, are cut; the needed fields are at the beginning of a line.
const PIECE: usize = 4096;

/// The origin of a mapping's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The process's own anonymous memory, except stacks.
    Anonymous,
    /// The engine's file, mapped privately.
    Inherited,
    Other,
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    rights: ProtFlags,
    kind: Kind,
}

/// Calls `each` with all mappings in a range, until it returns false.
///
/// # Errors
/// The process has no descriptor left, or no `/proc`.
fn each_mapping(range: &Range<usize>, mut each: impl FnMut(Mapping) -> bool) -> Result<(), Errno> {
    let maps = Maps::open()?;
    let mut next = range.start;
    while next < range.end {
        let found = match asked(&maps, next) {
            Err(Errno::NOENT) => return Ok(()),
            Err(_) => break,
            Ok(found) => found,
        };
        next = found.range.end;
        if found.range.start < range.end && !each(found) {
            return Ok(());
        }
    }
    if next >= range.end {
        return Ok(());
    }
    drop(maps);
    let mut has_any = false;
    lines(MAPS, |line| match parse(line) {
        Some(found) => {
            has_any = true;
            found.range.end <= next || found.range.start < range.end && each(found)
        }
        None => true,
    })?;
    // Every process has mappings, so an empty list means that the process could not be read.
    if has_any { Ok(()) } else { Err(Errno::SRCH) }
}

const MAPS: &CStr = c"/proc/thread-self/maps";

/// The mapping at an address, or the next one above it.
fn asked(maps: &Maps, address: usize) -> Result<Mapping, Errno> {
    let found = maps.at_or_behind(address)?;
    let named = [(READABLE, ProtFlags::READ), (WRITABLE, ProtFlags::WRITE), (EXECUTABLE, ProtFlags::EXEC)].into_iter();
    let rights = named.filter(|(flag, _)| found.flags & flag != 0).map(|(_, right)| right).collect();
    let mut name = [0_u8; 64];
    let kind = match maps.name_at(found.start as usize, &mut name) {
        // The name is too long, or the mapping is gone. Other errors, such as lack of memory, are passed on.
        Err(Errno::NAMETOOLONG | Errno::NOENT) => Kind::Other,
        Err(errno) => return Err(errno),
        Ok(_) => kind(
            found.flags & SHARED == 0,
            found.inode != 0,
            &name[..name.iter().position(|byte| *byte == 0).unwrap_or(64)],
        ),
    };
    Ok(Mapping { range: found.start as usize..found.end as usize, rights, kind })
}

fn kind(is_private: bool, is_file: bool, name: &[u8]) -> Kind {
    match is_file {
        _ if !is_private => Kind::Other,
        true if name.starts_with(b"/memfd:hugefork (deleted)") => Kind::Inherited,
        // Named by `prctl(PR_SET_VMA_ANON_NAME)`.
        false if name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:") => Kind::Anonymous,
        _ => Kind::Other,
    }
}

/// `7f0a1c000000-7f0a5c000000 rw-p 00200000 00:01 2051      /memfd:hugefork (deleted)`
fn parse(line: &[u8]) -> Option<Mapping> {
    // The file name comes last, and need not be UTF-8.
    let text = line.iter().position(|byte| !byte.is_ascii()).map_or(line, |end| &line[..end]);
    let mut words = std::str::from_utf8(text).ok()?.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    let range = number(start)?..number(end)?;
    let [read, write, run, shared] = words.next()?.as_bytes() else { return None };
    let named = [(read, b'r', ProtFlags::READ), (write, b'w', ProtFlags::WRITE), (run, b'x', ProtFlags::EXEC)];
    let rights = named.into_iter().filter(|(has, name, _)| *has == name).map(|(.., right)| right).collect();
    let is_file = words.nth(2)? != "0";
    let name = words.next().unwrap_or_default().trim_start();
    Some(Mapping { range, rights, kind: kind(*shared == b'p', is_file, name.as_bytes()) })
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Calls `each` with each part of a range that is a private mapping of the engine's file, and its protection, in order.
///
/// # Errors
/// As [`each_mapping`].
pub(crate) fn inherited(range: &Range<usize>, mut each: impl FnMut(Range<usize>, ProtFlags)) -> Result<(), Errno> {
    each_mapping(range, |found| {
        if found.kind == Kind::Inherited {
            each(found.range.start.max(range.start)..found.range.end.min(range.end), found.rights);
        }
        true
    })
}

/// Whether a part of a range is mapped from the engine's file. False if that cannot be determined.
pub(crate) fn has_inherited(range: &Range<usize>) -> bool {
    let mut has = false;
    inherited(range, |_, _| has = true).is_ok() && has
}

/// Whether all of a range is private memory that the program can write to, and whether some of that shows the engine's
/// file.
///
/// # Errors
/// As [`each_mapping`].
pub(crate) fn is_own(range: &Range<usize>) -> Result<(bool, bool), Errno> {
    let (mut next, mut is_partly) = (range.start, false);
    each_mapping(range, |found| {
        if found.rights == READ_WRITE && found.kind != Kind::Other && found.range.contains(&next) {
            next = found.range.end;
            is_partly |= found.kind == Kind::Inherited;
        }
        next >= found.range.end && next < range.end
    })?;
    Ok((next >= range.end, is_partly))
}

/// Whether `is` accepts the line of some mapping; a line ends with the path of its file. False if the file cannot be
/// read.
pub(crate) fn any_line(mut is: impl FnMut(&[u8]) -> bool) -> bool {
    let mut found = false;
    let read = lines(MAPS, |line| {
        found |= is(line);
        !found
    });
    read.is_ok() && found
}

/// Calls `each` with every line of a file, until it returns false.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn lines(path: &CStr, each: impl FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    let file = Descriptor::keep(|| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))?;
    lines_of(|piece| rustix::io::read(file.get()?, piece), each)
}

/// Like [`lines`], for the pieces that `read` returns. A line longer than a piece is split.
#[inline(never)] // Uses stack only in the rare calls that come here.
fn lines_of(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut each: impl FnMut(&[u8]) -> bool,
) -> Result<(), Errno> {
    let mut bytes = [0; PIECE];
    let mut filled = 0;
    loop {
        let got = match read(&mut bytes[filled..]) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        filled += got;
        let mut begin = 0;
        while let Some(len) = bytes[begin..filled].iter().position(|byte| *byte == b'\n') {
            if !each(&bytes[begin..begin + len]) {
                return Ok(());
            }
            begin += len + 1;
        }
        if got == 0 {
            return Ok(());
        }
        if begin == 0 && filled == PIECE {
            // The line is so long that its end does not matter.
            if !each(&bytes) {
                return Ok(());
            }
            begin = filled;
        }
        bytes.copy_within(begin..filled, 0);
        filled -= begin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, mmap_anonymous, munmap};

    #[test]
    fn parsing_distinguishes_memory_from_files_stacks_and_guards() {
        let parsed = |line: &str| parse(line.as_bytes()).map(|found| (found.range, found.rights, found.kind));
        for (line, rights, kind) in [
            ("1000-3000 rw-p 00000000 00:00 0 ", READ_WRITE, Kind::Anonymous),
            ("1000-3000 rw-p 00000000 00:00 0      [heap]", READ_WRITE, Kind::Anonymous),
            ("1000-3000 rw-p 00000000 00:00 0      [anon:je malloc]", READ_WRITE, Kind::Anonymous),
            ("1000-3000 ---p 00000000 00:00 0 ", ProtFlags::empty(), Kind::Anonymous),
            ("1000-3000 r-xp 00000000 00:00 0 ", ProtFlags::READ.union(ProtFlags::EXEC), Kind::Anonymous),
            ("1000-3000 rw-s 00000000 00:01 77      /dev/zero (deleted)", READ_WRITE, Kind::Other),
            ("1000-3000 rw-p 00001000 fe:00 99      /usr/lib/x.so", READ_WRITE, Kind::Other),
            ("1000-3000 rw-p 00000000 00:00 0      [stack]", READ_WRITE, Kind::Other),
            ("1000-3000 rw-p 00200000 00:01 2051      /memfd:hugefork (deleted)", READ_WRITE, Kind::Inherited),
            ("1000-3000 ---p 00200000 00:01 2051      /memfd:hugefork (deleted)", ProtFlags::empty(), Kind::Inherited),
            ("1000-3000 rw-s 00200000 00:01 2051      /memfd:hugefork (deleted)", READ_WRITE, Kind::Other),
            ("1000-3000 rw-p 00200000 00:01 2051      /memfd:hugefork-other (deleted)", READ_WRITE, Kind::Other),
        ] {
            assert_eq!(parsed(line), Some((0x1000..0x3000, rights, kind)), "{line}");
        }
        assert_eq!((parsed("1000-3000"), parsed("")), (None, None));
        assert_eq!(parse(b"1000-3000 rw-p 00001000 fe:00 99   /tmp/\xff").unwrap().kind, Kind::Other);
    }

    #[test]
    fn lines_are_whole_for_every_read_size() {
        let text: String = (0..2000).map(|number| format!("line {number}\n")).collect();
        for step in [1, 7, 4096, 100_000] {
            let mut rest = text.as_bytes();
            let mut seen = String::new();
            let read = |piece: &mut [u8]| {
                let got = rest.len().min(piece.len()).min(step);
                piece[..got].copy_from_slice(&rest[..got]);
                rest = &rest[got..];
                Ok(got)
            };
            let each = |line: &[u8]| {
                seen += std::str::from_utf8(line).unwrap();
                seen.push('\n');
                true
            };
            lines_of(read, each).unwrap();
            assert!(seen == text, "{step} at a time");
        }
    }

    #[test]
    fn a_long_line_does_not_hide_the_next() {
        let text = format!("{}\nlast\n", "x".repeat(3 * PIECE));
        let mut rest = text.as_bytes();
        let mut last = Vec::new();
        let read = |piece: &mut [u8]| {
            let got = rest.len().min(piece.len());
            piece[..got].copy_from_slice(&rest[..got]);
            rest = &rest[got..];
            Ok(got)
        };
        lines_of(read, |line| {
            last = line.to_vec();
            true
        })
        .unwrap();
        assert_eq!(last, b"last");
    }

    #[test]
    fn own_mappings_are_found_by_call_and_by_text() {
        const LEN: usize = 77 << 20;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, READ_WRITE, MapFlags::PRIVATE) }.unwrap();
        let from = start as usize;
        assert_eq!(is_own(&(from..from + LEN)), Ok((true, false)));
        assert_eq!(is_own(&(from + 4096..from + 8192)), Ok((true, false)));
        let asked = asked(&Maps::open().unwrap(), from);
        let mut told = None;
        lines(MAPS, |line| {
            told = told.take().or(parse(line).filter(|found| found.range.contains(&from)));
            true
        })
        .unwrap();
        match asked {
            Ok(asked) => assert_eq!(Some(asked), told),
            Err(errno) => println!("skipped: the kernel cannot say: {errno}"),
        }
        // SAFETY: the test's own mapping.
        unsafe { munmap(start, LEN) }.unwrap();
        assert_eq!(is_own(&(from..from + LEN)), Ok((false, false)));
    }
}
