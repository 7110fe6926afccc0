//! Questions to `/proc` about a process. Each answer may be outdated when it is read: the process may have ended, or
//! called `exec`.

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

/// How many pages the kernel was told that it may take back (`MADV_FREE`), of all processes since the machine started.
pub(crate) fn lazy_frees() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("pglazyfree "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The private, writable, anonymous mappings of a process, as far as whole blocks of 2 MiB lie in them, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mappings {
    pub(crate) plain: Vec<Range<usize>>,
    /// Whether some are left out: more than 2 % of their pages were freed lazily, and a collapse would make them stay.
    pub(crate) some_are_lazy: bool,
}

/// Reads the mappings of a process. Whether pages were freed lazily only `smaps` says, for which the kernel looks at
/// every page, 15 ms for each GiB of base pages: so it is read only if there may be some.
///
/// # Errors
/// The process may not be read, or has ended.
pub(crate) fn mappings(pid: u32, may_be_lazy: bool) -> io::Result<Mappings> {
    let file = if may_be_lazy { "smaps" } else { "maps" };
    let file = BufReader::new(File::open(format!("/proc/{pid}/{file}"))?);
    let maps = MemoryMaps::from_buf_read(file).map_err(io::Error::other)?;
    let wanted = MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE;
    let is_plain = |path: &MMapPath| match path {
        MMapPath::Anonymous | MMapPath::Heap => true,
        // Named by prctl(PR_SET_VMA_ANON_NAME).
        MMapPath::Other(name) => name.starts_with("anon:"),
        _ => false,
    };
    let mut found = Mappings::default();
    for map in maps.into_iter().filter(|map| map.inode == 0 && map.perms.contains(wanted) && is_plain(&map.pathname)) {
        let (start, end) = (map.address.0 as usize, map.address.1 as usize);
        let blocks = start.next_multiple_of(HUGE_PAGE)..end / HUGE_PAGE * HUGE_PAGE;
        let bytes = |name: &str| map.extension.map.get(name).copied().unwrap_or(0);
        if bytes("LazyFree") > bytes("Rss") / 50 {
            found.some_are_lazy = true;
        } else if !blocks.is_empty() {
            found.plain.push(blocks);
        }
    }
    Ok(found)
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
        let mappings = mappings(own, false).unwrap();
        assert!(mappings.plain.iter().all(|range| range.start % HUGE_PAGE == 0 && range.end % HUGE_PAGE == 0));
    }

    #[test]
    fn a_process_that_has_ended_is_none() {
        let mut child = process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(children(process::id()).contains(&pid));
        child.wait().unwrap();
        assert!(look(pid).is_none() && mappings(pid, false).is_err() && children(pid).is_empty());
    }
}
