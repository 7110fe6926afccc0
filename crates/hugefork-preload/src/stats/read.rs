//! Reads the page of another process, which does not notice.
//!
//! The page is found among the process's descriptors. Programs that close all descriptors have closed that one too:
//! then the page is read from the process's memory, which some machines allow to few.

use std::fmt;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::page::{Counters, NAME};
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
    let process = PathBuf::from(format!("/proc/{pid}"));
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => ReadError::NoProcess(pid),
        _ if error.raw_os_error() == Some(libc::ESRCH) => ReadError::NoProcess(pid),
        _ => ReadError::Denied(pid, error),
    };
    let status = fs::read_to_string(process.join("status")).map_err(refused)?;
    let maps = fs::read_to_string(process.join("maps")).map_err(refused)?;
    let report = |counters: Counters| {
        let rollup = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
        Report::new(counters, &status, &rollup)
    };
    let mine = |counters: &Counters| counters.process == own_number(&status).unwrap_or(pid);
    if let Some(counters) = from_descriptors(&process).filter(mine) {
        return Ok(report(counters));
    }
    let mapped = maps.lines().find(|line| line.contains(NAME)).and_then(address);
    match mapped.map(|address| from_memory(pid, address)) {
        Some(Ok(bytes)) => match Counters::from_bytes(&bytes) {
            Some(counters) if mine(&counters) => Ok(report(counters)),
            Some(_) => Err(ReadError::Nothing(pid)),
            None => Err(ReadError::Unreadable(pid, io::Error::other("they are of another version"))),
        },
        Some(Err(error)) => Err(ReadError::Unreadable(pid, error)),
        None if maps.contains(LIBRARY) => Err(ReadError::Nothing(pid)),
        None => Err(ReadError::NotRun(pid)),
    }
}

/// The number that a process has for itself: the last, if it lives in a container.
fn own_number(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

fn from_descriptors(process: &Path) -> Option<Counters> {
    let descriptors = fs::read_dir(process.join("fd")).ok()?.flatten();
    let is_page = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|leads| leads.as_os_str().as_encoded_bytes().starts_with(NAME.as_bytes()))
    };
    let paths = descriptors.map(|entry| entry.path()).filter(is_page);
    paths.into_iter().find_map(|path| {
        let mut bytes = [0; BASE_PAGE];
        fs::File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
        Counters::from_bytes(&bytes)
    })
}

/// The first address of a line of `maps`.
fn address(line: &str) -> Option<usize> {
    usize::from_str_radix(line.split_once('-')?.0, 16).ok()
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
