//! Checks whether memory or a limit on tasks is short, for the machine and for the control groups
//! of a process.

use std::fs;
use std::path::{Path, PathBuf};

use procfs_core::{FromRead, Meminfo, ProcessCGroup, ProcessCGroups};

/// If a control group or the machine has less unused memory than this, the keeper collapses no block: a collapse
/// allocates 2 MiB before it frees the base pages, and a full machine would take these 2 MiB from other programs or
/// caches.
const MIN_BYTES: u64 = 64 << 20;

/// Number of further tasks that a control group's limit must allow before the keeper adds a task to the group.
const MIN_TASKS: u64 = 16;

/// Whether the machine, or a control group of the process, has less than 64 MiB of unused memory left.
pub(crate) fn is_memory_short(pid: u32) -> bool {
    let machine = Meminfo::from_file("/proc/meminfo").ok().and_then(|info| info.mem_available);
    let group = groups(pid, "memory").into_iter().filter_map(|group| left_of_group(&group)).min();
    machine.into_iter().chain(group).min().is_some_and(|left| left < MIN_BYTES)
}

/// Whether the control groups of the process allow one more task, and still leave enough further tasks for the program.
pub fn has_room_for_a_task(pid: u32) -> bool {
    let left = |group: PathBuf| Some(number(&group, "pids.max")?.saturating_sub(number(&group, "pids.current")?));
    groups(pid, "pids").into_iter().filter_map(left).all(|left| left >= MIN_TASKS)
}

/// The memory that a control group may still use up to its limit; `None` without a limit. Pages of files that the
/// kernel can drop count as free.
fn left_of_group(group: &Path) -> Option<u64> {
    let limit = number(group, "memory.max").or_else(|| number(group, "memory.limit_in_bytes"))?;
    let used = number(group, "memory.current").or_else(|| number(group, "memory.usage_in_bytes"))?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // The value covers the control group and the groups below it; the second name is the one in control groups of
    // version 1.
    let files = ["inactive_file ", "total_inactive_file "].iter().filter_map(|name| {
        stat.lines().find_map(|line| line.strip_prefix(name)).and_then(|value| value.trim().parse::<u64>().ok())
    });
    Some(limit.saturating_sub(used.saturating_sub(files.max().unwrap_or(0))))
}

/// The number in a file of a control group; `None` if the file contains `max`, as in a group without a limit.
fn number(group: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

/// The control group of a process for a controller, and the groups above it, in both versions.
fn groups(pid: u32, controller: &str) -> Vec<PathBuf> {
    ProcessCGroups::from_file(format!("/proc/{pid}/cgroup")).map_or(Vec::new(), |all| groups_of(&all, controller))
}

fn groups_of(all: &ProcessCGroups, controller: &str) -> Vec<PathBuf> {
    let (top, mut found) = (Path::new("/sys/fs/cgroup"), Vec::new());
    for ProcessCGroup { hierarchy, controllers, pathname } in &all.0 {
        let mounts = match hierarchy {
            0 => [top.to_owned(), top.join("unified")],
            _ if controllers.iter().any(|one| one == controller) => {
                [top.join(controllers.join(",")), top.join(controller)]
            }
            _ => continue,
        };
        let path = pathname.trim_start_matches('/');
        for mount in mounts {
            found.extend(Path::new(path).ancestors().map(|group| mount.join(group)));
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found() {
        let of = |text: &str| {
            let all = ProcessCGroups::from_read(text.as_bytes()).unwrap();
            groups_of(&all, "memory").into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let version_2 = of("0::/system.slice/redis.service\n");
        assert!(version_2.contains(&"/sys/fs/cgroup/system.slice/redis.service".to_owned()), "{version_2:?}");
        assert!(version_2.contains(&"/sys/fs/cgroup/system.slice".to_owned()), "{version_2:?}");
        let version_1 = of("4:memory:/a/b\n3:cpu,cpuacct:/c\n1:name=systemd:/d\n");
        assert_eq!(version_1, ["/sys/fs/cgroup/memory/", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory/a/b"]);
    }

    #[test]
    fn droppable_files_count_as_free() {
        let group = std::env::temp_dir().join(format!("hugefork-keep-room-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let write = |file: &str, text: &str| fs::write(group.join(file), text).unwrap();
        assert_eq!(left_of_group(&group), None);
        write("memory.max", "max\n");
        write("memory.current", "900\n");
        assert_eq!(left_of_group(&group), None);
        write("memory.max", "1000\n");
        assert_eq!(left_of_group(&group), Some(100));
        write("memory.stat", "anon 600\ninactive_file 300\n");
        assert_eq!(left_of_group(&group), Some(400));
        fs::remove_dir_all(&group).unwrap();
    }
}
