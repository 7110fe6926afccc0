//! Reads facts about a process from `/proc`. Each fact may be outdated at once: the process may
//! exit, or call `exec`.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::ops::Range;

use procfs_core::process::{MMPermissions, MMapPath, MemoryMaps, Stat};
use procfs_core::{FromBufRead, FromRead};

use crate::units::{BASE_PAGE, HUGE_PAGE};

/// Identifies one `exec` of a program by the addresses of its code and its stack, which the kernel randomises. A child
/// has the same addresses as its parent until the child calls `exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Image {
    code: u64,
    stack: u64,
}

impl Image {
    /// False for processes that the caller may not read, processes that are exiting or in the middle of `exec`, and
    /// kernel threads: all of these have the same addresses, zeros.
    pub(crate) fn is_known(self) -> bool {
        self.stack != 0
    }
}

/// The state of a process at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) parent: u32,
    pub(crate) image: Image,
    /// Page faults so far. As long as this number does not change, the process has neither forked nor written to a new
    /// page.
    pub(crate) faults: u64,
    pub(crate) resident_bytes: u64,
}

/// Reads the state of a process; `None` if it has ended.
pub(crate) fn sample(pid: u32) -> Option<Sample> {
    let stat = Stat::from_read(File::open(format!("/proc/{pid}/stat")).ok()?).ok()?;
    // A first thread that has exited is also a zombie while other threads live, or while one of them calls `exec`.
    if matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1 {
        return None;
    }
    Some(Sample {
        name: stat.comm,
        parent: u32::try_from(stat.ppid).unwrap_or(0),
        image: Image { code: stat.startcode, stack: stat.startstack },
        faults: stat.minflt.wrapping_add(stat.majflt),
        resident_bytes: stat.rss * BASE_PAGE as u64,
    })
}

/// Whether `pid` is the number of a process, and not that of a further thread of a process.
pub(crate) fn is_process(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Tgid:").is_some_and(|value| value.trim() == pid.to_string()))
}

/// The living children, zombies included, of all threads of a process.
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

/// The base name of a process's executable, if the caller may read it.
pub(crate) fn file_name(pid: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/exe")).ok()?.file_name()?.to_str()?.to_owned())
}

/// Number of pages that programs have freed lazily (`MADV_FREE`), of all processes since the machine started.
pub(crate) fn lazy_frees() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("pglazyfree "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The parts of a process's private, writable, anonymous mappings that consist of whole 2 MiB blocks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mappings {
    pub(crate) plain: Vec<Range<usize>>,
    /// Whether mappings were left out because more than 2 % of their pages were freed lazily; a collapse would keep
    /// those pages in memory.
    pub(crate) some_are_lazy: bool,
}

/// Reads the mappings of a process. Only `smaps` reports lazily freed pages. Reading `smaps` makes the kernel visit
/// every page, 15 ms for each GiB of base pages, so the function reads `smaps` only if `may_be_lazy` is true.
///
/// # Errors
/// The caller may not read the process, or the process has ended.
pub(crate) fn mappings(pid: u32, may_be_lazy: bool) -> io::Result<Mappings> {
    let file = if may_be_lazy { "smaps" } else { "maps" };
    let file = BufReader::new(File::open(format!("/proc/{pid}/{file}"))?);
    let maps = MemoryMaps::from_buf_read(file).map_err(io::Error::other)?;
    let wanted = MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE;
    let is_plain = |path: &MMapPath| match path {
        MMapPath::Anonymous | MMapPath::Heap => true,
        // The program has named this anonymous mapping by `prctl(PR_SET_VMA_ANON_NAME)`.
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

/// Whether a process may have huge pages: `prctl(PR_SET_THP_DISABLE)` forbids them, even after `MADV_HUGEPAGE`.
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
        let sample = sample(own).unwrap();
        assert!(sample.faults > 0 && sample.resident_bytes > 0);
        assert!(all().any(|pid| pid == own));
        assert!(may_have_huge_pages(own));
        let mappings = mappings(own, false).unwrap();
        assert!(mappings.plain.iter().all(|range| range.start % HUGE_PAGE == 0 && range.end % HUGE_PAGE == 0));
    }

    #[test]
    fn an_ended_process_is_not_found() {
        let mut child = process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(children(process::id()).contains(&pid));
        child.wait().unwrap();
        assert!(sample(pid).is_none() && mappings(pid, false).is_err() && children(pid).is_empty());
    }
}
