//! The program's memory, as the kernel tells it in `/proc/thread-self/maps`: what libc's own `malloc` maps is there
//! too, and nothing that was unmapped. `/proc/self` is the first thread's, which may have ended before the others: it
//! has no memory then.
//!
//! The file is read piece by piece into the stack. Programs map and unmap meanwhile, so a range may be gone, or be
//! something else, when it is used: only what is harmless then may be done with it.

use std::ffi::CStr;
use std::ops::Range;

use hugefork_linux::Descriptor;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use super::queries::Maps;
use crate::descriptors::passing::Passing;

/// Bytes that are read at once. Longer lines, of files with long names, are not whole; what is wanted of a line is at
/// its beginning.
const PIECE: usize = 4096;

/// Calls `each` with every private anonymous mapping of at least `least` bytes that the program can write to, until
/// that says false.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn big(least: usize, mut each: impl FnMut(Range<usize>) -> bool) -> Result<(), Errno> {
    lines_of_maps(|line| match parse(line) {
        Some(range) if range.len() >= least => each(range),
        _ => true,
    })
}

/// Whether all of a range is private anonymous memory that the program can write to.
pub(crate) fn is_writable(range: &Range<usize>) -> bool {
    let mut next = range.start;
    let read = big(0, |there| {
        if there.contains(&next) {
            next = there.end;
        }
        next < range.end
    });
    read.is_ok() && next >= range.end
}

/// Calls `each` with what private mappings of the engine's file show of a range, and the rights there, in order.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn inherited(range: &Range<usize>, mut each: impl FnMut(Range<usize>, ProtFlags)) -> Result<(), Errno> {
    let maps = Maps::open()?;
    let mut next = range.start;
    while next < range.end {
        let Ok(found) = maps.at_or_behind(next) else {
            drop(maps);
            return inherited_by_text(&(next..range.end), each);
        };
        let Some(found) = found else { break };
        let piece = found.range.start.max(next)..found.range.end.min(range.end);
        if found.is_inherited && !piece.is_empty() {
            each(piece, found.rights);
        }
        next = found.range.end;
    }
    Ok(())
}

/// The same before Linux 6.11.
fn inherited_by_text(range: &Range<usize>, mut each: impl FnMut(Range<usize>, ProtFlags)) -> Result<(), Errno> {
    lines_of_maps(|line| {
        let Some((there, rights)) = parse_inherited(line) else { return true };
        let piece = there.start.max(range.start)..there.end.min(range.end);
        if !piece.is_empty() {
            each(piece, rights);
        }
        there.end < range.end
    })
}

/// Whether some of a range shows the engine's file. False if nobody can say.
pub(crate) fn has_inherited(range: &Range<usize>) -> bool {
    let mut has = false;
    inherited(range, |_, _| has = true).is_ok() && has
}

/// Whether all of a range is private memory that the program can write to, and some of it shows the engine's file.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_partly_inherited(range: &Range<usize>) -> Result<bool, Errno> {
    let (mut next, mut is_partly) = (range.start, false);
    lines_of_maps(|line| {
        let writable = |rights: ProtFlags| rights == ProtFlags::READ | ProtFlags::WRITE;
        let inherited = parse_inherited(line).filter(|(_, rights)| writable(*rights)).map(|(there, _)| there);
        let is_inherited = inherited.is_some();
        if let Some(there) = inherited.or_else(|| parse(line)).filter(|there| there.contains(&next)) {
            next = there.end;
            is_partly |= is_inherited;
        }
        next < range.end
    })?;
    Ok(next >= range.end && is_partly)
}

/// Whether `is` says so of the line of any mapping, which ends with the path of its file. False if nobody can say.
pub(crate) fn any_line(mut is: impl FnMut(&[u8]) -> bool) -> bool {
    let mut found = false;
    let read = lines_of_maps(|line| {
        found |= is(line);
        !found
    });
    read.is_ok() && found
}

/// Bytes that `/proc/thread-self/smaps_rollup` counts under `field`, such as `AnonHugePages:`.
pub(crate) fn counted(field: &str) -> Option<u64> {
    counted_in(c"/proc/thread-self/smaps_rollup", field)
}

/// Bytes that a file counts under `field`.
pub(crate) fn counted_in(path: &CStr, field: &str) -> Option<u64> {
    let mut found = None;
    let done = lines(path, |line| {
        let number = line.strip_prefix(field.as_bytes()).and_then(kib);
        found = found.or(number);
        found.is_none()
    });
    done.ok().and(found)
}

/// Whether the process has most of the mappings that it may have.
pub(crate) fn are_mappings_short() -> bool {
    !have_room_for(0)
}

/// Whether it would not have most of them with so many more.
pub(crate) fn have_room_for(more: usize) -> bool {
    const USUAL: usize = 65_530;
    let (mut most, mut count) = (USUAL, 0);
    let _ = lines(c"/proc/sys/vm/max_map_count", |line| {
        most = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL);
        false
    });
    let read = lines_of_maps(|_| {
        count += 1;
        count <= most
    });
    read.is_ok() && count + more <= most / 4 * 3
}

/// `  123 kB` in bytes.
fn kib(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Calls `each` with every mapping's line, until that says false.
///
/// # Errors
/// The file cannot be read, or names no mapping: whoever asks has some.
fn lines_of_maps(mut each: impl FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    let mut has_any = false;
    lines(c"/proc/thread-self/maps", |line| {
        has_any = true;
        each(line)
    })?;
    if has_any { Ok(()) } else { Err(Errno::SRCH) }
}

/// Calls `each` with every line of a file, until that says false.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn lines(path: &CStr, each: impl FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    let open = || Descriptor::keep(|| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
    let file = Passing::open(open)?;
    lines_of(|piece| rustix::io::read(file.get()?, piece), each)
}

/// As [`lines`], of what `read` gives piece by piece. A line that is longer than a piece is cut into several.
#[inline(never)] // Not on the stack of those who may come here and mostly do not.
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
            // Too long for its end to matter.
            if !each(&bytes) {
                return Ok(());
            }
            begin = filled;
        }
        bytes.copy_within(begin..filled, 0);
        filled -= begin;
    }
}

/// The range of the first word of a line.
pub(crate) fn addresses(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some(number(start)?..number(end)?)
}

/// The range of a line, if it is private anonymous memory that the program can write to.
///
/// `7f0a1c000000-7f0a5c000000 rw-p 00000000 00:00 0                          [heap]`
fn parse(line: &[u8]) -> Option<Range<usize>> {
    // Names come last, and need not be text.
    let text = line.iter().position(|byte| !byte.is_ascii()).map_or(line, |end| &line[..end]);
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let range = addresses(words.next()?)?;
    let rights = words.next()?;
    let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
    let is_memory = match words.next() {
        None | Some("[heap]") => true,
        // Named by `prctl(PR_SET_VMA_ANON_NAME)`.
        Some(name) => name.starts_with("[anon:"),
    };
    (rights == "rw-p" && inode == "0" && is_memory).then_some(range)
}

/// The range and the rights of a line, if it is a private mapping of the engine's file.
///
/// `7f0a1c000000-7f0a5c000000 rw-p 00200000 00:01 2051      /memfd:hugefork (deleted)`
fn parse_inherited(line: &[u8]) -> Option<(Range<usize>, ProtFlags)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let range = addresses(words.next()?)?;
    let [read, write, run, kind] = words.next()?.as_bytes() else { return None };
    let named = [(read, b'r', ProtFlags::READ), (write, b'w', ProtFlags::WRITE), (run, b'x', ProtFlags::EXEC)];
    let rights = named.into_iter().filter(|(has, name, _)| *has == name).map(|(.., right)| right).collect();
    (*kind == b'p' && words.nth(3) == Some("/memfd:hugefork")).then_some((range, rights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, mmap_anonymous, munmap};

    #[test]
    fn memory_is_told_from_files_stacks_and_guards() {
        let parsed = |line: &str| parse(line.as_bytes());
        assert_eq!(parsed("1000-3000 rw-p 00000000 00:00 0 "), Some(0x1000..0x3000));
        assert_eq!(parsed("1000-3000 rw-p 00000000 00:00 0      [heap]"), Some(0x1000..0x3000));
        assert_eq!(parsed("1000-3000 rw-p 00000000 00:00 0      [anon:jemalloc]"), Some(0x1000..0x3000));
        for other in [
            "1000-3000 ---p 00000000 00:00 0 ",
            "1000-3000 r--p 00000000 00:00 0 ",
            "1000-3000 rwxp 00000000 00:00 0 ",
            "1000-3000 rw-s 00000000 00:01 77      /dev/zero (deleted)",
            "1000-3000 rw-p 00001000 fe:00 99      /usr/lib/x.so",
            "1000-3000 rw-p 00000000 00:00 0      [stack]",
            "1000-3000",
            "",
        ] {
            assert_eq!(parsed(other), None, "{other}");
        }
        assert_eq!(parse(b"1000-3000 rw-p 00001000 fe:00 99   /tmp/\xff"), None);
    }

    #[test]
    fn what_was_inherited_is_told_from_all_else() {
        let parsed = |line: &str| parse_inherited(line.as_bytes());
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let line = |rights: &str, path: &str| format!("1000-3000 {rights} 00200000 00:01 2051      {path} (deleted)");
        assert_eq!(parsed(&line("rw-p", "/memfd:hugefork")), Some((0x1000..0x3000, read_write)));
        assert_eq!(parsed(&line("---p", "/memfd:hugefork")), Some((0x1000..0x3000, ProtFlags::empty())));
        for other in [line("rw-s", "/memfd:hugefork"), line("rw-p", "/memfd:hugefork-token"), line("rw-p", "/tmp/x")] {
            assert_eq!(parsed(&other), None, "{other}");
        }
        assert_eq!(parsed("1000-3000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn lines_come_whole_however_they_are_read() {
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
    fn own_mappings_are_found_and_counted() {
        const LEN: usize = 77 << 20;
        // SAFETY: a new mapping where the kernel likes.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let start = start.unwrap();
        let from = start as usize;
        let mut found = false;
        big(LEN, |range| {
            found |= range.start <= from && range.end >= from + LEN;
            true
        })
        .unwrap();
        assert!(is_writable(&(from..from + LEN)) && is_writable(&(from + 4096..from + 8192)));
        // SAFETY: our own mapping.
        unsafe { munmap(start, LEN) }.unwrap();
        assert!(!is_writable(&(from..from + LEN)));
        assert!(found);
        assert!(counted("Rss:").unwrap() > 0);
        assert_eq!(counted("Nonsense:"), None);
    }
}
