//! The limits and settings of the machine, from `/proc` and `/sys`. They are read when pools are built, never in a
//! fault.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hugefork_linux::Descriptor;
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

/// `vm.max_map_count`.
pub(crate) fn map_count_limit() -> usize {
    number("/proc/sys/vm/max_map_count").unwrap_or(DEFAULT_MAP_COUNT)
}

/// How many mappings this process has.
pub(crate) fn map_count() -> Option<usize> {
    // This counts lines and parses nothing, because only their number matters.
    Some(fs::read("/proc/self/maps").ok()?.iter().filter(|byte| **byte == b'\n').count())
}

/// The word in brackets of a setting such as `always [madvise] never`.
pub(crate) fn choice(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// The chosen word of `transparent_hugepage/NAME`; `None` if the kernel has no THP.
///
/// # Errors
/// If the file exists and cannot be read, for example because the process has no free descriptor.
pub(crate) fn thp(name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(Path::new(THP).join(name)) {
        Ok(text) => Ok(choice(&text).map(str::to_owned)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
    /// The pages that a new pool could reserve.
    pub(crate) fn available(&self) -> usize {
        self.free.saturating_sub(self.reserved) + self.overcommit
    }
}

/// All hugetlb pools, small pages first. Empty if the kernel has no hugetlb.
///
/// # Errors
/// If the folder or a file in it exists and cannot be read, for example because the process has no free descriptor.
pub(crate) fn hugetlb_pools() -> io::Result<Vec<HugetlbPool>> {
    let entries = match fs::read_dir("/sys/kernel/mm/hugepages") {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pools = Vec::new();
    for entry in entries {
        pools.extend(hugetlb_pool(&entry?.path())?);
    }
    pools.sort_by_key(|pool| pool.page);
    Ok(pools)
}

/// The hugetlb pool of a folder of `/sys/kernel/mm/hugepages`; `None` if the folder's name has no page size.
fn hugetlb_pool(folder: &Path) -> io::Result<Option<HugetlbPool>> {
    let name = folder.file_name().and_then(|name| name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB"));
    let Some(kib) = name.and_then(|kib| kib.parse::<usize>().ok()) else { return Ok(None) };
    let read = |name: &str| -> io::Result<usize> {
        fs::read_to_string(folder.join(name))?.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    };
    Ok(Some(HugetlbPool {
        page: kib << 10,
        total: read("nr_hugepages")?,
        free: read("free_hugepages")?,
        reserved: read("resv_hugepages")?,
        overcommit: read("nr_overcommit_hugepages")?.saturating_sub(read("surplus_hugepages")?),
    }))
}

/// A limit on memory, in bytes, and the setting that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: usize,
    pub(crate) set_by: &'static str,
}

/// The most memory that a pool could ever have: that of the machine, or the limit of the control group if it is lower.
pub(crate) fn memory_total() -> MemoryLimit {
    let machine = meminfo(["MemTotal", "SwapTotal"]).map_or(usize::MAX, |[memory, swap]| memory + swap);
    lower_of(MemoryLimit { bytes: machine, set_by: "this machine's memory" }, Group::limit)
}

/// The memory that is available now.
pub(crate) fn memory_available() -> MemoryLimit {
    let machine = meminfo(["MemAvailable"]).map_or(usize::MAX, |[bytes]| bytes);
    lower_of(MemoryLimit { bytes: machine, set_by: "the memory that is free now" }, Group::left)
}

/// The limit of the machine, or that of a control group if it is lower.
fn lower_of(of_machine: MemoryLimit, of_group: fn(&Group) -> Option<MemoryLimit>) -> MemoryLimit {
    let of_groups = smallest(groups(Path::new("/")).iter().filter_map(of_group));
    of_groups.filter(|limit| limit.bytes < of_machine.bytes).unwrap_or(of_machine)
}

fn smallest(limits: impl Iterator<Item = MemoryLimit>) -> Option<MemoryLimit> {
    limits.min_by_key(|limit| limit.bytes)
}

/// A control group that contains this process, directly or through groups below it. Its limits apply to the process.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    version: Version,
}

/// The version of control groups, which decides the names of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Group {
    /// The most memory that the group may use; `None` if it has no limit, or does not exist. In version 1, no limit is
    /// a limit of 2^63.
    fn limit(&self) -> Option<MemoryLimit> {
        let (file, set_by) = match self.version {
            Version::One => ("memory.limit_in_bytes", "the control group (memory.limit_in_bytes)"),
            Version::Two => ("memory.max", "the control group (memory.max)"),
        };
        Some(MemoryLimit { bytes: number(self.folder.join(file))?, set_by })
    }

    /// The rest of the group's limit, beside the memory in use.
    fn left(&self) -> Option<MemoryLimit> {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        let limit = self.limit()?;
        let used = number(self.folder.join(file)).unwrap_or(0);
        Some(MemoryLimit { bytes: limit.bytes.saturating_sub(used), ..limit })
    }
}

/// The control groups whose memory limits apply to this process, on the machine with the root folder `root`, its own
/// group first. In a container its own may be missing; the groups above it are then those of the container.
fn groups(root: &Path) -> Vec<Group> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_line = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (version, mounts): (_, &[&str]) = match controllers {
            "" => (Version::Two, &V2_MOUNTS),
            _ if format!(",{controllers},").contains(",memory,") => (Version::One, &["sys/fs/cgroup/memory"]),
            _ => return None,
        };
        let mount = mounts.iter().map(|mount| root.join(mount)).find(|mount| mount.exists())?;
        let own = mount.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|folder| folder.starts_with(&mount));
        Some(above.map(|folder| Group { folder: folder.to_owned(), version }).collect::<Vec<_>>())
    };
    text.lines().filter_map(of_line).flatten().collect()
}

/// The folders where control groups of version 2 may be: one level down if version 1 is mounted, too.
const V2_MOUNTS: [&str; 2] = ["sys/fs/cgroup/unified", "sys/fs/cgroup"];

/// Fields of `/proc/meminfo`, in bytes.
///
/// This does not use std's files: a thread of the pool calls it, and the program may close or replace a low descriptor
/// at that moment.
fn meminfo<const N: usize>(names: [&str; N]) -> Option<[usize; N]> {
    fields_in(str::from_utf8(&start_of(c"/proc/meminfo")?).ok()?, names)
}

/// Fields such as `MemTotal:  123 kB` of a text, in bytes.
fn fields_in<const N: usize>(text: &str, names: [&str; N]) -> Option<[usize; N]> {
    let mut found = [0; N];
    for (name, bytes) in names.iter().zip(&mut found) {
        let kib = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        *bytes = 1024 * kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()?;
    }
    Some(found)
}

/// The first 4 KiB of a file of `/proc`.
fn start_of(path: &CStr) -> Option<Vec<u8>> {
    let file = Descriptor::keep_of_proc(path, OFlags::RDONLY).ok()?;
    let mut text = vec![0; BASE_PAGE];
    let len = pread(file.get().ok()?, &mut text, 0).ok()?;
    text.truncate(len);
    Some(text)
}

/// Whether the first thread of the process has ended, as far as the kernel says.
pub(crate) fn has_first_thread_ended() -> bool {
    start_of(c"/proc/self/stat").is_some_and(|stat| matches!(state_in(&stat), Some(b'Z' | b'X')))
}

/// The state field in the text of a thread's `stat`. The name before it, in brackets, may contain any characters.
fn state_in(stat: &[u8]) -> Option<u8> {
    let behind_name = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(behind_name + 2).copied()
}

/// A file of this process's control group, version 2; `None` if it has none.
pub(crate) fn group_file(file: &str) -> Option<PathBuf> {
    let own = groups(Path::new("/")).into_iter().find(|group| group.version == Version::Two)?;
    Some(own.folder.join(file)).filter(|path| path.exists())
}

/// The size of the kernel's pages, if it is not [`BASE_PAGE`].
pub(crate) fn other_page_size() -> Option<usize> {
    // rustix would read an address where valgrind has nothing mapped.
    // SAFETY: the call only returns a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| *size != BASE_PAGE)
}

fn number(path: impl AsRef<Path>) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// How many bytes of the mapping at `address` are mapped by huge entries of 2 MiB.
pub(crate) fn mapped_huge(address: usize) -> Option<usize> {
    // A process may have tens of thousands of mappings, so this reads no further than this mapping.
    huge_bytes_at(address, BufReader::new(File::open("/proc/self/smaps").ok()?))
}

/// As [`mapped_huge`], from the text of smaps.
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

/// The addresses of a mapping, if this is the first line of its part of smaps.
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
    fn the_state_of_a_thread_is_found_behind_its_name() {
        assert_eq!(state_in(b"12 (a) Z) b) S 1 12 12\n"), Some(b'S'));
        assert_eq!((state_in(b"12 (cut off)"), state_in(b"")), (None, None));
        assert!(!has_first_thread_ended());
    }

    #[test]
    fn fields_of_meminfo_are_bytes() {
        let text =
            "MemTotal:       24599396 kB\nMemFree:  1 kB\nSwapTotal:             0 kB\nHugePages_Total:       7\n";
        assert_eq!(fields_in(text, ["MemTotal", "SwapTotal"]), Some([24599396 << 10, 0]));
        for lacking in ["MemAvailable", "Mem", "HugePages_Total"] {
            assert_eq!(fields_in(text, ["MemTotal", lacking]), None);
        }
    }

    #[test]
    fn this_machine_says_what_it_allows() {
        assert!(map_count_limit() > 100);
        assert!(map_count().unwrap() > 3);
        assert!(memory_total().bytes > 1 << 26);
        assert!(memory_available().bytes <= memory_total().bytes);
    }

    /// The files of another machine, removed when this is dropped.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Machine {
            let root = std::env::temp_dir().join(format!("hugefork-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Machine(root)
        }

        /// The smallest limit, and the least memory that is left.
        fn memory(&self) -> (Option<MemoryLimit>, Option<MemoryLimit>) {
            let groups = groups(&self.0);
            let least = |of: fn(&Group) -> Option<MemoryLimit>| smallest(groups.iter().filter_map(of));
            (least(Group::limit), least(Group::left))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn limit(bytes: usize, file: &str) -> Option<MemoryLimit> {
        let set_by = ["the control group (memory.max)", "the control group (memory.limit_in_bytes)"];
        let set_by = set_by.into_iter().find(|set_by| set_by.contains(file)).unwrap();
        Some(MemoryLimit { bytes, set_by })
    }

    #[test]
    fn limits_of_groups_above_hold_too() {
        let machine = Machine::new(
            "above",
            &[
                ("proc/self/cgroup", "0::/one/two/three\n"),
                ("sys/fs/cgroup/one/memory.max", "3000\n"),
                ("sys/fs/cgroup/one/memory.current", "2999\n"),
                ("sys/fs/cgroup/one/two/memory.max", "2000\n"),
                ("sys/fs/cgroup/one/two/memory.current", "100\n"),
                ("sys/fs/cgroup/one/two/three/memory.max", "max\n"),
                ("sys/fs/cgroup/other/memory.max", "1\n"),
            ],
        );
        assert_eq!(machine.memory(), (limit(2000, "memory.max"), limit(1, "memory.max")));
    }

    #[test]
    fn limits_of_version_1_are_read() {
        let groups = "12:cpu,cpuacct:/own\n7:memory:/jobs/own\n0::/own\n";
        let files = [
            ("proc/self/cgroup", groups),
            ("sys/fs/cgroup/unified/own/memory.pressure", ""),
            ("sys/fs/cgroup/cpu,cpuacct/own/memory.limit_in_bytes", "1"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000"),
            ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "8000"),
            ("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "100"),
            ("sys/fs/cgroup/memory/jobs/own/memory.limit_in_bytes", "4000"),
            ("sys/fs/cgroup/memory/jobs/own/memory.usage_in_bytes", "96"),
        ];
        let file = "memory.limit_in_bytes";
        assert_eq!(Machine::new("v1", &files).memory(), (limit(4000, file), limit(3904, file)));
        // In a container, `/proc` names the host's group, and the mounted folder is the container's.
        let container = [
            ("proc/self/cgroup", "7:memory:/docker/0123\n"),
            files[3],
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "700"),
        ];
        assert_eq!(Machine::new("v1-container", &container).memory(), (limit(700, file), limit(700, file)));
        assert_eq!(Machine::new("no-groups", &[("proc/self/cgroup", "3:cpu:/\n")]).memory(), (None, None));
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
