//! What the machine allows, according to `/proc` and `/sys`. It is read when pools are built and by `machine::survey`,
//! never in a fault.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hugefork_linux::Descriptor;
use procfs::FromBufRead;
use rustix::fs::OFlags;
use rustix::io::pread;

use crate::units::{BASE_PAGE, HUGE_PAGE};

/// `vm.max_map_count` if `/proc` cannot be read.
pub(crate) const DEFAULT_MAP_COUNT: usize = 65530;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// `uname -r`.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The processor's name.
pub(crate) fn cpu_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// How many bytes of the last-level cache there are for each CPU that shares it. The first CPU's, as most machines have
/// several alike.
pub(crate) fn cache_share() -> Option<usize> {
    let cache = |index: usize| {
        let of = |name| {
            let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok()?;
            Some(text.trim_end().to_owned())
        };
        let level: usize = of("level")?.parse().ok()?;
        let kib: usize = of("size")?.strip_suffix('K')?.parse().ok()?;
        Some((level, (kib << 10) / cpus_of(&of("shared_cpu_list")?)?))
    };
    (0..).map_while(cache).max_by_key(|(level, _)| *level).map(|(_, share)| share)
}

/// How many CPUs a list such as `0-17,36` names, of which there is at least one.
fn cpus_of(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?).count())
    };
    list.split(',').map(range).sum::<Option<usize>>().filter(|count| *count > 0)
}

/// `vm.max_map_count`.
pub(crate) fn map_count_limit() -> usize {
    number("/proc/sys/vm/max_map_count").unwrap_or(DEFAULT_MAP_COUNT)
}

/// How many mappings this process has.
pub(crate) fn map_count() -> Option<usize> {
    // It counts lines and parses nothing, because only their number matters.
    Some(fs::read("/proc/self/maps").ok()?.iter().filter(|byte| **byte == b'\n').count())
}

/// The word in brackets of a setting such as `always [madvise] never`.
pub(crate) fn choice(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// The chosen word of `transparent_hugepage/NAME`; `None` if the kernel has no THP.
pub(crate) fn thp(name: &str) -> Option<String> {
    choice(&fs::read_to_string(Path::new(THP).join(name)).ok()?).map(str::to_owned)
}

/// The hugetlb pool of one page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HugetlbPool {
    pub(crate) page: usize,
    pub(crate) total: usize,
    pub(crate) free: usize,
    pub(crate) reserved: usize,
    pub(crate) overcommit: usize,
}

impl HugetlbPool {
    /// Pages that a new pool could reserve.
    pub(crate) fn available(&self) -> usize {
        self.free.saturating_sub(self.reserved) + self.overcommit
    }
}

/// All hugetlb pools, small pages first. Empty if the kernel has no hugetlb.
///
/// # Errors
/// The folder is there and cannot be read, such as for want of descriptors.
pub(crate) fn hugetlb_pools() -> io::Result<Vec<HugetlbPool>> {
    let entries = match fs::read_dir("/sys/kernel/mm/hugepages") {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pools: Vec<HugetlbPool> = entries
        .flatten()
        .filter_map(|entry| {
            let kib: usize =
                entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let read = |name: &str| number(entry.path().join(name));
            Some(HugetlbPool {
                page: kib << 10,
                total: read("nr_hugepages")?,
                free: read("free_hugepages")?,
                reserved: read("resv_hugepages")?,
                overcommit: read("nr_overcommit_hugepages")?.saturating_sub(read("surplus_hugepages")?),
            })
        })
        .collect();
    pools.sort_by_key(|pool| pool.page);
    Ok(pools)
}

/// A limit on memory, in bytes, and who sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: usize,
    pub(crate) set_by: &'static str,
}

/// The most memory that a pool could ever have: what the machine has, or what the control group may use.
pub(crate) fn memory_total() -> MemoryLimit {
    let machine = meminfo().map_or(usize::MAX, |info| (info.mem_total + info.swap_total) as usize);
    smaller(machine, "this machine's memory", cgroup("memory.max").unwrap_or(usize::MAX))
}

/// The memory that is available now.
pub(crate) fn memory_available() -> MemoryLimit {
    let machine = meminfo().and_then(|info| info.mem_available).map_or(usize::MAX, |bytes| bytes as usize);
    let group =
        cgroup("memory.max").map_or(usize::MAX, |max| max.saturating_sub(cgroup("memory.current").unwrap_or(0)));
    smaller(machine, "the memory that is free now", group)
}

fn smaller(machine: usize, machine_name: &'static str, group: usize) -> MemoryLimit {
    if group < machine {
        MemoryLimit { bytes: group, set_by: "the control group (memory.max)" }
    } else {
        MemoryLimit { bytes: machine, set_by: machine_name }
    }
}

/// Not by std's files: a thread of the pool asks, and the program may close or replace a low number just then.
fn meminfo() -> Option<procfs::Meminfo> {
    let file = Descriptor::keep_of_proc(c"/proc/meminfo", OFlags::RDONLY).ok()?;
    let mut text = [0; BASE_PAGE];
    let len = pread(file.get().ok()?, &mut text, 0).ok()?;
    procfs::Meminfo::from_buf_read(&text[..len]).ok()
}

/// The value in a memory file of this process's control group; `None` if there is none or it says `max`.
fn cgroup(file: &str) -> Option<usize> {
    number(group_file(file)?)
}

/// A file of this process's control group, version 2; `None` if it has none.
pub(crate) fn group_file(file: &str) -> Option<PathBuf> {
    let line = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = line.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Beside version 1 it is mounted one level down.
    let mut candidates =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].iter().map(|at| Path::new(at).join(group).join(file));
    candidates.find(|path| path.exists())
}

fn number(path: impl AsRef<Path>) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// How many bytes of the mapping at `address` are mapped by huge entries of 2 MiB.
pub(crate) fn mapped_huge(address: usize) -> Option<usize> {
    // A process may have tens of thousands of mappings, so it is read only as far as to this one.
    huge_bytes_at(address, BufReader::new(File::open("/proc/self/smaps").ok()?))
}

/// As [`mapped_huge`], out of what smaps says.
fn huge_bytes_at(address: usize, mut smaps: impl BufRead) -> Option<usize> {
    const FIELDS: [&str; 4] = ["ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"];
    let (mut line, mut found) = (String::new(), None);
    while smaps.read_line(&mut line).ok()? > 0 {
        if let Some(mapping) = mapping_of(&line) {
            if found.is_some() {
                break;
            }
            found = mapping.contains(&address).then_some(0);
        } else if let Some(bytes) = &mut found {
            let field = line.split_once(':').filter(|(name, _)| FIELDS.contains(name));
            *bytes += field.and_then(|(_, kib)| kib.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0) * 1024;
        }
        line.clear();
    }
    found.map(|bytes| bytes / HUGE_PAGE * HUGE_PAGE)
}

/// The addresses of a mapping, if this is the line that begins what smaps says of it.
fn mapping_of(line: &str) -> Option<Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_the_choice() {
        assert_eq!(choice("always [madvise] never\n"), Some("madvise"));
        assert_eq!(choice("never"), None);
        assert_eq!(choice("[x"), None);
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(["0", "0-1", "0-17,36-53", "3,5,7-8"].map(cpus_of), [1, 2, 36, 4].map(Some));
        assert_eq!(["", "x", "0-", "5-3"].map(cpus_of), [None; 4]);
    }

    #[test]
    fn this_machine_says_what_it_allows() {
        assert!(map_count_limit() > 100);
        assert!(map_count().unwrap() > 3);
        assert!(memory_total().bytes > 1 << 26);
        assert!(memory_available().bytes <= memory_total().bytes);
    }

    #[test]
    fn huge_bytes_are_those_of_the_mapping_alone() {
        let smaps = "00200000-00400000 rw-s 00000000 00:01 5   /memfd:one-two (deleted)\nSize:  2048 kB\n\
            FilePmdMapped:  2048 kB\nVmFlags: rd wr\n00400000-00a00000 rw-s 00000000 00:01 6\n\
            ShmemPmdMapped:     4096 kB\nShared_Hugetlb:       4 kB\nPrivate_Hugetlb: 0 kB\nVmFlags: rd\n\
            00a00000-00b00000 rw-p 00000000 00:00 0 [heap]\nFilePmdMapped: 9 kB\n";
        let at = |address| huge_bytes_at(address, smaps.as_bytes());
        assert_eq!(at(0x3f_ffff), Some(2 << 20));
        assert_eq!(at(0x40_0000), Some(4 << 20));
        assert_eq!(at(0xa0_0000), Some(0));
        assert_eq!((at(0x1f_ffff), at(0xb0_0000)), (None, None));
    }
}
