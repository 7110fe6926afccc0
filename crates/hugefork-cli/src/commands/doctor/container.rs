//! Containers and control groups.

use super::check::{About, Check};
use super::root::{Root, size};

pub(super) fn look(root: &Root) -> Vec<Check> {
    vec![container(root), memory(root), hugetlb(root)]
}

fn container(root: &Root) -> Check {
    let about = About("container", "settings below /proc/sys and /sys are the host's; mend them there");
    let marks = ["/.dockerenv", "/run/.containerenv"].into_iter().find(|mark| root.at(mark).exists());
    let environment = root.text("/proc/1/environ").unwrap_or_default();
    let named = environment.split('\0').find_map(|one| one.strip_prefix("container="));
    about.pass(match (named, marks) {
        (Some(name), _) => format!("yes ({name})"),
        (None, Some(mark)) => format!("yes ({mark} is there)"),
        (None, None) => "no".to_owned(),
    })
}

/// The directories of this process's control group in version 2, and of the groups above it.
fn groups(root: &Root) -> Vec<String> {
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    // Where version 1 is mounted too, version 2 is one level down.
    let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let mount = mounts.into_iter().find(|mount| root.at(&format!("{mount}/cgroup.controllers")).exists());
    let Some(mount) = mount else { return Vec::new() };
    let own = format!("/{}", own.trim_end_matches('/'));
    let ends = own.match_indices('/').map(|(at, _)| at).chain([own.len()]);
    ends.map(|end| format!("{mount}{}", &own[..end])).collect()
}

/// The tightest limit of that name, and the group that has it.
fn tightest(root: &Root, file: &str) -> Option<(u64, String)> {
    let limit = |group: String| Some((root.number(&format!("{group}/{file}"))?, group));
    groups(root).into_iter().filter_map(limit).min()
}

fn memory(root: &Root) -> Check {
    let about = About("memory-limit", "when pools take more, the OOM killer ends the program");
    if let Some((limit, group)) = tightest(root, "memory.max") {
        let used = root.number(&format!("{group}/memory.current")).unwrap_or(0);
        let left = limit.saturating_sub(used);
        let found = format!("{} (memory.max), {} of it left", size(limit), size(left));
        return if left < 64 << 20 { about.warn(found) } else { about.pass(found) };
    }
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    let version_1 = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == "memory").then(|| path.trim_end_matches('/'))
    });
    let limit = version_1.and_then(|path| root.number(&format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")));
    match limit {
        Some(limit) if limit < root.memory("MemTotal").unwrap_or(0) => about.warn(format!(
            "{}, set in cgroup version 1, which hugefork does not read: keep pools smaller",
            size(limit)
        )),
        _ => about.pass("none"),
    }
}

fn hugetlb(root: &Root) -> Check {
    let about = About("hugetlb-limit", "the first use of a hugetlb block beyond it is a SIGBUS");
    let Some((limit, _)) = tightest(root, "hugetlb.2MB.max") else { return about.pass("none") };
    let pages = limit / (2 << 20);
    let found = format!("{pages} pages of 2 MiB (hugetlb.2MB.max)");
    let pool = root.number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").unwrap_or(0);
    if pages < pool { about.warn(format!("{found}, fewer than the {pool} there are")) } else { about.pass(found) }
}
