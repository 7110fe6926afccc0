//! What `/proc` says of a process. Each answer may be outdated when it is read: the process may have ended, or called
//! `exec`.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::ops::Range;

use procfs_core::process::{MMPermissions, MMapPath, MemoryMaps, Stat};
use procfs_core::{FromBufRead, FromRead};

use crate::units::{BASE_PAGE, HUGE_PAGE};

/// Tells one `exec` of a program from another: where its code and its stack begin, which the kernel draws at random.
/// A child has its parent's until it calls `exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Image {
    code: u64,
    stack: u64,
}

impl Image {
    /// False for processes that may not be read, that are about to end or are in the middle of `exec`, and for threads
    /// of the kernel: all of them look alike.
    pub(crate) fn is_known(self) -> bool {
        self.stack != 0
    }
}

/// A process at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) name: String,
    pub(crate) parent: u32,
    pub(crate) image: Image,
    /// Page faults so far. While there are no more, the process has neither forked nor written to a new page.
    pub(crate) faults: u64,
    pub(crate) resident_bytes: u64,
}

/// Looks at a process; `None` if it has ended.
pub(crate) fn look(pid: u32) -> Option<Look> {
    let stat = Stat::from_read(File::open(format!("/proc/{pid}/stat")).ok()?).ok()?;
    // A first thread that has ended is a zombie, too, while others live, or while one of them calls exec.
    if matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1 {
        return None;
    }
    Some(Look {
        name: stat.comm,
        parent: u32::try_from(stat.ppid).unwrap_or(0),
        image: Image { code: stat.startcode, stack: stat.startstack },
        faults: stat.minflt.wrapping_add(stat.majflt),
        resident_bytes: stat.rss * BASE_PAGE as u64,
    })
}

/// Whether a number is that of a process, and not that of another thread of one.
pub(crate) fn is_process(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Tgid:").is_some_and(|value| value.trim() == pid.to_string()))
}

/// The children that any thread of a process has made and that live, zombies included.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_thread = |path: std::path::PathBuf| fs::read_to_string(path.join("children")).unwrap_or_default();
    let texts = threads.flatten().map(|thread| of_thread(thread.path()));
    texts.flat_map(|text| text.split_ascii_whitespace().flat_map(str::parse).collect::<Vec<u32>>()).collect()
}

/// All processes.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The base name of a process's file, if it may be read.
pub(crate) fn file_name(pid: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/exe")).ok()?.file_name()?.to_str()?.to_owned())
}

/// The private, writable, anonymous mappings of a process, as far as whole blocks of 2 MiB lie in them, in order.
///
/// # Errors
/// The process may not be read, or has ended.
pub(crate) fn plain_mappings(pid: u32) -> io::Result<Vec<Range<usize>>> {
    let file = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    let maps = MemoryMaps::from_buf_read(file).map_err(io::Error::other)?;
    let wanted = MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE;
    let is_plain = |path: &MMapPath| match path {
        MMapPath::Anonymous | MMapPath::Heap => true,
        // Named by prctl(PR_SET_VMA_ANON_NAME).
        MMapPath::Other(name) => name.starts_with("anon:"),
        _ => false,
    };
    let plain = maps.into_iter().filter(|map| map.inode == 0 && map.perms.contains(wanted) && is_plain(&map.pathname));
    let blocks = plain.map(|map| {
        let (start, end) = (map.address.0 as usize, map.address.1 as usize);
        start.next_multiple_of(HUGE_PAGE)..end / HUGE_PAGE * HUGE_PAGE
    });
    Ok(blocks.filter(|range| !range.is_empty()).collect())
}

/// Whether a process may have huge pages: `prctl(PR_SET_THP_DISABLE)` forbids them, also those that are asked for.
pub(crate) fn may_have_huge_pages(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.lines().any(|line| line.strip_prefix("THP_enabled:").is_some_and(|value| value.trim() == "0"))
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn a_process_finds_itself() {
        let own = process::id();
        let look = look(own).unwrap();
        assert!(look.faults > 0 && look.resident_bytes > 0);
        assert!(all().any(|pid| pid == own));
        assert!(may_have_huge_pages(own));
        let mappings = plain_mappings(own).unwrap();
        assert!(mappings.iter().all(|range| range.start % HUGE_PAGE == 0 && range.end % HUGE_PAGE == 0));
    }

    #[test]
    fn a_process_that_has_ended_is_none() {
        let mut child = process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(children(process::id()).contains(&pid));
        child.wait().unwrap();
        assert!(look(pid).is_none() && plain_mappings(pid).is_err() && children(pid).is_empty());
    }
}
