//! Containers and control groups.

use super::check::{About, Check};
use super::root::{Root, size};

pub(super) fn look(root: &Root) -> Vec<Check> {
    vec![container(root), memory(root), hugetlb(root)]
}

fn container(root: &Root) -> Check {
    let about = About("container", "settings below /proc/sys and /sys belong to the host; change them there");
    let marks = ["/.dockerenv", "/run/.containerenv"].into_iter().find(|mark| root.at(mark).exists());
    let environment = root.text("/proc/1/environ").unwrap_or_default();
    let named = environment.split('\0').find_map(|one| one.strip_prefix("container="));
    about.pass(match (named, marks) {
        (Some(name), _) => format!("yes ({name})"),
        (None, Some(mark)) => format!("yes ({mark} is there)"),
        (None, None) => "no".to_owned(),
    })
}

/// A version of control groups: the names of the files with a group's limit and usage, and a function for the groups.
struct Version {
    limit: &'static str,
    used: &'static str,
    groups: fn(&Root) -> Vec<String>,
}

const VERSIONS: [Version; 2] = [
    Version { limit: "memory.max", used: "memory.current", groups },
    Version { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", groups: groups_of_version_1 },
];

/// The directories of this process's control group in version 2, and of the groups above it.
fn groups(root: &Root) -> Vec<String> {
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    // If version 1 is mounted too, version 2 is one level down.
    let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let mount = mounts.into_iter().find(|mount| root.at(&format!("{mount}/cgroup.controllers")).exists());
    mount.map(|mount| and_above(mount, own)).unwrap_or_default()
}

/// The same for version 1 and its memory controller.
fn groups_of_version_1(root: &Root) -> Vec<String> {
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == "memory").then(|| path.trim_start_matches('/'))
    });
    own.map(|own| and_above("/sys/fs/cgroup/memory", own)).unwrap_or_default()
}

/// The group `own` below a mount, and those above it.
fn and_above(mount: &str, own: &str) -> Vec<String> {
    let own = format!("/{}", own.trim_end_matches('/'));
    let ends = own.match_indices('/').map(|(at, _)| at).chain([own.len()]);
    ends.map(|end| format!("{mount}{}", &own[..end])).collect()
}

/// The lowest limit in the files with that name in `groups`, and its group.
fn tightest(root: &Root, groups: Vec<String>, file: &str) -> Option<(u64, String)> {
    let limit = |group: String| Some((root.number(&format!("{group}/{file}"))?, group));
    groups.into_iter().filter_map(limit).min()
}

fn memory(root: &Root) -> Check {
    let about = About("memory-limit", "when pools take more, the OOM killer ends the program");
    // In version 1, a very large number means no limit.
    let most = i64::MAX as u64 >> 1;
    let found = VERSIONS.iter().filter_map(|version| {
        let (limit, group) = tightest(root, (version.groups)(root), version.limit)?;
        (limit < most).then_some((limit, group, version))
    });
    let Some((limit, group, version)) = found.min_by_key(|(limit, ..)| *limit) else { return about.pass("none") };
    let used = root.number(&format!("{group}/{}", version.used)).unwrap_or(0);
    let left = limit.saturating_sub(used);
    let found = format!("{} ({}), {} of it left", size(limit), version.limit, size(left));
    if left < 64 << 20 { about.warn(found) } else { about.pass(found) }
}

fn hugetlb(root: &Root) -> Check {
    let about = About("hugetlb-limit", "the first use of a hugetlb block beyond it is a SIGBUS");
    let Some((limit, _)) = tightest(root, groups(root), "hugetlb.2MB.max") else { return about.pass("none") };
    let pages = limit / (2 << 20);
    let found = format!("{pages} pages of 2 MiB (hugetlb.2MB.max)");
    let pool = root.number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").unwrap_or(0);
    if pages < pool { about.warn(format!("{found}, fewer than the {pool} there are")) } else { about.pass(found) }
}
