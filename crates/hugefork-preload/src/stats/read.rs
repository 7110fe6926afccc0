//! Reads the page of another process, which does not notice.
//!
//! The page is found among the process's descriptors. Programs that close all descriptors have closed that one too:
//! then it is found among the process's mappings.
//!
//! Root may read of a process that wishes it ill. Such a process can give any file any name, and to open a pipe, a
//! device or a file that the process serves itself (FUSE) may take for ever, or do something. So a file is first opened
//! as a place only (`O_PATH`), which does nothing, and read if it lies where files of memory lie. To read another's
//! memory takes for ever where it handles its page faults, so that is done among processes of one user alone.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IoSliceMut, Read};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, MemfdFlags, StatxFlags, memfd_create, statx};
use rustix::process::Pid;

use super::page::{Counters, NAME};
use crate::descriptors::HIGH;
use crate::proc::mappings::addresses;
use crate::{BASE_PAGE, LIBRARY};

/// Why nothing is known of a process.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// There is none of that number.
    NoProcess(u32),
    /// It is not yours.
    Denied(u32, io::Error),
    /// The library is not in it.
    NotRun(u32),
    /// The library is in it, and has had nothing to do.
    Nothing(u32),
    /// The library is in it, and may not have a descriptor for its statistics.
    NoDescriptor(u32),
    /// The page cannot be read.
    Unreadable(u32, io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NoProcess(pid) => write!(f, "there is no process {pid}"),
            ReadError::Denied(pid, error) => {
                write!(f, "process {pid} may not be looked at: {error}; run this as its user, or as root")
            }
            ReadError::NotRun(pid) => write!(f, "process {pid} does not run under `hugefork run`: start it so"),
            ReadError::Nothing(pid) => {
                write!(f, "process {pid} runs under `hugefork run`, and has neither mapped nor forked anything big yet")
            }
            ReadError::NoDescriptor(pid) => write!(
                f,
                "process {pid} runs under `hugefork run` and has no statistics: it may have only descriptors below \
                 {HIGH}, and those are its own; raise `ulimit -n` before it starts"
            ),
            ReadError::Unreadable(pid, error) => write!(
                f,
                "the statistics of process {pid} cannot be read: {error}; take the `hugefork` that started it, or run this as root"
            ),
        }
    }
}

impl std::error::Error for ReadError {}

/// What is known of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What the library counted.
    pub counters: Counters,
    /// Bytes of memory that the process has now.
    pub resident_bytes: u64,
    /// The most that it had.
    pub peak_bytes: u64,
    /// How much of what it has now is private memory and not a file's.
    pub anonymous_bytes: u64,
    /// How much of that is in huge pages.
    pub huge_bytes: u64,
}

impl Report {
    /// What was counted, and what the kernel's texts say: the process's `status` and `smaps_rollup`.
    pub fn new(counters: Counters, status: &str, rollup: &str) -> Report {
        let of = |text: &str, field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
        };
        Report {
            counters,
            resident_bytes: of(status, "VmRSS:").unwrap_or(0),
            peak_bytes: of(status, "VmHWM:").unwrap_or(0),
            anonymous_bytes: of(rollup, "Anonymous:").unwrap_or(0),
            huge_bytes: of(rollup, "AnonHugePages:").unwrap_or(0),
        }
    }
}

/// Reads what is known of process `pid`.
///
/// # Errors
/// [`ReadError`] says why nothing is.
pub fn of(pid: u32) -> Result<Report, ReadError> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => ReadError::NoProcess(pid),
        _ if error.raw_os_error() == Some(libc::ESRCH) => ReadError::NoProcess(pid),
        _ => ReadError::Denied(pid, error),
    };
    // The number may become another process's; what is open here does not.
    let open = place(Path::new(&format!("/proc/{pid}"))).map_err(refused)?;
    let process = path_of(&open);
    let status = text(&process.join("status")).map_err(refused)?;
    let seen = Mapped::of(&process).map_err(refused)?;
    let report = |counters: Counters| {
        let rollup = text(&process.join("smaps_rollup")).unwrap_or_default();
        Report::new(counters, &status, &rollup)
    };
    let mine = |counters: &Counters| counters.process == own_number(&status).unwrap_or(pid);
    if let Some(counters) = from_descriptors(&process).filter(mine) {
        return Ok(report(counters));
    }
    let mapped = seen.page.map(|range| match from_mapping(&process, &range) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && is_of_this_user(&status) => {
            from_memory(pid, range.start)
        }
        other => other,
    });
    match mapped {
        Some(Ok(bytes)) => match Counters::from_bytes(&bytes) {
            Some(counters) if mine(&counters) => Ok(report(counters)),
            Some(_) => Err(ReadError::Nothing(pid)),
            None => Err(ReadError::Unreadable(pid, io::Error::other("they are of another version"))),
        },
        Some(Err(error)) => Err(ReadError::Unreadable(pid, error)),
        None if seen.has_library && has_few_descriptors(&process) => Err(ReadError::NoDescriptor(pid)),
        None if seen.has_library => Err(ReadError::Nothing(pid)),
        None => Err(ReadError::NotRun(pid)),
    }
}

/// Whether a process may have none of the numbers that the library's descriptors have.
fn has_few_descriptors(process: &Path) -> bool {
    let limits = text(&process.join("limits")).unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    most.and_then(|most| most.parse::<i32>().ok()).is_some_and(|most| most <= HIGH)
}

/// Opens what a path leads to as a place, of which nothing can be read.
fn place(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// A path that leads to an open place.
fn path_of(place: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// A text of the kernel's, in which a process may have put bytes that are no text.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(1 << 20).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a process has mapped.
struct Mapped {
    /// Where the page is.
    page: Option<Range<usize>>,
    has_library: bool,
}

/// As much of the text is read: a process could map ever more while it is.
const MOST_OF_MAPS: u64 = 1 << 30;

impl Mapped {
    fn of(process: &Path) -> io::Result<Mapped> {
        let mut maps = BufReader::new(File::open(process.join("maps"))?.take(MOST_OF_MAPS));
        let (mut seen, mut line) = (Mapped { page: None, has_library: false }, Vec::new());
        while maps.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            seen.has_library |= text.contains(LIBRARY);
            if seen.page.is_none() && text.contains(NAME) {
                seen.page = text.split_whitespace().next().and_then(addresses);
            }
            line.clear();
        }
        Ok(seen)
    }
}

/// The number that a process has for itself: the last, if it lives in a container.
fn own_number(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// Whether a process has no other user's rights.
fn is_of_this_user(status: &str) -> bool {
    let user = rustix::process::geteuid().as_raw().to_string();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_whitespace().all(|other| other == user))
}

fn from_descriptors(process: &Path) -> Option<Counters> {
    let descriptors = fs::read_dir(process.join("fd")).ok()?.flatten();
    let is_page = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|leads| leads.as_os_str().as_encoded_bytes().starts_with(NAME.as_bytes()))
    };
    let paths = descriptors.map(|entry| entry.path()).filter(is_page);
    paths.into_iter().find_map(|path| Counters::from_bytes(&from_file(&path).ok()?))
}

fn from_mapping(process: &Path, range: &Range<usize>) -> io::Result<Vec<u8>> {
    from_file(&process.join(format!("map_files/{:x}-{:x}", range.start, range.end)))
}

/// Reads the page from a file of memory; from any other, nothing.
fn from_file(path: &Path) -> io::Result<Vec<u8>> {
    let place = place(path)?;
    if device(&place)? != device(&memfd_create(c"hugefork", MemfdFlags::CLOEXEC)?)? {
        return Err(io::Error::other("their file is none of memory"));
    }
    let mut bytes = vec![0; BASE_PAGE];
    File::open(path_of(&place))?.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The device on which a file lies. Whoever serves it is not asked.
fn device(file: &impl AsFd) -> io::Result<(u32, u32)> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

fn from_memory(pid: u32, address: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BASE_PAGE];
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let local = IoSliceMut::new(&mut bytes);
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: BASE_PAGE };
    // SAFETY: `local` is a live buffer, laid out as an iovec; what `remote` names is another process's.
    let got = unsafe {
        libc::process_vm_readv(number.as_raw_nonzero().get(), (&raw const local).cast(), 1, &raw const remote, 1, 0)
    };
    match usize::try_from(got) {
        Ok(BASE_PAGE) => Ok(bytes),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_library_is_told_from_none() {
        assert!(matches!(of(std::process::id()), Err(ReadError::NotRun(_))));
        assert!(matches!(of(u32::MAX), Err(ReadError::NoProcess(u32::MAX))));
    }

    #[test]
    fn numbers_in_containers_are_the_inner_ones() {
        assert_eq!(own_number("Name:\tx\nNSpid:\t4711\t12\nUid:\t0\n"), Some(12));
        assert_eq!(own_number("NSpid:\t4711\n"), Some(4711));
        assert_eq!(own_number("Name:\tx\n"), None);
    }

    #[test]
    fn memory_of_a_process_is_read() {
        let word = 0x1234_5678_u64;
        let page = (&raw const word) as usize;
        let bytes = from_memory(std::process::id(), page / BASE_PAGE * BASE_PAGE).unwrap();
        let at = page % BASE_PAGE;
        assert_eq!(bytes[at..at + 8], word.to_ne_bytes());
    }
}
